"""Validate requests and answer the texts of many clients in batches.

The JSON body of a request::

    /translate   {"text": "…"} or {"texts": ["…", …]}, optionally with "beam", "alpha", "n_best", "cut"
    /classify    {"text": "…"} or {"texts": ["…", …]}, optionally with "cut"; a text of a pair classifier is ["…", "…"]
    /score       {"source": "…", "target": "…"} or {"sources": […], "targets": […]}

This module uses threads and futures only, neither asyncio nor HTTP.
"""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from phmctl import __version__
from phmctl.decoding.model import Model
from phmctl.decoding.translator import as_json
from phmctl.errors import BusyError, RequestError
from phmctl.files import unique_keys
from phmctl.serving.limits import Limits

_LONGEST_RETRY = 60  # seconds; upper bound of the Retry-After header

# Line breaks within a text become blanks, as in ``decode``.
Line = Annotated[str, AfterValidator(lambda text: re.sub("\r\n?|\n", " ", text))]
T = TypeVar("T")


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Classify(Body, Generic[T]):
    text: T | None = None
    texts: list[T] | None = None
    cut: bool | None = None  # whether to truncate long texts; None: the server's setting

    def items(self) -> list[T]:
        if self.text is not None and self.texts is None:
            return [self.text]
        if self.texts is not None and self.text is None:
            return self.texts
        raise RequestError('give either "text" or "texts"')


class Translate(Classify[Line]):
    beam: Annotated[int, Field(ge=1)] | None = None
    alpha: Annotated[float, Field(ge=0, le=10)] | None = None
    n_best: Annotated[int, Field(ge=1)] = 1


class Score(Body):
    cut: ClassVar[bool] = False  # the score of a truncated text would be wrong
    source: Line = ""
    target: Line = ""
    sources: list[Line] = []
    targets: list[Line] = []

    def items(self) -> list[tuple[str, str]]:
        if self.model_fields_set == {"source", "target"}:
            return [(self.source, self.target)]
        if self.model_fields_set != {"sources", "targets"} or len(self.sources) != len(self.targets):
            raise RequestError('give "source" and "target", or "sources" and "targets" of equal length')
        return list(zip(self.sources, self.targets, strict=True))


@dataclass
class Counts:
    """Totals of a batcher."""

    answered: int = 0  # items
    failed: int = 0  # items
    dropped: int = 0  # items that were cancelled before their batch started
    batches: int = 0
    busy: float = 0.0  # seconds spent on batches, summed over workers


@dataclass(frozen=True, eq=False)
class _Item:
    key: Hashable
    value: Any
    cost: int
    future: "Future[Any]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """Answer items in batches on worker threads.

    A batch holds items of one key. `answer(key, values)` returns the answers in order. If it raises, the batch is split
    in halves and tried again, so that only the faulty items fail.
    """

    def __init__(
        self, answer: Callable[[Any, Sequence[Any]], Sequence[Any]], limits: Limits | None = None, *, workers: int = 1
    ) -> None:
        self.limits = limits or Limits()
        self.counts = Counts()
        self.running = 0  # items
        self._answer = answer
        self._waiting: list[_Item] = []  # oldest first
        self._last_size = 1  # items of the last batch
        self._changed = threading.Condition()
        self._workers = [
            threading.Thread(target=self._work, name=f"batcher-{number}", daemon=True) for number in range(workers)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def queued(self) -> int:
        """Number of waiting items; cancelled items are dropped first."""
        with self._changed:
            active = [item for item in self._waiting if not item.future.cancelled()]
            self.counts.dropped += len(self._waiting) - len(active)
            self._waiting = active
            return len(active)

    def submit(self, key: Hashable, values: Sequence[Any], costs: Sequence[int]) -> "list[Future[Any]]":
        """Queue values of one key and return a future for each answer; cancel it to drop a waiting value.

        `costs` count against ``batch_tokens`` of the limits. Raises BusyError if the queue is full.
        """
        with self._changed:
            queued = self.queued
            if queued + len(values) > self.limits.queue:
                seconds_per_item = self.counts.busy / max(1, self.counts.answered) / len(self._workers)
                raise BusyError(
                    f"the queue is full: {queued} of {self.limits.queue} places are taken, {len(values)} more needed",
                    min(max(1, math.ceil(queued * seconds_per_item)), _LONGEST_RETRY),
                )
            items = [_Item(key, value, cost) for value, cost in zip(values, costs, strict=True)]
            self._waiting += items
            self._changed.notify_all()  # the items may be batches for several workers
        return [item.future for item in items]

    def _work(self) -> None:
        while True:
            batch = self._next_batch()
            began = time.monotonic()
            self._solve(batch)
            with self._changed:
                self.counts.batches += 1
                self.counts.busy += time.monotonic() - began
                self.running -= len(batch)

    def _next_batch(self) -> list[_Item]:
        """Wait until a batch is as large as the last one or its first item has waited long enough."""
        with self._changed:
            while True:
                if not self.queued:
                    self._changed.wait()
                    continue
                first, limits = self._waiting[0], self.limits
                candidates = [item for item in self._waiting if item.key == first.key][: limits.batch]
                remaining = first.arrived + limits.wait / 1000 - time.monotonic()
                if remaining > 0 and len(candidates) < min(self._last_size, limits.batch):
                    self._changed.wait(remaining)
                    continue  # the queue may have changed
                costs = accumulate(item.cost for item in candidates)
                fitting = [item for item, cost in zip(candidates, costs, strict=True) if cost <= limits.batch_tokens]
                selected = fitting or [first]  # one item always fits
                removed = set(selected)
                self._waiting = [item for item in self._waiting if item not in removed]
                batch = [item for item in selected if item.future.set_running_or_notify_cancel()]
                if batch:
                    self.running += len(batch)
                    self._last_size = len(batch)
                    return batch

    def _solve(self, batch: Sequence[_Item]) -> None:
        """Answer a batch; if that fails, answer its halves."""
        try:
            answers = list(self._answer(batch[0].key, [item.value for item in batch]))
            if len(answers) != len(batch):
                raise RuntimeError(f"the model returned {len(answers)} answers for {len(batch)} items")
        except Exception as error:
            if len(batch) > 1:
                middle = len(batch) // 2
                self._solve(batch[:middle])
                self._solve(batch[middle:])
                return
            with self._changed:
                self.counts.failed += 1
            batch[0].future.set_exception(error)
            return
        with self._changed:
            self.counts.answered += len(batch)
        for item, answer in zip(batch, answers, strict=True):
            item.future.set_result(answer)


Answer = dict[str, Any]
Key = tuple[str, tuple[tuple[str, Any], ...]]  # method and options; texts with equal keys may share a batch
_OPTIONS = {"beam", "alpha", "n_best"}


class Service:
    """Validate requests, and let a model answer their texts in batches on `workers` threads.

    `cut` says whether texts longer than the model's limit are truncated if a request does not say.
    """

    def __init__(self, model: Model, limits: Limits | None = None, *, workers: int = 1, cut: bool = False) -> None:
        self.model, self.limits, self.cut = model, limits or Limits(), cut
        self.about = {key: value for key, value in model.about().items() if key != "folder"}  # paths stay private
        classify = Classify[tuple[Line, Line]] if self.about.get("texts") == 2 else Classify[Line]
        bodies: dict[str, type[Classify[Any]] | type[Score]] = {
            "translate": Translate,
            "score": Score,
            "classify": classify,
        }
        self.methods = {name: body for name, body in bodies.items() if name in self.about["methods"]}
        self._began = time.monotonic()
        self.batcher = Batcher(self._answer, self.limits, workers=workers)

    def submit(self, name: str, content: bytes) -> "list[Future[Answer]]":
        """Queue the texts of a request body and return a future for each answer.

        Raises RequestError if the request is malformed (400) or exceeds a limit (413), BusyError if the queue is full.
        """
        try:
            body = self.methods[name].model_validate_json(content)
        except ValidationError as error:
            problem = error.errors(include_url=False)[0]
            place = ".".join(map(str, problem["loc"]))
            raise RequestError(f"{place}: {problem['msg']}" if place else problem["msg"]) from None
        try:
            json.loads(content, object_pairs_hook=unique_keys)  # pydantic takes the last of equal keys
        except ValueError as error:
            raise RequestError(str(error)) from None
        texts, options = body.items(), body.model_dump(include=_OPTIONS)
        limits = self.limits
        most_texts = min(limits.texts, limits.queue)
        if len(texts) > most_texts:
            raise RequestError(f"the request has {len(texts)} texts, more than the {most_texts} allowed", 413)
        characters = [len(text) if isinstance(text, str) else max(map(len, text)) for text in texts]
        _check_lengths(characters, limits.characters, "characters", "split it")
        largest_beam = max(limits.beam, self.about.get("decoding", {}).get("beam", 0))
        if (options.get("beam") or 0) > largest_beam:
            raise RequestError(f"beam: {options['beam']} is larger than this server's limit of {largest_beam}")
        lengths, most_tokens = self.model.lengths(texts), self.model.max_tokens
        if most_tokens is not None:
            truncate = self.cut if body.cut is None else body.cut
            if not truncate:
                advice = "split it" if name == "score" else 'split it, or send "cut": true'
                _check_lengths(lengths, most_tokens, "tokens", advice)
            lengths = [min(length, most_tokens) for length in lengths]
        return self.batcher.submit((name, tuple(options.items())), texts, lengths)

    def health(self) -> dict[str, Any]:
        return {
            "model": self.model.name,
            "task": self.model.task,
            "version": __version__,
            "answers": [f"/{name}" for name in self.methods],
            "about": self.about,
            "limits": {**asdict(self.limits), "tokens": self.model.max_tokens, "cut": self.cut},
            "queue": {"waiting": self.batcher.queued, "running": self.batcher.running},
            "counts": asdict(self.batcher.counts),
            "seconds": round(time.monotonic() - self._began, 3),
        }

    def _answer(self, key: Key, texts: Sequence[Any]) -> list[Answer]:
        method, options = key
        if method == "translate":
            translations = self.model.translate(texts, **dict(options))
            return [{**as_json(n_best), "cut": n_best[0].cut} for n_best in translations]
        if method == "score":
            scores = self.model.score(*zip(*texts, strict=True))
            return [
                {"log_prob": score if math.isfinite(score) else None} for score in scores
            ]  # −∞ is not valid in JSON
        return [
            {"label": label.label or None, "probabilities": dict(label.probabilities), "cut": label.cut}
            for label in self.model.classify(texts)
        ]


def _check_lengths(lengths: Sequence[int], limit: int, unit: str, advice: str) -> None:
    for number, length in enumerate(lengths, start=1):
        if length > limit:
            raise RequestError(f"text {number} has {length} {unit}, more than the {limit} allowed; {advice}", 413)
