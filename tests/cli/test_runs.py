"""``phmctl runs`` and ``train --tag``."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from phmctl.cli.main import app
from phmctl.errors import RunError, UserError
from phmctl.runs import Run
from phmctl.runs.summary import summarise


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def root(tmp_path: Path, tiny_run: Run) -> Path:
    """Three runs of the miniature that differ in settings."""
    base = tmp_path / "miniature/phm-n4"
    changes = (("", ""), ("dropout: 0.1\n", "dropout: 0.4\n"), ("seed: 1\n", "seed: 2\n"))
    for number, (old, new) in enumerate(changes, 1):
        shutil.copytree(tiny_run.folder, base / f"v{number:03d}")
        recipe = base / f"v{number:03d}/recipe.yaml"
        recipe.write_text(recipe.read_text().replace(old, new, 1))
    return tmp_path


def rows_of(output: str) -> dict[str, str]:
    return {line.split()[0]: " ".join(line.split()[1:]) for line in output.splitlines() if line.startswith("phm")}


def test_runs_of_other_settings_are_told_apart(root: Path) -> None:
    environment = dict(os.environ)
    rows = rows_of(call("runs", "--runs", root).stdout)
    assert os.environ == environment
    assert list(rows) == ["phm-n4/v001", "phm-n4/v002", "phm-n4/v003"]
    assert "dropout=0.4" in rows["phm-n4/v002"]
    assert "dropout" not in rows["phm-n4/v001"] + rows["phm-n4/v003"]
    best = summarise(root / "miniature/phm-n4/v001").best
    assert best is not None
    for row, seed in zip(rows.values(), (1, 1, 2), strict=True):
        assert f" {seed} 6/6 finished {best.value:.4g} " in row


def test_json_is_the_summaries(root: Path) -> None:
    found = json.loads(call("runs", "miniature/phm-n4/v002", "--runs", root, "--json").stdout)
    assert found == [json.loads(json.dumps(summarise(root / "miniature/phm-n4/v002").as_json()))]
    assert found[0]["changed"]["model.dropout"] == {"recipe": 0.1, "run": 0.4}


def test_what_failed_and_what_is_damaged_is_said(root: Path) -> None:
    run = Run.open(root / "miniature/phm-n4/v001")
    with pytest.raises(ValueError, match="boom"), run.attempted():
        raise ValueError("boom")
    (root / "miniature/phm-n4/v003/recipe.yaml").unlink()
    done = call("runs", "--runs", root)
    assert done.exit_code == 0
    assert "failed" in rows_of(done.stdout)["phm-n4/v001"]
    assert "miniature/phm-n4/v001 failed: boom" in done.stderr
    assert f"warning: {root}/miniature/phm-n4/v003 is not a run: recipe.yaml is missing" in done.stderr


def test_a_variant_by_itself_is_told_how_to_be_named(root: Path) -> None:
    """`runs miniature real`: the second is no run, and which one is meant is said."""
    variant = next(root.glob("*/*/v001")).parent
    with pytest.raises(RunError, match=f"named behind its recipe: .*{variant.parent.name}/{variant.name}"):
        call("runs", variant.parent.name, variant.name, "--runs", root)


def test_no_runs(tmp_path: Path) -> None:
    done = call("runs", "--runs", tmp_path)
    assert (done.stdout, done.exit_code) == ("", 0)
    assert f"no runs in {tmp_path}" in done.stderr
    with pytest.raises(RunError, match="no run at x"):
        call("runs", "x", "--runs", tmp_path)


def test_a_hundred_runs_are_listed_soon(tmp_path: Path, tiny_run: Run) -> None:
    source = tmp_path / "miniature/phm-n4/v001"
    shutil.copytree(tiny_run.folder, source, ignore=shutil.ignore_patterns("optimizer.*", "tokenizer", "text"))
    for number in range(2, 101):
        shutil.copytree(source, source.with_name(f"v{number:03d}"))
    began = time.process_time()
    assert len(rows_of(call("runs", "--runs", tmp_path).stdout)) == 100
    assert time.process_time() - began < 4  # a fifth of them; about 0.7 on an idle machine


def test_a_tag_names_a_run(miniature_data: Path, tmp_path: Path) -> None:
    options = ["--steps", 1, "--set", "model.width=16", "--set", "training.validate_every=1", "--set", "model.heads=2"]
    where = ["--data", miniature_data, "--runs", tmp_path]
    folder = Path(call("train", "miniature", *options, *where, "--tag", "first-try").stdout.strip())
    assert summarise(folder).tag == "first-try"
    shown = call("runs", "first-try", "--runs", tmp_path).stdout
    assert [line for line in shown.splitlines() if "first-try" in line and "1/1" in line]
    with pytest.raises(UserError, match="--tag first-try names a new run"):
        call("train", "--resume", folder, "--tag", "first-try")
    with pytest.raises(UserError, match=r"--tag a/b: want a name of letters"):
        call("train", "miniature", *where, "--tag", "a/b")
