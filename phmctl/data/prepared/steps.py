"""Steps that preparing text takes whatever is learned from it."""

from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from phmctl.console import note, warn
from phmctl.data.card import card_names
from phmctl.data.clean import HELD_OUT, in_words
from phmctl.data.prepared import build as building
from phmctl.data.prepared.folder import is_card
from phmctl.data.prepared.provenance import Material
from phmctl.data.special import UNK
from phmctl.errors import DataError
from phmctl.recipe.documents import change
from phmctl.recipe.schema import CorpusSection, Section

_FEW = 0.5  # of what was published: with less, the source is hardly the whole corpus

CorpusT = TypeVar("CorpusT", bound=CorpusSection)


def choose(
    name: str, base: CorpusT | None, given: Mapping[str, Any], kind: type[CorpusT], defaults: Callable[[str], Section]
) -> CorpusT:
    """Return a corpus' data section: what is given, else what a recipe says, else what the card proposes.

    Args:
        name: the corpus.
        base: the recipe's section, if there is a recipe.
        given: fields of the section that were set by hand.
        kind: the section's class; its defaults are for a name that is no card.
        defaults: returns what the card of this name proposes.

    Raises:
        DataError: a value that was given cannot be, or the card is not valid.
    """
    if base is None:
        base = kind(card=name, **(defaults(name).model_dump() if is_card(name) else {}))
    return change(base.model_copy(update={"card": name}), given, DataError)


def check_own_files(
    name: str, source: Path | None, given: Container[str], *, form: str, options: str, what: str
) -> None:
    """Check that a corpus of a user's own files has a name of its own, and train and valid.

    Args:
        name: the corpus.
        source: the folder that was given with ``--source``; there must be none.
        given: the splits with files.
        form: how the option for a split's files is written.
        options: what those options are called together.
        what: what the files are called.

    Raises:
        DataError: one of these is not so.
    """
    if name in card_names():
        raise DataError(f"{name!r} is a card; give your files a name of their own, or point --source at the card's")
    if source is not None:
        raise DataError(f"--source is for a card's files; with {options} leave it out")
    missing = [form.format(split) for split in ("train", "valid") if split not in given]
    if missing:
        raise DataError(f"a corpus of your own {what} wants {' and '.join(missing)} too")


def files_of(corpus: Material, split: str) -> str:
    """Return in words which files a split was read from, or where else the corpus came from."""
    return " and ".join(str(each.path) for each in corpus.files if each.split == split) or corpus.origin


def warn_of_parts(manifest: Mapping[str, Any], card: str, published: Mapping[Any, int], rows: str) -> None:
    """Say which splits have far fewer rows than were published: a cut-off download, or a sample.

    Args:
        manifest: of the prepared data.
        card: the card's id.
        published: how many rows of each split.
        rows: what they are called.
    """
    for split, number in published.items():
        read = manifest["splits"].get(split, {}).get("read", 0)
        if read < _FEW * number:
            warn(f"{split} of {card} has {read:,} {rows} where {number:,} were published; is the source whole?")


def learning_period(count: int, row: str, vocabulary: int) -> tuple[int, str]:
    """Say that a vocabulary is learned.

    Args:
        count: rows of train.
        row: what one is called.
        vocabulary: token types.

    Returns:
        of how many rows one is learned from, and in words which part of train that is, if not all.
    """
    period = -(-count // building.LEARNED) or 1
    learned = f"one train {row} in {period}" if period > 1 else ""
    note(f"learning {vocabulary:,} token types{f' from {learned}' if learned else ''} ...")
    return period, learned


class TokenCounts:
    """Counts of what a tokenizer made."""

    def __init__(self) -> None:
        self._tokens = self._unknown = self._longest = 0

    def add(self, rows: Sequence[Sequence[int]]) -> None:
        """Add rows of token ids, lists, to the counts."""
        self._tokens += sum(map(len, rows))
        self._longest = max(self._longest, max(map(len, rows), default=0))
        self._unknown += sum(row.count(UNK) for row in rows)

    def as_dict(self) -> dict[str, int]:
        """Return the counts for the manifest; the end of sentence is not among them."""
        return {"tokens": self._tokens, "unknown": self._unknown, "longest": self._longest}


def refuse_nothing(train: Mapping[str, Any], row: str) -> None:
    """Refuse (DataError) a train split of which nothing was kept, given its counts and what a row is called."""
    if train["kept"]:
        return
    twice = 2 * train["dropped"].get(HELD_OUT, 0) > train["read"]
    advice = "was the same file given for train and for another split?" if twice else "check the files"
    raise DataError(f"no train {row} is left of {train['read']:,} read ({in_words(train['dropped'])}); {advice}")
