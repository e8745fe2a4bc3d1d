"""The translation task: its batches, its loss, and a run that works far from home."""

import math
import shutil
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

from phmctl.data.special import PAD
from phmctl.data.store import PreparedData
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.tasks.translation import TranslationTask, load_translator


@pytest.fixture(scope="module")
def task(tiny_recipe: Recipe, miniature_data: Path) -> TranslationTask:
    return TranslationTask(tiny_recipe, PreparedData.find(tiny_recipe.data, miniature_data))


def test_loss_is_the_summed_cross_entropy_of_the_target(task: TranslationTask) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval()
    batch = next(task.batches(0))
    loss, tokens = task.loss(model, batch)
    logits = model.logits(model(batch.source, batch.target[:, :-1]))
    targets = batch.target[:, 1:]
    assert tokens == int((targets != PAD).sum())
    expected = F.cross_entropy(
        logits.flatten(0, 1), targets.flatten(), ignore_index=PAD, label_smoothing=0.1, reduction="sum"
    )
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-3)


def test_validation_is_the_mean_over_all_tokens_whatever_the_batches(task: TranslationTask) -> None:
    torch.manual_seed(0)
    model = task.build_model().eval()
    metrics = task.validate(model)
    smaller = task.recipe.training.model_copy(update={"batch_tokens": 300})
    again = TranslationTask(task.recipe.model_copy(update={"training": smaller}), task.prepared).validate(model)
    assert metrics["loss"] == pytest.approx(again["loss"], rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert task.score(metrics) == pytest.approx(metrics.get("bleu", -metrics["loss"]))


def test_batches_of_an_epoch_are_the_same_from_any_start(task: TranslationTask) -> None:
    whole = [batch.indices.tolist() for batch in task.batches(3)]
    assert [batch.indices.tolist() for batch in task.batches(3, start=5)] == whole[5:]
    assert [batch.indices.tolist() for batch in task.batches(4)] != whole


def test_a_moved_run_translates_with_nothing_else(tiny_run: Run, tmp_path: Path) -> None:
    here = load_translator(tiny_run, "last", "cpu").translate(["Der Mann schläft."])
    moved = tmp_path / "elsewhere"
    shutil.copytree(tiny_run.folder, moved)
    there = load_translator(Run.open(moved), "last", "cpu").translate(["Der Mann schläft."])
    assert [best[0].text for best in there] == [best[0].text for best in here]
    assert len((moved / "text" / "test.source").read_text(encoding="utf-8").splitlines()) == 500


def test_average_is_the_mean_of_the_last_checkpoints(tiny_run: Run) -> None:
    weights = [
        load_translator(tiny_run, name, "cpu").model.state_dict() for name in ("step-000003", "step-000006", "average")
    ]
    for name, average in weights[2].items():
        torch.testing.assert_close(average, (weights[0][name] + weights[1][name]) / 2)
