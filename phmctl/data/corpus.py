"""Read the text of a corpus: of a card, from a folder, from URLs or from the hub, or of a user's own files."""

import json
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phmctl.console import note
from phmctl.data import JSON_LINES, Location, Row, RowSource, Splits, repeatable
from phmctl.data.card import Card, Hub, Layout, RowFormat, SplitFiles, Url, check_split, labelled_format, table_format
from phmctl.data.readers import parallel_files, parse_row, records, tables, translation_memory
from phmctl.data.rows import SPECIAL_CARDS, append_copies, concatenate, divide_train, hold_out, swap_sides
from phmctl.errors import DataError, DownloadError
from phmctl.metrics.text import is_code
from phmctl.shipped import MINIATURE, read_miniature, shipped_names
from phmctl.storage import file_entry, lock, replacing, seal, sha256, sha256_text, writing

EXTRACTED = ".extracted-by-phmctl"  # the manifest of a folder of extracted files
_TIMEOUT = 20.0  # seconds without data
_SIDES = ("source", "target")


@dataclass(frozen=True)
class SourceFile:
    """A file of a corpus, the split it belongs to, and its content: ``source``, ``target``, or ``rows`` for a table."""

    path: Path
    split: str
    side: str

    def entry(self) -> dict[str, Any]:
        """Return the file's entry in the manifest. Split and side are in it, so that exchanged files are noticed."""
        try:
            return {**file_entry(self.path.parent, self.path.name), "split": self.split, "side": self.side}
        except OSError as error:
            raise DataError(f"cannot read {self.path}: {error.strerror}") from error


@dataclass(frozen=True)
class Corpus:
    """Text in named splits: ``train``, ``valid`` and, usually, ``test`` and others."""

    name: str
    splits: Mapping[str, RowSource]
    languages: tuple[str, str] | None = None  # source and target, or None for labelled text
    texts: int = 2  # texts of a row
    labels: Sequence[str] = ()  # classes in the order of their numbers (empty: the labels of train)
    symmetric: bool = False  # a row with swapped texts is the same row
    train_text: bool = False  # also store the text of train
    files: Sequence[SourceFile] = field(default_factory=list)  # in reading order, for the manifest
    origin: str = ""  # description of the source for the manifest
    held_out: Mapping[str, str] = field(default_factory=dict)  # split made from rows of train → which rows
    settings: Mapping[str, object] = field(default_factory=dict)  # how a user's files are read, for the manifest

    @property
    def labelled(self) -> bool:
        return self.languages is None

    def with_splits(self, splits: Mapping[str, RowSource], held_out: Mapping[str, str]) -> "Corpus":
        """Return the corpus with other splits, train and valid first."""
        names = dict.fromkeys(("train", "valid", *splits))
        return replace(self, splits={name: splits[name] for name in names if name in splits}, held_out=held_out)

    def provenance(self) -> dict[str, Any]:
        """Return the manifest's keys about the origin of the corpus, with the SHA-256 of the files."""
        content: dict[str, Any] = {"corpus": self.name}
        if self.languages:
            content["source_language"], content["target_language"] = self.languages
        else:
            content["texts"] = self.texts
        content["origin"] = self.origin
        if self.held_out:
            content["held_out"] = dict(self.held_out)
        content["sources"] = [file.entry() for file in self.files]
        return content

    def turned(self, *, reverse: bool, copies: bool) -> "Corpus":
        """Return the corpus with source and target exchanged, and with each target of train as its own source too.

        Raises DataError without train or valid.
        """
        if [*self.splits][:2] != ["train", "valid"]:
            names = ", ".join(self.splits) or "no split"
            remedy = ", or take valid and test out of train with split=1000,1000" if "train" in self.splits else ""
            raise DataError(f"{self.name!r} has {names}. Files for train and valid are needed{remedy}")
        splits, languages, files, origin = dict(self.splits), self.languages, self.files, self.origin
        if reverse:
            if languages and languages != _SIDES:  # the placeholders of own files without languages stay
                languages = languages[::-1]
            splits = {name: swap_sides(rows) for name, rows in splits.items()}
            opposite = dict(zip(_SIDES, _SIDES[::-1], strict=True))
            files = [replace(file, side=opposite.get(file.side, file.side)) for file in files]
            origin += ", turned round"
        if copies:
            splits["train"] = append_copies(splits["train"])
            origin += ", train with copies of its targets"
        return replace(self, splits=splits, languages=languages, files=files, origin=origin)


# ------------------------------------------------------------------------------------------------------ a card's text


def open_corpus(card: Card, source: Path | None, cache: Path) -> Corpus:
    """Open a card's corpus from a folder (``--source``), or from its URLs or the hub, whose downloads stay in `cache`.

    Only the first row of each table is read.
    """
    if source is not None:
        corpus = _from_folder(card, source, f"folder {source.resolve().name}")
    elif card.built_in:
        splits = {name: [Row(pair) for pair in pairs] for name, pairs in read_miniature().items()}
        corpus = _corpus_of(card, splits, [SourceFile(MINIATURE, name, "rows") for name in splits], "generated, seed 1")
    else:
        corpus = _from_network(card, cache)
    missing = [split for split in card.divide if split != "period" and split not in corpus.splits]
    if missing and "train" in corpus.splits:
        first_rows = {str(split): card.divide[split] for split in missing}
        corpus = corpus.with_splits(*divide_train(corpus.splits, first_rows, card.divide["period"]))
    return corpus


def _corpus_of(card: Card, splits: Mapping[str, RowSource], files: Sequence[SourceFile], origin: str) -> Corpus:
    corpus = Corpus(
        card.id,
        splits,
        languages=None if card.labelled else (card.source_language, card.target_language),
        texts=card.texts or 2,
        labels=card.labels,
        symmetric=card.symmetric,
        train_text=card.train_text,
        files=files,
        origin=origin,
    )
    return corpus.with_splits(splits, {})


def _from_folder(card: Card, folder: Path, origin: str) -> Corpus:
    layout, paths = find_files(card, folder)
    splits: Splits = {}
    files: list[SourceFile] = []
    for split, group in layout.splits.items():
        if not all(name in paths for name in group.names):
            continue
        sides = {"source": group.source, "target": group.target, "rows": group.tables}
        located = {side: [paths[name] for name in names] for side, names in sides.items()}
        files += [SourceFile(path, split, side) for side, found in located.items() for path in found]
        if group.tables:
            splits[split] = tables(located["rows"], group.rows or layout.rows, layout.parts.get(split))
        else:
            splits[split] = parallel_files(located["source"], located["target"], group.format)
    corpus = _corpus_of(card, splits, files, f"{origin} ({layout.name})")
    if card.id in SPECIAL_CARDS:
        corpus = corpus.with_splits(*SPECIAL_CARDS[card.id](splits))
    return corpus


def find_files(card: Card, folder: Path) -> tuple[Layout, dict[str, Path]]:
    """Return the first layout of a card of which `folder` has all files, and the files that it has, by their names.

    Raises DataError otherwise. The message lists the missing files of each layout.
    """
    if not folder.is_dir():
        raise DataError(f"source={folder} is not a folder. Give the folder with the files of {card.id!r}")
    visible = (path for path in folder.rglob("[!.]*") if not re.search(r"/\.", f"/{path.relative_to(folder)}"))
    below = sorted(visible, key=lambda path: (len(path.parts), str(path)))
    lacking: dict[str, list[str]] = {}
    column_error: DataError | None = None
    for layout in [*card.local, *_plain_layouts(card)]:
        paths = _locate(layout, below)
        missing = [name for name in layout.required if name not in paths]
        if missing:
            lacking.setdefault(layout.name, missing)
            continue
        try:
            for group in layout.splits.values():
                for name in group.tables:
                    if name in paths:
                        next(iter(tables([paths[name]], group.rows or layout.rows)), None)
        except DataError as error:  # another layout with the same file names
            column_error = column_error or error
        else:
            return layout, paths
    if column_error is not None:
        raise column_error
    lines = "\n  ".join(f"{name}: {' '.join(names)}" for name, names in lacking.items())
    raise DataError(
        f"{folder} and the folders below lack files of {card.id!r}. All missing files of one line are needed, each in "
        f"one folder, plain or .gz:\n  {lines}"
    )


def _locate(layout: Layout, below: Sequence[Path]) -> dict[str, Path]:
    """Return the files of a layout, plain or compressed: all required ones in the shallowest folder that has them.

    Without such a folder, as with several archives, a file may be anywhere, but in one place.
    """
    names = [name for files in layout.splits.values() for name in files.names]
    places: dict[str, dict[Path, Path]] = {}  # by name: the file in each folder
    for name in names:
        for path in below:
            if path.as_posix().endswith((f"/{name}", f"/{name}.gz")) and path.is_file():
                places.setdefault(name, {}).setdefault(path.parents[name.count("/")], path)
    unique = {name: next(iter(found.values())) for name, found in places.items() if len(found) == 1}
    for folder in places.get(names[0], ()):
        inside = {name: found[folder] for name, found in places.items() if folder in found}
        if all(name in inside for name in layout.required):
            return {**{name: path for name, path in unique.items() if "/" in name}, **inside}
    return unique


def _plain_layouts(card: Card) -> list[Layout]:
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


# ---------------------------------------------------------------------------------------------------------- downloads


def _from_network(card: Card, cache: Path) -> Corpus:
    """Return the corpus from the first of the card's origins, URLs or hub, that has it. Raises DownloadError.

    Only one process fetches at a time. Others wait for its files.
    """
    urls = [url.model_dump(mode="json") for url in card.urls]
    folder = cache / f"urls-{sha256_text([json.dumps(urls, sort_keys=True)])[:12]}"
    reasons = []
    with lock(cache / ".lock"), writing(cache):
        for origin in card.download_origins:
            try:
                if origin == "urls":
                    fetch_all(card, folder)
                    return _from_folder(card, folder, "the card's URLs")
                if card.hub is not None:
                    return _corpus_of(card, *load_rows(card.hub, cache / "hub"))
            except DataError as error:  # also if a server answers with a page, or an archive's files have changed
                reasons.append(str(error).replace("\n", "; "))
    reason = "; ".join(reasons) or "the card has neither a hub nor URLs"
    raise DownloadError(
        f"cannot fetch {card.id!r}: {reason}\n"
        f"remove {cache} to fetch again. If you have the files: phmctl prepare-data {card.id} --source DIR"
    )


def fetch_all(card: Card, folder: Path) -> None:
    """Download the files of a card that a folder lacks, and unpack archives. Raises DownloadError, DataError."""
    for item in card.urls:
        target = folder / item.file
        if not target.is_file() or (item.sha256 and sha256(target) != item.sha256):
            _download(item, target)
        content = folder / f"{item.file}.extracted"
        if item.extract and not content.is_dir():
            extract(target, content)


def _download(item: Url, target: Path) -> None:
    import http.client  # commands that fetch nothing start faster without these
    import ssl
    import urllib.error
    import urllib.request

    part = target.with_name(f".{target.name}.part")
    note(f"fetching {item.url} ...")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(item.url, timeout=_TIMEOUT) as response, part.open("wb") as file:
            shutil.copyfileobj(response, file)
            expected = int(response.headers.get("Content-Length") or file.tell())
            if file.tell() < expected:
                raise ConnectionError(f"the connection ended after {file.tell():,} of {expected:,} bytes")
    except (
        http.client.HTTPException,
        urllib.error.URLError,
        ssl.SSLError,
        ConnectionError,
        TimeoutError,
        ValueError,
    ) as error:
        raise DownloadError(f"cannot fetch {item.url}: {_reason(error)}") from error
    if item.sha256 and (actual := sha256(part)) != item.sha256:
        raise DownloadError(
            f"{item.url} has SHA-256 {actual[:12]}..., but {item.sha256[:12]}... was expected: the publisher has "
            "changed it, or the transfer damaged it"
        )
    part.replace(target)


def extract(archive: Path, folder: Path) -> None:
    """Unpack a tar (plain or compressed) or zip archive into a new folder, completely or not at all."""
    with replacing(folder, EXTRACTED, "files") as content:
        try:
            if zipfile.is_zipfile(archive):
                with zipfile.ZipFile(archive) as zipped:
                    zipped.extractall(content)
            else:
                with tarfile.open(archive) as tar:
                    tar.extractall(content, filter="data")
                    while tar.fileobj and tar.fileobj.read(1 << 20):
                        pass  # to the end, so that the compressed stream's checksum is verified
        except Exception as error:  # tarfile, zipfile and the decompressors raise a dozen types
            if isinstance(error, OSError) and error.errno is not None:  # raised by the operating system
                raise
            raise DataError(
                f"{archive} cannot be unpacked ({_reason(error)}): remove it to fetch it again, or unpack it yourself "
                "and name the folder as source"
            ) from error
        seal(content, EXTRACTED, {})


def load_rows(hub: Hub, cache: Path) -> tuple[Splits, list[SourceFile], str]:
    """Load a dataset of the hub with the ``datasets`` library, which keeps it in the cache.

    Returns the splits by the card's names, their files, and a description of the origin with the commit, which the
    library records in the addresses of its downloads, or with the revision.
    """
    import datasets

    if Path(hub.id).exists():  # `datasets` would read it instead of the hub's dataset
        raise DataError(f"a local folder has the name {hub.id!r} of the hub's dataset. Name it as source")
    note(f"loading {hub.id} through datasets ...")
    try:
        dataset: Any = datasets.load_dataset(
            hub.id, hub.config, data_dir=hub.folder, revision=hub.revision, cache_dir=str(cache)
        )
    except Exception as error:  # the library and its dependencies raise dozens of types
        raise DownloadError(f"the hub does not give {hub.id!r}: {_reason(error)}") from error
    splits: Splits = {}
    files: list[SourceFile] = []
    for split, name in hub.splits.items():
        if name not in dataset:
            raise DataError(f"{hub.id} lacks the split {name!r}. It has {', '.join(sorted(dataset))}")
        splits[split] = hub_rows(dataset[name], hub, f"{hub.id} ({name})")
        files += [SourceFile(Path(file["filename"]), split, "rows") for file in dataset[name].cache_files]
    addresses = " ".join(next(iter(dataset.values())).info.download_checksums or {})
    commit = re.search(r"@([0-9a-f]{40})/", addresses)
    version = commit[1] if commit else hub.revision
    return splits, files, f"hub {hub.id} at {version}" if version else f"hub {hub.id}"


@repeatable
def hub_rows(dataset: Any, hub: Hub, name: str) -> Iterator[Row]:
    """Yield the rows of a split, a ``datasets.Dataset``. Error messages contain `name`."""
    row_format = hub.row_format
    for number, record in enumerate(dataset, start=1):
        yield parse_row(record, [], row_format, Location(name, number))


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


# -------------------------------------------------------------------------------------------- a user's own files


def own_corpus(
    name: str,
    files: Mapping[str, Sequence[Sequence[Path]]],
    *,
    labelled: bool = False,
    text: Sequence[str] | None = None,
    label: str | None = None,
    columns: tuple[str, str] | None = None,
    languages: tuple[str, str] | None = None,
    split: str | None = None,
    train_text: bool = False,
    **options: Any,
) -> Corpus:
    """Return a corpus of a user's files: sentence pairs, or labelled text.

    Args:
        files: for each split a list of tables, or of pairs of a source and a target file, read one after another.
        text: columns of labelled text, and `label` that of the labels.
        columns: of source and target in tables. None: a table has these two columns and no header.
        languages: codes of source and target.
        split: sizes of valid and test that are taken from train.
        train_text: also store the text of train.
        options: ``extra``, ``header`` and ``quoting`` of tables, as in :func:`phmctl.data.card.table_format`.
    """
    if name in shipped_names("cards"):
        raise DataError(f"{name!r} is a card. Choose another name for your files, or use source with the card's files")
    if languages and not all(map(is_code, languages)):
        raise DataError(f"languages={','.join(languages)}: expected two codes, SOURCE,TARGET, as de,en")
    row_format = None
    if labelled:
        row_format = labelled_format(text, label, **options)
    elif columns or options:
        row_format = table_format(columns or ("0", "1"), **options)
    chosen = labelled or columns is not None
    splits: Splits = {}
    source_files: list[SourceFile] = []
    for split_name, groups in files.items():
        source_files += _source_files(split_name, groups)
        splits[split_name] = concatenate(
            [_own_rows(paths, row_format, languages or _SIDES, chosen=chosen) for paths in groups]
        )
    settings: dict[str, object] = {}
    held_out: dict[str, str] = {}
    if split is not None:
        settings["split"] = split
        if "train" in splits:
            splits, held_out = hold_out(splits, split)
    if row_format:
        settings["rows"] = row_format.model_dump(mode="json")
    if languages:
        settings["languages"] = list(languages)
    corpus = Corpus(
        name,
        splits,
        languages=None if labelled else languages or _SIDES,
        texts=len(row_format.texts) if row_format else 2,
        train_text=train_text,
        files=source_files,
        origin="files given by the user",
        settings=settings,
    )
    return corpus.with_splits(splits, held_out)


def _source_files(split: str, groups: Sequence[Sequence[Path]]) -> list[SourceFile]:
    """Return the files of a split. Raises DataError if one is missing, or is neither a table nor one of a pair."""
    try:
        check_split(split)
    except ValueError as error:
        raise DataError(f"a split cannot be called {split!r} ({error})") from error
    for paths in groups:
        if len(paths) not in (1, 2) or len({path.resolve() for path in paths}) < len(paths):
            named = " ".join(map(str, paths))
            raise DataError(f"{split}: {named}: give a source file and a target file, or one table with both sides")
        for path in paths:
            if not path.is_file():
                raise DataError(f"{split}: {path} is not a file")
    return [
        SourceFile(path, split, side)
        for paths in groups
        for path, side in zip(paths, _SIDES if len(paths) == 2 else ("rows",), strict=True)
    ]


def _own_rows(
    paths: Sequence[Path], row_format: RowFormat | None, languages: tuple[str, str], *, chosen: bool
) -> RowSource:
    """Return the rows of a pair of files, a translation memory or a table."""
    if len(paths) == 1:
        if paths[0].name.lower().endswith((".tmx", ".tmx.gz")):
            return translation_memory(paths[0], languages)
        return table_rows(paths[0], row_format, chosen=chosen)
    if row_format is not None:
        raise DataError(f"{paths[0]} {paths[1]}: columns, header, quoting and extra are for tables")
    return parallel_files(paths[:1], paths[1:], None)


def table_rows(path: Path, row_format: RowFormat | None, *, chosen: bool = True) -> RowSource:
    """Return the rows of a user's table after reading the first one. The file type follows from the file's name.

    Raises DataError, also if the columns were not `chosen` and the table has others.
    """
    name = path.name.lower().removesuffix(".gz")
    file_type = "csv" if name.endswith(".csv") else "tsv"
    if name.endswith(JSON_LINES):
        file_type = "jsonl"
    row_format = row_format or RowFormat(header=False, texts=(0, 1))
    row_format = row_format.model_copy(update={"format": file_type})
    if not chosen:  # ids or scores could be learned as text
        cells = next((list(cells) for _, cells in records(path, row_format)), [])
        if cells and (file_type == "jsonl" or len(cells) != 2):
            columns = ", ".join(f"{index}: {cell.strip()[:30]!r}" for index, cell in enumerate(cells[:12]))
            raise DataError(
                f"{path} must be a table of both sides, source and target, because it is a single file. Name two "
                f"files, or set columns to the two columns\nthe columns are {columns}"
            )
    rows = tables([path], row_format)
    first_row = next(iter(rows), None)
    if first_row is not None and row_format.label is None:
        source, target = (text[:60] for text in first_row.texts)
        hint = "" if row_format.header else " (if that is a header: --header)"
        note(f"the first pair of {path.name} is {source!r} → {target!r}{hint}")
    return rows
