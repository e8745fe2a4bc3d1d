"""Measure the time from the shell to the first answer, for runs and exports, compared with `import torch`, as JSON.

    python tools/startup.py RUN [EXPORT …] --rounds 9

Each sample is a new process. `phmctl decode` gets one line on stdin, and `seconds` ends with its answer; for
`import torch` it ends after the import. `cpu_seconds` is the processor time of the whole process, which depends less on
other work on the machine.
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
IMPORT = f"{TORCH}; print('imported', flush=True)"


def sample(command: list[str]) -> tuple[float, float]:
    """Return the seconds to the first line on stdout, and the processor seconds of the process."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("no pipes")
        process.stdin.write(f"{LINE}\n".encode())
        process.stdin.close()
        answer = process.stdout.readline()
        seconds = time.perf_counter() - started
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode or not answer:
        raise SystemExit(f"{' '.join(command)} failed with exit code {process.returncode}")
    return seconds, usage.ru_utime + usage.ru_stime


def spread(values: list[float]) -> dict[str, float]:
    """Return the median, the quartiles and the minimum of some samples."""
    lower, median, upper = statistics.quantiles(values, n=4, method="inclusive")
    statistic = {"median": median, "lower": lower, "upper": upper, "best": min(values)}
    return {name: round(value, 3) for name, value in statistic.items()}


def main() -> None:
    """Measure all candidates in turns, and print a JSON document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", type=Path, metavar="RUN_OR_EXPORT")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    commands = {TORCH: [sys.executable, "-c", IMPORT]}
    commands |= {str(model): [sys.executable, "-c", DECODE, "decode", str(model)] for model in options.models}
    for command in commands.values():
        sample(command)  # fills the disk cache
    samples: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(options.rounds):
        for name, command in commands.items():
            samples[name].append(sample(command))
    rows = []
    for name in commands:
        row: dict[str, object] = {"candidate": name}
        for index, key in enumerate(("seconds", "cpu_seconds")):
            values = [times[index] for times in samples[name]]
            baseline = [times[index] for times in samples[TORCH]]
            row[key] = spread(values)
            row[f"{key}_to_torch"] = spread([value / torch for value, torch in zip(values, baseline, strict=True)])
        rows.append(row)
    print(json.dumps({"rounds": options.rounds, "candidates": rows}, indent=2))  # noqa: T201


if __name__ == "__main__":
    main()
