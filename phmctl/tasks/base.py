"""The interfaces of a task: a :class:`Task` for the trainer, a :class:`TaskSpec` for the commands.

All other modules are the same for every task: they do not know what a batch, a loss, a score or an answer consists of.
"""

from __future__ import annotations  # torch and numpy are imported for type checking only

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from phmctl.console import Table
from phmctl.errors import UserError
from phmctl.metrics.classification import ItemGroup, mcnemar
from phmctl.metrics.text import ScoreOptions, bleu_by, length_parts, sentence_chrf, text_scorer
from phmctl.runs import Run
from phmctl.runs.results import Result

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from torch import Tensor, nn

    from phmctl.answering.classifier import Classifier
    from phmctl.answering.opening import Source
    from phmctl.answering.translator import Translator
    from phmctl.metrics.significance import Difference, Scorer
    from phmctl.processes import Processes

Rows: TypeAlias = "npt.NDArray[np.int64]"  # row numbers of a split
Autocast = Callable[[], AbstractContextManager[object]]
Device: TypeAlias = "torch.device | str | None"

# --------------------------------------------------------------------------------------------------- for the trainer


@dataclass(frozen=True)
class Cost:
    """Size of a micro-batch, computed from the rows without building it.

    Every printed and stored "tokens a second" (``tok/s``) counts `tokens`, in training as in ``compare`` and ``bench``.
    """

    items: int  # items that the loss sums over, such as the tokens of the target
    tokens: int  # tokens of all sides without padding, or numbers if the data is not text


class Task(Protocol):
    """A recipe bound to its data: model, batches, loss and validation.

    Every process computes the plan of an epoch, which lists the rows of each micro-batch, and builds
    (:meth:`collate`) only the micro-batches that it trains on.
    """

    least_score: float  # lower scores differ by chance and count as equal, so that the loss decides

    def build_model(self, device: torch.device) -> nn.Module: ...

    def plan(self, epoch: int) -> Sequence[Rows]:
        """Return the rows of each micro-batch of an epoch. They depend on the epoch and the seed only."""

    def cost(self, rows: Rows) -> Cost: ...

    def collate(self, rows: Rows) -> Any:
        """Build the micro-batch of training rows, in this order."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return the loss summed over the batch's items, and the number of items. The model is called once."""

    def validate(self, model: nn.Module, autocast: Autocast, processes: Processes) -> dict[str, float]:
        """Return the validation metrics, the mean ``loss`` among them. Every process gets the same.

        Each process computes :meth:`Processes.mine`. All call the same exchanges in order.
        """

    def score(self, metrics: Mapping[str, float]) -> float:
        """Return the score of a checkpoint: the best has the highest, and of equal scores the lowest loss."""

    def check_data(self, runs: Path | None = None) -> None:
        """Raise DataError if the data does not suffice for training and validation, before a run is created.

        `runs` is the folder of runs in which the recipe's names are looked up.
        """
        return

    def check_run(self, run: Run) -> None:
        """Raise RunError if a run that is resumed was trained on other data."""

    def check_vocabulary(self, run: Run) -> None:
        """Raise RunError if a run, whose tensors are copied, uses other ids."""
        return

    def furnish(self, run: Run) -> None:
        """Write the tokenizers and the evaluation text into a new run, so that it can be used without the data."""


# ------------------------------------------------------------------------------------------------- for the commands


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model that follow from the data."""

    values: Mapping[str, int]  # by the task's names, such as ``source`` and ``target`` for two vocabularies
    note: str = ""  # the origin of the sizes, in a sentence for people
    trained: bool = False  # whether prepared data or the recipe has the sizes


class Report(Protocol):
    def as_json(self) -> dict[str, object]: ...

    def tables(self) -> Iterable[Table]: ...


@dataclass(frozen=True)
class Metric:
    name: str  # key in the scores of a result
    scale: float = 1.0  # factor for display: 100 turns a fraction into per cent
    higher: bool = True  # whether larger scores are better
    tested: bool = False  # whether differences are tested


@dataclass(frozen=True)
class Answers:
    """The scored answers of a run."""

    texts: Sequence[str]  # input of each item
    references: Sequence[str]  # reference, or label
    outputs: Sequence[str]
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)  # numbers for breakdowns, -1 if not known
    score_options: ScoreOptions = field(default_factory=ScoreOptions)  # options of BLEU and chrF


@dataclass(frozen=True, kw_only=True)
class Trains:
    """How recipes of a task are trained and runs are scored: ``train``, ``eval``, ``compare``, ``bench train``."""

    # Bind a recipe to the data below the data folder. Raises DataError if it is not prepared.
    open: Callable[[Any, Path], Task]
    # Score a run and write the scores into it: evaluate(run, split=, checkpoint=, device=) and the `options` below.
    # Raises RunError, DataError, UserError, OutputError.
    evaluate: Callable[..., Report]
    options: Sequence[str] = ()  # names of the options of ``eval`` that only some tasks have
    metrics: Sequence[Metric] = ()  # for comparisons of runs, the most important first
    comparer: Comparer | None = None  # tests of differences, or None without a test
    # Return the scored answers of a result, or None if they are not stored. Raises RunError.
    scored_answers: Callable[[Source, Result], Answers | None] = lambda run, result: None


@dataclass(frozen=True, kw_only=True)
class Answering:
    """How models of a task answer lines: ``decode``, ``serve``, ``export``, :func:`phmctl.load`."""

    # Load a run's model: load(run, checkpoint=, device=, threads=) and the `options` below.
    # Raises RunError, UserError.
    load: Callable[..., Translator | Classifier]
    options: Sequence[str] = ()  # names of the options of ``decode`` that only some tasks have


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task as the commands see it. Without `trains` and `answers` only parameters are counted."""

    name: str  # the value of ``task`` in recipes and cards
    commands: Sequence[str]  # named in the error of a command that the task lacks
    # Return the sizes of the prepared data below the data folder, or the recipe's without prepared data or with None.
    # They are named after the arguments of the model (`phmctl.models.MODELS`).
    sizes: Callable[[Any, Path | None], Sizes]
    # Return the number of rows of each table with a row for each token, by module name.
    tables: Callable[[Mapping[str, int]], Mapping[str, int]] = lambda sizes: {}
    # Return remarks that the parameter counts need.
    notes: Callable[[Any, Mapping[str, int]], Iterable[str]] = lambda section, sizes: ()
    trains: Trains | None = None
    answers: Answering | None = None

    def lacks(self, command: str) -> UserError:
        """Return the error of a command that the task does not support."""
        return UserError(f"{command}: task {self.name!r} does not support it; it has {', '.join(self.commands)}")


def text_sizes(recipe: Any, data: Path | None, names: tuple[str, str], words: str, classes: int = 0) -> Sizes:
    """Return the two sizes of a model of text, called `names`. Without prepared data the second is `classes`, if any.

    `words` shows the two sizes, as in "{:,} source and {:,} target token types".
    """
    from phmctl.data.prepared import trained_sizes  # imports numpy, which an export answers without

    trained = None if data is None else trained_sizes(recipe.data, data)
    if trained is not None:
        note = f"vocabulary: {words.format(*trained)}, as in the prepared data"
        return Sizes(dict(zip(names, trained, strict=True)), note, trained=True)
    vocabulary = recipe.data.vocabulary
    note = f"vocabulary: {vocabulary:,}, as the recipe asks. A trained tokenizer may be smaller"
    return Sizes({names[0]: vocabulary, names[1]: classes or vocabulary}, note)


# --------------------------------------------------------------------------------------------- comparisons of answers


def within(value: float, low: float, high: float, form: str = ".2f") -> str:
    """Return a figure with a 95 % interval in the form of all tables: ``34.77 (33.51 to 36.02)``."""
    return f"{value:{form}} ({low:{form}} to {high:{form}})".replace("-", "−")


class TextComparer:
    """Compare translations by BLEU, chrF and the paired bootstrap (Koehn 2004)."""

    score_name = "BLEU"  # title of the score in a breakdown
    part_name = "words of the source"

    def scorer(self, metric: str, runs: Sequence[Answers]) -> Scorer:
        """Return a function that scores a model's trainings on samples of the items."""
        return text_scorer(metric, [run.outputs for run in runs], runs[0].references, **runs[0].score_options)

    def paired_test(self, bootstrap: Difference, baseline: Answers, system: Answers) -> tuple[str, float]:
        """Return the name and the p-value of the task's test of two trainings."""
        return "paired bootstrap", bootstrap.p_value

    def item_scores(self, run: Answers) -> list[float]:
        """Return the score of each item in per cent, for choosing samples."""
        lowercase = run.score_options.get("lowercase", False)
        return sentence_chrf(run.outputs, run.references, lowercase=lowercase)

    def parts(self, run: Answers) -> list[ItemGroup]:
        """Return the items of each part of the task's own breakdown."""
        return length_parts(run.texts)

    def scores(self, run: Answers, parts: Sequence[ItemGroup]) -> list[float]:
        return [part.bleu for part in bleu_by(parts, run.outputs, run.references, **run.score_options)]


class LabelComparer:
    """Compare labels by accuracy and McNemar's exact test. :class:`TextComparer` describes the methods."""

    score_name = "accuracy (%)"
    part_name = "label"

    def scorer(self, metric: str, runs: Sequence[Answers]) -> Scorer:
        from phmctl.metrics.significance import accuracy_scorer

        return accuracy_scorer([[score > 0 for score in self.item_scores(run)] for run in runs])

    def paired_test(self, bootstrap: Difference, baseline: Answers, system: Answers) -> tuple[str, float]:
        return "McNemar's exact test", mcnemar(baseline.outputs, system.outputs, system.references)

    def item_scores(self, run: Answers) -> list[float]:
        return [100.0 * (output == label) for output, label in zip(run.outputs, run.references, strict=True)]

    def parts(self, run: Answers) -> list[ItemGroup]:
        rows: dict[str, list[int]] = {label: [] for label in sorted(set(run.references))}
        for row, label in enumerate(run.references):
            rows[label].append(row)
        return list(rows.items())

    def scores(self, run: Answers, parts: Sequence[ItemGroup]) -> list[float]:
        scores = self.item_scores(run)
        return [fmean(scores[row] for row in rows) for _, rows in parts]


Comparer: TypeAlias = TextComparer | LabelComparer
