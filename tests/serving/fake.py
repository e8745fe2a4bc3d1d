"""A fake model whose answers tests can predict."""

import json
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from phmctl.answering.classifier import Classified
from phmctl.answering.translator import Translation
from phmctl.errors import DataError
from phmctl.serving.server import Service, listen, run_server, url_of


class FakeModel:
    """Translates into capitals and labels by length.

    ``BOOM`` raises an internal error and ``REFUSE`` a user's error; each ``SLOW``, and ``HANG``, delays the answer.
    """

    name, task, max_tokens = "fake/real/v001", "translation", 8

    def __init__(self, *, methods: Sequence[str] = ("translate", "score", "encode"), texts: int = 1) -> None:
        self.methods, self.texts = methods, texts
        self.batches: list[tuple[str, Sequence[Any], Mapping[str, Any]]] = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()

    def about(self) -> dict[str, Any]:
        decoding = {"beam": 4, "alpha": 0.6}
        return {
            "engine": "fake",
            "methods": list(self.methods),
            "decoding": decoding,
            "folder": "/secret",
            "labels": ["long", "short"],
            "texts": self.texts,
        }

    def lengths(self, texts: Sequence[Any]) -> list[int]:
        return [
            len(text.split()) if isinstance(text, str) else max(len(side.split()) for side in text) for text in texts
        ]

    def translate(
        self, texts: Sequence[str], *, beam: int | None, alpha: float | None, n_best: int
    ) -> list[list[Translation]]:
        self._note("translate", texts, {"beam": beam, "alpha": alpha, "n_best": n_best})
        beam, alpha = 4 if beam is None else beam, 0.6 if alpha is None else alpha
        return [[translation(text, beam, alpha, rank) for rank in range(n_best)] for text in texts]

    def classify(self, texts: Sequence[Any]) -> list[Classified]:
        self._note("classify", texts, {})
        shorts = [1 / (1 + len("".join(text))) for text in texts]
        return [
            Classified("short" if p > 0.1 else "long", {"long": 1 - p, "short": p}, cut)
            if "".join(text).strip()
            else Classified("", {})
            for text, p, cut in zip(texts, shorts, self._cut(texts), strict=True)
        ]

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        self._note("score", sources, {})
        return [
            -float(len(source) + len(target)) if source or not target else -math.inf  # like the real model
            for source, target in zip(sources, targets, strict=True)
        ]

    def _cut(self, texts: Sequence[Any]) -> list[bool]:
        return [length > self.max_tokens for length in self.lengths(texts)]

    def _note(self, verb: str, texts: Sequence[Any], options: Mapping[str, Any]) -> None:
        self.batches.append((verb, list(texts), options))
        self.entered.set()
        if not self.gate.wait(10):
            raise TimeoutError
        time.sleep(0.5 * sum(text.count("SLOW") for text in texts))
        if "HANG" in texts:
            time.sleep(60)
        if "BOOM" in texts:
            raise ZeroDivisionError("boom")
        if "REFUSE" in texts:
            raise DataError("REFUSE is refused")


def translation(text: str, beam: int = 4, alpha: float = 0.6, rank: int = 0) -> Translation:
    return Translation(f"{text.upper()}/{beam}/{rank}", -alpha * rank, -float(rank), len(text.split()) > 8)


def as_json(text: str, **options: Any) -> dict[str, Any]:
    """Return the server's JSON for the best translation of a text."""
    best = translation(text, **options)
    return {"text": best.text, "score": best.score, "log_prob": best.log_prob}


def service(model: FakeModel | None = None, **settings: Any) -> Service:
    return Service(model or FakeModel(), **settings)


def until(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    """Wait until a condition holds; raise TimeoutError if it does not."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.002)


def main(arguments: Sequence[str]) -> None:
    """Serve a fake model; the argument is JSON with the arguments of `run_server`."""
    sock = listen("127.0.0.1", 0)
    print(url_of(sock), flush=True)  # noqa: T201
    run_server(service(), sock, **json.loads(arguments[0]))
