"""Translations of lines of text. Nothing here imports torch: an export's engine does without."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from phmctl.decoding.output import as_json, best_lines, n_best_lines
from phmctl.decoding.translator import Translation, Translator

_IRRELEVANT = {"batch_tokens", "execution"}  # settings of the search that change its speed only


class TranslationPredictor:
    """Translations of lines: the best of each, or several with their scores.

    Args:
        translator: does the work.
        n_best: how many a line are wanted, with their numbers; None is the best one, as plain text.
        strict: refuse over-long lines instead of cutting them.
    """

    verb = "translating"

    def __init__(self, translator: Translator, n_best: int | None = None, *, strict: bool = False) -> None:
        self.translator, self.n_best, self.strict = translator, n_best, strict

    def about(self) -> dict[str, Any]:
        """Return the settings of the search."""
        return {"decoding": self.translator.settings.model_dump()}

    def origin(self) -> dict[str, Any]:
        """Return the settings of the search that decide what is found, and how many are printed."""
        return {**self.translator.settings.model_dump(exclude=_IRRELEVANT), "n_best": self.n_best}

    def predict(
        self, lines: Sequence[str], *, numbers: Sequence[int] | None = None, advance: Callable[[int], None]
    ) -> list[list[Translation]]:
        """Return each line's translations, best first."""
        wanted = self.n_best or 1
        return self.translator.translate(lines, n_best=wanted, strict=self.strict, numbers=numbers, advance=advance)

    def lines(self, found: Sequence[Sequence[Translation]], *, first_line: int = 1) -> Iterator[str]:
        """Yield the best translation of each line, or its n best with number, rank and score."""
        return best_lines(found) if self.n_best is None else n_best_lines(found, first_line)

    def as_json(self, found: Sequence[Sequence[Translation]]) -> Iterator[dict[str, Any]]:
        """Yield ``translations`` of each line."""
        return as_json(found)
