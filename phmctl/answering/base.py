"""Types and functions that translators, classifiers and engines share, without torch."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.errors import DataError, PhmctlError, RecipeError, RunError, UserError, lack_of_memory
from phmctl.recipe.documents import change
from phmctl.recipe.schema import DecodingSection

TORCH = "torch"

Texts = Sequence[str | Sequence[str]]
Advance = Callable[[int], None]  # called with the number of lines that were answered since the last call
Document = dict[str, Any]  # a JSON object
Line = tuple[str, Document]  # an answer of ``decode``


def ignore(count: int) -> None:
    """Do not report progress."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    tokens: list[int]  # ids, without beginning and end of sentence
    score: float  # `log_prob` over the length penalty
    log_prob: float  # natural logarithm of the probability of `tokens` and the end of sentence


@contextmanager
def export_errors(folder: Path | str) -> Iterator[None]:
    """Raise RunError instead of any other error in the block, which uses the files of an export.

    The libraries of the formats raise errors of any type for foreign files and for files that do not fit together.
    """
    try:
        yield
    except PhmctlError:
        raise
    except Exception as error:
        if lack_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {error}"
        raise RunError(f"{folder} cannot be used ({reason}); copy the export again, or export the run again") from error


def length_penalty(length: Any, alpha: float) -> Any:
    """Return ``((5 + length) / 6) ** alpha`` (Wu et al. 2016, eq. 14). `length`, a tensor or a number, counts EOS."""
    return ((5.0 + length) / 6.0) ** alpha


def longest_outputs(sources: Sequence[Sequence[int]], settings: DecodingSection) -> list[int]:
    """Return the largest output length for each source, without EOS: ``max_ratio · source + max_extra`` tokens."""
    return [int(settings.max_ratio * (len(source) - 1)) + settings.max_extra for source in sources]


def change_decoding(section: DecodingSection, **changes: float | str | None) -> DecodingSection:
    """Return the section with some keys changed. None keeps a key. Raises RecipeError."""
    values = {key: value for key, value in changes.items() if value is not None}
    changed = change(section, values, RecipeError)
    if changed.precision == "float32":  # The default: both spellings must find the same stored results.
        changed = changed.model_copy(update={"precision": None})
    return changed


def plan(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    """Return the rows of each batch, longest first, with at most `batch_tokens` tokens including padding.

    Rows of length 0 are left out. A row longer than `batch_tokens` forms a batch alone.
    """
    rows = [row for row, length in enumerate(lengths) if length]
    rows.sort(key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    for row in rows:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= batch_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def check_texts(texts: Texts, name: str = "texts") -> list[str]:
    """Return `texts` as a list. Raises UserError if it is not a list of strings, DataError for invalid Unicode."""
    try:
        strings = [text for text in texts if isinstance(text, str)]
        is_list = not isinstance(texts, str) and len(strings) == len(texts)
    except TypeError:
        is_list = False
    if not is_list:
        raise UserError(f"{name} must be a list of strings; pass a single text as [text]")
    try:
        "".join(strings).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{name}: a text contains a lone surrogate, which is half of a character") from error
    return strings
