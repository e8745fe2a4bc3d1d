"""Finding a card's files in a folder as people really have it: by their names, and by the columns in them."""

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phmctl.data.card import Card, Layout, Rows, SplitFiles
from phmctl.data.readers import check_columns, missing_columns, parallel_files, tables
from phmctl.data.rows import RowSource, SourceFile, hold_out
from phmctl.errors import DataError

_DEPTH = 3  # subfolders that are searched below the folder given
_FOLDERS = 500  # and how many at most: nobody meant the whole disk


@dataclass(frozen=True)
class Match:
    layout: Layout
    folder: Path
    found: Mapping[str, Path]  # by the layout's names
    splits: Sequence[str]  # those that are there, each with all its files
    missing: Mapping[str, Sequence[str]]  # of the other splits that it should have: the layout's names

    def files(self, split: str | None = None) -> list[SourceFile]:
        """The files of a split, or of all, by split and side; one that two splits are taken from is there twice."""
        return [
            SourceFile(self.found[name], each, side)
            for each in ([split] if split else self.splits)
            for side, names in self.layout.every[each].sides.items()
            for name in names
        ]

    def read(self, split: str) -> RowSource:
        files = self.layout.every[split]
        sides = {side: [self.found[name] for name in names] for side, names in files.sides.items()}
        if files.tables and self.layout.rows:
            rows = tables(sides["rows"], self.layout.rows, self.layout.parts.get(split))
        elif files.pairs:
            rows = tables(sides["pairs"], Rows(header=False, texts=files.columns))
        else:
            rows = parallel_files(sides["source"], sides["target"], files.format)
        return hold_out(rows, files.period, held=files.hold_out == "take") if files.hold_out else rows

    def odd(self) -> tuple[Path, Rows] | None:
        """Return a file without the columns that the layout reads: it is something else; None where all have them."""
        rows = self.layout.rows
        paths = (each.path for each in self.files() if each.side == "rows")
        return next(((path, rows) for path in paths if rows and missing_columns(path, rows)), None)


def find_files(card: Card, folder: Path) -> Match:
    """Return the first layout of a card that `folder`, or a subfolder of it, holds completely.

    Where there is none the DataError says what the nearest layout lacks, and what lies there instead.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: --source needs the folder with the files of {card.id!r}")
    folders = _folders(folder)
    best: Match | None = None
    odd: tuple[Path, Rows] | None = None
    for layout in (*card.local, *generic_layouts(card)):
        for places in [folders] if layout.scattered else ([each] for each in folders):
            match = _match(layout, places)
            if match.missing:
                best = match if best is None or len(match.found) > len(best.found) else best
                continue
            other = match.odd()
            if other is None:
                return match
            odd = odd or other
    if odd is not None:
        check_columns(*odd)
    raise _incomplete(card, folder, best)


def find_split(card: Card, split: str, folder: Path) -> Match | None:
    """Return a card's files of one split, of the layout that fits in the shallowest folder, or None."""
    for candidate in _folders(folder):
        for layout in card.local:
            if split in layout.splits and not layout.makes:
                match = _match(layout.model_copy(update={"splits": {split: layout.splits[split]}}), [candidate])
                if not match.missing and match.odd() is None:
                    return match
    return None


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
        tabbed = {split: SplitFiles(pairs=(f"{name}.tsv",)) for split, name in names.items()}
        layouts += [Layout(name="plain text", splits=plain), Layout(name="tab-separated", splits=tabbed)]
    made = card.divide.places if card.divide else {}
    for layout in layouts[:2] if made else ():  # a card that is divided is found without what this makes, too
        kept = {name: files for name, files in layout.splits.items() if name not in made}
        layouts.append(layout.model_copy(update={"splits": kept}))
    return layouts


def _folders(top: Path) -> list[Path]:
    """Return a folder and those below it, the shallower ones first."""
    folders, level = list[Path](), [top]
    for _ in range(_DEPTH + 1):
        folders += level[: _FOLDERS - len(folders)]
        inside = (path for folder in level for path in _content(folder))
        level = sorted(
            path for path in inside if not path.name.startswith(".") and path.is_dir() and os.access(path, os.X_OK)
        )
    return folders


def _content(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # a folder that may not be read holds nothing for us


def _match(layout: Layout, places: Sequence[Path]) -> Match:
    """Look for a layout's files, plain or compressed, each in the first of these folders that has it."""
    found: dict[str, Path] = {}
    missing: dict[str, Sequence[str]] = {}
    splits = []
    for split, files in layout.every.items():
        here = {}
        for name in files.names:
            candidates = (place / each for each in (name, f"{name}.gz") for place in places)
            if path := next(filter(Path.is_file, candidates), None):
                here[name] = path
        found |= here
        if len(here) == len(set(files.names)):
            splits.append(split)
        elif split in layout.splits:
            missing[split] = [name for name in files.names if name not in here]
    return Match(layout, places[0], found, splits, missing)


def _incomplete(card: Card, folder: Path, best: Match | None) -> DataError:
    known = [f"{layout.name} ({layout.splits['train'].names[0]}, ...)" for layout in card.local]
    known += [] if card.labelled else ["plain text, .gz or .tsv"]
    looked = f"looked in {folder} and below for: {'; '.join(known)}"
    if best is None or not best.found:
        return DataError(f"{folder} holds no files of {card.id!r}\n{looked}")
    lacking = [name for names in best.missing.values() for name in names]
    described = ", ".join(f"{name}{_instead(best, name)}" for name in dict.fromkeys(lacking))
    there = f"{' and '.join(best.splits)} found, " if best.splits else ""
    part = f"in part: {there}{' and '.join(best.missing)} incomplete"
    return DataError(f"{best.folder} holds {card.id!r} ({best.layout.name}) {part}\nmissing: {described}\n{looked}")


def _instead(match: Match, name: str) -> str:
    """Say which file that the layout does not know lies there under a similar name."""
    wanted = Path(name).name
    try:
        others = {path.name for path in (match.folder / name).parent.iterdir() if path.is_file()}
    except OSError:
        return ""
    others -= {path.name for path in match.found.values()}
    nearest = difflib.get_close_matches(wanted, sorted(others), n=1, cutoff=0.7)
    return f" (found {nearest[0]})" if nearest else ""
