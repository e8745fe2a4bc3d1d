"""Dynamic batching: what many clients ask one by one is answered together.

A request (a *ticket*) is a few items with one key; only items of one key can share a batch. A worker takes the oldest
item and those of its key behind it, as many as the limits allow, from however many tickets. A ticket is answered when
the last of its items is, and its answers stand in the order of its items, whatever batches they went through.

No asyncio and no HTTP here: tickets come in, and futures are resolved, on whatever threads there are.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from math import ceil
from typing import Generic, TypeVar

from phmctl.errors import BusyError

K = TypeVar("K", bound=Hashable)
X = TypeVar("X")
Y = TypeVar("Y")

_LONGEST_RETRY = 60  # seconds that a client is told to wait, at most


@dataclass(frozen=True)
class BatchLimits:
    """How much is taken at once, and how much may wait."""

    items: int = 64  # of a batch
    cost: int = 2048  # of a batch, the sum of its items'; an item that costs more gets a batch of its own
    queue: int = 1024  # items that may wait; a ticket that would make them more is refused
    # seconds that a batch waits, at most, to become as large as the one before it. A lone client never waits.
    wait: float = 0.005


@dataclass
class Counts:
    """What a batcher has done: items answered, failed and dropped before they began, batches, and seconds at work."""

    answered: int = 0
    failed: int = 0
    dropped: int = 0
    batches: int = 0
    busy: float = 0.0


@dataclass(eq=False)
class _Ticket(Generic[Y]):
    """A request: its future, and its answers so far by their place."""

    future: "Future[list[Y]]"
    size: int
    answers: dict[int, Y] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _Item(Generic[X, Y]):
    """One item of a ticket, with its place there; `number` tells which of two came first."""

    value: X
    cost: int
    ticket: _Ticket[Y]
    place: int
    number: int
    arrived: float

    @property
    def wanted(self) -> bool:
        """Whether its ticket still waits for it."""
        return not self.ticket.future.done()


class Batcher(Generic[K, X, Y]):
    """Answers items in batches, on threads of its own."""

    def __init__(
        self, answer: Callable[[K, Sequence[X]], Sequence[Y]], limits: BatchLimits | None = None, *, workers: int = 1
    ) -> None:
        self.limits = limits or BatchLimits()
        self.counts = Counts()
        self._answer = answer
        self._numbers = count()
        self._waiting: dict[K, deque[_Item[X, Y]]] = {}
        self._running: set[_Item[X, Y]] = set()
        self._queued = 0
        self._last = 1  # items of the last batch
        self._pace = 0.0  # seconds an item, lately
        self._stopping = self._closed = False
        self._changed = threading.Condition()
        self._workers = [
            threading.Thread(target=self._work, name=f"batcher-{number}", daemon=True) for number in range(workers)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def queued(self) -> int:
        return self._queued

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def stopping(self) -> bool:
        """Whether nothing new is taken."""
        return self._stopping

    def submit(self, key: K, items: Sequence[X], costs: Sequence[int]) -> "Future[list[Y]]":
        """Queue a ticket and return the future of its answers. Cancelling the future drops what has not begun,
        and so does the first failure.
        """
        future: Future[list[Y]] = Future()
        ticket: _Ticket[Y] = _Ticket(future, len(items))
        with self._changed:
            self._check_room(len(items))
            if not items:
                future.set_result([])
                return future
            line = self._waiting.setdefault(key, deque())
            now = time.monotonic()
            for place, (value, cost) in enumerate(zip(items, costs, strict=True)):
                line.append(_Item(value, cost, ticket, place, next(self._numbers), now))
            self._queued += len(items)
            self._changed.notify_all()  # the items may be several workers' batches
        future.add_done_callback(lambda done: self._drop(key, ticket) if done.cancelled() or done.exception() else None)
        return future

    def stop(self) -> None:
        """Take nothing new from now on; what waits is still answered."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()

    def close(self, within: float = 0.0) -> int:
        """Stop, give what waits some seconds to be answered, refuse the rest (BusyError), and end the workers."""
        self.stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._queued and not self._running, within)
            left = [*self._running, *(item for line in self._waiting.values() for item in line)]
            self._waiting.clear()
            self._queued, self._closed = 0, True
            self._changed.notify_all()
        for ticket in {item.ticket for item in left}:
            _resolve(ticket.future, BusyError("the server stopped before this was answered"))
        return len(left)

    def alive(self) -> bool:
        """Whether a worker is still at work. After :meth:`close` it is one that the time did not suffice for."""
        for worker in self._workers:
            worker.join(timeout=0.1)
        return any(worker.is_alive() for worker in self._workers)

    # --------------------------------------------------------------------------------------------- the queue

    def _check_room(self, more: int) -> None:
        if self._stopping:
            raise BusyError("the server is stopping", 5)
        if self._queued + more > self.limits.queue:
            seconds = ceil(self._queued * self._pace / len(self._workers))
            raise BusyError(
                f"the queue is full: {self._queued} of {self.limits.queue} wait, and {more} more do not fit",
                min(max(1, seconds), _LONGEST_RETRY),
            )

    def _drop(self, key: K, ticket: _Ticket[Y]) -> None:
        """Take a ticket's items out of the queue."""
        with self._changed:
            line = self._waiting.get(key, deque())
            kept = deque(item for item in line if item.ticket is not ticket)
            self._queued -= len(line) - len(kept)
            self.counts.dropped += len(line) - len(kept)
            self._keep(key, kept)
            self._changed.notify_all()

    def _keep(self, key: K, line: deque[_Item[X, Y]]) -> None:
        """Let a line be the key's; a key without items has none."""
        if line:
            self._waiting[key] = line
        else:
            self._waiting.pop(key, None)

    def _take(self) -> tuple[K, list[_Item[X, Y]]] | None:
        """Wait for the next batch; None when the batcher is closed."""
        with self._changed:
            while not self._closed:
                if not self._waiting:
                    self._changed.wait()
                    continue
                key = min(self._waiting, key=lambda each: self._waiting[each][0].number)
                if self._ripe(key):
                    return key, self._cut_batch(key)
            return None

    def _ripe(self, key: K) -> bool:
        """Whether a batch should begin now. If not, wait for a moment, after which the queue may be another."""
        line = self._waiting[key]
        rest = line[0].arrived + self.limits.wait - time.monotonic()
        if self._stopping or len(line) >= min(self._last, self.limits.items) or rest <= 0:
            return True
        self._changed.wait(rest)
        return False

    def _cut_batch(self, key: K) -> list[_Item[X, Y]]:
        line, batch, cost = self._waiting[key], list[_Item[X, Y]](), 0
        while line and len(batch) < self.limits.items and (not batch or cost + line[0].cost <= self.limits.cost):
            cost += line[0].cost
            batch.append(line.popleft())
        self._keep(key, line)
        self._queued -= len(batch)
        self._running.update(batch)
        self._last = len(batch)
        return batch

    # ------------------------------------------------------------------------------------------- the workers

    def _work(self) -> None:
        while (taken := self._take()) is not None:
            key, batch = taken
            began = time.monotonic()
            self._solve(key, batch)
            with self._changed:
                elapsed = time.monotonic() - began
                self.counts.batches += 1
                self.counts.busy += elapsed
                self._pace += 0.2 * (elapsed / len(batch) - self._pace)
                self._running.difference_update(batch)
                self._changed.notify_all()

    def _solve(self, key: K, batch: Sequence[_Item[X, Y]]) -> None:
        """Answer a batch; where it fails, its halves, so that an item's failure is its own."""
        batch = [item for item in batch if item.wanted]
        if not batch:
            return
        try:
            answers = list(self._answer(key, [item.value for item in batch]))
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(answers)} answers came to {len(batch)} items")
        except Exception as error:
            if len(batch) == 1:
                self._fail(batch[0], error)
                return
            half = len(batch) // 2
            self._solve(key, batch[:half])
            self._solve(key, batch[half:])
            return
        for item, answer in zip(batch, answers, strict=True):
            self._deliver(item, answer)

    def _deliver(self, item: _Item[X, Y], answer: Y) -> None:
        ticket = item.ticket
        with self._changed:
            self.counts.answered += 1
            ticket.answers[item.place] = answer
            if len(ticket.answers) < ticket.size:
                return
        _resolve(ticket.future, [ticket.answers[place] for place in range(ticket.size)])

    def _fail(self, item: _Item[X, Y], error: Exception) -> None:
        with self._changed:
            self.counts.failed += 1
        _resolve(item.ticket.future, error)


def _resolve(future: "Future[list[Y]]", value: list[Y] | Exception) -> None:
    """Give a future its result or its failure; one that was cancelled or has failed before keeps what it has."""
    with suppress(InvalidStateError, CancelledError):
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)
