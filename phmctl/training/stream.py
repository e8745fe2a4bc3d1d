"""The endless stream of batches: one epoch after the other, with a position that a checkpoint can hold."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from phmctl.errors import DataError

if TYPE_CHECKING:
    from phmctl.data.batching import Batch
    from phmctl.tasks.base import Task


class BatchStream:
    """Gives batches from an (epoch, position) on. :attr:`epoch` and :attr:`position` name the next one."""

    def __init__(self, task: "Task", epoch: int = 0, position: int = 0) -> None:
        self._task = task
        self.epoch = epoch
        self.position = position
        self._iterator: Iterator[Batch] = iter(task.batches(epoch, start=position))

    def take(self, count: int) -> list["Batch"]:
        """Return the next `count` batches; they may span two epochs.

        Raises:
            DataError: a whole epoch has no batch.
        """
        return [self._next() for _ in range(count)]

    def _next(self) -> "Batch":
        batch = next(self._iterator, None)
        if batch is None:
            self._begin_epoch()
            batch = next(self._iterator, None)
        if batch is None:
            raise DataError("the training split holds no sentence; prepare the data again")
        self.position += 1
        return batch

    def _begin_epoch(self) -> None:
        self.epoch += 1
        self.position = 0
        self._iterator = iter(self._task.batches(self.epoch, start=0))
