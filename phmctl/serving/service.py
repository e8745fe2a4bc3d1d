"""A model with a queue before it: what the HTTP of :mod:`phmctl.serving.app` asks, without HTTP."""

import math
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import asdict
from typing import Any

from phmctl import __version__
from phmctl.errors import RequestError
from phmctl.serving.batching import Batcher, BatchLimits
from phmctl.serving.requests import Limits, Text, body_types, read_body
from phmctl.tasks.model import Model

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
            return [{**each, "cut": best[0].cut} for each, best in zip(self.model.as_json(found), found, strict=True)]
        if verb == "score":
            scores = self.model.score(*zip(*texts, strict=True))
            return [{"log_prob": value if math.isfinite(value) else None} for value in scores]  # JSON has no −∞
        labels = self.model.classify(texts)
        return [
            {"label": one.label or None, "probabilities": dict(one.probabilities), "cut": one.cut} for one in labels
        ]
