"""A model with a queue before it: what the HTTP of :mod:`phmctl.serving.app` asks, without HTTP."""

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from typing import Any

from phmctl import __version__
from phmctl.decoding.output import as_json
from phmctl.errors import RequestError
from phmctl.inference.model import Model
from phmctl.serving.batching import Batcher, BatchLimits
from phmctl.serving.requests import Asked, Limits, Text, read_classify, read_score, read_translate

Answer = dict[str, Any]


@dataclass(frozen=True)
class Key:
    """What texts must share to be answered together: the verb, and its options."""

    verb: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Verb:
    """Something that clients can ask."""

    read: Callable[[Mapping[str, Any]], Asked]  # reads a request's JSON
    answer: Callable[[Sequence[Any], Mapping[str, Any]], list[Answer]]  # asks the model about texts, with options


class Service:
    """Reads requests, queues their texts, and lets the model answer them in batches."""

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
        self.verbs = {name: verb for name, verb in self._verbs().items() if name in self.about["methods"]}
        self.replies: Counter[str] = Counter()
        self._began = time.monotonic()
        self.batcher: Batcher[Key, Text, Answer] = Batcher(self._answer, batching, workers=workers)

    def ask(self, name: str, body: Mapping[str, Any]) -> "Future[list[Answer]]":
        """Queue what a request asks, and return the future of its answers, one a text in their order."""
        asked = self.verbs[name].read(body)
        lengths = self._lengths(name, asked)
        return self.batcher.submit(Key(name, tuple(asked.options.items())), asked.texts, lengths)

    def health(self) -> dict[str, Any]:
        """Return the server's state, as JSON values."""
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

    # ---------------------------------------------------------------------------------------------- the verbs

    def _verbs(self) -> dict[str, Verb]:
        limits, about = self.limits, self.about
        return {
            "translate": Verb(lambda body: read_translate(body, limits, about["decoding"]), self._translate),
            "classify": Verb(lambda body: read_classify(body, limits, about["texts"]), self._classify),
            "score": Verb(lambda body: read_score(body, limits), self._score),
        }

    def _answer(self, key: Key, texts: Sequence[Text]) -> list[Answer]:
        return self.verbs[key.verb].answer(texts, dict(key.options))

    def _translate(self, texts: Sequence[Any], options: Mapping[str, Any]) -> list[Answer]:
        found = self.model.translate(texts, **options)
        return [{**each, "cut": best[0].cut} for each, best in zip(as_json(found), found, strict=True)]

    def _classify(self, texts: Sequence[Any], options: Mapping[str, Any]) -> list[Answer]:
        """Return labels; an empty text has none, as in ``decode``."""
        empty = [not "".join(text).strip() for text in texts]
        found = iter(self.model.classify([text for text, none in zip(texts, empty, strict=True) if not none]))
        return [_no_label() if none else _label(next(found)) for none in empty]

    def _score(self, texts: Sequence[Any], options: Mapping[str, Any]) -> list[Answer]:
        sources, targets = zip(*texts, strict=True)
        scores = self.model.score(sources, targets)
        return [{"log_prob": value if math.isfinite(value) else None} for value in scores]  # JSON has no −∞

    def _lengths(self, name: str, asked: Asked) -> list[int]:
        """Return the tokens of each text, at most those that the model knows; raises RequestError (413) for more."""
        longest = self.model.max_tokens
        lengths = self.model.lengths(asked.texts)
        if longest is None:
            return lengths
        cut = name != "score" and (self.cut if asked.cut is None else asked.cut)
        for place, length in enumerate(lengths):
            if length > longest and not cut:
                advice = "split it" if name == "score" else 'split it, or send "cut": true'
                raise RequestError(
                    f"text {place + 1} has {length} tokens, more than the {longest} that the model knows; {advice}", 413
                )
        return [min(length, longest) for length in lengths]


def _no_label() -> Answer:
    return {"label": None, "probabilities": {}, "cut": False}


def _label(found: Any) -> Answer:
    return {"label": found.label, "probabilities": dict(found.probabilities), "cut": found.cut}
