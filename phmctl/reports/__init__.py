"""A page about several runs: one HTML file that needs nothing else."""
