"""Finding a card's files in a folder as people really have it: by their names, and by the columns in them."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phmctl.data.card import Card, Layout, SplitFiles
from phmctl.data.readers import check_columns, parallel_files, tables
from phmctl.data.rows import RowSource, SourceFile
from phmctl.errors import DataError

_DEPTH = 3  # subfolders that are searched below the folder given
_FOLDERS = 500  # and how many at most: nobody meant the whole disk


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
    known = [f"{layout.name} ({layout.splits['train'].names[0]}, ...)" for layout in card.local]
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
        layouts.append(Layout(name="plain text", splits=plain))
        layouts.append(Layout(name="tab-separated", splits=tabbed))
    made = card.divide.places if card.divide else {}
    own = {name for layout in card.local for files in layout.splits.values() for name in files.names}
    for layout in layouts[:2] if made else ():  # a card that is divided is found without what this makes, too
        if not own.isdisjoint(layout.splits["train"].names):
            continue  # the card reads files of these names in its own way, and wants all of them
        kept = {name: files for name, files in layout.splits.items() if name not in made}
        layouts.append(layout.model_copy(update={"splits": kept}))
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
