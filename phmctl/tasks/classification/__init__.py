"""Classification: labels for texts and for pairs of texts."""
