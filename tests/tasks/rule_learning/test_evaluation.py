import json
from pathlib import Path

import pytest
import torch

from phmctl.algebra.alignment import change_basis
from phmctl.checkpoints import step_name, write_checkpoint
from phmctl.errors import RunError
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.tasks.rule_learning.evaluation import RuleEvaluation, evaluate_rule
from phmctl.tasks.rule_learning.task import RuleTask
from phmctl.training.train import train_task

from .recipes import rule_recipe

THRESHOLD = 1e-3


def trained(root: Path, *settings: str, name: str = "hamilton") -> Run:
    recipe = rule_recipe(name, *settings)
    return train_task(RuleTask(recipe), recipe, root, quiet=True).run


def planted(root: Path, A: torch.Tensor, S: torch.Tensor, *settings: str, name: str = "hamilton") -> RuleEvaluation:
    """Evaluate a run whose weights are the ones given."""
    task = RuleTask(rule_recipe(name, *settings))
    run = Run.create(root, task.recipe, fill=task.furnish)
    tensors = {"product.A": A.float().contiguous(), "product.S": S.float().contiguous()}
    write_checkpoint(run.checkpoints_folder / step_name(1), {"model": tensors}, {"step": 1})
    run.point("best", 1)
    return evaluate_rule(run)


@pytest.mark.parametrize("seed", [1, 2])
def test_a_rotation_is_learned_at_the_shipped_settings(tmp_path: Path, seed: int) -> None:
    found = evaluate_rule(trained(tmp_path, f"training.seed={seed}", f"data.seed={seed}", name="rotation-3d"))
    assert found.loss < 1e-10
    assert found.map_error < 1e-5
    assert found.learned
    assert found.rule is None
    assert "H determines 1 of the 3 dimensions" in (found.rule_note or "")


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", ["hamilton", "octonion"])
def test_a_rule_is_learned_at_the_shipped_settings(tmp_path: Path, name: str, seed: int) -> None:
    found = evaluate_rule(trained(tmp_path, f"training.seed={seed}", f"data.seed={seed}", name=name))
    assert found.loss < 1e-10
    assert found.map_error < 1e-5
    assert found.rule is not None
    assert found.rule.relative_error < 1e-5
    assert found.rule.span_sine < 1e-5
    assert found.rule.components_error is not None
    assert found.rule.components_error < 1e-5
    assert found.rule.condition is not None
    assert 1.2 < found.rule.condition < 100  # it was not learned in the true basis
    assert found.learned
    assert found.attainable_error is not None
    assert found.attainable_error < 1e-12


def test_the_same_seed_learns_the_same(tmp_path: Path) -> None:
    one, other = (evaluate_rule(trained(tmp_path, "training.steps=60")) for _ in range(2))
    assert (one.loss, one.map_error, one.rule) == (other.loss, other.map_error, other.rule)


def test_the_figure_to_the_letter_learns_the_map_and_determines_no_rule(tmp_path: Path) -> None:
    found = evaluate_rule(trained(tmp_path, "data.dims=1"))
    assert found.map_error < 1e-5
    assert found.learned
    assert found.rule is None
    assert "H determines 1 of the 4 dimensions" in (found.rule_note or "")


def test_the_true_rule_in_another_basis_is_recognised(tmp_path: Path) -> None:
    truth = RuleTask(rule_recipe()).truth
    P = torch.randn(4, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    found = planted(tmp_path, *change_basis(truth.A, truth.S, P))
    assert found.rule is not None
    assert found.map_error < 1e-6
    assert found.rule.relative_error < 1e-6  # the checkpoint's float32
    assert found.rule.components_error is not None
    assert found.rule.components_error < 1e-5
    torch.testing.assert_close(
        torch.tensor(found.rule.basis, dtype=torch.float64) @ P, torch.eye(4).double(), atol=1e-5, rtol=0
    )


def test_another_algebra_is_not_recognised(tmp_path: Path) -> None:
    truth = RuleTask(rule_recipe()).truth
    found = planted(tmp_path, truth.A.permute(2, 1, 0), truth.S)  # multiplies from the right
    assert found.rule is not None
    assert found.rule.relative_error > 0.8
    assert found.map_error > 0.5
    assert not found.learned


def test_a_map_may_be_right_where_the_rule_is_not_yet(tmp_path: Path) -> None:
    """A change of the rule along the component that matters least hardly shows in H."""
    truth = RuleTask(rule_recipe("hamilton", "data.dims=2", "data.seed=1")).truth
    left, singular, _ = torch.linalg.svd(truth.S.flatten(1), full_matrices=False)
    size = 0.7e-3 * truth.H.norm() / singular[-1]
    other = torch.nn.functional.normalize(truth.A.permute(2, 1, 0)[3], dim=(0, 1))
    A = truth.A + size * left[:, -1].view(4, 1, 1) * other
    found = planted(tmp_path, A, truth.S, "data.dims=2", "data.seed=1")
    assert found.rule is not None
    assert found.map_error == pytest.approx(0.7e-3, rel=1e-3)
    assert found.rule.relative_error > THRESHOLD
    assert not found.learned


def test_a_rule_that_lost_a_dimension_has_no_basis(tmp_path: Path) -> None:
    truth = RuleTask(rule_recipe()).truth
    A = truth.A.clone()
    A[3] = 0
    found = planted(tmp_path, A, truth.S)
    assert found.rule is not None
    assert found.rule.condition is None
    assert found.rule.components_error is None
    assert found.rule.span_sine == 1
    json.dumps(found.as_json(), allow_nan=False)


@pytest.mark.parametrize(
    ("settings", "note", "attainable"),
    [
        (("model.algebra=real", "model.n=1"), "the model is dense: it has no rule", True),
        (("model.n=2",), "the model's rule is of order 2, the true one of order 4", True),
        (("model.n=8",), "the model's rule is of order 8, the true one of order 4", True),
        (("model.algebra=quaternion",), None, False),
        (("model.parametrization=factors",), None, False),
    ],
    ids=str,
)
def test_other_models_are_judged_as_far_as_they_can_be(
    tmp_path: Path, settings: tuple[str, ...], note: str | None, attainable: bool
) -> None:
    found = evaluate_rule(trained(tmp_path, "training.steps=20", *settings))
    assert found.rule_note == note
    assert (found.rule is None) == (note is not None)
    assert (found.attainable_error is not None) == attainable


def test_an_n_too_small_for_the_octonions_stays_above_what_it_can_attain(tmp_path: Path) -> None:
    found = evaluate_rule(trained(tmp_path, "model.n=4", name="octonion"))
    assert found.attainable_error is not None
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
    assert evaluate_rule(run, "test").loss != evaluate_rule(run, "valid").loss


def test_what_is_wrong_is_said(tmp_path: Path, tiny_recipe: TranslationRecipe) -> None:
    run = trained(tmp_path, "training.steps=20")
    with pytest.raises(RunError, match=r"no split 'tst' \(did you mean 'test'\?\)"):
        evaluate_rule(run, "tst")
    with pytest.raises(RunError, match="no checkpoint 'averag'"):
        evaluate_rule(run, checkpoint="averag")
    with pytest.raises(RunError, match="is a run of task 'translation', not 'rule'"):
        evaluate_rule(Run(run.folder, tiny_recipe))
