"""Prepared data: how it is built, what lies in its folder, and what people are shown of it."""
