"""Finding a card's files in a folder as people really have it."""

import difflib
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from phmctl.data.card import SPLITS, Card, Layout, SplitFiles, SplitName
from phmctl.data.readers import HoldOut, PairSource, ParallelFiles, SourceFile, TabSeparated
from phmctl.errors import DataError

_DEPTH = 3  # subfolders that are searched below the folder given
_FOLDERS = 500  # and how many at most: nobody meant the whole disk


@dataclass(frozen=True)
class Match:
    """How far one layout's files were found in one folder."""

    layout: Layout
    folder: Path
    found: Mapping[str, Path]  # the layout's name of a file → where it is
    missing: Mapping[SplitName, Sequence[str]]

    @property
    def complete(self) -> bool:
        """Whether every split has all its files."""
        return not self.missing

    @property
    def files(self) -> list[SourceFile]:
        """The files found, by split and side; one that two splits are taken from is there twice."""
        return [
            SourceFile(self.found[name], split, side)
            for split, files in self.layout.splits.items()
            for side, names in files.sides.items()
            for name in names
        ]


def find_files(card: Card, folder: Path) -> Match:
    """Return the first layout of a card that `folder`, or a subfolder of it, holds completely.

    The files of a scattered layout may lie in different subfolders; all others lie in one.

    Raises:
        DataError: none; says which files the nearest layout lacks, and what lies there instead.
    """
    tree = _Tree(searched(folder, card.id))
    best: Match | None = None
    for layout in (*card.local, *generic_layouts(card)):
        for candidate in tree.folders[: 1 if layout.scattered else None]:
            match = _match(layout, candidate, tree)
            if match.complete:
                return match
            if best is None or len(match.found) > len(best.found):
                best = match
    raise _incomplete(card, folder, best)


def read_split(files: SplitFiles, found: Mapping[str, Path]) -> PairSource:
    """Return the pairs of one split, given where its files are."""
    pairs: PairSource
    if files.pairs:
        pairs = TabSeparated([found[name] for name in files.pairs], files.columns)
    else:
        sides = [found[name] for name in files.source], [found[name] for name in files.target]
        pairs = ParallelFiles(*sides, files.format)
    return HoldOut(pairs, files.period, files.hold_out == "take") if files.hold_out else pairs


def generic_layouts(card: Card) -> list[Layout]:
    """Return the layouts that every card is looked for in: ``train.de`` with ``train.en``, and ``train.tsv``.

    A card that says how to divide it is found without the splits that this makes, too.
    """
    sides = card.source_language, card.target_language
    layouts = []
    for valid in ("valid", "val", "dev"):
        names: dict[SplitName, str] = {"train": "train", "valid": valid, "test": "test"}
        plain = {
            split: SplitFiles(source=(f"{name}.{sides[0]}",), target=(f"{name}.{sides[1]}",))
            for split, name in names.items()
        }
        tabbed = {split: SplitFiles(pairs=(f"{name}.tsv",)) for split, name in names.items()}
        layouts += [Layout(name="plain text", splits=plain), Layout(name="tab-separated", splits=tabbed)]
    return layouts + ([_without(card.divide.places, layout) for layout in layouts[:2]] if card.divide else [])


def _without(made: Container[SplitName], layout: Layout) -> Layout:
    """Return a layout without the splits that are made."""
    return layout.model_copy(
        update={"splits": {name: files for name, files in layout.splits.items() if name not in made}}
    )


@dataclass(frozen=True)
class _Tree:
    """A folder and those below it, the folder itself first."""

    folders: Sequence[Path]

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """Every file by its name; of two, the one in the shallower folder."""
        files: dict[str, Path] = {}
        for folder in self.folders:
            for path in sorted(_content(folder)):
                if path.is_file():
                    files.setdefault(path.name, path)
        return files

    def find(self, name: str) -> Path | None:
        """Return a file's place, whatever its folder."""
        return self.files.get(name) or self.files.get(f"{name}.gz")


def searched(folder: Path, card: str) -> list[Path]:
    """Return where a card's files are looked for: in a folder and those below it (:func:`folders_of`).

    Raises:
        DataError: there is no such folder.
    """
    if not folder.is_dir():
        raise DataError(f"no folder {folder}: --source wants the folder with the files of {card!r}")
    return list(folders_of(folder))


def folders_of(top: Path) -> Iterator[Path]:
    """Yield a folder and its subfolders, the shallow ones first, each level sorted."""
    level, given = [top], 0
    for _ in range(_DEPTH + 1):
        for folder in level[: _FOLDERS - given]:
            yield folder
            given += 1
        level = sorted(sub for folder in level for sub in _subfolders(folder))


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _content(folder) if path.is_dir() and not path.name.startswith(".")]


def _content(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []  # a folder that may not be read holds nothing for us


def _match(layout: Layout, folder: Path, tree: _Tree) -> Match:
    found: dict[str, Path] = {}
    missing: dict[SplitName, Sequence[str]] = {}
    for split in SPLITS:
        names = layout.splits[split].names if split in layout.splits else ()
        here = {
            name: path for name in names if (path := tree.find(name) if layout.scattered else file_in(folder, name))
        }
        found |= here
        if len(here) < len(names):
            missing[split] = [name for name in names if name not in here]
    return Match(layout, folder, found, missing)


def file_in(folder: Path, name: str) -> Path | None:
    """Return a file of a folder, under its name or compressed; None where it is not."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def _incomplete(card: Card, folder: Path, best: Match | None) -> DataError:
    known = ", ".join(f"{layout.name} ({layout.splits['train'].names[0]}, ...)" for layout in card.local)
    looked = f"looked in {folder} and below for: {known + '; ' if known else ''}plain text, .gz or .tsv"
    if best is None or not best.found:
        return DataError(f"{folder} holds no files of {card.id!r}\n{looked}")
    present = [split for split in SPLITS if split not in best.missing]
    lacking = [name for names in best.missing.values() for name in names]
    described = ", ".join(f"{name}{_instead(best, name)}" for name in dict.fromkeys(lacking))
    part = in_part(present, best.missing)
    return DataError(f"{best.folder} holds {card.id!r} ({best.layout.name}) {part}\nmissing: {described}\n{looked}")


def in_part(found: Iterable[str], missing: Iterable[str]) -> str:
    """Say which splits were found, and which not wholly."""
    there = " and ".join(found)
    return f"in part: {f'{there} found, ' if there else ''}{' and '.join(missing)} incomplete"


def _instead(match: Match, name: str) -> str:
    """Say which file that the layout does not know lies there under a similar name."""
    wanted = Path(name).name
    try:
        others = {path.name for path in (match.folder / name).parent.iterdir() if path.is_file()}
    except OSError:
        return ""
    others -= {path.name for path in match.found.values()}
    stem = [other for other in sorted(others) if other.startswith(wanted)]
    nearest = stem or difflib.get_close_matches(wanted, sorted(others), n=1, cutoff=0.7)
    return f" (found {nearest[0]})" if nearest else ""
