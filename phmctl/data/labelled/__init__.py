"""Labelled text, beside parallel text: cards, readers, cleaning, preparation, batching."""
