"""A corpus: the splits of a card, whose files are found in a folder, or of a user's own files, ready to be read."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from phmctl.console import note
from phmctl.data.card import Card, Divide, Layout, RowFormat, SplitFiles, check_split, corpus_name, load_card
from phmctl.data.readers import check_columns, first_record, parallel_files, tables
from phmctl.data.rows import (
    DIVISIONS,
    Row,
    RowSource,
    SourceFile,
    Splits,
    append_copies,
    concatenate,
    select_periodic,
    swap_sides,
)
from phmctl.errors import DataError, DownloadError
from phmctl.files import lock, sha256_text
from phmctl.shipped import MINIATURE, read_miniature, shipped_names

OWN = "files given by the user"
_DEPTH = 3  # subfolders that are searched below the folder given
_FOLDERS = 500  # and how many at most: nobody meant the whole disk


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
        built_in = {name: [Row(pair) for pair in pairs] for name, pairs in read_miniature().items()}
        files = [SourceFile(MINIATURE, name, "rows") for name in built_in]
        corpus = _of(card, built_in, files, "generated, seed 1")
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
    places = {split: place for split, place in divide.first_rows.items() if split not in corpus.splits}
    if not places or "train" not in corpus.splits:
        return corpus
    whole, period = corpus.splits["train"], divide.period
    made = {split: select_periodic(whole, period, [place]) for split, place in places.items()}
    made["train"] = select_periodic(whole, period, [*places.values()], complement=True)
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
    made, held_out = DIVISIONS[match.layout.odd](splits)
    return replace(corpus, splits=_ordered({**splits, **made}), held_out=held_out)


def _from_network(card: Card, cache: Path, refetch: bool) -> Corpus:
    """Ask the URLs and the hub in the card's order. One process fetches at a time; another finds what it fetched."""
    from phmctl.data.fetch import fetch_all  # ssl is slow to import, and who translates needs none
    from phmctl.data.hub import load_rows

    refused = []
    urls = sha256_text([json.dumps([url.model_dump(mode="json") for url in card.urls], sort_keys=True)])
    folder = cache / f"urls-{urls[:12]}"
    with lock(cache / ".lock"):
        for way in card.download_origins:
            try:
                if way == "hub" and card.hub is not None:
                    return _of(card, *load_rows(card.hub, cache / "hub", refetch=refetch))
                fetch_all(card.urls, folder, refetch=refetch)
                return _from_folder(card, folder, "the card's URLs")
            except DataError as error:  # servers answer with a page, an archive has other files now
                refused.append(str(error).replace("\n", "; "))
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
        splits={name: swap_sides(pairs) for name, pairs in corpus.splits.items()},
        files=[replace(file, side=sides.get(file.side, file.side)) for file in corpus.files],
        origin=f"{corpus.origin}, turned round",
    )


def copied_corpus(corpus: Corpus) -> Corpus:
    """Return a corpus in whose train each target stands once more, as its own source."""
    splits = {**corpus.splits, "train": append_copies(corpus.splits["train"])}
    return replace(corpus, splits=splits, origin=f"{corpus.origin}, train with copies of its targets")


# ------------------------------------------------------------------------------------------- finding a card's files


@dataclass(frozen=True)
class Match:
    layout: Layout
    folder: Path
    found: Mapping[str, Path]  # by the layout's names
    splits: Sequence[str]  # those that are there, each with all its files
    missing: Sequence[str]  # the layout's names of the other splits' files

    @property
    def files(self) -> list[SourceFile]:
        """The files by split and side; one that two splits are taken from is there twice."""
        return [
            SourceFile(self.found[name], split, side)
            for split in self.splits
            for side, names in self.layout.splits[split].sides.items()
            for name in names
        ]

    def read(self, split: str) -> RowSource:
        files = self.layout.splits[split]
        source, target, both = ([self.found[name] for name in names] for names in files.sides.values())
        if both:
            return tables(both, self.layout.rows, self.layout.parts.get(split))
        return parallel_files(source, target, files.format)

    def odd(self) -> DataError | None:
        """Return what is wrong with a file that lacks the columns which the layout reads: it is something else."""
        for each in self.files:
            try:
                if each.side == "rows":
                    check_columns(each.path, self.layout.rows)
            except DataError as error:
                return error
        return None


def find_files(card: Card, folder: Path) -> Match:
    """Return the first layout of a card that `folder`, or a subfolder of it, holds completely.

    Where there is none the DataError says what the nearest layout lacks.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: --source needs the folder with the files of {card.id!r}")
    best: Match | None = None
    odd: DataError | None = None
    for match in _matches([*card.local, *generic_layouts(card)], folder):
        if match.missing:
            best = match if best is None or len(match.found) > len(best.found) else best
            continue
        other = match.odd()
        if other is None:
            return match
        odd = odd or other
    if odd is not None:
        raise odd
    known = [f"{layout.name} ({next(iter(layout.splits.values())).names[0]}, ...)" for layout in card.local]
    known += [] if card.labelled else ["plain text, .gz or .tsv"]
    looked = f"looked in {folder} and below for: {'; '.join(known)}"
    if best is None or not best.found:
        raise DataError(f"{folder} holds no files of {card.id!r}\n{looked}")
    lacking = f"missing: {', '.join(dict.fromkeys(best.missing))}"
    raise DataError(f"{best.folder} holds {card.id!r} ({best.layout.name}) in part\n{lacking}\n{looked}")


def find_test(card: Card, folder: Path) -> Match | None:
    """Return a card's files of its test set alone, in the shallowest folder that has them, or None."""
    local = [(each, each.splits["test"]) for each in card.local if "test" in each.splits]
    layouts = [layout.model_copy(update={"splits": {"test": files}}) for layout, files in local]
    fitting = [each for each in _matches(layouts, folder) if not each.missing and each.odd() is None]
    return min(fitting, key=lambda match: len(match.folder.parts), default=None)


def generic_layouts(card: Card) -> list[Layout]:
    """Return what every card of parallel text is looked for in: ``train.de``, ``train.en``; ``train.tsv``."""
    if card.labelled:
        return []
    one, other = card.source_language, card.target_language
    layouts = []
    for valid in ("valid", "val", "dev"):
        names = {"train": "train", "valid": valid, "test": "test"}
        plain = {
            split: SplitFiles(source=(f"{name}.{one}",), target=(f"{name}.{other}",)) for split, name in names.items()
        }
        tabbed = {split: SplitFiles(tables=(f"{name}.tsv",)) for split, name in names.items()}
        layouts += [Layout(name="plain text", splits=plain), Layout(name="tab-separated", splits=tabbed)]
    return layouts


def _matches(layouts: Iterable[Layout], top: Path) -> Iterator[Match]:
    """Look for each layout: in each folder, or the files of one that is scattered each in the first that has it."""
    folders = _folders(top)
    for layout in layouts:
        for places in [folders] if layout.scattered else ([each] for each in folders):
            yield _match(layout, places)


def _folders(top: Path) -> list[Path]:
    """Return a folder and those below it, the shallower ones first; what may not be read holds nothing for us."""
    found = []
    for place, below, _ in os.walk(top, followlinks=True):
        depth = len(Path(place).relative_to(top).parts)
        below[:] = [name for name in below if not name.startswith(".")] if depth < _DEPTH else []
        found.append((depth, Path(place)))
    return [path for _, path in sorted(found)[:_FOLDERS]]


def _match(layout: Layout, places: Sequence[Path]) -> Match:
    """Look for a layout's files, plain or compressed, each in the first of these folders that has it."""
    found: dict[str, Path] = {}
    missing: list[str] = []
    splits = []
    for split, files in layout.splits.items():
        here = {}
        for name in files.names:
            candidates = (place / each for each in (name, f"{name}.gz") for place in places)
            if path := next(filter(Path.is_file, candidates), None):
                here[name] = path
        found |= here
        if len(here) == len(set(files.names)):
            splits.append(split)
        elif split in ("train", "valid", "test"):
            missing += [name for name in files.names if name not in here]
    return Match(layout, places[0], found, splits, missing)


# -------------------------------------------------------------------------------------------- a user's own files


def own_corpus(
    name: str,
    given: Mapping[str, Sequence[Sequence[Path]]],
    rows: RowFormat | None = None,
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
    if name in shipped_names("cards"):
        raise DataError(f"{name!r} is a card; give your files a name of their own, or point --source at the card's")
    splits: Splits = {}
    files: list[SourceFile] = []
    for split, groups in given.items():
        parts: list[RowSource] = []
        try:
            check_split(split)
        except ValueError as error:
            raise DataError(f"no split can be called {split!r} ({error})") from error
        for paths in groups:
            if len(paths) not in (1, 2) or len({path.resolve() for path in paths}) < len(paths):
                named = f"{option.format(split)} {' '.join(map(str, paths))}"
                raise DataError(f"{named}: wants a source file and a target file, or one table of both sides")
            if missing := [path for path in paths if not path.is_file()]:
                raise DataError(f"{option.format(split)}: {missing[0]} is no file")
            if len(paths) == 1:
                parts.append(table_rows(paths[0], rows, skip, chosen))
                files.append(SourceFile(paths[0], split, "rows"))
            elif rows is not None:
                raise DataError(f"{paths[0]} {paths[1]}: --columns, --header, --quoting and --extra are for tables")
            else:
                parts.append(parallel_files(paths[:1], paths[1:], None, skip=skip))
                files += [SourceFile(paths[0], split, "source"), SourceFile(paths[1], split, "target")]
        splits[split] = concatenate(parts)
    texts = len(rows.texts) if rows else 2
    known = None if labelled else languages
    return Corpus(corpus_name(name), _ordered(splits), known, texts, files=files, origin=OWN)


def table_rows(path: Path, rows: RowFormat | None, skip: bool = False, chosen: bool = True) -> RowSource:
    """Return the rows of a user's table, whose columns are there; its format is what its name says, at worst TSV."""
    name = path.name.lower().removesuffix(".gz")
    kind = "jsonl" if name.endswith((".jsonl", ".ndjson", ".json")) else "csv" if name.endswith(".csv") else "tsv"
    how = {"format": kind, "odd_rows": "drop" if skip else "refuse"}
    own = (rows or RowFormat(header=False, texts=(0, 1))).model_copy(update=how)
    cells = [] if rows and chosen else first_record(path, own)
    if cells and (kind == "jsonl" or len(cells) != 2):  # ids, or scores, would be learned
        shown = ", ".join(f"{place}: {cell.strip()[:30]!r}" for place, cell in enumerate(cells[:12]))
        raise DataError(
            f"{path} has {len(cells)} columns, and one file alone is read as a table of both sides; name two files, "
            f"SOURCE TARGET, or columns: --columns SOURCE,TARGET\nthey are {shown}"
        )
    check_columns(path, own)
    found = tables([path], own)
    if own.label is None and (first := next((row for row in found if row.readable), None)):
        pair = f"{first.texts[0][:60]!r} → {first.texts[1][:60]!r}"
        note(f"the first pair of {path.name} is {pair}{'' if own.header else ' (if that is a header: --header)'}")
    return found
