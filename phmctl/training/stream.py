"""The endless stream of micro-batches: one epoch after the other, with a position that a checkpoint can hold."""

from typing import TYPE_CHECKING

from phmctl.errors import DataError

if TYPE_CHECKING:
    from phmctl.tasks.base import Rows, Task


class BatchStream:
    """Gives the rows of micro-batches from an (epoch, position) on. These attributes name the next one.

    It is the same on every process, which builds only what it trains on.
    """

    def __init__(self, task: "Task", epoch: int = 0, position: int = 0) -> None:
        self._task = task
        self.epoch = epoch
        self.position = position
        self._plan = task.plan(epoch)

    def take(self, count: int) -> list["Rows"]:
        """Return the rows of the next `count` micro-batches; they may span two epochs.

        Raises:
            DataError: a whole epoch has no micro-batch.
        """
        return [self._next() for _ in range(count)]

    def _next(self) -> "Rows":
        if self.position >= len(self._plan):
            self.epoch, self.position = self.epoch + 1, 0
            self._plan = self._task.plan(self.epoch)
        if not self._plan:
            raise DataError("the training split holds no sentence; prepare the data again")
        self.position += 1
        return self._plan[self.position - 1]
