"""The machine's file of choices: what was measured once on a processor, with a torch, need not be measured again.

It lies in the user's cache folder, one for each processor and version of torch, and may be deleted at any time.
``PHMCTL_CHOICES`` names another folder; ``off`` means none. Where it cannot be read or written, nothing is lost but
milliseconds.
"""

import json
import os
import platform
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from phmctl.console import warn
from phmctl.devices import processor_name
from phmctl.errors import OutputError
from phmctl.files import take_lock, write_json

VARIABLE = "PHMCTL_CHOICES"
OFF = ("", "0", "off")
_FORMAT = 1


def path() -> Path | None:
    """Return where the file lies, there or not; None where there shall be none."""
    given = os.environ.get(VARIABLE)
    if given is not None and given.lower() in OFF:
        return None
    try:
        folder = Path(given or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "phmctl")
    except RuntimeError:  # a user without a home
        return None
    name = re.sub(r"[^a-z0-9.]+", "-", f"{processor()} torch {torch.__version__}".lower())
    return folder / f"choices-{name}.json"


def read() -> dict[str, str]:
    """Return the choices in the file, by what they are for; a damaged file is warned of, once, and holds none."""
    where = path()
    try:
        text = None if where is None else where.read_bytes()
    except OSError:
        return {}
    if text is None:
        return {}
    try:
        found = json.loads(text)
        choices = found["choices"] if found["format"] == _FORMAT else {}
        if not all(isinstance(part, str) for pair in choices.items() for part in pair):
            raise ValueError("not text")
    except (ValueError, TypeError, KeyError, AttributeError):
        _warn_once(f"{where} is damaged and left out; delete it: what it held is measured again")
        return {}
    return dict(choices)


def add(choices: Mapping[str, str]) -> None:
    """Add choices to the file; what another process has put there meanwhile stays. A folder that refuses is left."""
    where = path()
    if where is None:
        return
    try:
        where.parent.mkdir(parents=True, exist_ok=True)
        with where.with_suffix(".lock").open("a") as lock:
            take_lock(lock.fileno(), wait=True)
            document: dict[str, Any] = {"format": _FORMAT, "processor": processor(), "torch": torch.__version__}
            write_json(where, document | {"choices": dict(choices) | read()})
    except (OSError, OutputError):
        return


@lru_cache
def processor() -> str:
    """Return the processor's name, as the system has it, and the instructions that torch uses of it."""
    return f"{processor_name() or platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"


@lru_cache
def _warn_once(text: str) -> None:
    warn(text)
