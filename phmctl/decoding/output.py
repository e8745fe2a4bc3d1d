"""How translations are printed."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from phmctl.decoding.translator import Translation


def best_lines(translations: Iterable[Sequence[Translation]]) -> Iterator[str]:
    """Yield the best translation of each line."""
    for candidates in translations:
        yield candidates[0].text


def n_best_lines(translations: Iterable[Sequence[Translation]], first_line: int = 1) -> Iterator[str]:
    """Yield tab-separated lines: number of the input line, rank from 1, score, text."""
    for number, candidates in enumerate(translations, start=first_line):
        for rank, candidate in enumerate(candidates, start=1):
            yield f"{number}\t{rank}\t{candidate.score:.6f}\t{candidate.text}"


def as_json(translations: Iterable[Sequence[Translation]]) -> Iterator[dict[str, Any]]:
    """Yield an object a line: ``translations``, a list of ``{"text", "score", "log_prob"}``, best first."""
    for candidates in translations:
        found = [{"text": best.text, "score": best.score, "log_prob": best.log_prob} for best in candidates]
        yield {"translations": found}
