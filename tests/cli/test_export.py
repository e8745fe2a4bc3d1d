"""``phmctl export``, and what other commands do with an export."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phmctl.cli.main import app
from phmctl.errors import RunError
from phmctl.runs import Run
from tests.tasks.translation.runs import SOURCES, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of a random model. Shared: do not change it."""
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def folder(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its export to safetensors."""
    folder = Path(tmp_path_factory.mktemp("exports") / "out")
    done = CliRunner().invoke(app, ["export", str(run.folder), "--to", "safetensors", "-o", str(folder)])
    assert done.exit_code == 0, done.output
    assert "7 texts of test: 7 answers equal to torch's" in done.stdout
    return folder


def test_json_is_the_manifest(run: Run, tmp_path: Path) -> None:
    arguments = [
        "export",
        str(run.folder),
        "--to",
        "safetensors",
        "-o",
        str(tmp_path / "out"),
        "--json",
        "--form",
        "dense",
    ]
    document = json.loads(CliRunner().invoke(app, arguments).stdout)
    assert document["to"] == "safetensors"
    assert document["verification"]["scores"]["signature"].startswith("nrefs:1")
    assert "phm.safetensors" not in {entry["name"] for entry in document["files"]}


@pytest.mark.parametrize("options", [[], ["--n-best", "2"], ["--json"], ["--beam", "1"]], ids=str)
def test_decode_answers_as_with_the_run(run: Run, folder: Path, options: list[str]) -> None:
    text = "".join(f"{line}\n" for line in SOURCES)
    ours, theirs = (
        CliRunner().invoke(app, ["decode", str(path), *options], input=text) for path in (run.folder, folder)
    )
    assert theirs.exit_code == 0, theirs.output
    assert len(theirs.stdout.splitlines()) >= len(SOURCES)
    if "--json" not in options:  # whose scores have all their digits
        assert theirs.stdout == ours.stdout


def test_decode_a_split_of_an_export(run: Run, folder: Path) -> None:
    ours, theirs = (CliRunner().invoke(app, ["decode", str(path), "--split", "test"]) for path in (run.folder, folder))
    assert theirs.stdout == ours.stdout


def test_eval_of_an_export(folder: Path) -> None:
    done = CliRunner().invoke(app, ["eval", str(folder), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["run"].endswith("@safetensors")


def test_train_refuses_an_export(folder: Path) -> None:
    done = CliRunner().invoke(app, ["train", "--resume", str(folder)])
    assert isinstance(done.exception, RunError)
    assert "is an export, not a run" in str(done.exception)


def test_quantize_without_its_engine(run: Run) -> None:
    done = CliRunner().invoke(app, ["decode", str(run.folder), "--quantize", "int8"], input="x\n")
    assert "--quantize is CTranslate2's" in str(done.exception)
