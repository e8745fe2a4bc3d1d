"""Compare variants of a model: scores over seeds, significance tests, sizes, speeds and other differences."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path

from phmctl.console import Table, progress, warn
from phmctl.errors import RunError, UserError, check_known, nearest
from phmctl.metrics.significance import Difference, difference, holm
from phmctl.metrics.text import Copy
from phmctl.results.variants import (
    Variant,
    choose_results,
    deviation,
    difference_lines,
    group_by_model,
    mean,
    mean_and_spread,
)
from phmctl.runs import AUTO
from phmctl.runs.run import find_run, select_runs
from phmctl.runs.summary import list_runs
from phmctl.storage import folder_name
from phmctl.tasks import evaluate, requested_splits, trains
from phmctl.tasks.base import Metric, within

_NAMED = 10  # runs or seeds that a note names
OVER_SEEDS = "Multi-Bootstrap over items and seeds, Student's t"
POOLED = f"{OVER_SEEDS}; the single seed is assumed to vary as the other model's seeds"
ONE_SEED = "one seed each: valid for these two trainings only"


@dataclass(frozen=True)
class SignificanceTest:
    """The tested difference of one variant from the baseline in one metric."""

    metric: str
    method: str  # name of the test, for people
    estimate: Difference  # both means, the difference and the p-value
    p_holm: float = 1.0  # p-value after Holm's correction over all variants


def p_words(p_value: float) -> str:
    return f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"


@dataclass(frozen=True)
class Comparison:
    """Variants compared on one split."""

    split: str
    metrics: tuple[Metric, ...]
    variants: tuple[Variant, ...]  # sorted by recipe, algebra and n
    baseline: Variant
    tests: Mapping[str, Sequence[SignificanceTest]]  # by the label of the variant

    @cached_property
    def same_machine(self) -> bool:
        """Whether all runs were trained on the same machine, so that speeds can be compared."""
        machines = [member.machines for variant in self.variants for member in variant.runs]
        return len(set.union(*machines)) == 1

    def differences(self) -> Iterator[str]:
        """Yield the differences of the variants from the baseline other than n, algebra and seed."""
        lines = []
        for variant in self.variants:
            if variant is not self.baseline:
                lines.append((variant.label, difference_lines(self.baseline.first.differences(variant.first))))
        yield from _merge_lines(lines)

    def notes(self) -> Iterator[str]:
        """Yield limitations of the comparison, such as single seeds and unfinished runs."""
        yield from _merge_lines([(variant.label, list(_notes(variant, self.split))) for variant in self.variants])
        stored = [result.report.get("copy") for variant in self.variants for result in variant.results]
        copies = [Copy(**values) for values in stored if values]
        yield from dict.fromkeys(str(copy) for copy in copies if copy.one_language)
        if not self.same_machine:
            members = [(variant.label, member) for variant in self.variants for member in variant.runs]
            places = {f"{label} on {machine}" for label, member in members for machine in member.machines}
            yield "speeds are not comparable: " + "; ".join(sorted(places))

    def missing(self) -> list[str]:
        """Return the command that scores the runs without a result, if there are such runs."""
        members = [member for variant in self.variants for member in variant.runs if member.lacks_result(self.split)]
        if not members:
            return []
        command = ["phmctl", "eval", *(str(member.run.folder) for member in members)]
        if self.split != "test":
            command += ["--split", self.split]
        if members[0].checkpoint_option is not None:
            command += ["--checkpoint", members[0].checkpoint_option]
        return [shlex.join(command)]

    def conditions(self) -> list[str]:
        """Return the conditions of the scores: metric signatures, then decoding, checkpoints, seeds and dates."""
        members = [member for variant in self.variants for member in variant.scored]
        results = [result for variant in self.variants for result in variant.results]
        scores = [score for result in results for score in result.report.get("scores", ())]
        lines = list(dict.fromkeys(f"{score['name']}: {score['signature']}" for score in scores))
        decoding = [result.settings.get("decoding") or {} for result in results]
        facts = {
            "beam": {str(settings["beam"]) for settings in decoding if "beam" in settings},
            "alpha": {f"{settings['alpha']:g}" for settings in decoding if "alpha" in settings},
            "checkpoint": {member.checkpoint or "" for member in members},
            "seed": {str(member.seed) for member in members},
            "scored on": {result.date for result in results if result.date},
        }
        parts = []
        for name, values in facts.items():
            ordered = sorted(values, key=lambda value: (len(value), value))  # seed 2 before seed 10
            parts += [f"{name} {', '.join(ordered)}"] if ordered else []
        return [*lines, "; ".join(parts)] if parts else lines

    def tables(self) -> Iterator[Table]:
        """Yield the tables of scores, tested differences, and sizes and speeds."""
        names = [metric.name if metric.scale == 1 else f"{metric.name} %" for metric in self.metrics]
        rows: list[list[object]] = []
        for variant in self.variants:
            scores = [mean_and_spread(variant.values(metric)) for metric in self.metrics]
            rows.append([variant.label, len(variant.scored), *scores])
        title = f"{self.split}: mean ± standard deviation over seeds"
        yield Table(title, ["model", "seeds", *names], rows, below=self.conditions())
        if self.tests:
            rows = []
            for label, tests in self.tests.items():
                for test in tests:
                    change = test.estimate.difference
                    interval = within(change.value, change.low, change.high, "+.2f")
                    rows.append([label, test.metric, interval, p_words(test.estimate.p_value), p_words(test.p_holm)])
            title = f"difference from {self.baseline.label} (95 % interval)"
            methods = dict.fromkeys(f"tested by: {test.method}" for tests in self.tests.values() for test in tests)
            yield Table(title, ["model", "metric", "difference", "p", "p (Holm)"], rows, text=(1,), below=[*methods])
        rows = []
        for variant in self.variants:
            sizes = variant.sizes
            counts = [sizes and sizes.total, sizes and sizes.without_embeddings, variant.speed]
            cells = ["–" if count is None else f"{count:,.0f}" for count in counts]
            minutes = "–" if variant.minutes is None else f"{variant.minutes:,.1f}"
            rows.append([variant.label, *cells, variant.steps, minutes])
        speed = "tokens/s" if self.same_machine else "tokens/s *"
        columns = ["model", "parameters", "without emb.", speed, "steps", "minutes"]
        yield Table("size and speed of training", columns, rows)

    def as_json(self) -> dict[str, object]:
        variants = []
        for variant in self.variants:
            recipe, scores, runs = variant.first.run.recipe, {}, []
            for member in variant.runs:
                result = member.result and member.result.as_json()
                run = {"run": str(member.run.folder), "seed": member.seed, "state": member.summary.state}
                runs.append(run | {"result": result})
            for metric in self.metrics:
                values = variant.values(metric)
                spread = {"mean": mean(values), "standard_deviation": deviation(values)}
                scores[metric.name] = spread | {"values": values}
            tests = {}
            for test in self.tests.get(variant.label, ()):
                tests[test.metric] = {"method": test.method, **asdict(test.estimate), "p_holm": test.p_holm}
            document = {
                "label": variant.label,
                "seeds": len(variant.scored),
                "recipe": recipe.name,
                "algebra": recipe.model.algebra,
                "n": recipe.model.n,
                "runs": runs,
                "scores": scores,
                "parameters": variant.sizes and variant.sizes.total,
                "without_embeddings": variant.sizes and variant.sizes.without_embeddings,
                "tokens_per_second": variant.speed,
                "steps": variant.steps,
                "minutes": variant.minutes,
                "tests": tests,
            }
            variants.append(document)
        return {
            "split": self.split,
            "baseline": self.baseline.label,
            "metrics": [asdict(metric) for metric in self.metrics],
            "variants": variants,
            "conditions": self.conditions(),
            "differences": list(self.differences()),
            "notes": list(self.notes()),
            "missing": self.missing(),
        }


def compare(
    names: str | Path | Sequence[str | Path] = (),
    *,
    runs: str | Path | None = None,
    split: str = "test",
    checkpoint: str | None = None,
    baseline: str | None = None,
    score: bool = False,
) -> list[Comparison]:
    """Compare runs over seeds. Return a comparison for each split.

    Args:
        names: Recipes, variants, runs, folders of runs, or tags.
        runs: Folder of runs (default: ``$PHMCTL_RUNS`` or ``runs``).
        split: ``test``, ``valid``, ``test_NAME`` (a named test set) or ``all`` (all test sets).
        checkpoint: Use only results of this checkpoint: best, last, average or step-N.
        baseline: Run or label of a variant to compare with (default: the dense variant, else the first).
        score: First score the runs that have the text and the checkpoint but no result.

    Raises:
        RunError: no run matches, or the runs cannot be compared.
        UserError: the split or the checkpoint is unknown.
    """
    root = None if runs is None else Path(runs)
    selection = [names] if isinstance(names, str | Path) else list(names)
    if not selection:
        raise RunError("no runs are named. Name a recipe, a variant or runs; phmctl runs lists them")
    if baseline is not None:
        with suppress(UserError):  # the baseline may be a label
            select_runs([baseline], root)
            selection.append(baseline)
    checkpoint = checkpoint and folder_name(checkpoint)
    summaries = list_runs(selection, root)
    if not summaries:
        raise RunError(f"no readable run at {', '.join(map(str, selection))}")
    selected = [summary.run for summary in summaries]
    results = [result for summary in summaries for result in summary.results]
    splits = [name for run in selected for name in run.splits()] + [result.split for result in results]
    check_known("split", split, dict.fromkeys(["test", "valid", "all", *splits]))
    if checkpoint is not None:
        checkpoints = [name for run in selected for name in run.checkpoint_names()]
        checkpoints += [result.checkpoint for result in results]
        check_known("checkpoint", checkpoint, dict.fromkeys([AUTO, *checkpoints]))
    comparisons = []
    for name in requested_splits(selected, split):
        members = choose_results(summaries, name, checkpoint)
        if score:
            for member in members:
                try:
                    if member.lacks_result(name):
                        evaluate(member.run, name, checkpoint or AUTO)
                except UserError as error:  # the other runs can still be compared
                    warn(f"{member.run.name} is not scored: {error}")
            members = choose_results(list_runs([run.folder for run in selected]), name, checkpoint)
        variants = group_by_model(members)
        reference = _find_baseline(variants, baseline, root)
        _check_comparable(variants, reference, name)
        metrics = tuple(trains(reference.first.run.recipe).metrics)
        comparisons.append(Comparison(name, metrics, tuple(variants), reference, _test(variants, reference)))
    return comparisons


def _find_baseline(variants: Sequence[Variant], name: str | None, root: Path | None) -> Variant:
    """Return the variant with this label, name or run. The default is the first dense variant, else the first."""
    if name is None:
        dense = [variant for variant in variants if variant.first.run.recipe.model.algebra == "real"]
        return dense[0] if dense else variants[0]
    folder = None
    with suppress(UserError):  # a label need not be a run
        folder = find_run(name, root).resolve()
    matches = []
    for variant in variants:
        runs = [*(member.run for member in variant.runs), *variant.duplicates]
        names = {variant.label, variant.first.run.recipe.variant, *(run.name for run in runs)}
        if name in names or folder in [run.folder.resolve() for run in runs]:
            matches.append(variant)
    if len(matches) == 1:
        return matches[0]
    labels = [variant.label for variant in matches or variants]
    problem = "several variants match" if matches else "no variant matches"
    raise RunError(f"baseline={name}: {problem}{nearest(name, labels)}; the labels are {', '.join(labels)}")


def _check_comparable(variants: Sequence[Variant], baseline: Variant, split: str) -> None:
    """Raise RunError if the runs differ in the task, in the text of the split or in how it was scored."""
    task = baseline.first.run.recipe.task
    members = [member for variant in (baseline, *variants) for member in variant.runs]
    for member in members:
        if member.run.recipe.task != task:
            raise RunError(f"{member.run.folder} has task {member.run.recipe.task!r}, the baseline {task!r}")
    scored = [(member.run.folder, member.answers) for member in members if member.answers]
    for folder, answers in scored:
        first_folder, first = scored[0]
        if (answers.texts, answers.references) != (first.texts, first.references):
            raise RunError(f"{folder} has a different {split} text than {first_folder}; leave one of them out")
        if answers.score_options != first.score_options:
            raise RunError(f"{folder} was scored with another case or tokenizer than {first_folder}; score both again")


def _test(variants: Sequence[Variant], baseline: Variant) -> dict[str, list[SignificanceTest]]:
    """Return the tests of each variant against the baseline, Holm-corrected for each metric, by label.

    With several seeds on a side the test is the Multi-Bootstrap of :mod:`phmctl.metrics.significance`. With one seed a
    side it is the task's paired test, which says something about these two trainings only.
    """
    task = trains(baseline.first.run.recipe)
    comparer, metrics = task.comparer, [metric.name for metric in task.metrics if metric.tested]
    systems = [variant for variant in variants if variant is not baseline and variant.answers]
    if comparer is None or not baseline.answers:
        return {}
    tests: dict[str, list[SignificanceTest]] = {variant.label: [] for variant in systems}
    with progress("drawing samples", len(systems) * len(metrics)) as advance:
        for metric in metrics:
            uncorrected = []
            for variant in systems:
                scorers = comparer.scorer(metric, baseline.answers), comparer.scorer(metric, variant.answers)
                estimate = difference(*scorers, len(baseline.answers[0].outputs))
                seeds = len(baseline.answers), len(variant.answers)
                method = POOLED if 1 in seeds else OVER_SEEDS
                if seeds == (1, 1):
                    name, p_value = comparer.paired_test(estimate, baseline.answers[0], variant.answers[0])
                    method, estimate = f"{name}; {ONE_SEED}", replace(estimate, p_value=p_value)
                uncorrected.append(SignificanceTest(metric, method, estimate))
                advance(1)
            corrected = holm([test.estimate.p_value for test in uncorrected])
            for variant, test, p_holm in zip(systems, uncorrected, corrected, strict=True):
                tests[variant.label].append(replace(test, p_holm=p_holm))
    return tests


def _merge_lines(lines_by_label: Sequence[tuple[str, Sequence[str]]]) -> Iterator[str]:
    """Yield each distinct line once, after the labels that have it, or after "all" if all of three or more have it."""
    labels: dict[str, list[str]] = {}
    for label, lines in lines_by_label:
        for line in lines:
            labels.setdefault(line, []).append(label)
    for line, owners in labels.items():
        name = "all" if len(owners) == len(lines_by_label) > 2 else ", ".join(owners)
        yield f"{name}: {line}"


def _notes(variant: Variant, split: str) -> Iterator[str]:
    """Yield what limits the comparison of one variant. A remark about several seeds is one line."""
    if len(variant.runs) == 1:
        yield "one seed, so the spread over seeds is unknown"
    lost = [str(member.seed) for member in variant.scored if member.answers is None]
    if lost and trains(variant.first.run.recipe).comparer is not None:
        advice = "; score it again" if split in (variant.first.run.splits() or [split]) else ""
        yield f"the answers of seed {_shortened(lost)} are lost, so they are not tested{advice}"
    seeds: dict[str, list[str]] = {}
    for member in variant.runs:
        summary, splits, remarks = member.summary, member.run.splits(), []
        if summary.state != "finished":
            remarks.append(f"is {summary.state}, at step {summary.step:,} of {summary.recipe.training.steps:,}")
        was_best_or_last = member.checkpoint_option in (None, AUTO) and (member.checkpoint or "").startswith("step-")
        if was_best_or_last and member.run.checkpoint_names():
            remarks.append(f"was scored at {member.checkpoint}, now neither its best nor last checkpoint")
        if member.run.checkpoint_names():
            try:
                member.run.weights(member.checkpoint_option or AUTO)
            except RunError as error:
                remarks.append(f"cannot be scored: {error}")
        changes = variant.first.differences(member)
        if changes:
            remarks.append("differs: " + "; ".join(difference_lines(changes, f"seed {variant.first.seed}")))
        if member.result is None and splits and split not in splits:
            remarks.append(f"lacks the text of {split}; it has {', '.join(splits)}")
        for remark in remarks:
            seeds.setdefault(remark, []).append(str(member.seed))
    yield from (f"seed {_shortened(owners)} {remark}" for remark, owners in seeds.items())
    if variant.duplicates:
        names = [f"{run.name} (seed {run.recipe.training.seed})" for run in variant.duplicates]
        yield f"left out, because another run has the seed: {_shortened(names)}"


def _shortened(names: Sequence[str]) -> str:
    """Return the first names, and the number of the others."""
    shown = ", ".join(names[:_NAMED])
    return shown if len(names) <= _NAMED else f"{shown} and {len(names) - _NAMED:,} more"
