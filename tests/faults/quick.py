"""A quick part of the sweeps, in one process: ``python -m tests.faults.quick FOLDER FILE``.

A kill at one write of each command and a full disk at one of two; and a sweep of code that leaves things behind, which
must be detected. The outcomes are written to the file as JSON.
"""

import json
import sys
from pathlib import Path

import phmctl.storage
from tests.faults.harness import import_all
from tests.faults.sweep import Outcome, Sweeper, spread

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
    outcomes = [
        _middle(sweeper, name, disturbance) for name, disturbances in POINTS.items() for disturbance in disturbances
    ]
    phmctl.storage.leftovers = lambda path: []
    careless = _middle(sweeper, "export --to safetensors", "kill")
    report = {"outcomes": [vars(outcome) for outcome in outcomes], "careless": vars(careless)}
    Path(sys.argv[2]).write_text(json.dumps(report))
    return 0


def _middle(sweeper: Sweeper, name: str, disturbance: str) -> Outcome:
    return sweeper.sweep(name, disturbance, spread(len(sweeper.undisturbed(name).calls), 1))


if __name__ == "__main__":
    sys.exit(main())
