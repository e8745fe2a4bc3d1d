"""Scoring a run."""
