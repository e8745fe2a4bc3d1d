"""Scores of text against references."""
