"""Prepared data: preparation, storage and provenance."""
