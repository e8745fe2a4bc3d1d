"""The commands of docs/guide.md run in order, on little data, and print lines of the kinds that the guide shows."""

import re
import shlex
from pathlib import Path

import pytest

from phmctl import shipped
from tests.calls import call
from tests.conftest import TINY

GUIDE = (Path(__file__).parent.parent / "docs" / "guide.md").read_text(encoding="utf-8")
SHORT = [*TINY[:-2], "training.log_every=1", "training.batch_tokens=512"]
NUMBER = re.compile(r"(?:< )?[+−-]?\d[\d,.]*(?:e[+-]\d+)?(?::\d\d)*")


def examples() -> list[tuple[str, list[str]]]:
    """The commands of the guide, each with the lines that it prints."""
    blocks = re.findall(r"^```\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    parts = [part for block in blocks for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]]
    return [(part.splitlines()[0], part.splitlines()[1:]) for part in parts]


def kinds(lines: list[str]) -> list[str]:
    """The lines with `#` for numbers, and one blank between two columns."""
    return [re.sub(r"\s+", " ", NUMBER.sub("#", line)).strip() for line in lines]


def run(command: str) -> list[str]:
    """Run a command of the guide with short trainings; return its lines."""
    before, _, after = command.rpartition("| ")
    _, verb, *rest = shlex.split(after)
    text = Path(before.split()[3]).read_text(encoding="utf-8").splitlines(keepends=True)[:3] if before else []
    if verb not in ("train", "sweep"):
        result = call(verb, *rest, stdin="".join(text))
        return (result.stdout if text else result.output).splitlines()
    settings = [word for setting in SHORT for word in ("--set", setting)]
    rest = [word for word in rest if word not in ("--steps", "300")]
    at = rest.index("--n") + 1  # a sweep would start a process for each model
    calls = [call("train", *rest[:at], n, *rest[at + 1 :], *settings) for n in rest[at].split(",")]
    return [line for result in calls for line in result.output.splitlines()]


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(GUIDE.splitlines()) <= 150
    monkeypatch.chdir(tmp_path)
    for split, size in (("train", 2000), ("valid", 20), ("test", 20)):
        monkeypatch.setitem(shipped.SIZES, split, size)
    for split, each in shipped.read_miniature().items():
        rows = ["de\ten", *("\t".join(pair) for pair in each)]
        Path(f"{split}.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    for command, shown in examples():
        if command.startswith(("phmctl serve", "curl")):
            continue  # tests/serving
        printed = run(command)
        if "| phmctl decode" in command:
            assert len(printed) == len(shown)
        else:
            assert {*kinds(shown)} - {*kinds(printed), "…"} == set(), (command, printed)
