from pathlib import Path

import pytest
import torch

from phmctl.accounting.ledger import ledger_for_recipe
from phmctl.errors import UserError
from phmctl.runs import Run
from phmctl.tasks.base import Preparation
from phmctl.tasks.rule_learning.kind import RuleKind

from .recipes import rule_recipe

KIND = RuleKind()


@pytest.mark.parametrize(
    ("settings", "components", "rule"),
    [((), 64, 64), (("model.n=2",), 128, 8), (("model.algebra=quaternion",), 64, 0), (("model.bias=true",), 64, 64)],
    ids=str,
)
def test_the_ledger_counts_the_layer(settings: tuple[str, ...], components: int, rule: int) -> None:
    recipe = rule_recipe("hamilton", *settings)
    totals = ledger_for_recipe(recipe).totals
    assert (totals.components, totals.rule, totals.bias) == (components, rule, 16 * recipe.model.bias)
    model = KIND.build(recipe.model, KIND.sizes(recipe).values)
    assert totals.parameters == sum(p.numel() for p in model.parameters())


def test_text_is_refused(tmp_path: Path) -> None:
    run = Run.create(tmp_path, rule_recipe(), fill=KIND.open(rule_recipe(), tmp_path).furnish)
    for refused in (lambda: KIND.predictor(run), lambda: KIND.split_lines(run, "test")):
        with pytest.raises(UserError, match="decode: task 'rule' does not have it; it has train, eval, count-params"):
            refused()
    with pytest.raises(UserError, match="prepare-data: task 'rule' does not have it"):
        KIND.prepare(Preparation("hamilton", tmp_path, "hamilton"))
    with pytest.raises(UserError, match="--beam: task 'rule' has no such option"):
        KIND.evaluate(run, options={"beam": 3})
    with pytest.raises(UserError, match="compared with the true one"):
        KIND.evaluate(run, against=run)


def test_the_dense_twin_has_the_same_examples(tmp_path: Path) -> None:
    recipe = rule_recipe()
    one, twin = KIND.open(recipe, tmp_path), KIND.open(recipe.dense_twin, tmp_path)
    rows = one.plan(0)[0]
    assert torch.equal(one.collate(rows).targets, twin.collate(twin.plan(0)[0]).targets)
