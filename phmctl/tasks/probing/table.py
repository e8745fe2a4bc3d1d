"""Table 3 of Li et al. 2020: ten probing tasks in three groups, the published accuracies beside those of runs here."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from phmctl.console import Table
from phmctl.metrics.classification import Accuracy, McNemar

# group -> (the paper's abbreviation, its recipe here, accuracy in % of Transformer-Base, and with NI composition)
TABLE_3: dict[str, tuple[tuple[str, str, float, float], ...]] = {
    "surface": (
        ("SeLen", "probe-sentence-length", 92.20, 92.11),
        ("WC", "probe-word-content", 63.00, 63.50),
    ),
    "syntactic": (
        ("TrDep", "probe-tree-depth", 44.74, 44.96),
        ("ToCo", "probe-top-constituents", 79.02, 81.31),
        ("BShif", "probe-bigram-shift", 71.24, 72.44),
    ),
    "semantic": (
        ("Tense", "probe-past-present", 89.24, 89.26),
        ("SubNm", "probe-subj-number", 84.69, 87.05),
        ("ObjNm", "probe-obj-number", 84.53, 86.91),
        ("SOMO", "probe-odd-man-out", 52.13, 52.52),
        ("CoIn", "probe-coord-inversion", 62.47, 64.93),
    ),
}
RECIPES = tuple(recipe for tasks in TABLE_3.values() for _, recipe, _, _ in tasks)


@dataclass(frozen=True)
class Probed:
    """What probes of one encoder reach on a task's test set.

    Attributes:
        encoder: by its states.
        embeddings: by a bag of its source embeddings.
    """

    encoder: Accuracy
    embeddings: Accuracy


@dataclass(frozen=True)
class TaskScores:
    """One task.

    Attributes:
        own: of the run.
        majority: the accuracy of always giving the class that train has most.
        train: sentences that the probes were trained on.
        against: of the baseline, if there is one.
        compared: McNemar's test of the two encoders' probes.
    """

    own: Probed
    majority: Accuracy
    train: int
    against: Probed | None = None
    compared: McNemar | None = None


@dataclass(frozen=True)
class ProbingReport:
    """What probing found of an encoder.

    Attributes:
        run: the name of its run.
        checkpoint: the name of the checkpoint's folder.
        tasks: scores by recipe, of the tasks whose data is there.
        against: the name of the baseline.
        pooling: how states became a vector.
    """

    run: str
    checkpoint: str
    tasks: dict[str, TaskScores]
    against: str | None = None
    pooling: str = "mean"

    def as_json(self) -> dict[str, Any]:
        """Return JSON values; the averages are of the tasks that are there."""
        averages = {group: _averages(scores) for group, scores in self._groups() if scores}
        missing = [name for name in RECIPES if name not in self.tasks]
        return {**asdict(self), "averages": averages, "missing": missing, "published": published()}

    def tables(self) -> Iterator[Table]:
        """Yield the table in the paper's arrangement."""
        rival = ["base", "its bag"] if self.against else []
        columns = ["", "majority", *rival, "run", "its bag", *(["Δ"] if self.against else []), "Base", "NI", "Δ"]
        rows = [row for group, scores in self._groups() for row in self._rows(group, scores)]
        yield Table(f"probing: accuracy of {self.run} in %", columns, rows)

    def notes(self) -> Iterator[str]:
        """Yield what a reader of the table must know."""
        yield f"run: {self.run} ({self.checkpoint}){f'; base: {self.against}' if self.against else ''}; 95 % intervals"
        sizes = {scores.train for scores in self.tasks.values()}
        tested = {scores.majority.total for scores in self.tasks.values()}
        yield (
            f"probes were trained on {min(sizes):,} to {max(sizes):,} sentences and tested on {min(tested):,} to "
            f"{max(tested):,}; the published ones on 100,000 and 10,000"
        )
        yield f"vectors: {self.pooling} over the encoder's positions; bag: the mean of the run's source embeddings"
        yield "at the right as published (Li et al. 2020, Table 3); averages of ours are of the tasks that are there"
        missing = [name.removeprefix("probe-") for name in RECIPES if name not in self.tasks]
        if missing:
            yield f"no data for {', '.join(missing)}: phmctl prepare-data probing-{missing[0]} --source DIR"

    def _groups(self) -> Iterator[tuple[str, list[TaskScores]]]:
        for group, tasks in TABLE_3.items():
            yield group, [self.tasks[recipe] for _, recipe, _, _ in tasks if recipe in self.tasks]

    def _rows(self, group: str, scores: Sequence[TaskScores]) -> Iterator[Sequence[str]]:
        for task, recipe, base, composed in TABLE_3[group]:
            yield [task, *self._cells(self.tasks.get(recipe)), f"{base:.2f}", f"{composed:.2f}", _gain(base, composed)]
        average, (base, composed) = _averages(scores), _published_average(group)
        own = [f"{average[key]:.2f}" if key in average else "–" for key in self._keys()]
        if self.against:
            own.append(_gain(average["against"], average["run"]) if scores else "–")
        count = f" of {len(scores)}" if len(scores) < len(TABLE_3[group]) else ""
        yield [f"{group}, average{count}", *own, f"{base:.2f}", f"{composed:.2f}", _gain(base, composed)]

    def _keys(self) -> list[str]:
        return ["majority", *(["against", "against_bag"] if self.against else []), "run", "run_bag"]

    def _cells(self, scores: TaskScores | None) -> list[str]:
        if scores is None:
            return ["–"] * (len(self._keys()) + bool(self.against))
        cells = [f"{100 * scores.majority.value:.1f}"]
        for probed in (scores.against, scores.own):
            if probed is not None:
                cells += [_interval(probed.encoder), f"{100 * probed.embeddings.value:.1f}"]
        if scores.against is not None:
            cells.append(_gain(scores.against.encoder.value, scores.own.encoder.value))
        return cells


def published() -> dict[str, Any]:
    """Return the published accuracies in % by recipe: ``base`` and ``composed``."""
    return {recipe: {"base": base, "composed": ni} for tasks in TABLE_3.values() for _, recipe, base, ni in tasks}


def _averages(scores: Sequence[TaskScores]) -> dict[str, float]:
    """Return the mean accuracies in % over some tasks, none where there are none."""
    if not scores:
        return {}
    columns = {
        "majority": [each.majority for each in scores],
        "run": [each.own.encoder for each in scores],
        "run_bag": [each.own.embeddings for each in scores],
        "against": [each.against.encoder for each in scores if each.against],
        "against_bag": [each.against.embeddings for each in scores if each.against],
    }
    return {name: 100 * fmean(one.value for one in found) for name, found in columns.items() if found}


def _published_average(group: str) -> tuple[float, float]:
    tasks = TABLE_3[group]
    return fmean(base for _, _, base, _ in tasks), fmean(composed for _, _, _, composed in tasks)


def _interval(one: Accuracy) -> str:
    return f"{100 * one.value:.1f} ({100 * one.lower:.1f}–{100 * one.upper:.1f})"


def _gain(base: float, other: float) -> str:
    """Return the relative improvement, as the paper's Δ has it."""
    return f"{100 * (other / base - 1):+.1f}%"
