"""Group runs that differ only in the seed, and choose the result of each."""

import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

from phmctl.console import warn
from phmctl.errors import RunError
from phmctl.recipe.models import NOTHING
from phmctl.recipe.schema import differences, keys_changing
from phmctl.runs import AUTO, Run
from phmctl.runs.results import Result, read_metrics, series
from phmctl.runs.summary import OWN_COLUMNS, Changes, Parameters, Summary
from phmctl.storage import sha256_text
from phmctl.tasks import trains
from phmctl.tasks.base import Answers, Metric

_LABEL_VALUE_LENGTH = 16  # characters of a value in a label


@dataclass(frozen=True)
class ComparedRun:
    """A run and the result by which it is compared, if it has one."""

    summary: Summary
    result: Result | None
    checkpoint_option: str | None = None  # value of --checkpoint, None for results of any

    @property
    def run(self) -> Run:
        return self.summary.run

    @property
    def seed(self) -> int:
        return self.run.recipe.training.seed

    @cached_property
    def answers(self) -> Answers | None:
        """The scored answers. None without a result, or if the answers are lost or lack lines."""
        if self.result is None or self.result.answers is None:
            return None
        try:
            return trains(self.run.recipe).scored_answers(self.run, self.result)
        except RunError as error:
            warn(f"{error}; no test uses these answers")
            return None

    @cached_property
    def speed(self) -> float | None:
        """Median training speed, in tokens of both sides per second. None if the log does not have it."""
        rates = [value for _, value in series(read_metrics(self.run.metrics_path), "train", "tokens_per_second")]
        return statistics.median(rates) if rates else None

    @cached_property
    def machines(self) -> set[str]:
        """Descriptions of the machines on which the training was started and resumed."""
        start = self.run.environment()
        machines = set()
        for changes in ({}, *start.get("resumed", ())):
            environment = start | changes if isinstance(changes, dict) else start
            on_cpu = environment.get("device") in (None, "cpu")
            name = environment.get("processor" if on_cpu else "device_name") or environment.get("device_name")
            threads = environment.get("threads")
            unit = "thread" if threads == 1 else "threads"
            machines.add(f"{name}, {threads} {unit}, {environment.get('precision')}")
        return machines

    @property
    def checkpoint(self) -> str | None:
        """Name of the scored checkpoint that has the same meaning for every seed, such as ``best``."""
        if self.result is None:
            return None
        if self.checkpoint_option not in (None, AUTO):
            return self.checkpoint_option
        for name in ("best", "last"):
            with suppress(RunError):
                if self.run.checkpoint(name).name == self.result.checkpoint:
                    return name
        return self.result.checkpoint

    def differences(self, other: "ComparedRun") -> Changes:
        """Return the differences of another run and result other than n, algebra and seed, with both values."""
        changes = run_differences(self.run, other.run)
        changes["made with"] = (_versions(self.run), _versions(other.run))
        if "training.steps" not in changes:
            changes["steps trained"] = (self.summary.step, other.summary.step)
        if self.result is not None and other.result is not None:
            changes |= differences(self.result.settings, other.result.settings)
            changes["checkpoint"] = (self.checkpoint, other.checkpoint)
        return {key: (value, other_value) for key, (value, other_value) in changes.items() if value != other_value}

    def lacks_result(self, split: str) -> bool:
        """Return whether the run is not scored yet but has the checkpoint and the text for it."""
        with suppress(RunError):
            self.run.weights(self.checkpoint_option or AUTO)
            return self.result is None and split in (self.run.splits() or [split])
        return False


@dataclass(frozen=True)
class Variant:
    """Runs that differ only in the seed."""

    label: str  # name in tables: phm-n4, plus a mark if several variants share the name
    runs: tuple[ComparedRun, ...]  # one run per seed, sorted by seed
    duplicates: tuple[Run, ...] = ()  # runs left out because another run has the seed

    @property
    def first(self) -> ComparedRun:
        """A run that represents the others in everything but the seed."""
        return self.runs[0]

    @property
    def scored(self) -> tuple[ComparedRun, ...]:
        return tuple(member for member in self.runs if member.result is not None)

    @property
    def results(self) -> list[Result]:
        return [member.result for member in self.runs if member.result is not None]

    @property
    def answers(self) -> list[Answers]:
        return [member.answers for member in self.scored if member.answers is not None]

    def values(self, metric: Metric) -> list[float]:
        """Return the metric of each seed that has it, scaled for display."""
        return [metric.scale * result.scores[metric.name] for result in self.results if metric.name in result.scores]

    @property
    def sizes(self) -> Parameters | None:
        """Numbers of parameters. None without a checkpoint."""
        return next((member.summary.parameters for member in self.runs if member.summary.parameters), None)

    @property
    def speed(self) -> float | None:
        return mean(member.speed for member in self.runs)

    @property
    def steps(self) -> str:
        """Number of steps of the trainings, or the range: ``1,800`` or ``1,750–1,800``."""
        ends = sorted({member.summary.step for member in self.runs})
        return "–".join(f"{step:,}" for step in dict.fromkeys((ends[0], ends[-1])))

    @property
    def minutes(self) -> float | None:
        return mean(member.summary.minutes for member in self.runs)


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None without any."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def deviation(values: Sequence[float]) -> float | None:
    """Return the sample standard deviation, or None for fewer than two values."""
    if len(values) < 2:
        return None
    center = statistics.fmean(values)  # statistics.stdev rejects infinity, which a diverged run may have
    return math.sqrt(math.fsum((value - center) ** 2 for value in values) / (len(values) - 1))


def mean_and_spread(values: Sequence[float]) -> str:
    """Format values as ``40.21 ± 0.35`` (sample standard deviation), one value alone, no value as a dash."""
    if not values:
        return "–"
    center, spread = statistics.fmean(values), deviation(values)
    form = ".2f" if abs(center) >= 0.01 or not center else ".1e"
    return f"{center:{form}}" if spread is None else f"{center:{form}} ± {spread:{form}}"


def choose_results(summaries: Sequence[Summary], split: str, checkpoint: str | None) -> list[ComparedRun]:
    """Choose the result of each run: on the split, of the checkpoint if given, of the weights that the run has.

    If a run has several, prefer the settings and checkpoint that the most runs have in common, so that all runs are
    decoded the same way, then the checkpoint that ``auto`` selects, then the newest.
    """
    candidates: list[list[ComparedRun]] = []
    for summary in summaries:
        names = {checkpoint}
        with suppress(RunError):  # "best" may be the folder that results call step-001800
            names.add(summary.run.checkpoint(checkpoint).name if checkpoint else None)
        members = []
        for result in summary.results:
            if result.split != split or (checkpoint is not None and result.checkpoint not in names):
                continue
            with suppress(RunError):  # the checkpoint was deleted
                if summary.run.weights(result.checkpoint).sha256 != result.checkpoint_sha256:
                    continue  # trained further since it was scored
            members.append(ComparedRun(summary, result, checkpoint))
        candidates.append(members)

    def scored_as(run: ComparedRun) -> str:
        settings = {} if run.result is None else run.result.settings
        return repr((run.checkpoint, sorted((name, str(value)) for name, value in settings.items())))

    counts = Counter(key for members in candidates for key in {scored_as(member) for member in members})

    def preference(member: ComparedRun) -> tuple[int, bool, float]:
        written = member.result.path.stat().st_mtime if member.result else 0.0
        return counts[scored_as(member)], member.checkpoint == member.run.auto_checkpoint(), written

    chosen = []
    for summary, members in zip(summaries, candidates, strict=True):
        chosen.append(max(members, key=preference, default=ComparedRun(summary, None, checkpoint)))
    return chosen


def group_by_model(runs: Sequence[ComparedRun]) -> list[Variant]:
    """Group runs that differ only in the seed and the software, and were scored at the same kind of checkpoint.

    A run without a result joins any group of the model. If several runs have the same seed, prefer one with a result,
    then a finished one, then the newest.
    """
    groups: list[list[ComparedRun]] = []
    for run in sorted(runs, key=lambda run: run.result is None):  # scored runs first
        for group in groups:
            same_checkpoint = run.result is None or group[0].checkpoint == run.checkpoint
            if same_checkpoint and not run_differences(group[0].run, run.run, {"training.seed"}):
                group.append(run)
                break
        else:
            groups.append([run])
    groups.sort(key=lambda members: min(runs.index(member) for member in members))

    def precedence(member: ComparedRun) -> tuple[bool, bool, str, str]:
        started = str(member.run.environment().get("started", ""))
        return member.result is not None, member.summary.state == "finished", started, member.run.folder.name

    variants = []
    for label, members in zip(_labels([members[0] for members in groups]), groups, strict=True):
        by_seed = {member.seed: member for member in sorted(members, key=precedence)}
        kept = tuple(by_seed[seed] for seed in sorted(by_seed))
        variants.append(Variant(label, kept, tuple(member.run for member in members if member not in kept)))
    return variants


def _labels(representatives: Sequence[ComparedRun]) -> list[str]:
    """Return a unique label for each variant: the name, with the recipe if there are several recipes."""
    recipes = [member.run.recipe for member in representatives]
    several = len({recipe.name for recipe in recipes}) > 1
    labels = [f"{recipe.name}/{recipe.variant}" if several else recipe.variant for recipe in recipes]
    for name in dict.fromkeys(labels):
        indices = [index for index, label in enumerate(labels) if label == name]
        if len(indices) > 1:
            marks = _marks([representatives[index] for index in indices])
            for index, mark in zip(indices, marks, strict=True):
                labels[index] = f"{name} {mark}"
    return labels


def _marks(members: Sequence[ComparedRun]) -> list[str]:
    """Return marks that distinguish runs of one name: the values of one key if they all differ, else numbers."""
    first, *others = members
    changes = [first.differences(member) for member in others]
    for key in dict.fromkeys(key for pairs in changes for key in pairs if key != "made with"):
        first_value = next(pairs[key][0] for pairs in changes if key in pairs)
        values = [first_value, *(pairs[key][1] if key in pairs else first_value for pairs in changes)]
        texts = ["none" if value is None else str(value)[-_LABEL_VALUE_LENGTH:] for value in values]
        if len(set(texts)) == len(members):
            return [f"{key.rpartition('.')[2]}={text}" for text in texts]
    return [f"({number})" for number in range(1, len(members) + 1)]


def run_differences(first: Run, second: Run, ignored: Set[str] = OWN_COLUMNS) -> Changes:
    """Return the differences of two runs in recipe and training data, each with both values.

    The `ignored` keys and settings that change no result are left out. Data are compared by a digest of source files,
    vocabulary and kept texts.
    """
    skipped = ignored | keys_changing(first.recipe, NOTHING)
    recipes = differences(first.recipe, second.recipe)
    changes = {key: values for key, values in recipes.items() if key not in skipped}
    with suppress(RunError):  # a run lacks the record
        digests = (_data_digest(first), _data_digest(second))
        if digests[0] != digests[1]:
            changes["data"] = digests
    return changes


def difference_lines(changes: Changes, baseline: str = "the baseline") -> list[str]:
    """Return a line for each difference: ``training.steps: 2,000; 4,000 in the baseline``."""
    lines = []
    for name, (baseline_value, value) in changes.items():
        lines.append(f"{name}: {format_value(value)}; {format_value(baseline_value)} in {baseline}")
    return lines


def format_value(value: object) -> str:
    if value is None:
        return "none"
    return f"{value:,}" if type(value) is int else str(value)


def _data_digest(run: Run) -> str:
    data = run.data()
    identity = {key: data.get(key) for key in ("corpus", "token_types", "labels")}
    identity["sources"] = sorted(str(source.get("sha256")) for source in data.get("sources", ()))
    kept = {name: split.get("kept") for name, split in data.get("splits", {}).items()}
    return sha256_text([json.dumps([identity, kept], sort_keys=True)])[:8]


def _versions(run: Run) -> str:
    environment = run.environment()
    libraries = environment.get("libraries") or {}
    return f"phmctl {environment.get('phmctl')} at {str(environment.get('git'))[:7]}, torch {libraries.get('torch')}"
