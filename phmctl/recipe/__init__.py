"""Recipes: the schema and its loader."""
