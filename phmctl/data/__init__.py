"""Datasets: cards, readers, tokenization, preparation, batching."""
