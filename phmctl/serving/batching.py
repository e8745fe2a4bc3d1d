"""Dynamic batching: what many clients ask one by one is answered together.

A request (a *ticket*) is a few items with one key; only items of one key can share a batch. A worker takes the oldest
item and those of its key behind it, as many as the limits allow, from however many tickets. A ticket is answered when
the last of its items is, and its answers stand in the order of its items, whatever batches they went through.

No asyncio and no HTTP here: tickets come in, and futures are resolved, on whatever threads there are.
"""

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import count
from math import ceil
from typing import Any, Generic, TypeVar

from phmctl import __version__
from phmctl.decoding.model import Model
from phmctl.decoding.translator import as_json
from phmctl.errors import BusyError, RequestError
from phmctl.serving.requests import Limits, Text, body_types, read_body

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


class Batcher(Generic[K, X, Y]):
    """Answers items in batches, on threads of its own.

    `answer` returns the answers to items of one key, in their order. What it raises is the failure of its batch, which
    is then tried again in halves, so that only the items at fault fail.
    """

    def __init__(
        self, answer: Callable[[K, Sequence[X]], Sequence[Y]], limits: BatchLimits | None = None, *, workers: int = 1
    ) -> None:
        self.limits = limits or BatchLimits()
        self.counts = Counts()
        self.stopping = False  # nothing new is taken
        self._answer = answer
        self._numbers = count()
        self._waiting: dict[K, deque[_Item[X, Y]]] = {}  # no line is empty
        self._running: set[_Item[X, Y]] = set()
        self._last = 1  # items of the last batch
        self._pace = 0.0  # seconds an item, lately
        self._closed = False
        self._changed = threading.Condition()
        self._workers = [
            threading.Thread(target=self._work, name=f"batcher-{number}", daemon=True) for number in range(workers)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def queued(self) -> int:
        with self._changed:
            return sum(map(len, self._waiting.values()))

    @property
    def running(self) -> int:
        return len(self._running)

    def submit(self, key: K, items: Sequence[X], costs: Sequence[int]) -> "Future[list[Y]]":
        """Queue a ticket and return the future of its answers. Cancelling it, or a failure, drops what has not begun.

        Items with one key may be answered together; `costs` are theirs, in the unit of the limits. BusyError: the queue
        is full, or :meth:`stop` was called.
        """
        future: Future[list[Y]] = Future()
        ticket: _Ticket[Y] = _Ticket(future, len(items))
        with self._changed:
            queued, now = self.queued, time.monotonic()
            if self.stopping:
                raise BusyError("the server is stopping", 5)
            if queued + len(items) > self.limits.queue:
                seconds = ceil(queued * self._pace / len(self._workers))
                raise BusyError(
                    f"the queue is full: {queued} of {self.limits.queue} wait, and {len(items)} more do not fit",
                    min(max(1, seconds), _LONGEST_RETRY),
                )
            if not items:
                future.set_result([])
                return future
            line = self._waiting.setdefault(key, deque())
            for place, (value, cost) in enumerate(zip(items, costs, strict=True)):
                line.append(_Item(value, cost, ticket, place, next(self._numbers), now))
            self._changed.notify_all()  # the items may be several workers' batches
        future.add_done_callback(lambda done: self._drop(key, ticket) if done.cancelled() or done.exception() else None)
        return future

    def _drop(self, key: K, ticket: _Ticket[Y]) -> None:
        with self._changed:
            line = self._waiting.pop(key, deque())
            if kept := deque(item for item in line if item.ticket is not ticket):
                self._waiting[key] = kept
            self.counts.dropped += len(line) - len(kept)
            self._changed.notify_all()

    def stop(self) -> None:
        """Take nothing new from now on; what waits is still answered."""
        with self._changed:
            self.stopping = True
            self._changed.notify_all()

    def close(self, within: float = 0.0) -> int:
        """Stop, give what waits some seconds to be answered, refuse the rest (BusyError), and end the workers.

        Returns the number of items that were not answered.
        """
        self.stop()
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting and not self._running, within)
            left = [*self._running, *(item for line in self._waiting.values() for item in line)]
            self._waiting.clear()
            self._closed = True
            self._changed.notify_all()
        for ticket in {item.ticket for item in left}:
            _resolve(ticket.future, BusyError("the server stopped before this was answered"))
        return len(left)

    def alive(self) -> bool:
        """Whether a worker is still at work. After :meth:`close` it is one that the time did not suffice for."""
        for worker in self._workers:
            worker.join(timeout=0.1)
        return any(worker.is_alive() for worker in self._workers)

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

    def _take(self) -> tuple[K, list[_Item[X, Y]]] | None:
        """Wait for the next batch, and until it is as large as the last or time is up; None when all is closed."""
        with self._changed:
            while not self._closed:
                if not self._waiting:
                    self._changed.wait()
                    continue
                key = min(self._waiting, key=lambda each: self._waiting[each][0].number)
                line, limits = self._waiting[key], self.limits
                rest = line[0].arrived + limits.wait - time.monotonic()
                if rest > 0 and not self.stopping and len(line) < min(self._last, limits.items):
                    self._changed.wait(rest)  # after which the queue may be another
                    continue
                batch = [line.popleft()]
                cost = batch[0].cost
                while line and len(batch) < limits.items and cost + line[0].cost <= limits.cost:
                    cost += line[0].cost
                    batch.append(line.popleft())
                if not line:
                    del self._waiting[key]
                self._running.update(batch)
                self._last = len(batch)
                return key, batch
            return None

    def _solve(self, key: K, batch: Sequence[_Item[X, Y]]) -> None:
        """Answer a batch; where it fails, its halves, so that an item's failure is its own."""
        batch = [item for item in batch if not item.ticket.future.done()]  # others do not wait for it
        if not batch:
            return
        try:
            answers = list(self._answer(key, [item.value for item in batch]))
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(answers)} answers came to {len(batch)} items")
        except Exception as error:
            if len(batch) > 1:
                half = len(batch) // 2
                self._solve(key, batch[:half])
                self._solve(key, batch[half:])
                return
            with self._changed:
                self.counts.failed += 1
            _resolve(batch[0].ticket.future, error)
            return
        for item, answer in zip(batch, answers, strict=True):
            ticket = item.ticket
            with self._changed:
                self.counts.answered += 1
                ticket.answers[item.place] = answer
                complete = len(ticket.answers) == ticket.size
            if complete:
                _resolve(ticket.future, [ticket.answers[place] for place in range(ticket.size)])


def _resolve(future: "Future[list[Y]]", value: list[Y] | Exception) -> None:
    """Give a future its result or its failure; one that was cancelled or has failed before keeps what it has."""
    with suppress(InvalidStateError, CancelledError):
        if isinstance(value, Exception):
            future.set_exception(value)
        else:
            future.set_result(value)


Answer = dict[str, Any]
Key = tuple[str, tuple[tuple[str, Any], ...]]  # what texts must share to be answered together: the verb, its options


class Service:
    """Reads requests, queues their texts, and lets the model answer them in batches, as many at a time as `workers`.

    With `cut` the beginning of a text that is longer than the model knows is answered, where a request does not say.
    """

    def __init__(
        self,
        model: Model,
        limits: Limits | None = None,
        batching: BatchLimits | None = None,
        *,
        workers: int = 1,
        cut: bool = False,
    ) -> None:
        self.model, self.limits, self.cut = model, limits or Limits(), cut
        self.about = {key: value for key, value in model.about().items() if key != "folder"}  # nobody's business
        bodies = body_types(self.limits, self.about)
        self.verbs = {
            name: bodies[name] for name in ("translate", "classify", "score") if name in self.about["methods"]
        }
        self.replies: Counter[str] = Counter()
        self._began = time.monotonic()
        self.batcher: Batcher[Key, Text, Answer] = Batcher(self._answer, batching, workers=workers)

    def ask(self, name: str, content: bytes) -> "Future[list[Answer]]":
        """Queue what a request's body asks, and return the future of its answers, one a text in their order.

        RequestError: the request is wrong, or a text is longer than the model knows (413). BusyError: no place for it.
        """
        body = read_body(content, self.verbs[name])
        texts = body.asked()
        lengths, longest = self.model.lengths(texts), self.model.max_tokens
        if longest is not None:
            asked = getattr(body, "cut", None)
            cut = name != "score" and (self.cut if asked is None else asked)
            for place, length in enumerate(lengths):
                if length > longest and not cut:
                    raise RequestError(
                        f"text {place + 1} has {length} tokens, more than the {longest} that the model knows; "
                        + ("split it" if name == "score" else 'split it, or send "cut": true'),
                        413,
                    )
            lengths = [min(length, longest) for length in lengths]
        return self.batcher.submit((name, tuple(body.options().items())), texts, lengths)

    def health(self) -> dict[str, Any]:
        batcher, counts = self.batcher, self.batcher.counts
        return {
            "ready": not batcher.stopping,
            "state": "stopping" if batcher.stopping else "ready",
            "model": self.model.name,
            "task": self.model.task,
            "version": __version__,
            "answers": [f"/{name}" for name in self.verbs],
            "about": self.about,
            "limits": {**asdict(self.limits), "tokens": self.model.max_tokens, "cut": self.cut},
            "queue": {"waiting": batcher.queued, "running": batcher.running, "limit": batcher.limits.queue},
            "texts": {"answered": counts.answered, "failed": counts.failed, "dropped": counts.dropped},
            "batches": {
                "number": counts.batches,
                "mean": round((counts.answered + counts.failed) / max(1, counts.batches), 2),
                "busy_seconds": round(counts.busy, 3),
            },
            "replies": dict(self.replies),
            "seconds": round(time.monotonic() - self._began, 3),
        }

    def _answer(self, key: Key, texts: Sequence[Any]) -> list[Answer]:
        verb, options = key
        if verb == "translate":
            found = self.model.translate(texts, **dict(options))
            return [{**as_json(best), "cut": best[0].cut} for best in found]
        if verb == "score":
            scores = self.model.score(*zip(*texts, strict=True))
            return [{"log_prob": value if math.isfinite(value) else None} for value in scores]  # JSON has no −∞
        labels = self.model.classify(texts)
        return [
            {"label": one.label or None, "probabilities": dict(one.probabilities), "cut": one.cut} for one in labels
        ]
