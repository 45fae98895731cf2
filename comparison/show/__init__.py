"""Show a comparison: sentences, tables and figures on the terminal and in report files."""
