"""Beginning with another run's tensors: what is taken, what is new, what was left, and what is refused."""

import re
import shutil
from pathlib import Path

import pytest
import torch

from phmctl.errors import RunError
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import Recipe, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.results import read_metrics
from phmctl.saving import model_tensors
from phmctl.storage import read_checkpoint
from phmctl.tasks import trains
from phmctl.training.start import Start, find_start
from phmctl.training.train import train
from tests.calls import call
from tests.conftest import TINY
from tests.tasks.test_rule import rule_recipe

FEW = ("training.steps=1", "training.validate_every=1", "training.save_every=1", "training.average=0")
SHORT = {setting.partition("=")[0]: setting for setting in ("model.algebra=phm", "model.n=4", *TINY, *FEW)}.values()


def changed(source: Path | str, *settings: str) -> TranslationRecipe:
    """The tiny run's recipe, begun with its tensors."""
    recipe: TranslationRecipe = load_recipe("miniature", [*SHORT, f"training.initialise_from={source}", *settings])
    return recipe


def start_of(recipe: Recipe, data: Path) -> Start:
    start = find_start(recipe, trains(recipe).open(recipe, data))
    assert start is not None
    return start


def tensors_of(run: Run) -> dict[str, torch.Tensor]:
    return dict(read_checkpoint(run.checkpoint("best"), ["model"]).tensors["model"])


def validations(run: Run) -> list[dict[str, float]]:
    return [entry for entry in read_metrics(run.metrics_path) if entry["event"] == "validation"]


def test_a_composed_model_begins_with_its_base(tiny_run: Run, miniature_data: Path) -> None:
    """The output maps are left, the compositions are new, all else is taken."""
    start = start_of(changed(tiny_run.folder, "model.compose_heads=bilinear"), miniature_data)
    assert all(re.search(r"attention\.output\.[UVP]", name) for name in start.record["new"])
    assert {name.rpartition(".")[0] for name in start.record["left"]} == {
        "encoder.0.attention.output",
        "decoder.0.attention.output",
        "decoder.0.cross_attention.output",
    }
    assert start.tensors.keys() == tensors_of(tiny_run).keys() - set(start.record["left"])
    new = ", ".join(f"encoder.*.attention.output.{part}" for part in ("U.maps.*", "V.maps.*", "P"))
    assert f"new: {new}, decoder.*" in start.summary()
    assert start.summary().endswith("encoder.*.attention.output")


def test_maps_without_a_nearest_weight_are_new_and_the_others_are_left(tiny_run: Run, miniature_data: Path) -> None:
    """No factors are computed for the A of another run."""
    factors = ("model.rank=2",)
    start = start_of(changed(tiny_run.folder, *factors), miniature_data)
    left = {name for name in tensors_of(tiny_run) if name.endswith(".S") and name.startswith(("encoder", "decoder"))}
    assert left
    assert left <= {*start.record["left"]}
    assert left.isdisjoint(start.tensors)


def test_training_begins_where_the_other_ended_and_says_so(
    tiny_run: Run, miniature_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a rate of nearly nothing, the first validation is the source's."""
    recipe = changed(tiny_run.folder, "training.learning_rate=1e-12", "training.warmup=0")
    run = train(recipe, data=miniature_data, runs=tmp_path).run
    path, noted = tiny_run.checkpoint("best") / "model.safetensors", run.environment()["initialised_from"]
    step = int(path.parent.name.removeprefix("step-"))
    (expected,) = [entry["loss"] for entry in validations(tiny_run) if entry["step"] == step]
    assert validations(run)[0]["loss"] == pytest.approx(expected, abs=1e-5)
    assert (noted["run"], noted["checkpoint"]) == (str(tiny_run.folder.resolve()), path.parent.name)
    assert set(noted["taken"]) == tensors_of(tiny_run).keys()
    assert f"initialised: {len(noted['taken'])} tensors taken from {tiny_run.folder}" in capsys.readouterr().err
    assert run.recipe.training.initialise_from == str(tiny_run.folder)


def test_training_begins_with_the_average_where_the_steps_were_removed(
    tiny_run: Run, miniature_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_run.folder, tmp_path / "source")
    for step in (tmp_path / "source/checkpoints").glob("step-*"):
        shutil.rmtree(step)
    start = start_of(changed(tmp_path / "source"), miniature_data)
    assert start.record["checkpoint"] == "average"
    assert start.tensors.keys() == tensors_of(tiny_run).keys()


def test_resuming_does_not_begin_again(tiny_run: Run, miniature_data: Path, tmp_path: Path) -> None:
    """The source may be gone by then; what it was is still noted."""
    source = tmp_path / "source"
    shutil.copytree(tiny_run.folder, source)
    constant = "training.schedule=inverse_sqrt"  # more steps change no rate
    first = train(changed(source, constant), data=miniature_data, runs=tmp_path).run
    shutil.rmtree(source)
    second = train(changed(source, constant, "training.steps=2"), data=miniature_data, runs=tmp_path, resume=True)
    assert (second.run.folder, second.steps) == (first.folder, 2)
    assert second.run.environment()["initialised_from"]["run"] == str(source)
    other = train(changed(tiny_run.folder, constant), data=miniature_data, runs=tmp_path, resume=True)
    assert other.run.folder != first.folder


@pytest.mark.parametrize(
    ("setting", "place"),
    [("model.width=64", "model.width"), ("data.vocabulary=300", "vocabulary")],
)
def test_a_run_of_another_width_or_vocabulary_is_refused(
    tiny_run: Run, miniature_data: Path, tmp_path: Path, setting: str, place: str
) -> None:
    recipe = changed(tiny_run.folder, setting)
    if setting.startswith("data"):
        from phmctl.data.card import load_card
        from phmctl.data.prepare import prepare

        miniature_data = tmp_path / "data"
        prepare(recipe.data, load_card(recipe.data.card), root=miniature_data)
    with pytest.raises(RunError, match=re.escape(place)):
        train(recipe, data=miniature_data, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()  # nothing was begun


def test_a_run_of_another_task_not_there_or_damaged(tiny_run: Run, miniature_data: Path, tmp_path: Path) -> None:
    target = rule_recipe("hamilton", f"training.initialise_from={tiny_run.folder}")
    with pytest.raises(RunError, match=r"'translation'.*'rule'"):
        train(target, runs=tmp_path)
    with pytest.raises(RunError, match="nowhere"):
        start_of(changed(tmp_path / "nowhere"), miniature_data)
    broken = tmp_path / "broken"
    shutil.copytree(tiny_run.folder, broken)
    with (Run.open(broken).checkpoint("best") / "model.safetensors").open("ab") as file:
        file.write(b"x")
    with pytest.raises(RunError, match=r"model\.safetensors"):
        start_of(changed(broken), miniature_data)


def test_rules_have_tensors_in_common_or_are_refused(tmp_path: Path) -> None:
    source = train(rule_recipe("hamilton", "training.steps=1"), runs=tmp_path).run
    start = start_of(rule_recipe("hamilton", f"training.initialise_from={source.folder}"), tmp_path)
    assert set(start.tensors) == {"product.A", "product.S"}
    target = rule_recipe("octonion", f"training.initialise_from={source.folder}", "model.n=8")
    with pytest.raises(RunError, match="no tensor of"):
        train(target, runs=tmp_path)


OPTIONS = ["train", "miniature", *(part for setting in SHORT for part in ("--set", setting))]


def test_a_dry_run_checks_where_it_would_begin(tiny_run: Run, miniature_data: Path, tmp_path: Path) -> None:
    for data in (miniature_data, tmp_path):  # prepared, and not
        arguments = [*OPTIONS, "--dry-run", "--data", data, "--init"]
        with pytest.raises(RunError, match="nowhere"):
            call(*arguments, tmp_path / "nowhere")
        words = "tensors taken from" if data == miniature_data else "vocabulary"
        assert words in call(*arguments, tiny_run.folder).output


RULE, FIXED, SHARED, SOME = (), ("model.algebra=quaternion",), ("model.rules=model",), ("model.rules=sublayer",)
TERMS = ("model.rank=7",)


@pytest.mark.parametrize(
    ("source_options", "target_options"),
    [(FIXED, RULE), (TERMS, RULE), (RULE, TERMS), (RULE, SHARED), (SHARED, RULE), (SHARED, SHARED), (SOME, SHARED)],
)
def test_components_are_taken_with_their_rule_or_not_at_all(
    miniature_data: Path, tmp_path: Path, source_options: tuple[str, ...], target_options: tuple[str, ...]
) -> None:
    source = train(load_recipe("miniature", [*SHORT, *source_options]), data=miniature_data, runs=tmp_path).run
    recipe, weights = changed(source.folder, *target_options), []
    for item, tensors in ((source.recipe, tensors_of(source)), (recipe, start_of(recipe, miniature_data).tensors)):
        model = trains(item).open(item, miniature_data).build_model(torch.device("cpu"))
        for name, tensor in tensors.items():
            model_tensors(model)[name].copy_(tensor)
        weights.append(model.get_submodule("encoder.0.feed_forward.expand").weight.detach())
    if (source_options, target_options) in ((FIXED, RULE), (TERMS, RULE), (SHARED, SHARED)):
        torch.testing.assert_close(weights[1], weights[0], rtol=1e-4, atol=1e-5)  # the same map
        assert not start_of(recipe, miniature_data).record["left"]
    else:
        new = start_of(recipe, miniature_data).record["new"]
        assert {"encoder.0.feed_forward.expand.S", "encoder.0.attention.output.S"} <= {*new}
