"""Run directories: everything of one training in one folder that can be moved to another machine."""

from phmctl.runs.find import AUTO, DATA, ENVIRONMENT, EXPORT, RECIPE, runs_root
from phmctl.runs.run import (
    Loaded,
    Run,
    Weights,
    check_checkpoint,
    check_split,
    describe_environment,
    read_recipe,
    splits_asked,
    write_recipe,
)

__all__ = [
    "AUTO",
    "DATA",
    "ENVIRONMENT",
    "EXPORT",
    "RECIPE",
    "Loaded",
    "Run",
    "Weights",
    "check_checkpoint",
    "check_split",
    "describe_environment",
    "read_recipe",
    "runs_root",
    "splits_asked",
    "write_recipe",
]
