"""A corpus: the splits of a card, or of a user's own files, ready to be read."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phmctl.console import note
from phmctl.data.card import Card, Divide, Rows, card_names, check_split, corpus_name, load_card
from phmctl.data.find import find_files, find_test
from phmctl.data.readers import check_columns, columns_of, first_cells, parallel_files, tables
from phmctl.data.rows import (
    CORPORA,
    Row,
    RowSource,
    SourceFile,
    Splits,
    hold_out,
    joined,
    turned_round,
    with_copies,
)
from phmctl.errors import DataError, DownloadError
from phmctl.files import locked

OWN = "files given by the user"


@dataclass(frozen=True)
class Corpus:
    """Text in named splits: ``train``, ``valid`` and, as a rule, ``test`` and others."""

    name: str
    splits: Mapping[str, RowSource]
    languages: tuple[str, str] | None = None  # of source and target, or the sides' names; None where text is labelled
    texts: int = 2  # that a row has
    labels: Sequence[str] = ()  # the classes in the order of their numbers; empty: those that train has
    symmetric: bool = False  # a row with its texts swapped is the same row
    train_text: bool = False  # train's text is kept too
    files: Sequence[SourceFile] = field(default_factory=list)  # in the order in which they are read; for the manifest
    origin: str = ""  # where the text came from, in words
    held_out: Mapping[str, str] = field(default_factory=dict)  # by split that was made of train: which rows, in words
    card: str = ""  # the digest of the card that says all this

    @property
    def labelled(self) -> bool:
        return self.languages is None


def open_corpus(card: Card, source: Path | None, cache: Path, *, refetch: bool = False) -> Corpus:
    """Open a card's corpus from a folder (``--source``), its URLs or the hub; only headers are read at once.

    Downloads stay in the cache. A test set of another card is taken in where its files lie in the folder too.
    """
    if source is not None:
        corpus = _from_folder(card, source, f"folder {source.resolve().name}")
    elif card.built_in:
        from phmctl.shipped import read_miniature

        built_in = {name: [Row(pair) for pair in pairs] for name, pairs in read_miniature().items()}
        corpus = _of(card, built_in, [], "generated, seed 1")
    else:
        corpus = _from_network(card, cache, refetch)
    if card.divide is not None:
        corpus = divided(corpus, card.divide)
    for name, lender in card.borrowed.items():
        match = None if source is None else find_test(load_card(lender), source)
        if match is not None:
            files = [*corpus.files, *(replace(each, split=name) for each in match.files)]
            corpus = replace(corpus, splits={**corpus.splits, name: match.read("test")}, files=files)
    return corpus


def divided(corpus: Corpus, divide: Divide) -> Corpus:
    """Return a corpus whose missing splits are rows held out of train: always the same ones, whatever the source."""
    places = {split: place for split, place in divide.places.items() if split not in corpus.splits}
    if not places:
        return corpus
    whole, period = corpus.splits["train"], divide.period
    made = {split: hold_out(whole, period, [place], held=True) for split, place in places.items()}
    made["train"] = hold_out(whole, period, places.values(), held=False)
    words = {
        split: f"rows {place:,}, {place + period:,}, {place + 2 * period:,}, ..." for split, place in places.items()
    }
    return replace(corpus, splits=_ordered({**corpus.splits, **made}), held_out=words)


def _of(card: Card, splits: Mapping[str, RowSource], files: Sequence[SourceFile], origin: str) -> Corpus:
    return Corpus(
        card.id,
        _ordered(splits),
        languages=None if card.labelled else (card.source_language, card.target_language),
        texts=card.texts or 2,
        labels=card.labels,
        symmetric=card.symmetric,
        train_text=card.train_text,
        files=files,
        origin=origin,
        card=card.digest,
    )


def _ordered(splits: Mapping[str, RowSource]) -> Splits:
    first = [name for name in ("train", "valid") if name in splits]
    return {name: splits[name] for name in (*first, *(name for name in splits if name not in first))}


def _from_folder(card: Card, folder: Path, origin: str) -> Corpus:
    match = find_files(card, folder)
    splits = {split: match.read(split) for split in match.splits}
    corpus = _of(card, splits, match.files, f"{origin} ({match.layout.name})")
    if match.layout.odd is None:
        return corpus
    made, held_out = CORPORA[match.layout.odd](splits)
    return replace(corpus, splits=_ordered({**splits, **made}), held_out=held_out)


def _from_network(card: Card, cache: Path, refetch: bool) -> Corpus:
    """Ask the URLs and the hub in the card's order. One process fetches at a time; another finds what it fetched."""
    from phmctl.data.fetch import fetch_all
    from phmctl.data.hub import load_rows

    refused = []
    lock, folder = cache / ".lock", cache / f"urls-{card.urls_digest[:12]}"
    with locked(lock):
        for way in card.ways:
            try:
                if way == "hub" and card.hub is not None:
                    return _of(card, *load_rows(card.hub, cache / "hub", refetch=refetch))
                fetch_all(card.urls, folder, refetch=refetch)
                return _from_folder(card, folder, "the card's URLs")
            except DownloadError as error:
                refused.append(str(error).split("\n")[0])
        reason = "; ".join(refused) or "the card names neither a hub nor URLs"
        raise DownloadError(
            f"cannot fetch {card.id!r}: {reason}\nif you have the files: phmctl prepare-data {card.id} --source DIR"
        )


def reversed_corpus(corpus: Corpus) -> Corpus:
    sides = {"source": "target", "target": "source"}
    languages = corpus.languages
    if languages and languages != tuple(sides):  # own files have no languages, and sides stay sides
        languages = languages[::-1]
    return replace(
        corpus,
        languages=languages,
        splits={name: turned_round(pairs) for name, pairs in corpus.splits.items()},
        files=[replace(file, side=sides.get(file.side, file.side)) for file in corpus.files],
        origin=f"{corpus.origin}, turned round",
    )


def copied_corpus(corpus: Corpus) -> Corpus:
    """Return a corpus in whose train each target stands once more, as its own source."""
    splits = {**corpus.splits, "train": with_copies(corpus.splits["train"])}
    return replace(corpus, splits=splits, origin=f"{corpus.origin}, train with copies of its targets")


# -------------------------------------------------------------------------------------------- a user's own files


def own_corpus(
    name: str,
    given: Mapping[str, Sequence[Sequence[Path]]],
    rows: Rows | None = None,
    *,
    skip: bool = False,
    languages: tuple[str, str] = ("source", "target"),
    chosen: bool = True,
) -> Corpus:
    """Make a corpus of a user's own files: of labelled text if the rows have a label, otherwise of parallel text.

    Args:
        given: of each split the tables, or pairs of a source and a target file, that follow one another.
        rows: how tables are read, in the format that their names say. None: source and target.
        skip: whether bad lines are left out, and counted.
        chosen: whether the user has named the columns of `rows`.
    """
    labelled = rows is not None and rows.label is not None
    option = "--table {}" if labelled else "--{}"
    _check_own(name, given, option)
    splits: Splits = {}
    files: list[SourceFile] = []
    for split, groups in given.items():
        parts: list[RowSource] = []
        for named in groups:
            paths = _checked(option.format(split), named)
            if len(paths) == 1:
                parts.append(table_rows(paths[0], rows, skip, chosen))
                files.append(SourceFile(paths[0], split, "rows"))
            elif rows is not None:
                raise DataError(f"{paths[0]} {paths[1]}: --columns is for a table with both sides in it")
            else:
                parts.append(parallel_files(paths[:1], paths[1:], None, skip=skip))
                files += [SourceFile(paths[0], split, "source"), SourceFile(paths[1], split, "target")]
        splits[split] = joined(parts)
    texts = len(rows.texts) if rows else 2
    known = None if labelled else languages
    return Corpus(corpus_name(name), _ordered(splits), known, texts, files=files, origin=OWN)


def _check_own(name: str, given: Iterable[str], form: str) -> None:
    if name in card_names():
        raise DataError(f"{name!r} is a card; give your files a name of their own, or point --source at the card's")
    for split in given:
        try:
            check_split(split)
        except ValueError as error:
            raise DataError(f"no split can be called {split!r} ({error})") from error
    missing = [form.format(split) + "=FILE" * ("table" in form) for split in ("train", "valid") if split not in given]
    if missing:
        raise DataError(f"a corpus of your own files needs {' and '.join(missing)} too")


def _checked(option: str, paths: Sequence[Path]) -> Sequence[Path]:
    """Return the files of one ``--train SRC TGT``, which are there."""
    if len(paths) not in (1, 2) or len({path.resolve() for path in paths}) < len(paths):
        named = " ".join(map(str, paths))
        raise DataError(f"{option} {named}: wants a source file and a target file, or one table of both sides")
    for path in paths:
        if not path.is_file():
            raise DataError(f"{option}: {path} is no file")
    return paths


def table_rows(path: Path, rows: Rows | None, skip: bool = False, chosen: bool = True) -> RowSource:
    """Return the rows of a user's table, whose columns are there; its format is what its name says, at worst TSV."""
    name = path.name.removesuffix(".gz")
    kind = "jsonl" if name.endswith((".jsonl", ".json")) else "csv" if name.endswith(".csv") else "tsv"
    how = {"format": kind, "odd_rows": "drop" if skip else "refuse"}
    own = (rows or Rows(header=False, texts=(0, 1))).model_copy(update=how)
    looked = None if rows and chosen else columns_of(path, own) if kind == "jsonl" else first_cells(path, own)
    if (cells := looked or []) and (kind == "jsonl" or len(cells) != 2):  # ids, or scores, would be learned
        shown = ", ".join(f"{place}: {cell.strip()[:30]!r}" for place, cell in enumerate(cells[:12]))
        raise DataError(
            f"{path} has {len(cells)} columns, and one file alone is read as a table of both sides; name two files, "
            f"SOURCE TARGET, or columns: --columns SOURCE,TARGET\nthey are {shown}"
        )
    check_columns(path, own)
    found = tables([path], own)
    if own.label is None and (first := next(iter(found), None)):
        pair = f"{first.texts[0][:60]!r} → {first.texts[1][:60]!r}"
        note(f"the first pair of {path.name} is {pair}{'' if own.header else ' (if that is a header: --header)'}")
    return found
