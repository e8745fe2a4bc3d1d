"""Translation and style transfer."""
