"""Run directories: everything of one training in one folder that can be moved to another machine."""

from phmctl.runs.find import AUTO, DATA, EXPORT, RECIPE
from phmctl.runs.run import Run, Trained, Weights

__all__ = ["AUTO", "DATA", "EXPORT", "RECIPE", "Run", "Trained", "Weights"]
