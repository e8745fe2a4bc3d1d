"""The version of phmctl."""

__version__ = "0.1.0"
