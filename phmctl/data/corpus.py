"""A corpus: the splits of a card, or of a user's own files, ready to be read."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from phmctl.console import note, warn
from phmctl.data.card import Card, Divide, Rows, card_names, check_split, corpus_name, load_card
from phmctl.data.find import Match, find_files, find_split
from phmctl.data.readers import check_columns, first_cells, lines_or_errors, parallel_files, tables
from phmctl.data.rows import (
    CORPORA,
    Row,
    RowSource,
    SourceFile,
    Splits,
    divide_train,
    joined,
    turned_round,
    with_copies,
)
from phmctl.errors import DataError, DownloadError, nearest
from phmctl.files import locked, tidying

OWN = "files given by the user"
_LOOKED_AT = 1000  # lines of a table, for doubled quotes


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

    @property
    def row(self) -> str:
        return "example" if self.labelled else "pair"

    @property
    def sides(self) -> dict[str, Any]:
        if self.languages is None:
            return {"texts": self.texts}
        return dict(zip(("source_language", "target_language"), self.languages, strict=True))

    def lines(self, split: str) -> Iterator[Sequence[str]]:
        for row in self.splits[split]:
            yield row.texts if self.languages else [*row.texts, row.label or ""]


def open_corpus(
    card: Card, source: Path | None, cache: Path, extra: Mapping[str, Path] | None = None, *, refetch: bool = False
) -> Corpus:
    """Open a card's corpus from a folder (``--source``), its URLs or the hub; only headers are read at once.

    Downloads stay in the cache. `extra` has the folders of splits that the card borrows from others.
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
    return _with_borrowed(corpus, card, source, extra or {})


def divided(corpus: Corpus, divide: Divide) -> Corpus:
    """Return a corpus whose missing splits are rows held out of train: always the same ones, whatever the source."""
    made, held_out = divide_train(corpus.splits, divide, "pairs" if corpus.languages else "rows")
    return replace(corpus, splits=_ordered({**corpus.splits, **made}), held_out=held_out) if made else corpus


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
    corpus = _of(card, splits, match.files(), f"{origin} ({match.layout.name})")
    if match.layout.odd is None:
        return corpus
    made, held_out = CORPORA[match.layout.odd](splits)
    return replace(corpus, splits=_ordered({**splits, **made}), held_out=held_out)


def _from_network(card: Card, cache: Path, refetch: bool) -> Corpus:
    """Ask the URLs and the hub in the card's order. One process fetches at a time; another finds what it fetched."""
    from phmctl.data.fetch import fetch_all, load_rows

    refused = []
    lock, folder = cache / ".lock", cache / f"urls-{card.urls_digest[:12]}"
    with locked(lock), tidying(lock):
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


def _with_borrowed(corpus: Corpus, card: Card, source: Path | None, extra: Mapping[str, Path]) -> Corpus:
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
    quoting: bool | None = None,
    skip: bool = False,
    languages: tuple[str, str] = ("source", "target"),
    chosen: bool = True,
    told: bool = True,
) -> Corpus:
    """Make a corpus of a user's own files: of labelled text if the rows have a label, otherwise of parallel text.

    Args:
        given: of each split the tables, or pairs of a source and a target file, that follow one another.
        rows: how tables are read, in the format that their names say. None: source and target.
        quoting: whether a table's cells may stand in quotes; None: in CSV alone.
        skip: whether bad lines are left out, and counted.
        chosen: whether the user has named the columns of `rows`.
        told: whether the user has said if there is a header; otherwise its words tell.
    """
    labelled = rows is not None and rows.label is not None
    option = "--table {}" if labelled else "--{}"
    _check_own(name, given, option)
    splits: Splits = {}
    files: list[SourceFile] = []
    for split, groups in given.items():
        parts: list[RowSource] = []
        # A test set of parallel text has its name before the file.
        said = option.format("test" if split.startswith("test_") and not labelled else split)
        for named in groups:
            paths = _checked(said, named)
            if len(paths) == 1:
                parts.append(table_rows(said, paths[0], rows, quoting, skip, chosen, told))
                files.append(SourceFile(paths[0], split, "rows" if labelled else "pairs"))
            elif rows is not None:
                raise DataError(f"{said} {paths[0]} {paths[1]}: --columns is for a table with both sides in it")
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
    if len(paths) not in (1, 2):
        raise DataError(f"{option} wants a source and a target file, or one table, not {len(paths)}")
    for path in paths:
        if not path.is_file():
            what = f"{path} is a folder; name a file" if path.is_dir() else f"no file {path}"
            raise DataError(f"{option}: {what}")
    if len(paths) == 2 and paths[0].samefile(paths[1]):
        raise DataError(
            f"{option}: {paths[0]} is named as both sides; name the source file and the target file, or one table once"
        )
    return paths


def table_rows(
    option: str,
    path: Path,
    rows: Rows | None,
    quoting: bool | None,
    skip: bool,
    chosen: bool = True,
    told: bool = True,
) -> RowSource:
    """Return the rows of a user's table, whose columns are there; its format is what its name says, at worst TSV."""
    name = path.name.removesuffix(".gz")
    kind = "jsonl" if name.endswith((".jsonl", ".json")) else "csv" if name.endswith(".csv") else "tsv"
    how = {"format": kind, "quoting": kind == "csv" if quoting is None else quoting}
    own = (rows or Rows(header=False, texts=(0, 1))).model_copy(
        update={**how, "odd_rows": "drop" if skip else "refuse"}
    )
    if kind == "jsonl":
        if any(isinstance(column, int) for column in own.columns):
            raise DataError(f"{path}: the keys of JSON lines have names: --columns SOURCE,TARGET")
    else:
        own = _looked_at(path, own, told=rows is not None and told, chosen=rows is not None and chosen)
    check_columns(path, own)
    found = tables([path], own)
    if own.label is None and (first := next(iter(found), None)):
        note(f"{option}: the first pair of {path.name} is {first.texts[0][:60]!r} → {first.texts[1][:60]!r}")
    return found


def _looked_at(path: Path, rows: Rows, *, told: bool, chosen: bool) -> Rows:
    """Return how a table is read, by its first lines where no option told; of odd columns ids would be trained on."""
    cells = first_cells(path, rows)
    if not told and len(cells) == 1:
        raise DataError(
            f"{path} has one column, and one file alone is read as a table of both sides; name two files: SOURCE TARGET"
        )
    places = [column for column in (*rows.texts, rows.label) if isinstance(column, int) and column < len(cells)]
    words = [cells[place].strip().lower() for place in places]
    heading = bool(words) and all(word in _HEADINGS or _REGION.sub("", word) in _HEADINGS for word in words)
    if not chosen and len(cells) > 2:
        shown = ", ".join(f"{place}: {cell.strip()[:30]!r}" for place, cell in enumerate(cells[:12]))
        raise DataError(
            f"{path} has {len(cells)} columns; which are source and target? --columns SOURCE,TARGET, by numbers or by "
            f"the names in a header\nits first line is {shown}"
        )
    if heading and not told and not rows.header:
        note(f"{path}: the first line is a header by its words ({', '.join(words)}); if it is text: --no-header")
        rows = rows.model_copy(update={"header": True})
    elif heading and not rows.header:
        warn(f"{path}: its first line is read as data and looks like a header ({', '.join(words)}); if it is: --header")
    for number, line in () if rows.quoting else enumerate(islice(lines_or_errors(path), _LOOKED_AT), start=1):
        cells = [f",{cell}," for cell in line.split("\t")] if isinstance(line, str) else []
        if any('""' in cell[cell.find(',"') + 2 : max(0, cell.rfind('",'))] for cell in cells if ',"' in cell):
            note(
                f"{path}, line {number}: doubled quotes in a table that is read without quoting; "
                "if its cells are quoted: --quoting"
            )
            break
    return rows


# What columns are called; so are languages: en, deu, pt-br.
_HEADINGS = re.findall(
    r"\w+",
    "source target src tgt trg text label sentence premise hypothesis id text1 text2 sentence1 sentence2 source_text "
    "target_text original translation english german french spanish italian dutch russian chinese japanese score "
    "ar bg cs da de el en es et fi fr he hi hu id it ja ko mk nl no pl pt ro ru sr sv tr uk vi zh "
    "ces deu eng est fin fra heb hin ind ita jpn kor mkd nld pol por ron rus spa swe tur ukr vie zho",
)
_REGION = re.compile(r"[-_][a-z]{2,4}$")
