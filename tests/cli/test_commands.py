"""``recipes``, ``count-params``, ``export`` and ``eval`` through the command line."""

import json
import shutil
from pathlib import Path

import pytest

from phmctl.recipe.loading import load_recipe
from phmctl.runs import Run
from phmctl.shipped import shipped_names
from tests.calls import call, rows_of
from tests.data.helpers import flip
from tests.tasks.translation.runs import SOURCES, evaluate


def test_every_recipe_is_listed_and_a_named_recipe_is_shown_with_its_comments() -> None:
    rows = rows_of(call("recipes").stdout)
    for name in shipped_names("recipes"):
        assert rows[name] == [load_recipe(name).task, load_recipe(name).description]
    assert [recipe["name"] for recipe in json.loads(call("recipes", "--json").stdout)] == shipped_names("recipes")
    document = json.loads(call("recipes", "hamilton", "--json").stdout)
    assert document["recipe"] == json.loads(json.dumps(load_recipe("hamilton").model_dump()))
    assert Path(document["path"]).read_text(encoding="utf-8") == document["text"] == call("recipes", "hamilton").stdout


@pytest.mark.parametrize(
    ("args", "variants", "parameters"),
    [
        ("ceng501-de-en --n 1,16", ["ceng501-de-en real", "ceng501-de-en phm-n16"], [27_309_056, 1_844_224]),
        ("octonion", ["phm-n8"], [640]),
        ("probe", ["real"], [512 * 50 + 50 + 50 * 2 + 2]),
        ("multi30k-de-en --algebra low-rank --set model.rank=8", ["multi30k-de-en low-rank-r8"], None),
        ("miniature --n 4 --set model.rank=5", ["phm-n4-r5"], None),
        ("miniature --n 4 --set model.algebra=quaternion", ["miniature quaternion"], None),
    ],
)
def test_variants_are_counted(args: str, variants: list[str], parameters: list[int] | None) -> None:
    counted = json.loads(call("count-params", *args.split(), "--json").stdout)["variants"]
    assert [variant["name"].split()[-1] for variant in counted] == [name.split()[-1] for name in variants]
    assert parameters in (None, [variant["totals"]["parameters"] for variant in counted])


def test_an_export_decodes_as_its_run(run: Run, tmp_path: Path) -> None:
    done = call("export", run.folder, "--to", "safetensors", "-o", tmp_path / "out", "--with-text", "--json")
    document = json.loads(done.stdout)
    assert (document["to"], document["verification"]["scores"]["signature"][:7]) == ("safetensors", "nrefs:1")
    text = "".join(f"{line}\n" for line in SOURCES)
    for options in ([], ["--n-best", "2"], ["--beam", "1"]):
        from_run, from_export = (
            call("decode", folder, *options, stdin=text) for folder in (run.folder, tmp_path / "out")
        )
        assert len(from_export.stdout.splitlines()) >= len(SOURCES)
        assert from_export.stdout == from_run.stdout
    assert json.loads(call("eval", tmp_path / "out", "--json").stdout)["run"].endswith("@safetensors")


def test_eval_shows_scores_with_signatures(run: Run) -> None:
    printed = call("eval", run.folder).stdout
    for score in evaluate(run).scores:
        assert rows_of(printed)[score.name] == [f"{score.value:.2f}"]
        assert f"\n{score.name}: {score.signature}\n" in printed  # a line of its own, to be copied
    assert "step-000002" in printed
    assert "1–10" in printed


def test_options_reach_the_search(run: Run) -> None:
    options = ("--checkpoint", "last", "--beam", 1, "--alpha", 0.2, "--lowercase", "--json")
    document = json.loads(call("eval", run.folder, *options).stdout)
    assert document["checkpoint"] == "step-000001"
    assert (document["decoding"]["beam"], document["decoding"]["alpha"]) == (1, 0.2)
    assert "case:lc" in document["scores"][0]["signature"]
    assert len(list(run.results_folder.glob("test.step-000001.beam-1.alpha-0.2.*.hyp"))) == 1


def test_compare_fails_if_a_run_could_not_be_scored(copied_run: Run) -> None:
    assert call("compare", copied_run.folder, "--eval").exit_code == 0
    shutil.rmtree(copied_run.folder / "results")
    for path in copied_run.checkpoints_folder.glob("*/model.safetensors"):
        flip(path)
    assert call("compare", copied_run.folder).exit_code == 0
    assert call("compare", copied_run.folder, "--eval").exit_code == 1
