"""Where and with what a training runs: ``environment.json``."""

import importlib.metadata
import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl import __version__
from phmctl.devices import processor_name

if TYPE_CHECKING:
    from phmctl.recipe.schema import Recipe

_LIBRARIES = ("torch", "tokenizers", "datasets", "sacrebleu", "safetensors", "numpy")


def describe_environment(recipe: "Recipe") -> dict[str, Any]:
    """Where and with what this process runs: versions, platform, seed, git revision, time."""
    return {
        "phmctl": __version__,
        "git": git_revision(),
        "python": platform.python_version(),
        "libraries": {name: _installed(name) for name in _LIBRARIES},
        "platform": platform.platform(),
        "processor": processor_name(),
        "processors": os.cpu_count(),
        "seed": recipe.training.seed,
        "precision": recipe.training.precision,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """The commit of the checkout that phmctl is imported from (``-dirty`` when changed), or None."""
    checkout = Path(__file__).resolve().parent.parent.parent
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
