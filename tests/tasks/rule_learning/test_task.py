from pathlib import Path

import pytest
import torch

from phmctl.errors import RunError
from phmctl.runs import Run
from phmctl.tasks.rule_learning.task import RuleTask
from phmctl.tasks.rule_learning.truth import EVALUATION_SAMPLES, draw_samples

from .recipes import rule_recipe

SMALL = ("data.samples=50", "training.batch_size=16")


def perfect(task: RuleTask) -> torch.nn.Module:
    model = task.build_model("cpu")
    with torch.no_grad():
        model.product.A.copy_(task.truth.A)
        model.product.S.copy_(task.truth.S)
    return model


def test_an_epoch_has_every_example_once() -> None:
    task = RuleTask(rule_recipe("hamilton", *SMALL))
    batches = [task.collate(rows) for rows in task.plan(0)]
    assert [len(batch.inputs) for batch in batches] == [16, 16, 16, 2]
    assert [batch.target_tokens for batch in batches] == [256, 256, 256, 32]
    assert [task.cost(rows).items for rows in task.plan(0)] == [256, 256, 256, 32]
    drawn = draw_samples(task.truth, "train", 50, 1)
    together = torch.cat([batch.inputs for batch in batches])
    order = torch.cdist(together, drawn.inputs).argmin(dim=1)
    assert sorted(order.tolist()) == list(range(50))
    assert torch.equal(torch.cat([batch.targets for batch in batches]), drawn.targets[order])


def test_epochs_and_seeds_have_their_own_order() -> None:
    def rows(task: RuleTask, epoch: int) -> list[list[int]]:
        return [rows.tolist() for rows in task.plan(epoch)]

    task = RuleTask(rule_recipe("hamilton", *SMALL))
    other = RuleTask(rule_recipe("hamilton", *SMALL, "training.seed=2"))
    assert rows(task, 3) == rows(task, 3)
    assert rows(task, 3) != rows(task, 4)
    assert rows(task, 3) != rows(other, 3)


def test_the_loss_is_the_squared_error_over_all_numbers() -> None:
    task = RuleTask(rule_recipe("octonion", *SMALL))
    model, batch = task.build_model("cpu"), task.collate(task.plan(0)[0])
    loss, count = task.loss(model, batch)
    H = model.product.weight.detach()
    by_hand = sum(float((y - H @ x).square().sum()) for x, y in zip(batch.inputs, batch.targets, strict=True))
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)
    assert count == 16 * 32
    assert loss.requires_grad


def test_a_model_that_is_the_truth_has_no_loss_and_another_has() -> None:
    task = RuleTask(rule_recipe("hamilton", *SMALL))
    exact, raw = task.validate(perfect(task)), task.validate(task.build_model("cpu"))
    assert exact["loss"] < 1e-12
    assert exact["map_error"] < 1e-6
    assert raw["loss"] > 0.5
    assert raw["map_error"] > 0.5
    assert task.score(exact) > task.score(raw)


def test_a_mean_over_the_validation_examples() -> None:
    task = RuleTask(rule_recipe("hamilton", *SMALL))
    model = task.build_model("cpu")
    samples = draw_samples(task.truth, "valid", EVALUATION_SAMPLES, 1)
    expected = (model(samples.inputs) - samples.targets).square().mean().item()
    assert task.validate(model)["loss"] == pytest.approx(expected, rel=1e-5)


def test_a_run_of_other_examples_is_not_continued(tmp_path: Path) -> None:
    task = RuleTask(rule_recipe("hamilton", *SMALL))
    run = Run.create(tmp_path, task.recipe, fill=task.furnish)
    task.check_run(run)
    other = RuleTask(rule_recipe("hamilton", *SMALL, "data.seed=2"))
    with pytest.raises(RunError, match=r"truth\.safetensors is not the map that its recipe draws here"):
        other.check_run(run)
