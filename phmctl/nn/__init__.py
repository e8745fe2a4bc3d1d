"""Layers: PHM linear maps and embeddings, attention, feed-forward."""
