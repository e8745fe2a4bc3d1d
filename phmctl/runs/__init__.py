"""Run directories."""

from phmctl.runs.run import AUTO, DATA, EXPORT, RECIPE, Run, Trained, Weights

__all__ = ["AUTO", "DATA", "EXPORT", "RECIPE", "Run", "Trained", "Weights"]
