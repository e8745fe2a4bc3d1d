"""Measuring speed as a ratio."""
