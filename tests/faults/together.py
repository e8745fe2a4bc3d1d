"""Two processes that train together, the first killed at a write: ``python -m tests.faults.together [POINTS]``.

All writes are the first process's. Each point starts six Python processes, so some of the writes are taken.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.faults.harness import preloaded
from tests.faults.scenarios import RECIPE, contents, differences, scenarios, write_inputs


def main() -> int:
    """Kill, go on, compare; return 1 if anything was wrong."""
    points = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder) / "work"
        work.mkdir()
        environment = preloaded(Path(folder))
        write_inputs(work)
        divided = RECIPE.replace("{steps: 6, batch_tokens: 128", "{steps: 6, accumulate: 2, batch_tokens: 64")
        (work / "recipe.yaml").write_text(divided)
        commands = {each.name: tuple(each.command) for each in scenarios(work)}
        prepare, train = commands["prepare-data"], commands["train"]
        _phmctl(prepare, environment)
        together = (*train, "--processes", "2")
        whole = _phmctl(together, environment)
        if whole.returncode:
            print(whole.stderr)  # noqa: T201
            return 1
        wanted = contents(work)
        wrong = 0
        for at in [1 + (2 * number + 1) * 300 // (2 * points + 1) for number in range(points)]:
            wrong += _point(work, together, environment, at, wanted)
    print(f"{points} points, {wrong} wrong")  # noqa: T201
    return int(wrong > 0)


def _point(work: Path, command: tuple[str, ...], environment: dict[str, str], at: int, wanted: dict[str, str]) -> int:
    subprocess.run(["rm", "-rf", str(work / "runs")], check=True)
    began = time.monotonic()
    armed = environment | {"FAULT_RANK": "0", "FAULT_BELOW": str(work), "FAULT_AT": str(at)}
    killed = _phmctl(command, armed)
    begun = any((work / "runs").glob("*/*/v*"))
    again = _phmctl((*command, "--resume") if begun else command, environment)
    found = differences(wanted, contents(work))
    problems = found + ([] if killed.returncode == 1 else [f"exit {killed.returncode}"])
    problems += [f"again: {again.returncode} {again.stderr[-500:]}"] if again.returncode else []
    said = re.sub(r"\s+", " ", killed.stderr)[-300:]
    seconds = time.monotonic() - began
    ends = f"exit {killed.returncode}, then {again.returncode}"
    print(f"rank 0 killed at {at}: {ends}; {problems or 'the same'}; {seconds:.0f} s; {said}", flush=True)  # noqa: T201
    return int(bool(problems))


def _phmctl(command: tuple[str, ...], environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", "from phmctl.cli.main import run; run()", *command]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False, timeout=300)


if __name__ == "__main__":
    sys.exit(main())
