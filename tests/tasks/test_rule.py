"""Learning a rule: the true maps, the task, what is judged, and what a run keeps."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from phmctl.algebra.alignment import change_basis
from phmctl.algebra.kronecker import fixed_rule
from phmctl.errors import RunError, UserError
from phmctl.processes import Processes
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import RuleDataSection, RuleRecipe
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.storage import step_name, write_checkpoint
from phmctl.tasks.rule_training import (
    EVALUATION_SAMPLES,
    THRESHOLD,
    TRUTH,
    RuleEvaluation,
    RuleTask,
    draw_rotation,
    draw_samples,
    draw_truth,
    evaluate_rule,
    read_truth,
)
from phmctl.training.train import train_task
from tests.calls import call
from tests.data.helpers import flip
from tests.references import kronecker_sum_reference, multiply

PRODUCTS = ["rotation-3d", "hamilton", "octonion"]
SMALL = ("data.samples=50", "training.batch_size=16")


def rule_recipe(name: str = "hamilton", *settings: str) -> RuleRecipe:
    recipe = load_recipe(name, ["training.device=cpu", *settings])
    assert isinstance(recipe, RuleRecipe)
    return recipe


def data(product: str = "hamilton", **changes: Any) -> RuleDataSection:
    return RuleDataSection(**({"product": product, "samples": 50, "dims": 2} | changes))


def furnished(root: Path, task: RuleTask) -> Run:
    return Run.create(root, task.recipe, fill=task.furnish)


def trained(root: Path, *settings: str, name: str = "hamilton") -> Run:
    recipe = rule_recipe(name, *settings)
    return train_task(RuleTask(recipe), recipe, root).run


# ------------------------------------------------------------------------------------------------------ true maps


@pytest.mark.parametrize("seed", range(5))
def test_a_rotation_keeps_lengths_and_hands(seed: int) -> None:
    W = draw_rotation(torch.Generator().manual_seed(seed))
    torch.testing.assert_close(W @ W.t(), torch.eye(3, dtype=torch.float64))
    assert torch.linalg.det(W).item() == pytest.approx(1)


@pytest.mark.parametrize(("product", "algebra"), [("hamilton", "quaternion"), ("octonion", "octonion")])
def test_targets_are_sums_of_products_from_the_left(product: str, algebra: str) -> None:
    section = data(product, dims=3)
    truth, n = draw_truth(section), section.components
    samples = draw_samples(truth, "train", 20, 1)
    factors = truth.S.permute(1, 2, 0)  # (s, t, n)
    inputs = samples.inputs.double().view(20, n, 3).transpose(1, 2)  # (N, t, n)
    products = multiply(fixed_rule(algebra, dtype=torch.float64), factors, inputs[:, None]).sum(dim=2)  # (N, s, n)
    targets = samples.targets.view(20, n, 3).transpose(1, 2).double()
    torch.testing.assert_close(targets, products, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(multiply(fixed_rule(algebra).double(), inputs[:, None], factors).sum(dim=2), targets)


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_seed_decides_everything(product: str) -> None:
    one, same, other = (draw_truth(data(product, seed=seed)) for seed in (1, 1, 2))
    torch.testing.assert_close(one.H, kronecker_sum_reference(one.A, one.S))
    assert torch.equal(one.H, same.H)
    assert not torch.equal(one.H, other.H)
    first, again = (draw_samples(one, "train", 9, 1) for _ in range(2))
    assert all(map(torch.equal, first, again))
    for split, seed in (("valid", 1), ("test", 1), ("train", 2)):
        assert not torch.isin(draw_samples(one, split, 9, seed).inputs, first.inputs).any()


# ------------------------------------------------------------------------------------------------------- the task


def test_an_epoch_has_every_example_once() -> None:
    task = RuleTask(rule_recipe("hamilton", *SMALL))
    batches = [task.collate(rows) for rows in task.plan(0)]
    assert [batch.target_tokens for batch in batches] == [256, 256, 256, 32]
    assert [task.cost(rows).items for rows in task.plan(0)] == [256, 256, 256, 32]
    drawn = draw_samples(task.truth, "train", 50, 1)
    together = torch.cat([batch.inputs for batch in batches])
    order = torch.cdist(together, drawn.inputs).argmin(dim=1)
    assert sorted(order.tolist()) == list(range(50))
    assert torch.equal(torch.cat([batch.targets for batch in batches]), drawn.targets[order])


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
    model, other = task.build_model("cpu"), task.build_model("cpu")
    with torch.no_grad():
        model.product.A.copy_(task.truth.A)
        model.product.S.copy_(task.truth.S)
    exact, raw = (task.validate(each, nullcontext, Processes()) for each in (model, other))
    assert exact["loss"] < 1e-12
    assert exact["map_error"] < 1e-6
    assert min(raw["loss"], raw["map_error"]) > 0.5
    assert task.score(exact) > task.score(raw)
    samples = draw_samples(task.truth, "valid", EVALUATION_SAMPLES, task.recipe.data.seed)
    with torch.no_grad():
        expected = (other(samples.inputs) - samples.targets).square().mean().item()
    assert raw["loss"] == pytest.approx(expected, rel=1e-5)


# ----------------------------------------------------------------------------------------------------- judgement


def planted(root: Path, A: torch.Tensor, S: torch.Tensor, *settings: str) -> RuleEvaluation:
    """Evaluate a run whose weights are the ones given."""
    run = furnished(root, RuleTask(rule_recipe("hamilton", *settings)))
    tensors = {"product.A": A.float().contiguous(), "product.S": S.float().contiguous()}
    section = run.recipe.model.model_dump(mode="json")
    write_checkpoint(run.checkpoints_folder / step_name(1), {"model": tensors}, {"step": 1}, section)
    run.set_pointer("best", 1)
    return evaluate_rule(run)


@pytest.mark.parametrize(("name", "seed"), [("rotation-3d", 1), ("hamilton", 1), ("hamilton", 2), ("octonion", 1)])
def test_a_rule_is_learned_at_the_shipped_settings(tmp_path: Path, name: str, seed: int) -> None:
    found = evaluate_rule(trained(tmp_path, f"training.seed={seed}", f"data.seed={seed}", name=name))
    assert found.loss < 1e-10
    assert found.map_error < 1e-5
    assert found.learned
    if name == "rotation-3d":
        assert found.rule is None
        assert "H determines 1 of the 3 dimensions" in found.rule_note
        return
    assert max(found.rule.relative_error, found.rule.span_sine, found.rule.components_error) < 1e-5
    assert 1.2 < found.rule.condition < 100  # it was not learned in the true basis
    assert found.attainable_error < 1e-12


def test_the_true_rule_in_another_basis_is_recognised(tmp_path: Path) -> None:
    truth = RuleTask(rule_recipe()).truth
    P = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = planted(tmp_path, *change_basis(truth.A, truth.S, P))
    assert max(found.map_error, found.rule.relative_error) < 1e-6  # the checkpoint's float32
    assert found.rule.components_error < 1e-5
    basis = torch.tensor(found.rule.basis, dtype=torch.float64)
    torch.testing.assert_close(basis @ P, torch.eye(4).double(), atol=1e-5, rtol=0)


def test_a_map_may_be_right_where_the_rule_is_not_yet(tmp_path: Path) -> None:
    """A change of the rule along the component that matters least hardly shows in H."""
    truth = RuleTask(rule_recipe("hamilton", "data.dims=2", "data.seed=1")).truth
    left, singular, _ = torch.linalg.svd(truth.S.flatten(1), full_matrices=False)
    size = 0.7e-3 * truth.H.norm() / singular[-1]
    other = torch.nn.functional.normalize(truth.A.permute(2, 1, 0)[3], dim=(0, 1))
    A = truth.A + size * left[:, -1].view(4, 1, 1) * other
    found = planted(tmp_path, A, truth.S, "data.dims=2", "data.seed=1")
    assert found.map_error == pytest.approx(0.7e-3, rel=1e-3)
    assert found.rule.relative_error > THRESHOLD == 1e-3
    assert not found.learned


def test_a_rule_that_lost_a_dimension_has_no_basis(tmp_path: Path) -> None:
    truth = RuleTask(rule_recipe()).truth
    A = truth.A.clone()
    A[3] = 0
    found = planted(tmp_path, A, truth.S)
    assert (found.rule.condition, found.rule.components_error, found.rule.span_sine) == (None, None, 1)
    json.dumps(found.as_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("settings", "note", "attainable"),
    [
        (("model.algebra=real", "model.n=1"), "the model is dense: it has no rule", True),
        (("model.n=2",), "the model's rule is of order 2, the true one of order 4", True),
        (("model.n=8",), "the model's rule is of order 8, the true one of order 4", True),
        (("model.algebra=quaternion",), None, False),
        (("model.rank=4",), None, False),
    ],
    ids=str,
)
def test_other_models_are_judged_as_far_as_they_can_be(tmp_path, settings, note, attainable) -> None:
    found = evaluate_rule(trained(tmp_path, "training.steps=20", *settings))
    assert found.rule_note == note
    assert (found.rule is None) == (note is not None)
    assert (found.attainable_error is not None) == attainable


def test_an_n_too_small_for_the_octonions_stays_above_what_it_can_attain(tmp_path: Path) -> None:
    found = evaluate_rule(trained(tmp_path, "model.n=4", name="octonion"))
    assert 0.5 < found.attainable_error < found.map_error < 1.02 * found.attainable_error
    assert not found.learned


def test_the_result_is_written_into_the_run(tmp_path: Path) -> None:
    run = trained(tmp_path, "training.steps=20")
    for split, checkpoint in (("test", "best"), ("valid", "last")):
        found = evaluate_rule(run, split, checkpoint)
        (result,) = (result for result in read_results(run) if result.split == split)
        assert result.report == found.as_json()
        assert result.scores == {"map_error": found.map_error, "loss": found.loss}
        assert found.split == split
    found, shown = evaluate_rule(run), call("eval", run.folder, "--checkpoint", "best").stdout
    assert all(f"{error:.1e}" in shown for error in (found.map_error, found.rule.relative_error))
    with pytest.raises(UserError):
        evaluate_rule(run, "tst")


# -------------------------------------------------------------------------------------------- runs and commands


def test_a_run_keeps_the_true_map_to_the_last_bit_and_is_not_continued_with_another(tmp_path: Path) -> None:
    task = RuleTask(rule_recipe("hamilton", *SMALL))
    run = furnished(tmp_path, task)
    kept = read_truth(run)
    assert all(map(torch.equal, kept, task.truth))
    assert kept.S.dtype == torch.float64
    assert run.data()["product"] == "hamilton"
    task.check_run(run)
    with pytest.raises(RunError, match=r"truth\.safetensors"):
        RuleTask(rule_recipe("hamilton", *SMALL, "data.seed=2")).check_run(run)


def test_a_rule_has_no_export(tmp_path: Path) -> None:
    run = furnished(tmp_path, RuleTask(rule_recipe("hamilton", *SMALL)))
    for to in ("onnx", "ctranslate2"):
        with pytest.raises(UserError, match="'rule'"):
            call("export", run.folder, "--to", to, "-o", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_damaged_true_map_is_named(tmp_path: Path) -> None:
    run = furnished(tmp_path, RuleTask(rule_recipe()))
    flip(run.folder / TRUTH)
    with pytest.raises(RunError, match=r"truth\.safetensors"):
        read_truth(run)
