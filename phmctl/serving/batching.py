"""What clients may ask, and dynamic batching: what many of them ask one by one is answered together.

The JSON of a request::

    /translate   {"text": "…"} or {"texts": ["…", …]}, with "beam", "alpha", "n_best", "cut"
    /classify    the same without a translator's options; a classifier of pairs takes ["…", "…"] for a text
    /score       {"source": "…", "target": "…"} or {"sources": […], "targets": […]}

Only items of one key can share a batch. A worker takes the oldest item and those of its key behind it, as many as the
limits allow, whoever asked them. No asyncio and no HTTP here: futures are resolved, on whatever threads there are.
"""

import math
import re
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from phmctl import __version__
from phmctl.decoding.model import Model
from phmctl.decoding.translator import as_json
from phmctl.errors import BusyError, RequestError
from phmctl.options import Limits

_LONGEST_RETRY = 60  # seconds that a client is told to wait, at most


# A line break within a text is a blank, as ``decode`` would read it.
Line = Annotated[str, AfterValidator(lambda text: re.sub("\r\n?|\n", " ", text))]
T = TypeVar("T")


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Classify(Body, Generic[T]):
    text: T | None = None
    texts: list[T] | None = None
    cut: bool | None = None  # whether texts longer than the model knows are cut; None leaves it to the server

    def asked(self) -> list[T]:
        if (self.text is None) == (self.texts is None):
            raise RequestError('give either "text" or "texts"')
        return self.texts if self.text is None else [self.text]  # type: ignore[return-value]


class Translate(Classify[Line]):
    beam: Annotated[int, Field(ge=1)] | None = None
    alpha: Annotated[float, Field(ge=0, le=10)] | None = None
    n_best: Annotated[int, Field(ge=1)] = 1


class Score(Body):
    source: Line = ""
    target: Line = ""
    sources: list[Line] = []
    targets: list[Line] = []

    def asked(self) -> list[tuple[str, str]]:
        if self.model_fields_set == {"source", "target"}:
            return [(self.source, self.target)]
        if self.model_fields_set != {"sources", "targets"} or len(self.sources) != len(self.targets):
            raise RequestError('give "source" and "target", or "sources" and "targets", as many of both')
        return list(zip(self.sources, self.targets, strict=True))


@dataclass
class Counts:
    """What a batcher has done: items answered, failed and dropped before they began, batches, and seconds at work."""

    answered: int = 0
    failed: int = 0
    dropped: int = 0
    batches: int = 0
    busy: float = 0.0


@dataclass(frozen=True, eq=False)
class _Item:
    key: Hashable
    value: Any
    cost: int
    future: "Future[Any]" = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """Answers items in batches, on threads of its own.

    `answer` returns the answers to items of one key, in their order. What it raises is the failure of its batch, which
    is then tried again in halves, so that only the items at fault fail.
    """

    def __init__(
        self, answer: Callable[[Any, Sequence[Any]], Sequence[Any]], limits: Limits | None = None, *, workers: int = 1
    ) -> None:
        self.limits, self.counts = limits or Limits(), Counts()
        self.running = 0  # items
        self._answer = answer
        self._waiting: list[_Item] = []  # the oldest first
        self._last = 1  # items of the last batch
        self._changed = threading.Condition()
        self._workers = [
            threading.Thread(target=self._work, name=f"batcher-{number}", daemon=True) for number in range(workers)
        ]
        for worker in self._workers:
            worker.start()

    @property
    def queued(self) -> int:
        """How many items wait, without those whose futures were cancelled, which are dropped here."""
        with self._changed:
            kept = [item for item in self._waiting if not item.future.cancelled()]
            self.counts.dropped += len(self._waiting) - len(kept)
            self._waiting = kept
            return len(kept)

    def submit(self, key: Hashable, items: Sequence[Any], costs: Sequence[int]) -> "list[Future[Any]]":
        """Queue items and return the future of each one's answer. One that is cancelled before it is begun is dropped.

        Items with one key may be answered together; `costs` are theirs, in the unit of the limits. BusyError: the queue
        is full.
        """
        with self._changed:
            queued, counts = self.queued, self.counts
            if queued + len(items) > self.limits.queue:
                pace = counts.busy / max(1, counts.answered) / len(self._workers)
                raise BusyError(
                    f"the queue is full: {queued} of {self.limits.queue} wait, and {len(items)} more do not fit",
                    min(max(1, math.ceil(queued * pace)), _LONGEST_RETRY),
                )
            added = [_Item(key, *each) for each in zip(items, costs, strict=True)]
            self._waiting += added
            self._changed.notify_all()  # the items may be several workers' batches
        return [item.future for item in added]

    def _work(self) -> None:
        while True:
            batch, began = self._take(), time.monotonic()
            self._solve(batch)
            with self._changed:
                self.counts.batches += 1
                self.counts.busy += time.monotonic() - began
                self.running -= len(batch)

    def _take(self) -> list[_Item]:
        """Wait for the next batch, and until it is as large as the last or time is up."""
        with self._changed:
            while True:
                if not self.queued:
                    self._changed.wait()
                    continue
                first, limits = self._waiting[0], self.limits
                alike = [item for item in self._waiting if item.key == first.key][: limits.batch]
                rest = first.arrived + limits.wait / 1000 - time.monotonic()
                if rest > 0 and len(alike) < min(self._last, limits.batch):
                    self._changed.wait(rest)  # after which the queue may be another
                    continue
                costs = accumulate(item.cost for item in alike)
                fitting = [item for item, cost in zip(alike, costs, strict=True) if cost <= limits.batch_tokens]
                taken = set(fitting) or {first}
                self._waiting = [item for item in self._waiting if item not in taken]
                batch = [item for item in fitting or [first] if item.future.set_running_or_notify_cancel()]
                if batch:
                    self.running += len(batch)
                    self._last = len(batch)
                    return batch

    def _solve(self, batch: Sequence[_Item]) -> None:
        """Answer a batch; where it fails, its halves, so that an item's failure is its own."""
        try:
            answers = list(self._answer(batch[0].key, [item.value for item in batch]))
            if len(answers) != len(batch):
                raise RuntimeError(f"{len(answers)} answers came to {len(batch)} items")
        except Exception as error:
            if len(batch) > 1:
                half = len(batch) // 2
                self._solve(batch[:half])
                self._solve(batch[half:])
                return
            with self._changed:
                self.counts.failed += 1
            batch[0].future.set_exception(error)
            return
        with self._changed:
            self.counts.answered += len(batch)
        for item, answer in zip(batch, answers, strict=True):
            item.future.set_result(answer)


def _refuse_longer(unit: str, lengths: Sequence[int], limit: int, advice: str) -> None:
    for place, length in enumerate(lengths, start=1):
        if length > limit:
            raise RequestError(f"text {place} has {length} {unit}, more than the {limit} allowed; {advice}", 413)


Answer = dict[str, Any]
Key = tuple[str, tuple[tuple[str, Any], ...]]  # what texts must share to be answered together: the verb, its options
_OPTIONS = {"beam", "alpha", "n_best"}


class Service:
    """Reads requests, queues their texts, and lets the model answer them in batches, as many at a time as `workers`.

    With `cut` the beginning of a text that is longer than the model knows is answered, where a request does not say.
    """

    def __init__(self, model: Model, limits: Limits | None = None, *, workers: int = 1, cut: bool = False) -> None:
        self.model, self.limits, self.cut = model, limits or Limits(), cut
        self.about = {key: value for key, value in model.about().items() if key != "folder"}  # nobody's business
        pairs = self.about.get("texts") == 2
        bodies: dict[str, type[Classify[Any]] | type[Score]] = {"translate": Translate, "score": Score}
        bodies["classify"] = Classify[tuple[Line, Line]] if pairs else Classify[Line]
        self.verbs = {name: body for name, body in bodies.items() if name in self.about["methods"]}
        self._began = time.monotonic()
        self.batcher = Batcher(self._answer, self.limits, workers=workers)

    def ask(self, name: str, content: bytes) -> "list[Future[Answer]]":
        """Queue what a request's body asks, and return the future of each text's answer, in their order.

        RequestError: the request is wrong (400), or more than the limits or the model allow (413). BusyError: no place
        for it.
        """
        limits = self.limits
        try:
            body = self.verbs[name].model_validate_json(content)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise RequestError(f"{place}: {first['msg']}" if place else first["msg"]) from None
        texts, options = body.asked(), body.model_dump(include=_OPTIONS)
        if len(texts) > (most := min(limits.texts, limits.queue)):
            raise RequestError(f"{len(texts)} texts are more than the {most} of a request", 413)
        sides = [[text] if isinstance(text, str) else text for text in texts]
        _refuse_longer("characters", [max(map(len, each)) for each in sides], limits.characters, "split it")
        widest = max(limits.beam, self.about.get("decoding", {}).get("beam", 0))
        if (options.get("beam") or 0) > widest:
            raise RequestError(f"beam: {options['beam']} is wider than the {widest} of this server")
        lengths, longest = self.model.lengths(texts), self.model.max_tokens
        if longest is not None:
            asked = getattr(body, "cut", False)  # which /score has not
            if not (self.cut if asked is None else asked):
                advice = "split it" if name == "score" else 'split it, or send "cut": true'
                _refuse_longer("tokens", lengths, longest, advice)
            lengths = [min(length, longest) for length in lengths]
        return self.batcher.submit((name, tuple(options.items())), texts, lengths)

    def health(self) -> dict[str, Any]:
        batcher, counts = self.batcher, self.batcher.counts
        return {
            "model": self.model.name,
            "task": self.model.task,
            "version": __version__,
            "answers": [f"/{name}" for name in self.verbs],
            "about": self.about,
            "limits": {**asdict(self.limits), "tokens": self.model.max_tokens, "cut": self.cut},
            "queue": {"waiting": batcher.queued, "running": batcher.running},
            "counts": asdict(counts),
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
