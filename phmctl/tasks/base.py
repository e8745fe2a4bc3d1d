"""Interfaces of a task: the trainer calls a :class:`Task`, the commands a :class:`TaskKind`.

All other modules are the same for every task: they do not know what a batch, a loss, a score or an answer consists of.
"""

from __future__ import annotations  # torch and numpy are imported for type checking only

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeAlias, TypeVar

from phmctl.console import Table
from phmctl.decoding.model import Model
from phmctl.errors import UserError
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.results import Result
from phmctl.tasks.answers import Answers, Comparer, Metric

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import torch
    from torch import Tensor, nn

R = TypeVar("R", bound=Recipe)
P = TypeVar("P")

Rows: TypeAlias = "npt.NDArray[np.int64]"  # row numbers of a split
Autocast = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Cost:
    """Size of a micro-batch, computed from its rows without building it."""

    items: int  # items that the loss sums over: the batch's ``target_tokens``
    tokens: int  # tokens of all sides, without padding; for speeds
    rows: int  # rows that a map reads: tokens, without padding, of the side with the most


class Share:
    """The part of the work of one process; this class is for a single process, which does all of it.

    The processes of a training call the same methods in the same order.
    """

    def mine(self, parts: Sequence[P]) -> Iterator[P]:
        """Yield this process's parts; each part goes to one process. Raises PhmctlError if the training must stop."""
        return iter(parts)

    def total(self, sums: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes; float64 makes sums of float32 independent of their number."""
        return sums

    def merge(self, results: Mapping[int, Any]) -> dict[int, Any]:
        """Return the results of all processes; the keys are unique."""
        return dict(results)


ALONE = Share()


class Task(Protocol):
    """A recipe bound to its data: model, batches, loss and validation.

    Every process computes the plan of an epoch, the rows of its micro-batches, by itself; it builds (:meth:`collate`)
    only the micro-batches that it trains on.
    """

    unit: str  # short name of the items that the loss is divided by: ``tok``, ``examples``
    least_score: float  # lower scores are equal, because they differ by chance; then the loss decides

    def build_model(self, device: torch.device) -> nn.Module: ...

    def plan(self, epoch: int) -> Sequence[Rows]:
        """Return the rows of each micro-batch of an epoch; they depend on the epoch and the seed only."""

    def cost(self, rows: Rows) -> Cost: ...

    def collate(self, rows: Rows) -> Any:
        """Build the micro-batch of training rows, in this order."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return the loss summed over the batch's items, and their number; the model is called once."""

    def validate(self, model: nn.Module, autocast: Autocast, share: Share) -> dict[str, float]:
        """Return the validation metrics, the mean ``loss`` among them; every process gets the same."""

    def score(self, metrics: Mapping[str, float]) -> float:
        """Return the score of a checkpoint: the best has the highest, and of equal scores the lowest loss."""

    def check_data(self) -> None:
        """Raise DataError if the data does not suffice for training and validation; called before a run is created."""
        return

    def check_run(self, run: Run) -> None:
        """Raise RunError if a run that is resumed was trained on other data."""

    def check_vocabulary(self, run: Run) -> None:
        """Raise RunError if a run, whose tensors are copied, uses other ids."""
        return

    def furnish(self, run: Run) -> None:
        """Write the tokenizers and the evaluation text into a new run, so that it can be used without the data."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a model that follow from the data."""

    values: Mapping[str, int]  # by the task's names, such as ``source`` and ``target`` for two vocabularies
    note: str = ""  # their origin, in a sentence for people
    trained: bool = False  # whether they are the sizes of prepared data; otherwise the recipe's


class Report(Protocol):
    def as_json(self) -> dict[str, Any]: ...

    def tables(self) -> Iterable[Table]: ...


@dataclass(frozen=True, kw_only=True)
class LoadRequest:
    """A request to load a run's model; a task with options of its own adds them in a subclass."""

    run: Run
    checkpoint: str = "best"
    device: str = "auto"
    cleaned: bool = False  # whether the lines will be the run's own text, which was cleaned already
    threads: int = 0  # CPU threads of an engine that has its own; 0: the engine's default


@dataclass(frozen=True, kw_only=True)
class ScoreRequest:
    """A request to score a run; a task with options of its own adds them in a subclass."""

    run: Run
    checkpoint: str = "best"
    device: str = "auto"
    split: str = "test"


class TaskKind(ABC, Generic[R]):
    """A task as the commands see it. This class alone is enough for ``count-params``."""

    recipe: type[R]  # the default of its key ``task`` is the task's name
    commands: Sequence[str] = ("count-params",)
    corpus_options: Sequence[str] = ()  # options of ``prepare-data`` that only this task has

    @property
    def name(self) -> str:
        return str(self.recipe.model_fields["task"].default)

    @abstractmethod
    def sizes(self, recipe: R, data: Path | None = None) -> Sizes:
        """Return the sizes of the prepared data below the data folder; without prepared data the recipe's."""

    @abstractmethod
    def build(self, settings: Any, sizes: Mapping[str, int], device: torch.device | str | None = None) -> nn.Module:
        """Build the untrained model of a recipe's ``model`` section; the device ``meta`` allocates nothing."""

    def tables(self, settings: Any, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return the number of rows of each table with a row for each token, by module name."""
        return {}

    def notes(self, settings: Any, sizes: Mapping[str, int]) -> Iterable[str]:
        """Return remarks that the parameter counts need."""
        return ()

    def require(self, command: str) -> None:
        """Raise UserError if the task does not support a command."""
        if command not in self.commands:
            raise self.unsupported(command)

    def unsupported(self, command: str) -> UserError:
        return UserError(f"{command}: task {self.name!r} does not support it; it has {', '.join(self.commands)}")


class TrainedKind(TaskKind[R]):
    """A task whose recipes are trained and whose runs are scored."""

    commands: Sequence[str] = ("train", "eval", "count-params", "bench train")
    score_request: type[ScoreRequest] = ScoreRequest
    metrics: Sequence[Metric] = ()  # for comparisons of runs; the most important first
    comparer: Comparer | None = None  # tests of differences; None: the task has no test

    @abstractmethod
    def open(self, recipe: R, data: Path) -> Task:
        """Bind a recipe to its data below the data folder. Raises DataError if it is not prepared."""

    @abstractmethod
    def evaluate(self, request: Any) -> Report:
        """Score a run and write the scores into it; `request` is of class ``score_request``.

        Raises RunError, DataError, UserError, OutputError.
        """

    def answers(self, run: Run, result: Result) -> Answers | None:
        """Return the scored answers of a result; None if it has none. Raises RunError."""
        return None


class AnsweringKind(TrainedKind[R]):
    """A task whose models answer lines."""

    commands: Sequence[str] = ("train", "eval", "decode", "count-params", "bench train")
    load_request: type[LoadRequest] = LoadRequest

    @abstractmethod
    def load(self, request: Any) -> Model:
        """Load a run's model; `request` is of class ``load_request``. Raises RunError, UserError."""

    @abstractmethod
    def split_lines(self, run: Run, split: str) -> list[str]:
        """Return a split of the run's own text as lines for its model. Raises RunError."""


def task_options(request: type[LoadRequest] | type[ScoreRequest]) -> list[str]:
    """Return the names of the options that a task adds to a request."""
    base = LoadRequest if issubclass(request, LoadRequest) else ScoreRequest
    shared = {field.name for field in fields(base)}
    return [field.name for field in fields(request) if field.name not in shared]


def check_options(kind: TaskKind[Any], request: type[LoadRequest] | type[ScoreRequest], options: Iterable[str]) -> None:
    """Raise UserError for options that a task's request does not have."""
    known = task_options(request)
    unknown = [option_name(name) for name in options if name not in known]
    if unknown:
        valid = ", ".join(map(option_name, known)) or "no options"
        raise UserError(f"{', '.join(unknown)}: task {kind.name!r} does not have this option; it has {valid}")


def option_name(name: str) -> str:
    """Return a key in the spelling of the command line: ``--batch-tokens``."""
    return f"--{name.replace('_', '-')}"
