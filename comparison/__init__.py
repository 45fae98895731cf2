"""All that compare_parallel.py needs: which runs, how to start them, and what to make of their results. Never torch."""
