"""Write trained models in the formats of other programs."""
