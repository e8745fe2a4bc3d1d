"""A corpus: the splits of a card, or of a user's own files, ready to be read."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from phmctl.console import note
from phmctl.data.card import ByText, Card, Divide, Rows, Shuffled, card_names, check_split, corpus_name, load_card
from phmctl.data.fetch.cache import from_network
from phmctl.data.find import Match, find_files, find_split
from phmctl.data.readers import ParallelFiles, Tables, check_columns, read_lines
from phmctl.data.rows import (
    Dealt,
    Joined,
    Row,
    RowSource,
    Shuffle,
    SourceFile,
    TextShare,
    TurnedRound,
    held_out_of_train,
)
from phmctl.errors import DataError, nearest

OWN = "files given by the user"
_LOOKED_AT = 1000  # lines of a table, for doubled quotes
_DOUBLED = re.compile(r'(?:^|[\t,])"[^\t]*""[^\t]*"(?=$|[\t,])')  # a cell in quotes with a quote in it


@dataclass(frozen=True)
class Corpus:
    """Text in named splits.

    Attributes:
        name: the card's id, or the user's name for it.
        splits: the rows of ``train``, ``valid`` and, as a rule, ``test`` and others.
        languages: of source and target: codes, or names of the two sides; None where the text is labelled.
        texts: how many texts a row has, 1 or 2.
        labels: the classes in the order of their numbers; empty: those that train has.
        symmetric: whether a row with its texts swapped is the same row.
        train_text: whether train's text is kept too.
        files: the original files in the order in which they are read, for the manifest's SHA-256; empty where there
            are none. A file that two splits are taken from stands here twice.
        origin: where the text came from, in words.
        held_out: the splits that the corpus has not of its own, and which of its rows they are, in words.
        card: the digest of the card that says all this; empty for a user's own files.
    """

    name: str
    splits: Mapping[str, RowSource]
    languages: tuple[str, str] | None = None
    texts: int = 2
    labels: Sequence[str] = ()
    symmetric: bool = False
    train_text: bool = False
    files: Sequence[SourceFile] = field(default_factory=list)
    origin: str = ""
    held_out: Mapping[str, str] = field(default_factory=dict)
    card: str = ""

    @property
    def sides(self) -> dict[str, Any]:
        """What the manifest says of the texts of a row."""
        if self.languages is None:
            return {"texts": self.texts}
        return dict(zip(("source_language", "target_language"), self.languages, strict=True))

    def lines(self, split: str) -> Iterator[Sequence[str]]:
        """Yield the texts of a split's rows, and their labels."""
        for row in self.splits[split]:
            yield row.texts if self.languages else [*row.texts, row.label or ""]


def open_corpus(
    card: Card, source: Path | None, cache: Path, extra: Mapping[str, Path] | None = None, *, refetch: bool = False
) -> Corpus:
    """Open a card's corpus; nothing but headers is read before a split is iterated.

    Where the card says how to divide it, splits that the source lacks are held out of train.

    Args:
        card: the dataset card.
        source: a folder with the files (``--source``), or None: the card's URLs or the hub.
        cache: where downloads are kept.
        extra: folders of the splits that the card borrows from others (``--extra-split``).
        refetch: download what is kept there, too.

    Raises:
        DataError: the folder does not hold the files, or a file lacks a column.
        DownloadError: neither server nor hub gives them.
    """
    read = partial(_from_folder, card)
    if source is not None:
        corpus = read(source, f"folder {source.resolve().name}")
    elif card.built_in:
        corpus = _generated(card)
    else:
        corpus = from_network(card, cache, read, partial(_from_hub, card, refetch=refetch), refetch=refetch)
    if card.divide is not None:
        corpus = divided(corpus, card.divide)
    return _with_borrowed(replace(corpus, card=card.digest), card, source, extra or {})


def divided(corpus: Corpus, divide: Divide) -> Corpus:
    """Return a corpus whose missing splits are rows held out of train: always the same ones, whatever the source.

    Args:
        corpus: the corpus; it has a train split.
        divide: which rows are for valid and test. A split that the corpus has already stays as it is.
    """
    made, words = held_out_of_train(corpus.splits, divide, "pairs" if corpus.languages else "rows")
    return replace(corpus, splits=_ordered({**corpus.splits, **made}), held_out=words) if made else corpus


def _of(card: Card, splits: Mapping[str, RowSource], files: Sequence[SourceFile], origin: str) -> Corpus:
    languages = None if card.labelled else (card.source_language, card.target_language)
    corpus = Corpus(card.id, _ordered(splits), languages, card.texts or 2, card.labels, files=files, origin=origin)
    return replace(corpus, symmetric=card.symmetric, train_text=card.train_text)


def _ordered(splits: Mapping[str, RowSource]) -> dict[str, RowSource]:
    """Return the splits, train and valid first."""
    first = [name for name in ("train", "valid") if name in splits]
    return {name: splits[name] for name in (*first, *(name for name in splits if name not in first))}


def _from_folder(card: Card, folder: Path, origin: str) -> Corpus:
    match = find_files(card, folder)
    splits = {split: match.read(split) for split in match.splits}
    corpus = _of(card, splits, match.files(), f"{origin} ({match.layout.name})")
    if match.layout.by_text is not None:
        return _divided_by_text(corpus, match.layout.by_text)
    return _shuffled(corpus, match.layout.shuffled) if match.layout.shuffled is not None else corpus


def _generated(card: Card) -> Corpus:
    """Return the built-in miniature."""
    from phmctl.miniature import generate

    splits = {name: [Row(pair) for pair in pairs] for name, pairs in generate().items()}
    return _of(card, splits, [], "generated, seed 1")


def _from_hub(card: Card, cache: Path, *, refetch: bool) -> Corpus:
    from phmctl.data.fetch.hub import load_rows

    if card.hub is None:
        raise DataError(f"card {card.id!r} names no hub")
    loaded = load_rows(card.hub, cache, refetch=refetch)
    return _of(card, loaded.splits, loaded.files, loaded.origin)


def _divided_by_text(corpus: Corpus, divide: ByText) -> Corpus:
    whole, of = corpus.splits["train"], divide.of
    test = of - divide.test
    valid = test - divide.valid
    bounds = {"train": range(valid), "valid": range(valid, test), "test": range(test, of)}
    splits = {name: TextShare(whole, of, shares) for name, shares in bounds.items()}
    words = {name: f"{len(bounds[name])} of {of} shares of the texts, by their SHA-256" for name in ("valid", "test")}
    return replace(corpus, splits=splits, held_out=words)


def _shuffled(corpus: Corpus, shuffled: Shuffled) -> Corpus:
    shuffle = Shuffle(corpus.splits["train"], shuffled)
    splits = {"train": Dealt(shuffle, 0), "valid": Dealt(shuffle, 1)}
    splits["test"] = Dealt(shuffle, 2, shuffled.test_where_equal)
    words = {"valid": f"{shuffled.valid:.0%} of the shuffled rows", "test": "the rest of the shuffled rows"}
    if shuffled.test_where_equal:
        words["test"] += f" with {' = '.join(shuffled.test_where_equal)}"
    return replace(corpus, splits=splits, held_out=words)


def _with_borrowed(corpus: Corpus, card: Card, source: Path | None, extra: Mapping[str, Path]) -> Corpus:
    """Add the splits of other cards that are given, or that lie in the same folder."""
    for name in extra:
        if name not in card.borrowed:
            known = ", ".join(card.borrowed) or "none"
            raise DataError(f"{card.id} has no extra split {name!r}{nearest(name, card.borrowed)}; it has {known}")
    for name, borrowed in card.borrowed.items():
        folder = extra.get(name, source)
        match: Match | None = find_split(load_card(borrowed.card), borrowed.split, folder) if folder else None
        if match is None and name in extra:
            raise DataError(f"{extra[name]} holds no {borrowed.split} files of {borrowed.card!r}, which {name} is")
        if match is not None:
            files = [*corpus.files, *(replace(each, split=name) for each in match.files(borrowed.split))]
            corpus = replace(corpus, splits={**corpus.splits, name: match.read(borrowed.split)}, files=files)
    return corpus


def turned_round(corpus: Corpus) -> Corpus:
    """Return a corpus whose sources are the targets of another: for the other direction of translation.

    Splits are divided, where the card says so, before: both directions have the same pairs in each.
    """
    sides = {"source": "target", "target": "source"}
    return replace(
        corpus,
        languages=corpus.languages and corpus.languages[::-1],
        splits={name: TurnedRound(pairs) for name, pairs in corpus.splits.items()},
        files=[replace(file, side=sides.get(file.side, file.side)) for file in corpus.files],
        origin=f"{corpus.origin}, turned round",
    )


# -------------------------------------------------------------------------------------------- a user's own files


def corpus_from_files(
    name: str,
    given: Mapping[str, Sequence[Sequence[Path]]],
    rows: Rows | None = None,
    *,
    quoting: bool | None = None,
) -> Corpus:
    """Make a corpus of a user's own parallel text.

    Args:
        name: how the corpus is called from now on.
        given: for each split the files that follow one another: source and target (plain text, ``.gz``, IWSLT's
            names), or one table of both.
        rows: how tables are read; the format is what each file's name says. None: source, target, without a header.
        quoting: whether a table's cells may stand in quotes; None: in CSV, but not in tab-separated tables.

    Raises:
        DataError: a file or a column is missing.
    """
    _check_own(name, given, "--{}")
    splits: dict[str, RowSource] = {}
    files: list[SourceFile] = []
    for split, groups in given.items():
        parts: list[RowSource] = []
        for named in groups:
            paths = _checked(split, named)
            sides = ("pairs",) if len(paths) == 1 else ("source", "target")
            files += [SourceFile(path, split, side) for path, side in zip(paths, sides, strict=True)]
            if len(paths) == 1:
                parts.append(_table(paths[0], rows or Rows(header=False, texts=(0, 1)), quoting))
            elif rows is not None:
                raise DataError(f"--{split} {paths[0]} {paths[1]}: --columns is for a table with both sides in it")
            else:
                parts.append(ParallelFiles(paths[:1], paths[1:], None))
        splits[split] = parts[0] if len(parts) == 1 else Joined(parts)
    return Corpus(corpus_name(name), _ordered(splits), ("source", "target"), files=files, origin=OWN)


def _check_own(name: str, given: Iterable[str], form: str) -> None:
    """Check that a corpus of a user's own files has a name of its own, and train and valid."""
    if name in card_names():
        raise DataError(f"{name!r} is a card; give your files a name of their own, or point --source at the card's")
    for split in given:
        try:
            check_split(split)
        except ValueError as error:
            raise DataError(f"no split can be called {split!r} ({error})") from error
    missing = [form.format(split) for split in ("train", "valid") if split not in given]
    if missing:
        raise DataError(f"a corpus of your own files wants {' and '.join(missing)} too")


def _checked(split: str, paths: Sequence[Path]) -> Sequence[Path]:
    """Return the files of one ``--train SRC TGT``, which are there; a table that is named as both sides is one file."""
    if len(paths) not in (1, 2):
        raise DataError(f"--{split} wants a source and a target file, or one table, not {len(paths)}")
    for path in paths:
        if not path.is_file():
            raise DataError(f"--{split}: no file {path}")
    if len(paths) == 1 or not paths[0].samefile(paths[1]):
        return paths
    if "\t" not in next(read_lines(paths[0]), ""):
        raise DataError(f"--{split}: {paths[0]} is named as both sides; name the source file and the target file")
    note(f"--{split}: {paths[0]} is both sides, so it is read by columns: source, tab, target")
    return paths[:1]


def _table(path: Path, rows: Rows, quoting: bool | None) -> Tables:
    """Return the rows of a user's table, whose columns are there."""
    own = rows_of_file(path, rows, quoting)
    if own.format == "jsonl" and any(isinstance(column, int) for column in own.columns):
        raise DataError(f"{path}: the keys of JSON lines have names: --columns SOURCE,TARGET")
    check_columns(path, own)
    _hint_at_quotes(path, own)
    return Tables([path], own)


def _hint_at_quotes(path: Path, rows: Rows) -> None:
    """Say so where a table that is read without quoting has doubled quotes, as a quoted one has them."""
    if rows.format == "jsonl" or rows.quoting:
        return
    lines = enumerate(islice(read_lines(path), _LOOKED_AT), start=1)
    number = next((number for number, line in lines if _DOUBLED.search(line)), None)
    if number is not None:
        note(
            f"{path}, line {number}: doubled quotes, and quotes mean nothing in this table as it is read; "
            "if its cells stand in quotes: --quoting"
        )


def corpus_of_tables(name: str, files: Mapping[str, Path], rows: Rows, *, quoting: bool | None = None) -> Corpus:
    """Make a corpus of a user's own tables of labelled text.

    Args:
        name: how the corpus is called from now on.
        files: the table of each split.
        rows: how they are read; the format is what each file's name says.
        quoting: whether cells may stand in quotes; None: in CSV, but not in tab-separated tables.

    Raises:
        DataError: a file or a column is missing.
    """
    _check_own(name, files, "--table {}=FILE")
    splits: dict[str, RowSource] = {}
    for split, path in files.items():
        if not path.is_file():
            raise DataError(f"--table {split}: no file {path}")
        splits[split] = _table(path, rows, quoting)
    found = [SourceFile(path, split, "rows") for split, path in files.items()]
    return Corpus(corpus_name(name), _ordered(splits), texts=len(rows.texts), files=found, origin=OWN)


def rows_of_file(path: Path, rows: Rows, quoting: bool | None = None) -> Rows:
    """Return how a user's file is read: the format is what its name says, tab-separated where it says nothing."""
    name = path.name.removesuffix(".gz")
    kind = "jsonl" if name.endswith((".jsonl", ".json")) else "csv" if name.endswith(".csv") else "tsv"
    return rows.model_copy(update={"format": kind, "quoting": kind == "csv" if quoting is None else quoting})
