"""Runs beside one another, and beside the published tables."""
