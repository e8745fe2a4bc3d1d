"""Run directories."""

from phmctl.runs.find import AUTO, DATA, EXPORT, RECIPE
from phmctl.runs.run import Run, Trained, Weights

__all__ = ["AUTO", "DATA", "EXPORT", "RECIPE", "Run", "Trained", "Weights"]
