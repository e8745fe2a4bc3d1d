"""phmctl's command line."""
