"""``compare``: variants beside one another, with what else they differ in."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from phmctl.checkpoints import folder_name
from phmctl.comparison.variants import (
    BUDGETS,
    Trained,
    Trials,
    Variant,
    best_of,
    conditions,
    group,
    mean,
    mean_and_spread,
    settle,
    spread,
    within_budget,
)
from phmctl.console import Table, progress, warn
from phmctl.errors import RunError, UserError, check_known, nearest
from phmctl.metrics.significance import Difference, difference, holm
from phmctl.metrics.text import Copy
from phmctl.recipe.loading import differences as key_differences
from phmctl.runs import AUTO
from phmctl.runs.find import find_run, select_runs
from phmctl.runs.run import splits_asked
from phmctl.runs.summary import Summary, difference_lines, list_runs, run_differences
from phmctl.tasks.answers import ONE_SEED, Answers, Comparer, Metric, p_words, within
from phmctl.tasks.base import Asked
from phmctl.tasks.registry import kind_of

OVER_SEEDS = "Multi-Bootstrap over items and seeds, Student's t"
POOLED = f"{OVER_SEEDS}; the single seed is taken to vary as the other side's"


@dataclass(frozen=True)
class Test:
    __test__ = False  # for pytest

    metric: str
    method: str  # in words
    found: Difference  # the means, the difference, p
    p_holm: float = 1.0  # p corrected by Holm's procedure: a family is all variants of one metric


@dataclass(frozen=True)
class Comparison:
    split: str  # test or valid
    metrics: tuple[Metric, ...]  # the task's figures
    variants: tuple[Variant, ...]  # in the order of their recipes, algebras and n
    baseline: Variant  # that which the others are compared with
    tests: Mapping[str, Sequence[Test]]  # by label, the tested differences from the baseline
    # of each model, the values of a key it was tried with; of these the best on valid is compared.
    trials: tuple[Trials, ...] = ()
    margin: float | None = None  # of the tests of non-inferiority

    @cached_property
    def same_machine(self) -> bool:
        """Whether all trained on the same processor with as many threads, so that their speeds compare."""
        return len({each for variant in self.variants for one in variant.runs for each in machines(one)}) == 1

    def differences(self) -> Iterator[str]:
        """A line for each thing besides n and the seed in which a variant differs from the baseline."""
        others = [variant for variant in self.variants if variant is not self.baseline]
        found = [(one.label, difference_lines(differences(self.baseline.first, one.first))) for one in others]
        yield from shared(found, len(others))

    def notes(self) -> Iterator[str]:
        """What a reader of the figures must know."""
        yield from map(str, self.trials)
        if len({len(each.scores) for each in self.trials}) > 1:
            told = ", ".join(f"{each.model} {len(each.scores)}" for each in self.trials)
            yield f"models were tried with different numbers of values ({told}): the comparison favours those with more"
        yield from shared([(one.label, list(_notes(one, self.split))) for one in self.variants], len(self.variants))
        yield from copy_notes(self.variants)
        if self.margin is not None and not self.tests:
            yield f"no difference is tested, so nothing is known of a margin of {self.margin:g}"
        if not self.same_machine:
            runs = [(variant.label, one) for variant in self.variants for one in variant.runs]
            where = {f"{label} on {machine}" for label, one in runs for machine in machines(one)}
            yield "speeds do not compare: " + "; ".join(sorted(where))

    def missing(self) -> Iterator[str]:
        """The commands that score what has no result, as it was asked for."""
        for variant in self.variants:
            for one in variant.runs:
                if one.bare(self.split):
                    yield one.command(self.split)

    def said(self) -> list[str]:
        """All lines that people are told beside the tables."""
        return [*self.differences(), *self.notes()]

    def tables(self) -> Iterator[Table]:
        """Yield the scores, the tested differences, and sizes and speeds; each fits 80 columns if names are short."""
        names = [metric.name + ("" if metric.scale == 1 else " %") for metric in self.metrics]
        rows = [
            (each.label, len(each.scored), *(mean_and_spread(each.values(metric)) for metric in self.metrics))
            for each in self.variants
        ]
        title, below = f"{self.split}: mean ± standard deviation over seeds", conditions(self.variants)
        yield Table(title, ["model", "seeds", *names], rows, below=below)
        if self.tests:
            single = [label for label, (test, *_) in self.tests.items() if test.method.endswith(ONE_SEED)]
            about = "" if len(single) == len(self.tests) else f"{', '.join(single)}: "
            title = f"difference from {self.baseline.label} (95 % interval)" + f";\n{about}{ONE_SEED}" * bool(single)
            tested, methods = [], dict[str, None]()
            for label, test in ((label, test) for label, tests in self.tests.items() for test in tests):
                change, p_values = test.found.difference, (test.found.p_value, test.p_holm)
                interval = within(change.value, change.low, change.high, "+.2f")
                bound = test.found.p_not_inferior
                inferior = () if bound is None else (p_words(bound),)
                tested.append((label, test.metric, interval, *map(p_words, p_values), *inferior))
                methods[f"tested by: {test.method}"] = None
            columns = ["model", "metric", "difference", "p", "p (Holm)"]
            columns += [] if self.margin is None else [f"p (worse by {self.margin:g})"]
            yield Table(title, columns, tested, text=(1,), below=[*methods])
        columns = ["model", "parameters", "without emb.", "tokens/s" if self.same_machine else "tokens/s *", "minutes"]
        sizes = []
        for each in self.variants:
            counts = (each.parameters and each.parameters.total, each.parameters and each.parameters.without_embeddings)
            shown = ["–" if count is None else f"{count:,.0f}" for count in (*counts, each.speed)]
            sizes.append([each.label, *shown, "–" if each.minutes is None else f"{each.minutes:,.1f}"])
        yield Table("size and speed of training", columns, sizes)

    def as_json(self) -> dict[str, Any]:
        variants = []
        for variant in self.variants:
            sizes, recipe = variant.parameters, variant.first.run.recipe
            values = {metric.name: variant.values(metric) for metric in self.metrics}
            told = {
                "label": variant.label,
                "seeds": len(variant.scored),
                "recipe": recipe.name,
                "algebra": recipe.model.algebra,
                "n": recipe.model.dimension,
                "runs": [
                    {"run": str(one.run.folder), "seed": one.seed, "state": one.summary.state}
                    | {"result": one.result and one.result.as_json()}
                    for one in variant.runs
                ],
                "scores": {
                    name: {"mean": mean(each), "standard_deviation": spread(each), "values": each}
                    for name, each in values.items()
                },
                "parameters": sizes and sizes.total,
                "without_embeddings": sizes and sizes.without_embeddings,
                "tokens_per_second": variant.speed,
                "minutes": variant.minutes,
                "tests": {
                    test.metric: {"method": test.method, **asdict(test.found), "p_holm": test.p_holm}
                    for test in self.tests.get(variant.label, ())
                },
            }
            variants.append(told)
        return {
            "split": self.split,
            "baseline": self.baseline.label,
            "margin": self.margin,
            "metrics": [asdict(metric) for metric in self.metrics],
            "trials": [asdict(each) for each in self.trials],
            "variants": variants,
            "conditions": conditions(self.variants),
            "differences": list(self.differences()),
            "notes": list(self.notes()),
            "missing": list(self.missing()),
        }


def compare(
    names: str | Path | Sequence[str | Path] = (),
    *,
    recipe: str | None = None,
    runs: str | Path | None = None,
    split: str = "test",
    checkpoint: str | None = None,
    baseline: str | None = None,
    score: bool = False,
    best: str | None = None,
    budget: str | None = None,
    margin: float | None = None,
) -> list[Comparison]:
    """Compare runs, seeds taken together; return a comparison for each split: the one named, or ``all`` test sets.

    `names` are runs, folders of runs, or tags; `recipe` means all of its runs. `checkpoint`: take results of this one
    only. `baseline`: a run or a variant's label, by default the dense one, or the first. `score` the runs that have no
    result. `best`: a recipe key; of each model's runs those count whose value of it is best on valid. `budget`:
    ``parameters`` or ``minutes``; compare those only that spend, within a tenth, what the baseline does. `margin`: test
    too whether each is not inferior to the baseline by so many points of each tested metric.
    """
    names = [names] if isinstance(names, str | Path) else names
    root = None if runs is None else Path(runs)
    wanted = [*names, *([recipe] if recipe else [])]
    if not wanted:
        raise RunError("which runs? Name some, or all of a recipe with --recipe; phmctl runs lists them")
    if baseline is not None:
        with suppress(UserError):  # a label is no run
            select_runs([baseline], root)
            wanted.append(baseline)
    checkpoint = checkpoint and folder_name(checkpoint)
    if budget is not None:
        check_known("budget", budget, BUDGETS)
    if margin is not None and not 0 <= margin < math.inf:
        raise RunError(f"--margin {margin}: expected a number of points, 0 or more")
    summaries = list_runs(wanted, root)
    if not summaries:
        raise RunError(f"no run can be read at {', '.join(map(str, wanted))}")
    summaries, trials = best_of(summaries, best) if best is not None else (summaries, [])
    found = []
    for each in splits_asked([one.run for one in summaries], split):
        check_asked(summaries, each, checkpoint)
        trained = settle(summaries, each, checkpoint)
        bare = [one.run for one in trained if score and one.bare(each)]
        for run in bare:
            try:
                kind_of(run.recipe).evaluate(Asked(run, checkpoint or "auto", split=each))
            except UserError as error:
                warn(f"{run.name} is not scored: {error}")
        if bare:
            trained = settle(list_runs([one.run.folder for one in trained], root), each, checkpoint)
        variants = group(trained)
        first = _find_baseline(variants, baseline, root)
        if budget is not None:
            variants = within_budget(variants, first, budget)
        _check_alike(variants, first, each)
        metrics = tuple(kind_of(first.first.run.recipe).metrics)
        tests = _test(variants, first, margin)
        found.append(Comparison(each, metrics, tuple(variants), first, tests, tuple(trials), margin))
    return found


def check_asked(summaries: Sequence[Summary], split: str, checkpoint: str | None) -> None:
    """Refuse (UserError) a split or a checkpoint that none of the runs has: a table of nothing would tell nobody."""
    runs, results = [one.run for one in summaries], [result for one in summaries for result in one.results]
    if runs:
        splits = ["test", "valid", *(name for run in runs for name in run.splits()), *(one.split for one in results)]
        check_known("split", split, dict.fromkeys(splits))
    if runs and checkpoint is not None:
        names = [name for run in runs for name in run.checkpoint_names()]
        known = dict.fromkeys([AUTO, *names, *(one.checkpoint for one in results)])
        check_known("checkpoint", checkpoint, known)


def _find_baseline(variants: Sequence[Variant], wanted: str | None, root: Path | None) -> Variant:
    if wanted is None:
        return next((one for one in variants if one.first.run.recipe.model.algebra == "real"), variants[0])
    folder = Path(wanted).resolve()
    with suppress(UserError):  # a label of several words is no run
        folder = find_run(root / wanted if root and (root / wanted).is_dir() else wanted).resolve()

    def called(one: Variant) -> list[set[object]]:  # what it may be called, the surest first
        runs = [*(each.run for each in one.runs), *one.doubles]
        names = one.first.run.recipe.variant, *(run.name for run in runs)
        return [{one.label}, {run.folder.resolve() for run in runs}, {*names}]

    found = list[Variant]()
    for way in range(3):
        found = found or [one for one in variants if {wanted, folder} & called(one)[way]]
    if len(found) == 1:
        return found[0]
    labels = [variant.label for variant in found or variants]
    why = f"{'several' if found else 'none'} of these{nearest(wanted, labels)}"
    raise RunError(f"--baseline {wanted}: {why}; there are {', '.join(labels)}")


def _check_alike(variants: Sequence[Variant], baseline: Variant, split: str) -> None:
    task = baseline.first.run.recipe.task
    runs = [one for variant in (baseline, *variants) for one in variant.runs]
    for one in runs:
        if one.run.recipe.task != task:
            raise RunError(f"{one.run.folder} is of task {one.run.recipe.task!r}, not {task!r}: scores do not compare")
    answered = [(one.run.folder, one.answers) for one in runs if one.answers]
    for folder, own in answered:
        first, its = answered[0]
        if (own.asked, own.right) != (its.asked, its.right):
            raise RunError(f"{folder} has other {split} text than {first}; leave one out: scores do not compare")
        if own.how != its.how:
            raise RunError(f"{folder} was not scored by the case and the tokenizer of {first}: score both alike")


def _test(variants: Sequence[Variant], baseline: Variant, margin: float | None) -> dict[str, list[Test]]:
    kind = kind_of(baseline.first.run.recipe)
    comparer, metrics = kind.comparer, [metric.name for metric in kind.metrics if metric.tested]
    others = [variant for variant in variants if variant is not baseline and variant.answered]
    if comparer is None or not baseline.answered or not others:
        return {}
    families = []
    with progress("drawing samples", len(others) * len(metrics)) as advance:
        for metric in metrics:
            tests = []
            for variant in others:
                tests.append(test_answers(comparer, metric, baseline.answered, variant.answered, margin))
                advance(1)
            corrected = holm([test.found.p_value for test in tests])
            families.append([replace(test, p_holm=p) for test, p in zip(tests, corrected, strict=True)])
    return {variant.label: tests for variant, *tests in zip(others, *families, strict=True)}


def test_answers(
    by: Comparer, metric: str, baseline: Sequence[Answers], system: Sequence[Answers], margin: float | None
) -> Test:
    """Test the difference of two models' means over seeds, the system's less the baseline's.

    With several seeds on a side as :mod:`phmctl.metrics.significance` says; with one each by the task's own paired
    test, which speaks of these two trainings.
    """
    found = difference(by.scorer(metric, baseline), by.scorer(metric, system), len(baseline[0].given), margin=margin)
    if len(baseline) > 1 or len(system) > 1:
        return Test(metric, POOLED if 1 in (len(baseline), len(system)) else OVER_SEEDS, found)
    method, p_value = by.paired(found, baseline[0], system[0])
    return Test(metric, f"{method}; {ONE_SEED}", replace(found, p_value=p_value))


def differences(one: Trained, other: Trained) -> dict[str, tuple[Any, Any]]:
    """What two runs and the results that are compared differ in, besides n and the seed."""
    found = run_differences(one.run, other.run)
    if one.result is not None and other.result is not None:
        found |= key_differences(one.result.settings, other.result.settings)
        if one.checkpoint != other.checkpoint:
            found["checkpoint"] = (one.checkpoint, other.checkpoint)
    return found


def shared(found: Sequence[tuple[str, Sequence[str]]], count: int) -> Iterator[str]:
    """Each line once, behind the labels that it is about."""
    labels: dict[str, list[str]] = {}
    for label, lines in found:
        for line in lines:
            labels.setdefault(line, []).append(label)
    for line, about in labels.items():
        yield f"{'all' if len(about) == count > 2 else ', '.join(about)}: {line}"


def _notes(variant: Variant, split: str) -> Iterator[str]:
    if len(variant.runs) == 1:
        yield "one seed, so nothing is known of the spread over seeds"
    gone, known = [str(one.seed) for one in variant.scored if one.answers is None], variant.first.run.splits()
    if gone and kind_of(variant.first.run.recipe).comparer is not None:
        way = ": score it anew" if split in (known or [split]) else ""  # of text that was never prepared none are kept
        yield f"the answers of seed {', '.join(gone)} are not kept, so no test has them{way}"
    for one in variant.runs:
        if one.summary.state != "finished":
            steps = one.run.recipe.training.steps
            yield f"seed {one.seed} is {one.summary.state}, at step {one.summary.step:,} of {steps:,}"
        if one.asked in (None, AUTO) and (one.checkpoint or "").startswith("step-") and one.run.checkpoint_names():
            yield f"seed {one.seed} was scored at {one.checkpoint}, now neither its best nor its last checkpoint"
        if one is not variant.first and (inner := differences(variant.first, one)):
            yield f"seed {one.seed} differs: " + "; ".join(difference_lines(inner, f"seed {variant.first.seed}"))
        if one.result is None and split not in (one.run.splits() or [split]):
            yield f"seed {one.seed} has no text of {split}; it has {', '.join(one.run.splits())}"
    for run in variant.doubles:
        yield f"{run.name} is left out: another run has its seed, {run.recipe.training.seed}"


def copy_notes(variants: Iterable[Variant]) -> list[str]:
    """What copying the source scores, where both sides are one language; several lines if it was scored so."""
    copies = [Copy(**kept) for variant in variants for one in variant.results if (kept := one.report.get("copy"))]
    return list(dict.fromkeys(str(copy) for copy in copies if copy.one_language))


def machines(one: Trained) -> set[str]:
    """What a run was trained on, in words: where it began, and where it was resumed."""
    first, found = one.run.environment(), set()
    for each in ({}, *first.get("resumed", ())):
        at = {**first, **each} if isinstance(each, dict) else first
        processor = at.get("processor" if at.get("device") in (None, "cpu") else "device_name") or at.get("device_name")
        threads = at.get("threads")
        found.add(f"{processor}, {threads} {'thread' if threads == 1 else 'threads'}, {at.get('precision')}")
    return found
