"""What a task is: the trainer asks a :class:`Task`, a recipe bound to its data; the commands ask a :class:`TaskKind`.

Nothing else knows what a batch, a loss, a score or an answer is about.
"""

from __future__ import annotations  # commands ask kinds of tasks; what a kind is about is imported when it is used

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
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

    from phmctl.data.prepared.folder import PreparedData

R = TypeVar("R", bound=Recipe)
P = TypeVar("P")

Rows: TypeAlias = "npt.NDArray[np.int64]"  # numbers of a split's rows
Autocast = Callable[[], AbstractContextManager[Any]]
USUAL_COMMANDS = ("prepare-data", "train", "eval", "decode", "count-params", "bench train")


@dataclass(frozen=True)
class Cost:
    """What a micro-batch is, known from its rows without building it."""

    items: int  # that the loss sums over, the batch's ``target_tokens``
    tokens: int  # real ones of all sides, padding not counted; for speeds
    rows: int  # that a map sees: real tokens of the side that has most


class Share:
    """One process's part of work, here all of it; where several share it, each calls the same methods in one order."""

    def mine(self, parts: Sequence[P]) -> Iterator[P]:
        """Yield this process's parts of what all of them do, each to one process. Raises PhmctlError: asked to stop."""
        return iter(parts)

    def total(self, sums: Tensor) -> Tensor:
        """Return the sum of a tensor over all processes; float64 keeps sums of float32 the same for any division."""
        return sums

    def merge(self, found: Mapping[int, Any]) -> dict[int, Any]:
        """Return what all processes found together, under the keys that they gave it."""
        return dict(found)


ALONE = Share()


class Task(Protocol):
    """Binds data, model, loss and metric.

    An epoch is planned as rows of micro-batches, which every process works out for itself without talking; a process
    builds (:meth:`collate`) only those that it trains on.
    """

    unit: str  # what the loss is divided by, shortly: ``tok``, ``examples``
    least_score: float  # scores below it count as equal: what tells them apart is chance, and the loss says more

    def build_model(self, device: torch.device) -> nn.Module: ...

    def plan(self, epoch: int) -> Sequence[Rows]:
        """Return the rows of each micro-batch of an epoch; the same for the same epoch and seed."""

    def cost(self, rows: Rows) -> Cost: ...

    def collate(self, rows: Rows) -> Any:
        """Build the micro-batch of some training rows, in this order."""

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return the loss summed over the batch's items, by one call of the model, and their number."""

    def validate(self, model: nn.Module, autocast: Autocast, share: Share) -> dict[str, float]:
        """Return the validation metrics, ``loss`` (a mean) among them; the same on each process that has a share."""

    def score(self, metrics: Mapping[str, float]) -> float:
        """Return the number by which the best checkpoint is chosen: the highest, of equal ones the one of less loss."""

    def check_data(self) -> None:
        """Refuse (DataError) data that no training can begin or be validated with; called before a run is made."""
        return

    def check_run(self, run: Run) -> None:
        """Refuse (RunError) to continue a run that was trained on other data."""

    def check_vocabulary(self, run: Run) -> None:
        """Refuse (RunError) to begin with the tensors of a run to which ids mean something else."""
        return

    def furnish(self, run: Run) -> None:
        """Write into a new run what using it elsewhere needs: tokenizers, raw evaluation text."""


@dataclass(frozen=True)
class Sizes:
    """What the data decides of a model's size."""

    values: Mapping[str, int]  # by the task's own names, such as ``source`` and ``target`` for two vocabularies
    note: str = ""  # where they come from, for people
    trained: bool = False  # whether they are those of prepared data; otherwise they are what the recipe asks for


class Report(Protocol):
    def as_json(self) -> dict[str, Any]: ...

    def tables(self) -> Iterable[Table]: ...


@dataclass(frozen=True)
class Asked:
    """What ``eval`` or ``decode`` was asked of a run."""

    run: Run
    checkpoint: str = "best"
    device: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)  # the task's own that were given, all of which it has
    split: str = "test"
    against: Run | None = None
    own_text: bool = False  # the lines that are to be answered are those of a split of the run
    threads: int = 0  # of an engine that has its own


class TaskKind(ABC, Generic[R]):
    """A kind of task, as the commands know it; what it leaves as it is here is a clear error, or nothing.

    ``recipe``, ``sizes`` and ``build`` are enough for ``count-params``.
    """

    recipe: type[R]  # the class of its recipes; their ``task`` is the name in the registry
    commands: Sequence[str] = USUAL_COMMANDS
    corpus_options: Sequence[str] = ()  # of ``prepare-data``, that say that a user's own corpus is for this task
    eval_options: Sequence[str] = ()
    decode_options: Sequence[str] = ()
    metrics: Sequence[Metric] = ()  # by which runs are compared, the first of them first
    comparer: Comparer | None = None  # how differences are tested; None where there is no test

    @property
    def name(self) -> str:
        return str(self.recipe.model_fields["task"].default)

    def prepare(self, name: str, *args: Any, **asked: Any) -> PreparedData:
        """Prepare a corpus; :meth:`phmctl.tasks.own.TextKind.prepare` says from what."""
        raise self.lacks("prepare-data")

    def open(self, recipe: R, data: Path) -> Task:
        """Bind a recipe to its data below the data folder. Raises DataError if it is not prepared."""
        raise self.lacks("train")

    @abstractmethod
    def sizes(self, recipe: R, data: Path | None = None) -> Sizes:
        """Return the sizes that prepared data gives the model; what the recipe asks for if there is none."""

    @abstractmethod
    def build(self, settings: Any, sizes: Mapping[str, int], device: torch.device | str | None = None) -> nn.Module:
        """Build the untrained model of a recipe's ``model`` section; on ``meta`` nothing is allocated."""

    def evaluate(self, asked: Asked) -> Report:
        """Score a run on a split and write the scores into it; compare it with another. Raises RunError, UserError."""
        raise self.lacks("eval")

    def answers(self, run: Run, result: Result) -> Answers | None:
        """Return what a result of a run is about; None where the task or the result has no answers. Raises RunError."""
        return None

    def load(self, asked: Asked) -> Model:
        """Load a run's model, ready to answer; the same errors as :meth:`evaluate`."""
        raise self.lacks("decode")

    def split_lines(self, run: Run, split: str) -> list[str]:
        """Return a split of the run's own text as lines that its model takes. Raises RunError."""
        raise self.lacks("decode")

    def tables(self, settings: Any, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return, by module name, the rows asked of each table whose size is a vocabulary's."""
        return {}

    def notes(self, settings: Any, sizes: Mapping[str, int]) -> Iterable[str]:
        """Return what a reader of the model's parameter counts must know."""
        return ()

    def require(self, command: str, options: Iterable[str] = ()) -> None:
        """Refuse (UserError) a command, or options of it, that the task does not have; the message names its own."""
        if command not in self.commands:
            raise self.lacks(command)
        known = {"eval": self.eval_options, "decode": self.decode_options}.get(command, ())
        if wrong := [option_name(name) for name in options if name not in known]:
            has = ", ".join(map(option_name, known)) or "none of its own"
            raise UserError(f"{', '.join(wrong)}: task {self.name!r} has no such option; it has {has}")

    def lacks(self, command: str) -> UserError:
        return UserError(f"{command}: task {self.name!r} does not have it; it has {', '.join(self.commands)}")


def option_name(name: str) -> str:
    """Return a key as the command line writes it: ``--batch-tokens``."""
    return f"--{name.replace('_', '-')}"
