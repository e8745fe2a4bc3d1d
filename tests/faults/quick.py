"""A quick part of the sweeps, in one process: ``python -m tests.faults.quick FOLDER FILE``.

A kill at one write of each command and a full disk at one of two. The outcomes are written to the file as JSON.
"""

import json
import sys
from pathlib import Path

from tests.faults.harness import import_all
from tests.faults.sweep import Sweeper

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
    import_all()
    sweeper = Sweeper(Path(sys.argv[1]))
    outcomes = []
    for name, disturbances in POINTS.items():
        point = 1 + len(sweeper.undisturbed(name).calls) // 3
        outcomes += [vars(sweeper.sweep(name, disturbance, [point])) for disturbance in disturbances]
    Path(sys.argv[2]).write_text(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    sys.exit(main())
