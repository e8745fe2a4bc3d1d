"""``phmctl runs``."""

import json
import shutil
import time
from pathlib import Path

import pytest

from phmctl.errors import RecipeError
from phmctl.recipe.documents import parse_document
from phmctl.recipe.loading import dump_recipe, validate_recipe
from phmctl.recipe.schema import flatten
from phmctl.runs import Run
from phmctl.runs.run import write_recipe
from phmctl.runs.summary import summarise
from phmctl.storage import write_json
from tests.calls import call, rows_of


@pytest.fixture
def root(tmp_path: Path, tiny_run: Run) -> Path:
    """Three runs of the miniature that differ in settings."""
    base = tmp_path / "miniature/phm-n4"
    written = {"unmodified": dict(flatten(tiny_run.recipe.model_dump()))}
    changes = (("", ""), ("dropout: 0.0\n", "dropout: 0.4\n"), ("seed: 1\n", "seed: 2\n"))
    for number, (old, new) in enumerate(changes, 1):
        shutil.copytree(tiny_run.folder, base / f"v{number:03d}")
        write_json(base / f"v{number:03d}/environment.json", tiny_run.environment() | written)
        text = dump_recipe(tiny_run.recipe).replace(old, new, 1)
        write_recipe(base / f"v{number:03d}", validate_recipe(parse_document(text, "", RecipeError)))
    return tmp_path


def test_runs_with_different_settings_are_distinguished(root: Path) -> None:
    rows = rows_of(call("runs", "--runs", root).stdout)
    rows = {name: row for name, row in rows.items() if name.startswith("phm-")}
    assert list(rows) == ["phm-n4/v001", "phm-n4/v002", "phm-n4/v003"]
    assert "dropout=0.4" in rows["phm-n4/v002"][0]
    assert "dropout" not in rows["phm-n4/v001"][0] + rows["phm-n4/v003"][0]
    best = summarise(root / "miniature/phm-n4/v001").best
    assert best is not None
    for row, seed in zip(rows.values(), (1, 1, 2), strict=True):
        assert row[-6:-2] == [str(seed), "6/6", "finished", f"{best.value:.4g}"]


def test_json_is_the_summaries(root: Path) -> None:
    listed = json.loads(call("runs", "miniature/phm-n4/v002", "--runs", root, "--json").stdout)
    assert listed == [json.loads(json.dumps(summarise(root / "miniature/phm-n4/v002").as_json()))]
    assert listed[0]["changed"]["model.dropout"] == {"recipe": 0.0, "run": 0.4}


def test_failed_and_damaged_runs_are_reported(root: Path) -> None:
    run = Run.open(root / "miniature/phm-n4/v001")
    with pytest.raises(ValueError, match="boom"), run.attempted():
        raise ValueError("boom")
    (root / "miniature/phm-n4/v003/recipe.yaml").unlink()
    done = call("runs", "--runs", root)
    assert done.exit_code == 0
    assert "failed" in rows_of(done.stdout)["phm-n4/v001"]
    assert "miniature/phm-n4/v001 failed: boom" in done.stderr
    assert f"{root}/miniature/phm-n4/v003/recipe.yaml" in done.stderr


def test_a_hundred_runs_are_listed_soon(tmp_path: Path, tiny_run: Run) -> None:
    source = tmp_path / "miniature/phm-n4/v001"
    shutil.copytree(tiny_run.folder, source, ignore=shutil.ignore_patterns("optimizer.*", "tokenizer", "text"))
    for number in range(2, 101):
        shutil.copytree(source, source.with_name(f"v{number:03d}"))
    began = time.process_time()
    assert len(call("runs", "--runs", tmp_path).stdout.splitlines()) > 100
    assert time.process_time() - began < 4  # seconds; about 0.7 on an idle machine
