"""Open trained models, and answer lines with them."""
