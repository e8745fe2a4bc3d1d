"""A model as a server."""
