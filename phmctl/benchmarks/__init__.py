"""Benchmarks: speeds as ratios to a baseline, and learning rates by their effect."""
