"""Scores of texts and labels, and tests of their differences."""
