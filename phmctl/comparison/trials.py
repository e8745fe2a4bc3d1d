"""Fair budgets of ``compare``: each model at its best of the values tried (``--best-of``), and models of equal cost
(``--budget``)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from phmctl.comparison.variants import Variant
from phmctl.console import warn
from phmctl.errors import RecipeError, RunError, check_known, nearest
from phmctl.recipe.loading import flatten
from phmctl.runs.summary import Summary, same_model, value_words

BUDGETS = ("parameters", "minutes")
_TOLERANCE = 0.1


@dataclass(frozen=True)
class Trials:
    """The values of a key that one model was trained with."""

    model: str  # the variant's name
    key: str  # the recipe key, training.learning_rate
    scores: dict[float | str, float]  # by value, the mean over seeds of the best score on valid
    metric: str  # what the scores are; loss is better where it is less
    best: float | str  # the value that was chosen

    def __str__(self) -> str:
        values = ", ".join(f"{value_words(value)}: {score:.4g}" for value, score in self.scores.items())
        edge = ", at the end of the tried values" if self.at_the_edge else ""
        return f"{self.model}: {self.key} = {value_words(self.best)}{edge} ({self.metric} on valid by value: {values})"

    @property
    def at_the_edge(self) -> bool:
        """Whether a number beyond those tried may be better."""
        return len(self.scores) > 1 and self.best in (min(self.scores), max(self.scores))


def best_of(summaries: Sequence[Summary], key: str) -> tuple[list[Summary], list[Trials]]:
    """The runs of each model that have its best value of a key, and the trials of each model.

    Runs are of one model if they differ in nothing but this key and the seed. The best value has the best mean over
    seeds of the validation that chose each run's best checkpoint.
    """
    models: list[list[Summary]] = []
    unscored = [one.run.name for one in summaries if one.best is None]
    if unscored:
        warn(f"left out, for they have no validation yet: {', '.join(unscored)}")
    summaries = [one for one in summaries if one.best is not None]
    if not summaries:
        raise RunError("no run has a validation to choose by; train one")
    for one in summaries:
        keys = dict(flatten(one.recipe.model_dump()))
        if key not in keys:
            raise RecipeError(f"--best-of {key}: {one.run.name} has no such key{nearest(key, list(keys))}")
        fitting = next((members for members in models if same_model(members[0].run, one.run, key)), None)
        models.append([one]) if fitting is None else fitting.append(one)
    kept, trials = [], []
    for members in models:
        found = _trials(members, key)
        kept += [one for one in members if _value(one, key) == found.best]
        trials.append(found)
    return kept, trials


def uneven(trials: Sequence[Trials]) -> list[str]:
    """A line where some models were tried with more values than others."""
    counts = {len(each.scores) for each in trials}
    if len(counts) < 2:
        return []
    told = ", ".join(f"{each.model} {len(each.scores)}" for each in trials)
    return [f"models were tried with different numbers of values ({told}): the comparison favours those with more"]


def within_budget(variants: Sequence[Variant], baseline: Variant, budget: str) -> list[Variant]:
    """The baseline and the models that spend, within a tenth, what it does; warn of those left out."""
    check_known("budget", budget, BUDGETS)
    allowed = _spent(baseline, budget)
    if allowed is None:
        raise RunError(f"--budget {budget}: {baseline.label} does not say how much it spends")
    spent = {variant.label: _spent(variant, budget) for variant in variants}
    kept = [v for v in variants if abs((spent[v.label] or 0.0) - allowed) <= _TOLERANCE * allowed]
    told = ", ".join(f"{label} {value:,.6g}" for label, value in spent.items() if value is not None)
    if len(kept) < 2:
        raise RunError(f"--budget {budget}: no model spends what {baseline.label} does, within a tenth ({told})")
    if len(kept) < len(variants):
        warn(f"left out, for they do not spend what {baseline.label} does within a tenth ({budget}: {told})")
    return kept


def _spent(variant: Variant, budget: str) -> float | None:
    sizes = variant.parameters
    return variant.minutes if budget == "minutes" else None if sizes is None else float(sizes.without_embeddings)


def _trials(members: Sequence[Summary], key: str) -> Trials:
    found: dict[float | str, list[float]] = {}
    metrics = set()
    for one in members:
        if one.best is not None:  # best_of() leaves others out
            metrics.add(one.best.metric)
            found.setdefault(_value(one, key), []).append(one.best.value)
    if len(metrics) > 1:
        raise RunError(f"{members[0].run.name} and its trials are chosen by different metrics: {', '.join(metrics)}")
    metric = metrics.pop()
    scores = {value: math.fsum(each) / len(each) for value, each in sorted(found.items(), key=lambda item: item[0])}
    choose = min if metric == "loss" else max
    return Trials(members[0].recipe.variant, key, scores, metric, choose(scores, key=lambda value: scores[value]))


def _value(one: Summary, key: str) -> float | str:
    value = dict(flatten(one.recipe.model_dump()))[key]
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else str(value)
