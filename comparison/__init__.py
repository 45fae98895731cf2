"""Everything behind compare_parallel.py: plan the rows, run them, judge the results, show them. Never imports torch."""
