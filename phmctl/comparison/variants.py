"""Runs of one model with several seeds, which of their results are compared, and which models fairly.

Fair is each model at its best of the values tried (``--best-of``), and models of equal cost (``--budget``).
"""

import math
import shlex
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, partial

from phmctl.console import warn
from phmctl.errors import RecipeError, RunError, nearest
from phmctl.recipe.loading import differences, flatten
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.runs import AUTO, Run
from phmctl.runs.results import Result, read_metrics, series
from phmctl.runs.summary import (
    Best,
    Parameters,
    Summary,
    run_differences,
    same_model,
    value_words,
)
from phmctl.tasks.answers import Answers, Metric
from phmctl.tasks.registry import kind_of

BUDGETS = ("parameters", "minutes")
_LONGEST = 16  # characters of a value in a label
_TOLERANCE = 0.1


@dataclass(frozen=True)
class Trained:
    """A run, and its result that is compared, if it has one."""

    summary: Summary
    result: Result | None
    asked: str | None = None  # the checkpoint whose results alone are compared

    @property
    def run(self) -> Run:
        return self.summary.run

    @property
    def seed(self) -> int:
        return self.run.recipe.training.seed

    def command(self, split: str) -> str:
        """What scores it on a split, at the checkpoint that was asked for."""
        where = [] if split == "test" else ["--split", split]
        where += [] if self.asked is None else ["--checkpoint", self.asked]
        return shlex.join(["phmctl", "eval", str(self.run.folder), *where])

    @cached_property
    def answers(self) -> Answers | None:
        """What it answered; None where it has no result or the result's answers are gone."""
        if self.result is None or self.result.answers is None:
            return None
        return kind_of(self.run.recipe).answers(self.run, self.result)

    @cached_property
    def speed(self) -> float | None:
        """Tokens of both sides a second of training, the median over the log; None where it does not say."""
        rates = [value for _, value in series(read_metrics(self.run.metrics_path), "train", "tokens_per_second")]
        return statistics.median(rates) if rates else None

    @property
    def checkpoint(self) -> str | None:
        """Which checkpoint was scored, in words that mean the same for every seed: ``best``, ``average`` …"""
        if self.result is None:
            return None
        if self.asked not in (None, AUTO):
            return self.asked
        for name in ("best", "last"):
            with suppress(RunError):
                if self.run.checkpoint(name).name == self.result.checkpoint:
                    return name
        return self.result.checkpoint

    def bare(self, split: str) -> bool:
        """Whether it has no result, and could be scored on the split."""
        with suppress(RunError):
            self.run.checkpoint(self.asked or AUTO)
            return self.result is None and split in (self.run.splits() or [split])
        return False


@dataclass(frozen=True)
class Variant:
    """The runs that are equal in all but their seed."""

    label: str  # what it is called in tables: phm-n4, with what else tells it from others
    runs: tuple[Trained, ...]  # a run a seed, by seed
    doubles: tuple[Run, ...] = field(default=())  # runs left out since a newer one has the same seed

    @property
    def first(self) -> Trained:
        """The run that stands for all where they are equal."""
        return self.runs[0]

    @property
    def scored(self) -> tuple[Trained, ...]:
        return tuple(one for one in self.runs if one.result is not None)

    @property
    def results(self) -> list[Result]:
        return [one.result for one in self.runs if one.result is not None]

    @property
    def answered(self) -> list[Answers]:
        return [one.answers for one in self.scored if one.answers is not None]

    def values(self, metric: Metric) -> list[float]:
        """A metric's value of each seed that has it, as it is shown."""
        return [metric.scale * one.scores[metric.name] for one in self.results if metric.name in one.scores]

    @property
    def parameters(self) -> Parameters | None:
        return next((one.summary.parameters for one in self.runs if one.summary.parameters), None)

    @property
    def speed(self) -> float | None:
        return mean(one.speed for one in self.runs)

    @property
    def minutes(self) -> float | None:
        return mean(one.summary.minutes for one in self.runs)


def mean(values: Iterable[float | None]) -> float | None:
    """The mean of those that are known; None of none."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def spread(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample; None of fewer than two."""
    if len(values) < 2:
        return None
    middle = statistics.fmean(values)  # statistics.stdev takes no infinite numbers, and a run may have diverged
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1))


def mean_and_spread(values: Sequence[float]) -> str:
    """``40.21 ± 0.35``, the sample's standard deviation; of one value the value alone; of none a dash."""
    if not values:
        return "–"
    middle, deviation = statistics.fmean(values), spread(values)
    form = ".2f" if abs(middle) >= 0.01 or not middle else ".1e"
    return f"{middle:{form}}" if deviation is None else f"{middle:{form}} ± {deviation:{form}}"


def conditions(variants: Iterable[Variant]) -> list[str]:
    """Under what figures were found: the metrics' signatures; decoding, checkpoints, seeds and dates."""
    scored = [one for variant in variants for one in variant.scored]
    results = [one.result for one in scored if one.result is not None]
    signatures = [f"{score['name']}: {score['signature']}" for one in results for score in one.report.get("scores", ())]
    decoding = [one.settings.get("decoding") or {} for one in results]
    facts = {
        "beam": {str(each["beam"]) for each in decoding if "beam" in each},
        "alpha": {f"{each['alpha']:g}" for each in decoding if "alpha" in each},
        "checkpoint": {one.checkpoint or "" for one in scored},
        "seed": {str(one.seed) for one in scored},
        "scored on": {one.date for one in results if one.date},
    }
    ordered = {name: sorted(values, key=lambda one: (len(one), one)) for name, values in facts.items()}  # seed 2, 10
    told = "; ".join(f"{name} {', '.join(values)}" for name, values in ordered.items() if values)
    return [*dict.fromkeys(signatures), *([told] if told else [])]


def settle(summaries: Sequence[Summary], split: str, checkpoint: str | None) -> list[Trained]:
    """Choose the result of each run: on the split, of the checkpoint if one is named, without a comparison.

    Of several the one that the most runs have in common is taken, so that all were decoded alike from the same kind of
    checkpoint; then that of the checkpoint that ``auto`` is; then that of the recipe's own decoding; then the newest.
    """
    found = []
    for one in summaries:
        folder = None
        if checkpoint is not None:
            with suppress(RunError):  # a name may be one of several of a checkpoint: the best is often the last, too
                folder = one.run.checkpoint(checkpoint).name
        fitting = [each for each in one.results if each.split == split and each.against is None]
        fitting = [each for each in fitting if checkpoint is None or each.checkpoint in (checkpoint, folder)]
        found.append([Trained(one, each, checkpoint) for each in fitting if _stands(one, each)])
    shared = Counter(key for each in found for key in set(map(_key, each)))

    def worth(one: Trained) -> tuple[int, bool, bool, float]:
        own, settings = getattr(one.run.recipe, "decoding", None), one.result.settings if one.result else {}
        usual = {} if own is None else {"decoding": own.model_dump(exclude=keys_changing(own, NOTHING))}
        written = one.result.path.stat().st_mtime if one.result else 0.0
        found = {name: settings[name] for name in usual if name in settings}
        return shared[_key(one)], one.checkpoint == one.run.choice(), not differences(usual, found), written

    pairs = zip(summaries, found, strict=True)
    return [max(each, key=worth, default=Trained(one, None, checkpoint)) for one, each in pairs]


def _stands(one: Summary, result: Result) -> bool:
    """Whether a result is of the weights that bear its checkpoint's name today, or of a checkpoint that is gone."""
    with suppress(RunError):
        return one.run.weights(result.checkpoint).sha256 == result.checkpoint_sha256
    return True


def _key(one: Trained) -> str:
    settings = {} if one.result is None else one.result.settings
    return repr((one.checkpoint, sorted((name, str(value)) for name, value in settings.items())))


def group(trained: Sequence[Trained]) -> list[Variant]:
    """Put runs together that are equal but for their seed, and were scored at the same kind of checkpoint.

    Of one seed the run that is scored stays, then one that is finished, then the newer.
    """
    groups: list[list[Trained]] = []
    order = {id(one): index for index, one in enumerate(trained)}
    for one in sorted(trained, key=lambda one: one.result is None):  # what has no result goes with any
        alike = (each for each in groups if one.result is None or each[0].checkpoint == one.checkpoint)
        fitting = next((each for each in alike if same_model(each[0].run, one.run)), None)
        groups.append([one]) if fitting is None else fitting.append(one)
    groups.sort(key=lambda members: min(order[id(one)] for one in members))
    variants = []
    for label, members in zip(_labels([members[0] for members in groups]), groups, strict=True):
        by_age = sorted(members, key=lambda one: (str(one.run.environment().get("started", "")), one.run.folder.name))
        ranked = sorted(by_age, key=lambda one: (one.result is not None, one.summary.state == "finished"))
        by_seed = {one.seed: one for one in ranked}
        kept = tuple(by_seed[seed] for seed in sorted(by_seed))
        variants.append(Variant(label, kept, tuple(one.run for one in members if one not in kept)))
    return variants


def _labels(firsts: Sequence[Trained]) -> list[str]:
    """Name each by its variant, with the recipe where there are several, and with what tells equal names apart."""
    recipes = [one.run.recipe for one in firsts]
    several = len({recipe.name for recipe in recipes}) > 1
    labels = [f"{recipe.name}/{recipe.variant}" if several else recipe.variant for recipe in recipes]
    for name in dict.fromkeys(labels):
        alike = [index for index, other in enumerate(labels) if other == name]
        if len(alike) > 1:
            for index, mark in zip(alike, _marks([firsts[index] for index in alike]), strict=True):
                labels[index] = f"{name} {mark}"
    return labels


def _marks(firsts: Sequence[Trained]) -> list[str]:
    """What tells runs of one name apart: the value of one key if that does, else numbers."""
    first = firsts[0]
    found = [
        run_differences(first.run, one.run) | {"checkpoint": (first.checkpoint, one.checkpoint)} for one in firsts[1:]
    ]
    for key in dict.fromkeys(key for each in found for key in each):
        value = next(each[key][0] for each in found if key in each)
        values = [value, *(each[key][1] if key in each else value for each in found)]
        short = [f"{key.rpartition('.')[2]}={str(value)[-_LONGEST:]}" for value in values]
        if len(set(short)) == len(firsts) and key != "made with":
            return short
    return [f"({number})" for number in range(1, len(firsts) + 1)]


@dataclass(frozen=True)
class Trials:
    """The values of a key that one model was trained with."""

    model: str  # what it is called in tables
    key: str  # the recipe key, training.learning_rate
    scores: dict[float | str, float]  # by value, the mean over common seeds of the best score on valid
    metric: str  # what the scores are; loss is better where it is less
    best: float | str  # the value that was chosen

    def __str__(self) -> str:
        told = ", ".join(f"{value_words(value)}: {score:.4g}" for value, score in self.scores.items())
        values = [*self.scores]  # ascending
        at_the_edge = len(self.scores) > 1 and self.best in (values[0], values[-1])
        edge = ", at the end of the tried values" if at_the_edge else ""  # a number beyond may be better
        return f"{self.model}: {self.key} = {value_words(self.best)}{edge} ({self.metric} on valid by value: {told})"


def best_of(summaries: Sequence[Summary], key: str) -> tuple[list[Summary], list[Trials]]:
    """The runs of each model that have its best value of a key, and the trials of each model.

    Runs are of one model if they differ in nothing but this key and the seed. The best value has the best mean, over
    the seeds that all values have in common (if any), of the validation that chose each run's best checkpoint.
    """
    if key == "training.seed":
        raise RecipeError(f"--best-of {key}: the best of several seeds tells nothing of a model; name a setting")
    if unscored := [one.run.name for one in summaries if one.best is None]:
        warn(f"left out, for they have no validation yet: {', '.join(unscored)}")
    models: list[list[tuple[float | str, Summary, Best]]] = []
    for one in summaries:
        if one.best is None:
            continue
        alike = next((members for members in models if same_model(members[0][1].run, one.run, key)), None)
        if alike is None:
            models.append(alike := [])
        alike.append((_value(one, key), one, one.best))
    if not models:
        raise RunError("no run has a validation to choose by; train one")
    if all(len({value for value, *_ in members}) == 1 for members in models):
        raise RunError(f"--best-of {key}: no two of the runs differ in nothing but its value and the seed")
    tried, early = [], list[str]()  # of each model the runs that are kept, and its trials but for the name
    for members in models:
        found: dict[float | str, dict[int, tuple[Summary, Best]]] = {}  # by value, by seed; a finished run if there is
        order = sorted(members, key=lambda each: (isinstance(each[0], str), each[0], each[1].state == "finished"))
        for value, one, own in order:
            found.setdefault(value, {})[one.recipe.training.seed] = one, own
        early += [one.run.name for each in found.values() for one, _ in each.values() if one.state != "finished"]
        if not (common := set.intersection(*map(set, found.values()))):
            warn(f"{members[0][1].run.name} and its like: no seed has all values of {key}; other seeds are compared")
        shared = {
            value: [each[seed][1].value for seed in each if seed in (common or each)] for value, each in found.items()
        }
        scores = {value: statistics.fmean(each) for value, each in shared.items()}
        chosen = (min if own.metric == "loss" else max)(scores, key=lambda value: scores[value])
        trial = partial(Trials, key=key, scores=scores, metric=own.metric, best=chosen)
        tried.append(([one for one, _ in found[chosen].values()], trial))
    if early:
        warn(f"not finished, so their best values may change: {', '.join(early)}")
    labels = _labels([Trained(kept[0], None) for kept, _ in tried])
    named = [trial(label) for label, (_, trial) in zip(labels, tried, strict=True)]
    return [one for kept, _ in tried for one in kept], named


def _value(one: Summary, key: str) -> float | str:
    keys = dict(flatten(one.run.asked().model_dump()))
    if key not in keys:
        raise RecipeError(f"--best-of {key}: {one.run.name} has no such key{nearest(key, list(keys))}")
    return keys[key] if type(keys[key]) in (int, float) else str(keys[key])


def within_budget(variants: Sequence[Variant], baseline: Variant, budget: str) -> list[Variant]:
    """The baseline and the models that spend, within a tenth, what it does; warn of those left out."""
    spent: dict[str, float | None] = {each.label: each.minutes for each in variants}
    if budget == "parameters":
        spent = {each.label: size.without_embeddings if (size := each.parameters) else None for each in variants}
    allowed = spent[baseline.label]
    if allowed is None:
        raise RunError(f"--budget {budget}: {baseline.label} does not say how much it spends")
    kept = [each for each in variants if abs((spent[each.label] or 0.0) - allowed) <= _TOLERANCE * allowed]
    told = ", ".join(f"{label} {value:,.6g}" for label, value in spent.items() if value is not None)
    if len(kept) < 2:
        raise RunError(f"--budget {budget}: no model spends what {baseline.label} does, within a tenth ({told})")
    if len(kept) < len(variants):
        left = ", ".join(each.label for each in variants if each not in kept)
        warn(f"left out, for they do not spend what {baseline.label} does within a tenth: {left} ({budget}: {told})")
    return kept
