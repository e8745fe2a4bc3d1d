"""A labelled corpus: the splits of a card, or of a user's own tables, ready to be read."""

import hashlib
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from phmctl.data.card import Divide
from phmctl.data.clean import same_texts
from phmctl.data.fetch.cache import from_network, held_out_of_train
from phmctl.data.fetch.hub import field_of, load_rows, text_of
from phmctl.data.labelled.catalog import (
    SPLIT_NAME,
    ByText,
    LabelledCard,
    LabelledHub,
    Rows,
    Shuffled,
    load_labelled_card,
)
from phmctl.data.labelled.layouts import LabelledMatch, find_labelled_files, find_split
from phmctl.data.labelled.readers import Example, ExampleSource, TableRows, check_columns, named_label
from phmctl.data.readers import SourceFile
from phmctl.errors import DataError, nearest

SIDE = "rows"  # what is read from a file, for the manifest


@dataclass(frozen=True)
class LabelledCorpus:
    """Labelled text in named splits.

    Attributes:
        name: the card's id, or the user's name for it.
        texts: how many texts an example has, 1 or 2.
        labels: the classes in the order of their numbers; empty: those that train has.
        splits: the examples of ``train``, ``valid``, and as a rule ``test`` and others.
        symmetric: whether a pair with its texts swapped is the same example.
        train_text: whether train's text is kept too.
        files, origin, held_out, card: as of :class:`phmctl.data.corpus.Corpus`.
    """

    name: str
    texts: int
    labels: Sequence[str]
    splits: Mapping[str, ExampleSource]
    files: Sequence[SourceFile] = field(default_factory=list)
    origin: str = ""
    held_out: Mapping[str, str] = field(default_factory=dict)
    symmetric: bool = False
    train_text: bool = False
    card: str = ""

    @property
    def sides(self) -> dict[str, Any]:
        """What the manifest says of the texts."""
        return {"texts": self.texts}

    def lines(self, split: str) -> Iterator[Sequence[str]]:
        """Yield the text of a split's examples, and their labels."""
        for example in self.splits[split]:
            yield [*example.texts, example.label or ""]


def open_labelled_corpus(
    card: LabelledCard,
    source: Path | None,
    cache: Path,
    extra: Mapping[str, Path] | None = None,
    *,
    refetch: bool = False,
) -> LabelledCorpus:
    """Open a card's corpus; nothing but headers is read before a split is iterated.

    Args:
        card: the dataset card.
        source: a folder with the files (``--source``), or None: the card's URLs or the hub.
        cache: where downloads are kept.
        extra: folders of the splits that the card borrows from others (``--extra-split``).
        refetch: download what is kept in the cache, too.

    Raises:
        DataError: the folder does not hold the files, or a file lacks a column.
        DownloadError: neither server nor hub gives them.
    """
    read = partial(_from_folder, card)
    if source:
        corpus = read(source, f"folder {source.resolve().name}")
    else:
        corpus = from_network(card, cache, read, partial(_from_hub, card, refetch=refetch), refetch=refetch)
    if card.divide is not None:
        corpus = _divided(corpus, card.divide)
    corpus = replace(corpus, symmetric=card.symmetric, train_text=card.train_text, card=card.digest)
    return _with_borrowed(corpus, card, source, extra or {})


def corpus_of_tables(
    name: str, files: Mapping[str, Path], rows: Rows, *, quoting: bool | None = None
) -> LabelledCorpus:
    """Make a corpus of a user's own tables.

    Args:
        name: how the corpus is called from now on.
        files: the table of each split.
        rows: how they are read; the format is what each file's name says.
        quoting: whether cells may stand in quotes; None: in CSV, but not in tab-separated tables.

    Raises:
        DataError: a file or a column is missing.
    """
    splits: dict[str, ExampleSource] = {}
    for split, path in files.items():
        _check_name(split)
        if not path.is_file():
            raise DataError(f"--table {split}: no file {path}")
        own = rows_of_file(path, rows, quoting)
        check_columns(path, own)
        splits[split] = TableRows([path], own)
    found = [SourceFile(path, split, SIDE) for split, path in files.items()]
    return LabelledCorpus(name, len(rows.texts), (), _ordered(splits), found, "files given by the user")


def _check_name(split: str) -> None:
    if not re.fullmatch(SPLIT_NAME, split):
        raise DataError(f"no split can be called {split!r}: use train, valid, test, or test_ and a name")


def rows_of_file(path: Path, rows: Rows, quoting: bool | None = None) -> Rows:
    """Return how a user's file is read: the format is what its name says, tab-separated where it says nothing."""
    name = path.name.removesuffix(".gz")
    kind = "jsonl" if name.endswith((".jsonl", ".json")) else "csv" if name.endswith(".csv") else "tsv"
    return rows.model_copy(update={"format": kind, "quoting": kind == "csv" if quoting is None else quoting})


def _from_folder(card: LabelledCard, folder: Path, origin: str) -> LabelledCorpus:
    match = find_labelled_files(card, folder)
    corpus = LabelledCorpus(
        card.id,
        card.texts,
        card.labels,
        {split: match.read(split) for split in match.files},
        _files(match),
        f"{origin} ({match.layout.name})",
    )
    if match.layout.by_text is not None:
        return _divided_by_text(corpus, match.layout.by_text)
    return _shuffled(corpus, match.layout.shuffled) if match.layout.shuffled is not None else corpus


def _files(match: LabelledMatch) -> list[SourceFile]:
    return [SourceFile(path, split, SIDE) for split, paths in match.files.items() for path in paths]


def _divided(corpus: LabelledCorpus, divide: Divide) -> LabelledCorpus:
    """Hold the splits that the corpus lacks out of train: always the same rows."""
    made, words = held_out_of_train(corpus.splits, divide, "rows")
    return replace(corpus, splits=_ordered({**corpus.splits, **made}), held_out=words) if made else corpus


def _ordered(splits: Mapping[str, ExampleSource]) -> dict[str, ExampleSource]:
    """Return the splits, train and valid first."""
    first = [name for name in ("train", "valid") if name in splits]
    return {name: splits[name] for name in (*first, *(name for name in splits if name not in first))}


@dataclass(frozen=True)
class _TextShare:
    """The examples whose text's digest falls in some of `of` equal shares."""

    examples: ExampleSource
    of: int
    shares: range

    def __iter__(self) -> Iterator[Example]:
        for example in self.examples:
            if _share(example.texts, self.of) in self.shares:
                yield example


def _share(texts: Sequence[str], of: int) -> int:
    """Return the share that texts fall in; those that differ only in case or white space fall in the same."""
    digest = hashlib.sha256(same_texts(texts)).digest()
    return int.from_bytes(digest[:8], "big") % of


def _divided_by_text(corpus: LabelledCorpus, divide: ByText) -> LabelledCorpus:
    whole, of = corpus.splits["train"], divide.of
    test = of - divide.test
    valid = test - divide.valid
    bounds = {"train": range(valid), "valid": range(valid, test), "test": range(test, of)}
    splits: dict[str, ExampleSource] = {name: _TextShare(whole, of, shares) for name, shares in bounds.items()}
    words = {name: f"{len(bounds[name])} of {of} shares of the texts, by their SHA-256" for name in ("valid", "test")}
    return replace(corpus, splits=splits, held_out=words)


class _Shuffle:
    """Which part each example of a source belongs to, after Python's shuffle of all of them."""

    def __init__(self, examples: ExampleSource, shuffled: Shuffled) -> None:
        self.examples = examples
        self._shuffled = shuffled

    @cached_property
    def owners(self) -> bytearray:
        """The number of each example's part: train 0, valid 1, test 2. The source is counted once for it."""
        places = list(range(sum(1 for _ in self.examples)))
        random.Random(self._shuffled.seed).shuffle(places)
        train = int(len(places) * self._shuffled.train)
        valid = train + int(len(places) * self._shuffled.valid)
        owners = bytearray(len(places))
        for position, place in enumerate(places):
            owners[place] = (position >= train) + (position >= valid)
        return owners


@dataclass(frozen=True)
class _Dealt:
    """One part of a shuffle. The examples are those of Tensor2Tensor; they come in the order of the file."""

    shuffle: _Shuffle
    part: int
    equal: tuple[str, str] | None

    def __iter__(self) -> Iterator[Example]:
        for owner, example in zip(self.shuffle.owners, self.shuffle.examples, strict=True):
            if owner == self.part and (
                not self.equal or example.extras[self.equal[0]] == example.extras[self.equal[1]]
            ):
                yield example


def _shuffled(corpus: LabelledCorpus, shuffled: Shuffled) -> LabelledCorpus:
    shuffle = _Shuffle(corpus.splits["train"], shuffled)
    splits: dict[str, ExampleSource] = {
        "train": _Dealt(shuffle, 0, None),
        "valid": _Dealt(shuffle, 1, None),
        "test": _Dealt(shuffle, 2, shuffled.test_where_equal),
    }
    words = {"valid": f"{shuffled.valid:.0%} of the shuffled rows", "test": "the rest of the shuffled rows"}
    if shuffled.test_where_equal:
        words["test"] += f" with {' = '.join(shuffled.test_where_equal)}"
    return replace(corpus, splits=splits, held_out=words)


def _with_borrowed(
    corpus: LabelledCorpus, card: LabelledCard, source: Path | None, extra: Mapping[str, Path]
) -> LabelledCorpus:
    """Add the splits of other cards that are given, or that lie in the same folder."""
    for name in extra:
        if name not in card.borrowed:
            known = ", ".join(card.borrowed) or "none"
            raise DataError(f"{card.id} has no extra split {name!r}{nearest(name, card.borrowed)}; it has {known}")
    for name, borrowed in card.borrowed.items():
        folder = extra.get(name, source)
        match = find_split(load_labelled_card(borrowed.card), borrowed.split, folder) if folder else None
        if match is None and name in extra:
            raise DataError(f"{extra[name]} holds no {borrowed.split} files of {borrowed.card!r}, which {name} is")
        if match is not None:
            files = [*corpus.files, *(SourceFile(path, name, SIDE) for path in match.files[borrowed.split])]
            corpus = replace(corpus, splits={**corpus.splits, name: match.read(borrowed.split)}, files=files)
    return corpus


@dataclass(frozen=True)
class HubExamples:
    """The examples of one split of a loaded dataset; rows stay memory-mapped."""

    rows: Any  # datasets.Dataset
    hub: LabelledHub
    name: str  # for messages

    def __iter__(self) -> Iterator[Example]:
        """Yield the examples; raises :class:`DataError` with the row where a text is none."""
        for number, row in enumerate(self.rows, start=1):
            texts = tuple(text_of(row, column, self.name, number) for column in self.hub.texts)
            label = named_label(str(field_of(row, self.hub.label)), self.hub)
            yield Example(texts, label, {}, (self.name, number))


def _from_hub(card: LabelledCard, cache: Path, *, refetch: bool) -> LabelledCorpus:
    if card.hub is None:
        raise DataError(f"card {card.id!r} names no hub")
    hub = card.hub
    loaded = load_rows(hub, hub.splits, (*hub.texts, hub.label), SIDE, cache, refetch=refetch)
    splits: dict[str, ExampleSource] = {
        split: HubExamples(rows, hub, f"{hub.id} ({hub.splits[split]})") for split, rows in loaded.rows.items()
    }
    return LabelledCorpus(card.id, card.texts, card.labels, splits, loaded.files, loaded.origin)
