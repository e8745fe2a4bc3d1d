"""Counting parameters."""
