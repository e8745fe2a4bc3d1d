"""What shows that a model answers without having read: empty, equal and looping answers."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence

_LOOP = re.compile(r"(?<!\S)(\S++(?: \S++){0,3}?)(?: \1){3}(?!\S)")
_FEW = 10  # equal answers to fewer lines may be right
_DISTINCT = 10_000  # answers of which so many are distinct are not degenerate


class Degenerate:
    """Counts answers as they come."""

    def __init__(self, equal: float = 1.0) -> None:
        self._equal = equal
        self._asked = self._empty = self._looping = 0
        self._answers: Counter[str] = Counter()
        self._lines: set[str] = set()

    def add(self, lines: Sequence[str], answers: Sequence[str]) -> None:
        """Count the answers to some lines; of an empty line none is expected."""
        for line, answer in zip(lines, answers, strict=True):
            if not line.strip():
                continue
            self._asked += 1
            self._empty += not answer.strip()
            self._looping += loops(answer)
            if len(self._answers) < _DISTINCT:
                self._answers[answer] += 1
            if len(self._lines) < _FEW:
                self._lines.add(line)

    def remarks(self) -> Iterator[str]:
        """Yield what a person must know, in words; nothing of answers that look sound."""
        of = f"of {self._asked:,} answers"
        if self._empty:
            yield f"{self._empty:,} {of} are empty"
        if self._looping * 100 >= max(self._asked, 1):
            yield f"{self._looping:,} {of} repeat themselves: a few words come 4 times in a row or more"
        (answer, times), *_ = self._answers.most_common(1) or [("", 0)]
        if answer.strip() and len(self._lines) == _FEW and times >= self._equal * self._asked:
            shown = answer if len(answer) <= 60 else f"{answer[:59]}…"
            yield f"{times:,} {of} are the same: {shown!r}"


def loops(text: str) -> bool:
    """Return whether one to four words come four times in a row."""
    return _LOOP.search(" ".join(text.split())) is not None


def remarks(lines: Sequence[str], answers: Sequence[str], equal: float = 1.0) -> list[str]:
    """Return what a person must know of the answers to some lines; see :class:`Degenerate`."""
    counted = Degenerate(equal)
    counted.add(lines, answers)
    return list(counted.remarks())
