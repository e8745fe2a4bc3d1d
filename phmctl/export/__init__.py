"""Trained runs in the forms that other programs read."""
