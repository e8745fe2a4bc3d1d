"""Compare runs with each other and with published tables."""
