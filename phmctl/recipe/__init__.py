"""Recipes: the schema, and how files and options become one."""
