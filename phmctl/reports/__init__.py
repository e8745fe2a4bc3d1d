"""HTML reports about several runs."""
