"""From the shell to the first answer: a run, an export, and `import torch` alone, in turns, with the spread, as JSON.

    python tools/startup.py RUN [EXPORT …] --rounds 9

Each sample is a process of its own: `phmctl decode` gets one line on stdin, and the clock stops when its answer has
come; for `import torch`, when a line behind it has been printed. `cpu_seconds` is what the whole process took of the
processors, which other work on the machine changes less than the time that passes.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LINE = "Sophie wandert zum kleinen Hafen."
DECODE = "from phmctl.cli.main import run; run()"
TORCH = "import torch"
IMPORT = f"{TORCH}; print('there', flush=True)"


def sample(command: list[str]) -> tuple[float, float]:
    """Return the seconds to the first line on stdout, and the processor seconds of the whole process."""
    began = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        process.stdin.write(f"{LINE}\n".encode())
        process.stdin.close()
        answer = process.stdout.readline()
        seconds = time.perf_counter() - began
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not answer:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime


def spread(values: list[float]) -> dict[str, float]:
    """Return the median, the quartiles and the best of some samples."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    named = {"median": median, "lower": lower, "upper": upper, "best": min(values)}
    return {name: round(value, 3) for name, value in named.items()}


def main() -> None:
    """Measure, and print one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="RUN_OR_EXPORT")
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    commands = {TORCH: [sys.executable, "-c", IMPORT]}
    commands |= {str(model): [sys.executable, "-c", DECODE, "decode", str(model)] for model in asked.models}
    for command in commands.values():
        sample(command)  # what is on the disk is in memory from here on
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(asked.rounds):
        for name, command in commands.items():
            taken[name].append(sample(command))
    rows = []
    for name, samples in taken.items():
        row: dict[str, object] = {"candidate": name}
        for place, key in enumerate(("seconds", "cpu_seconds")):
            row[key] = spread([each[place] for each in samples])
            ratios = [each[place] / torch[place] for each, torch in zip(samples, taken[TORCH], strict=True)]
            row[f"{key}_to_torch"] = spread(ratios)
        rows.append(row)
    print(json.dumps({"rounds": asked.rounds, "candidates": rows}, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
