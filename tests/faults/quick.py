"""A quick part of the sweeps, in one process: ``python -m tests.faults.quick FOLDER FILE``.

A kill at one write of each command and a full disk at one of two; and a sweep of code that leaves things behind, which
must be seen. The file gets what was found, as JSON.
"""

import json
import sys
from pathlib import Path

import phmctl.files
from tests.faults.harness import import_all
from tests.faults.sweep import Found, Sweeper, spread

POINTS = {
    "train": ("kill",),
    "train-resumed": ("kill", "full"),
    "prepare-data": ("kill",),
    "eval": ("kill",),
    "decode --output": ("kill",),
    "export --to safetensors": ("kill", "full"),
    "two processes": ("other",),
}


def main() -> int:
    """Sweep, first the code as it is, then without the clearing of leftovers."""
    import_all()
    sweeper = Sweeper(Path(sys.argv[1]))
    found = [_middle(sweeper, name, kind) for name, kinds in POINTS.items() for kind in kinds]
    phmctl.files.temporaries = lambda path: []
    careless = _middle(sweeper, "export --to safetensors", "kill")
    report = {"found": [vars(each) for each in found], "careless": vars(careless)}
    Path(sys.argv[2]).write_text(json.dumps(report))
    return 0


def _middle(sweeper: Sweeper, name: str, kind: str) -> Found:
    return sweeper.sweep(name, kind, spread(len(sweeper.undisturbed(name).calls), 1))


if __name__ == "__main__":
    sys.exit(main())
