"""Corpora of cards, from a folder, URLs or the hub, and corpora of a user's own files."""

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
    HoldOut,
    Row,
    RowSource,
    SourceFile,
    Splits,
    append_copies,
    concatenate,
    select_periodic,
    swap_sides,
)
from phmctl.data.tmx import is_translation_memory, translation_memory
from phmctl.errors import DataError, DownloadError
from phmctl.shipped import MINIATURE, read_miniature, shipped_names
from phmctl.storage import lock, sha256_text

_DEPTH = 3  # levels of subfolders that are searched
_MOST_FOLDERS = 500  # folders that are searched, so that a wrong --source does not search the disk


@dataclass(frozen=True)
class Corpus:
    """Text in named splits: ``train``, ``valid`` and, usually, ``test`` and others."""

    name: str
    splits: Mapping[str, RowSource]
    languages: tuple[str, str] | None = None  # of source and target; None for labelled text
    texts: int = 2  # texts of a row
    labels: Sequence[str] = ()  # classes in the order of their numbers; empty: the labels of train
    symmetric: bool = False  # a row with swapped texts is the same row
    train_text: bool = False  # also store the text of train
    files: Sequence[SourceFile] = field(default_factory=list)  # in reading order, for the manifest
    origin: str = ""  # description of the source for the manifest
    held_out: Mapping[str, str] = field(default_factory=dict)  # split made from rows of train → which rows
    card: str = ""  # digest of the card

    @property
    def labelled(self) -> bool:
        return self.languages is None


def open_corpus(card: Card, source: Path | None, cache: Path, *, refetch: bool = False) -> Corpus:
    """Open a card's corpus from a folder (``--source``), or from its URLs or the hub, whose downloads stay in `cache`.

    Only table headers are read. Test sets of other cards are added if the folder has their files.
    """
    if source is not None:
        corpus = _from_folder(card, source, f"folder {source.resolve().name}")
    elif card.built_in:
        splits = {name: [Row(pair) for pair in pairs] for name, pairs in read_miniature().items()}
        files = [SourceFile(MINIATURE, name, "rows") for name in splits]
        corpus = _corpus_of(card, splits, files, "generated, seed 1")
    else:
        corpus = _from_network(card, cache, refetch)
    if card.divide is not None:
        corpus = divide_train(corpus, card.divide)
    if source is None:
        return corpus
    for split, lender in card.borrowed.items():
        match = _find_test_set(load_card(lender), source)
        if match is not None:
            files = [*corpus.files, *(replace(file, split=split) for file in match.files)]
            corpus = replace(corpus, splits={**corpus.splits, split: match.read("test")}, files=files)
    return corpus


def divide_train(corpus: Corpus, divide: Divide) -> Corpus:
    """Return the corpus with its missing splits taken from train: from a first row on, one row in each period."""
    first_rows = {split: row for split, row in divide.first_rows.items() if split not in corpus.splits}
    if not first_rows or "train" not in corpus.splits:
        return corpus
    train = corpus.splits["train"]
    period = divide.period
    splits = {**corpus.splits, "train": select_periodic(train, period, [*first_rows.values()], complement=True)}
    held_out = {}
    for split, row in first_rows.items():
        splits[split] = select_periodic(train, period, [row])
        held_out[split] = f"rows {row:,}, {row + period:,}, {row + 2 * period:,}, ..."
    return replace(corpus, splits=_ordered(splits), held_out=held_out)


def hold_out(corpus: Corpus, shares: HoldOut) -> Corpus:
    """Return the corpus with valid, and test if `shares` has two sizes, taken from train. Raises DataError."""
    if "train" not in corpus.splits:
        return corpus
    divided = shares.divide(corpus.splits["train"])
    given = [name for name in divided if name != "train" and name in corpus.splits]
    if given:
        raise DataError(
            f"--split {shares.text} takes {given[0]} from train; leave the option or the {given[0]} files out"
        )
    held_out = {
        name: f"{shares.text} of train, by the SHA-256 of the first text" for name in divided if name != "train"
    }
    return replace(corpus, splits=_ordered({**corpus.splits, **divided}), held_out=held_out)


def _corpus_of(card: Card, splits: Mapping[str, RowSource], files: Sequence[SourceFile], origin: str) -> Corpus:
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
    """Return the splits with train and valid first."""
    return {name: splits[name] for name in dict.fromkeys(("train", "valid", *splits)) if name in splits}


def _from_folder(card: Card, folder: Path, origin: str) -> Corpus:
    match = find_files(card, folder)
    splits = {split: match.read(split) for split in match.splits}
    corpus = _corpus_of(card, splits, match.files, f"{origin} ({match.layout.name})")
    if match.layout.odd is None:
        return corpus
    divided, held_out = DIVISIONS[match.layout.odd](splits)
    return replace(corpus, splits=_ordered({**splits, **divided}), held_out=held_out)


def _from_network(card: Card, cache: Path, refetch: bool) -> Corpus:
    """Return the corpus from the first of the card's origins, URLs or hub, that has it. Raises DownloadError.

    Only one process fetches at a time; others wait for its files.
    """
    from phmctl.data.fetch import fetch_all  # imports ssl, which is slow
    from phmctl.data.hub import load_rows

    urls = [url.model_dump(mode="json") for url in card.urls]
    digest = sha256_text([json.dumps(urls, sort_keys=True)])
    folder = cache / f"urls-{digest[:12]}"
    reasons = []
    with lock(cache / ".lock"):
        for origin in card.download_origins:
            try:
                if origin == "hub" and card.hub is not None:
                    return _corpus_of(card, *load_rows(card.hub, cache / "hub", refetch=refetch))
                fetch_all(card.urls, folder, refetch=refetch)
                return _from_folder(card, folder, "the card's URLs")
            except DataError as error:  # also if a server answers with a page, or an archive's files have changed
                reasons.append(str(error).replace("\n", "; "))
    reason = "; ".join(reasons) or "the card has neither a hub nor URLs"
    raise DownloadError(
        f"cannot fetch {card.id!r}: {reason}\nif you have the files: phmctl prepare-data {card.id} --source DIR"
    )


def reversed_corpus(corpus: Corpus) -> Corpus:
    """Return the corpus with source and target exchanged."""
    sides = {"source": "target", "target": "source"}
    languages = corpus.languages
    if languages and languages != tuple(sides):  # the placeholders of own files without languages stay
        languages = languages[::-1]
    return replace(
        corpus,
        languages=languages,
        splits={name: swap_sides(pairs) for name, pairs in corpus.splits.items()},
        files=[replace(file, side=sides.get(file.side, file.side)) for file in corpus.files],
        origin=f"{corpus.origin}, turned round",
    )


def copied_corpus(corpus: Corpus) -> Corpus:
    """Return the corpus with each target of train added as a pair with itself."""
    splits = {**corpus.splits, "train": append_copies(corpus.splits["train"])}
    return replace(corpus, splits=splits, origin=f"{corpus.origin}, train with copies of its targets")


# ------------------------------------------------------------------------------------------- finding a card's files


@dataclass(frozen=True)
class Match:
    """The files of a layout that a folder contains."""

    layout: Layout
    folder: Path
    paths: Mapping[str, Path]  # by the layout's file names
    splits: Sequence[str]  # splits of which all files exist
    missing: Sequence[str]  # the layout's names of missing files of train, valid and test

    @property
    def files(self) -> list[SourceFile]:
        """The files of each split and side; a file that contains two splits is listed for both."""
        return [
            SourceFile(self.paths[name], split, side)
            for split in self.splits
            for side, names in self.layout.splits[split].sides.items()
            for name in names
        ]

    def read(self, split: str) -> RowSource:
        files = self.layout.splits[split]
        paths = {side: [self.paths[name] for name in names] for side, names in files.sides.items()}
        if paths["rows"]:
            return tables(paths["rows"], self.layout.rows, self.layout.parts.get(split))
        return parallel_files(paths["source"], paths["target"], files.format)

    def column_error(self) -> DataError | None:
        """Return the error if a table lacks the layout's columns, because it has another layout; otherwise None."""
        try:
            for file in self.files:
                if file.side == "rows":
                    check_columns(file.path, self.layout.rows)
        except DataError as error:
            return error
        return None


def find_files(card: Card, folder: Path) -> Match:
    """Return the first layout of a card of which `folder`, or a subfolder, contains all files.

    Raises DataError otherwise; the message lists the missing files of the most complete layout.
    """
    if not folder.is_dir():
        raise DataError(f"--source {folder} is not a folder; give the folder with the files of {card.id!r}")
    partial: Match | None = None
    column_error: DataError | None = None
    for match in _matches([*card.local, *_generic_layouts(card)], folder):
        if match.missing:
            if match.paths and (partial is None or len(match.paths) > len(partial.paths)):
                partial = match
            continue
        error = match.column_error()
        if error is None:
            return match
        column_error = column_error or error
    if column_error is not None:
        raise column_error
    layouts = [f"{layout.name}: {' '.join(layout.required)}" for layout in [*card.local, *_generic_layouts(card)[:2]]]
    searched = f"searched {folder} and its subfolders for all files of one line (each may also end in .gz):"
    searched = "\n  ".join([searched, *layouts])
    if partial is None:
        raise DataError(f"{folder} holds no files of {card.id!r}\n{searched}")
    missing = ", ".join(dict.fromkeys(partial.missing))
    raise DataError(
        f"{partial.folder} holds {card.id!r} ({partial.layout.name}) in part\nmissing: {missing}\n{searched}"
    )


def _find_test_set(card: Card, folder: Path) -> Match | None:
    """Return the files of a card's test set in the shallowest folder that contains them."""
    layouts = [
        layout.model_copy(update={"splits": {"test": layout.splits["test"]}})
        for layout in card.local
        if "test" in layout.splits
    ]
    matches = [match for match in _matches(layouts, folder) if not match.missing and match.column_error() is None]
    return min(matches, key=lambda match: len(match.folder.parts), default=None)


def _generic_layouts(card: Card) -> list[Layout]:
    """Return layouts that are tried for all parallel text: ``train.de`` and ``train.en``, or ``train.tsv``."""
    if card.labelled:
        return []
    layouts = []
    for valid in ("valid", "val", "dev"):
        plain, tabular = {}, {}
        for split, name in (("train", "train"), ("valid", valid), ("test", "test")):
            source, target = f"{name}.{card.source_language}", f"{name}.{card.target_language}"
            plain[split] = SplitFiles(source=(source,), target=(target,))
            tabular[split] = SplitFiles(tables=(f"{name}.tsv",))
        layouts += [Layout(name="plain text", splits=plain), Layout(name="tab-separated", splits=tabular)]
    return layouts


def _matches(layouts: Iterable[Layout], top: Path) -> Iterator[Match]:
    """Yield the match of each layout with each folder or, if its files are scattered, with all folders together."""
    folders = _folders_below(top)
    for layout in layouts:
        if layout.scattered:
            yield _match(layout, folders)
        else:
            yield from (_match(layout, [folder]) for folder in folders)


def _folders_below(top: Path) -> list[Path]:
    """Return a folder and its subfolders, sorted by depth, without hidden and unreadable ones."""
    folders = []
    for path, subfolders, _ in os.walk(top, followlinks=True):
        depth = len(Path(path).relative_to(top).parts)
        # os.walk enters the subfolders that are left in its list
        subfolders[:] = [name for name in subfolders if depth < _DEPTH and not name.startswith(".")]
        folders.append((depth, Path(path)))
    return [folder for _, folder in sorted(folders)[:_MOST_FOLDERS]]


def _match(layout: Layout, folders: Sequence[Path]) -> Match:
    """Return the files of a layout, plain or compressed, each from the first folder that contains it."""
    paths: dict[str, Path] = {}
    missing: list[str] = []
    splits = []
    for split, files in layout.splits.items():
        lacking = []
        for name in files.names:
            candidates = [folder / variant for variant in (name, f"{name}.gz") for folder in folders]
            path = next(filter(Path.is_file, candidates), None)
            if path is None:
                lacking.append(name)
            else:
                paths[name] = path
        if not lacking:
            splits.append(split)
        elif split in ("train", "valid", "test"):
            missing += lacking
    return Match(layout, folders[0], paths, splits, missing)


# -------------------------------------------------------------------------------------------- a user's own files


def own_corpus(
    name: str,
    files: Mapping[str, Sequence[Sequence[Path]]],
    row_format: RowFormat | None = None,
    *,
    skip: bool = False,
    languages: tuple[str, str] = ("source", "target"),
    columns_given: bool = True,
) -> Corpus:
    """Return a corpus of a user's files: labelled text if `row_format` has a label, otherwise parallel text.

    Args:
        files: for each split a list of tables, or of pairs of a source and a target file, read one after another.
        row_format: format of the tables, whose file type follows from their names. None: two columns without header.
        skip: leave malformed rows out and count them.
        languages: of source and target.
        columns_given: whether the columns of `row_format` were given by the user.
    """
    labelled = row_format is not None and row_format.label is not None
    if name in shipped_names("cards"):
        raise DataError(
            f"{name!r} is a card; choose another name for your files, or use --source with the card's files"
        )
    splits: Splits = {}
    source_files: list[SourceFile] = []
    for split, groups in files.items():
        option = f"--table {split}" if labelled else f"--{split}"
        try:
            check_split(split)
        except ValueError as error:
            raise DataError(f"a split cannot be called {split!r} ({error})") from error
        parts: list[RowSource] = []
        for paths in groups:
            _check_own_files(paths, option)
            if len(paths) == 1 and is_translation_memory(paths[0]):
                parts.append(translation_memory(paths[0], languages))
                source_files.append(SourceFile(paths[0], split, "rows"))
            elif len(paths) == 1:
                parts.append(table_rows(paths[0], row_format, skip, columns_given))
                source_files.append(SourceFile(paths[0], split, "rows"))
            elif row_format is not None:
                raise DataError(f"{paths[0]} {paths[1]}: --columns, --header, --quoting and --extra are for tables")
            else:
                parts.append(parallel_files(paths[:1], paths[1:], None, skip=skip))
                source_files += [SourceFile(paths[0], split, "source"), SourceFile(paths[1], split, "target")]
        splits[split] = concatenate(parts)
    return Corpus(
        corpus_name(name),
        _ordered(splits),
        languages=None if labelled else languages,
        texts=len(row_format.texts) if row_format else 2,
        files=source_files,
        origin="files given by the user",
    )


def _check_own_files(paths: Sequence[Path], option: str) -> None:
    if len(paths) not in (1, 2) or len({path.resolve() for path in paths}) < len(paths):
        names = " ".join(map(str, paths))
        raise DataError(f"{option} {names}: give a source file and a target file, or one table with both sides")
    for path in paths:
        if not path.is_file():
            raise DataError(f"{option}: {path} is not a file")


def table_rows(path: Path, row_format: RowFormat | None, skip: bool = False, columns_given: bool = True) -> RowSource:
    """Return the rows of a user's table after checking its columns; the file type follows from the file's name."""
    name = path.name.lower().removesuffix(".gz")
    file_type = "tsv"
    if name.endswith((".jsonl", ".ndjson", ".json")):
        file_type = "jsonl"
    elif name.endswith(".csv"):
        file_type = "csv"
    if row_format is None:
        row_format = RowFormat(header=False, texts=(0, 1))
        columns_given = False
    row_format = row_format.model_copy(update={"format": file_type, "odd_rows": "drop" if skip else "refuse"})
    if not columns_given:
        _check_two_columns(path, row_format)
    check_columns(path, row_format)
    rows = tables([path], row_format)
    if row_format.label is None:
        first_row = next((row for row in rows if row.readable), None)
        if first_row is not None:
            source, target = (text[:60] for text in first_row.texts)
            hint = "" if row_format.header else " (if that is a header: --header)"
            note(f"the first pair of {path.name} is {source!r} → {target!r}{hint}")
    return rows


def _check_two_columns(path: Path, row_format: RowFormat) -> None:
    """Raise DataError unless a table has two columns: with more, ids or scores could be learned as text."""
    cells = first_record(path, row_format)
    if cells and (row_format.format == "jsonl" or len(cells) != 2):
        columns = ", ".join(f"{index}: {cell.strip()[:30]!r}" for index, cell in enumerate(cells[:12]))
        raise DataError(
            f"{path} has {len(cells)} columns, but a single file must be a table of both sides; name two files, "
            f"SOURCE TARGET, or columns: --columns SOURCE,TARGET\nthe columns are {columns}"
        )
