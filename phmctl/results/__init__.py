"""Compare runs, count parameters, and write reports."""
