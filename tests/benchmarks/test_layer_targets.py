"""The table of targets: what is measured, and how a miss shows."""

import json
from pathlib import Path

import pytest

from phmctl.benchmarks.timing import Spread
from tools import layer_targets
from tools.layer_targets import TARGETS, Outcome, Target, as_markdown, bench_targets


def outcome(tokens: int, mode: str, asked: float, ratio: float) -> Outcome:
    target = Target(16, 32, 4, tokens, mode, asked)
    return Outcome(
        target, Spread(ratio, ratio - 0.1, ratio + 0.1), Spread(1, 1, 1), 2, "rank mkl", "a processor", Spread(1, 1, 1)
    )


def test_a_miss_is_bold() -> None:
    text = as_markdown([outcome(512, "eval", 0.7, 0.6), outcome(512, "forward", 0.7, 0.8)])
    assert text.splitlines() == [
        "| d → k | n | eval, 512 tokens | forward, 512 tokens |",
        "|---|---|---|---|",
        "| 16 → 32 | 4 | 0.60 (0.50–0.70) ≤ 0.70 | **0.80 (0.70–0.90)** ≤ 0.70 |",
    ]


def test_all_shapes_are_asked_the_same() -> None:
    shapes = {(one.in_features, one.out_features, one.n) for one in TARGETS}
    assert (len(shapes), len(TARGETS)) == (6, 36)


def test_measured() -> None:
    (found,) = bench_targets([Target(16, 32, 4, 8, "forward+backward", 0.5)], rounds=2, execution="rank")
    assert found.ratio.lower > 0
    assert json.loads(json.dumps(found.as_json()))["target"]["asked"] == 0.5


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    some = [Target(16, 32, 4, 8, "eval", 1e9), Target(16, 32, 4, 8, "forward", 1e-9)]
    monkeypatch.setattr(bench_targets, "__defaults__", (some,))
    arguments = ["--rounds", "1", "--execution", "rank", "--output", str(tmp_path / "targets.json")]
    monkeypatch.setattr("sys.argv", ["layer_targets.py", *arguments])
    layer_targets.main()
    text = capsys.readouterr().out
    assert "≤ 1000000000.00" in text
    assert text.count("**") == 2
    assert [row["reached"] for row in json.loads((tmp_path / "targets.json").read_text())] == [True, False]
