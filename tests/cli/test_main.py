"""The command line as a process: exit codes, error lines, what goes to which stream."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from phmctl.runs import Run


def phmctl(*arguments: object, stdin: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from phmctl.cli.main import run; run()", *map(str, arguments)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, input=stdin, capture_output=True, text=True, cwd=cwd, env=environment, check=False)


def test_help_needs_no_torch() -> None:
    code = "import sys; from phmctl.cli.main import app; sys.exit(any(m in sys.modules for m in {heavy!r}))"
    heavy = ("torch", "datasets", "pydantic", "sacrebleu", "numpy", "rich.console")
    assert subprocess.run([sys.executable, "-c", code.format(heavy=heavy)], check=False).returncode == 0


def test_help_lists_the_subcommands() -> None:
    done = phmctl("--help")
    assert done.returncode == 0
    for name in ("prepare-data", "train", "decode", "eval", "count-params", "bench"):
        assert name in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "multi30k-deen"], "did you mean 'multi30k-de-en'"),
        (["train", "miniature", "--n", "3"], "n = 3 does not divide"),
        (["train", "miniature", "--set", "training.stesp=1"], "did you mean 'steps'"),
        (["train", "miniature", "--data", "nowhere"], "phmctl prepare-data miniature"),
        (["prepare-data", "multi30k"], "did you mean 'multi30k-de-en'"),
        (["prepare-data", "multi30k-de-en", "--source", "nowhere"], "nowhere"),
        (["count-params", "miniature", "--algebra", "quaternions"], "did you mean 'quaternion'"),
        (["decode", "no-such-run"], "no-such-run"),
        (["bench", "layer", "--n", "x"], "whole numbers"),
    ],
)
def test_wrong_input_is_said_in_a_few_lines_with_exit_code_2(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = phmctl(*arguments, cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) <= 4
    assert list(tmp_path.iterdir()) == []  # nothing half written


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = phmctl("--debug", "train", "nothing", cwd=tmp_path)
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "RecipeError" in done.stderr


def test_unknown_option_is_exit_code_2() -> None:
    assert phmctl("train", "miniature", "--frobnicate").returncode == 2


def test_decode_writes_only_text_to_stdout(tiny_run: Run) -> None:
    done = phmctl("decode", tiny_run.folder, "--checkpoint", "last", stdin="Der Mann schläft.\n\nDas Kind singt.\n")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split("\n")
    assert len(lines) == 4
    assert lines[1] == ""
    assert lines[3] == ""


def test_json_is_one_document_on_stdout() -> None:
    done = phmctl("count-params", "miniature", "--n", "4", "--json")
    assert done.returncode == 0, done.stderr
    assert isinstance(json.loads(done.stdout), dict)
