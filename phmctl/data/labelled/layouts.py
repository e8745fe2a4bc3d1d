"""Finding a card's labelled files in a folder as people really have it: by their names, and by the columns in them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phmctl.data.find import file_in, folders_of, in_part, searched
from phmctl.data.labelled.catalog import LabelledCard, LabelledLayout
from phmctl.data.labelled.readers import TableRows, check_columns, missing_columns
from phmctl.errors import DataError


@dataclass(frozen=True)
class LabelledMatch:
    """One layout's files in one folder.

    Attributes:
        layout: the layout.
        folder: the folder.
        files: the files of each split that is there, in the order in which they are read.
        missing: the names of the files of the other splits that it should have.
    """

    layout: LabelledLayout
    folder: Path
    files: Mapping[str, Sequence[Path]]
    missing: Mapping[str, Sequence[str]]

    def read(self, split: str) -> TableRows:
        """Return the examples of a split."""
        names = {**self.layout.splits, **self.layout.optional}[split]
        return TableRows(self.files[split], self.layout.rows, self.layout.parts.get(split), names)

    def odd(self) -> Iterator[Path]:
        """Yield the files without the columns that the layout reads: they are something else."""
        for paths in self.files.values():
            yield from (path for path in paths if missing_columns(path, self.layout.rows))


def find_labelled_files(card: LabelledCard, folder: Path) -> LabelledMatch:
    """Return the first layout of a card that `folder`, or a subfolder of it, holds completely.

    Raises:
        DataError: none; says which files the nearest layout lacks, or which columns a file lacks.
    """
    candidates = searched(folder, card.id)
    best: LabelledMatch | None = None
    odd: tuple[LabelledMatch, Path] | None = None
    for layout in card.local:
        for candidate in candidates:
            match = _match(layout, candidate)
            if not match.missing:
                other = next(match.odd(), None)
                if other is None:
                    return match
                odd = odd or (match, other)
            elif best is None or len(match.files) > len(best.files):
                best = match
    if odd is not None:
        check_columns(odd[1], odd[0].layout.rows)
    raise _incomplete(card, folder, best)


def find_split(card: LabelledCard, split: str, folder: Path) -> LabelledMatch | None:
    """Return a card's files of one split, of the layout that fits in the shallowest folder, or None."""
    for candidate in folders_of(folder):
        for layout in card.local:
            if split in layout.splits and not (layout.by_text or layout.shuffled):
                match = _match(layout.model_copy(update={"splits": {split: layout.splits[split]}}), candidate)
                if not match.missing and next(match.odd(), None) is None:
                    return match
    return None


def _match(layout: LabelledLayout, folder: Path) -> LabelledMatch:
    files: dict[str, Sequence[Path]] = {}
    missing: dict[str, Sequence[str]] = {}
    for split, names in {**layout.splits, **layout.optional}.items():
        found = {name: path for name in names if (path := file_in(folder, name))}
        if len(found) == len(names):
            files[split] = [found[name] for name in names]
        elif split in layout.splits:
            missing[split] = [name for name in names if name not in found]
    return LabelledMatch(layout, folder, files, missing)


def _incomplete(card: LabelledCard, folder: Path, best: LabelledMatch | None) -> DataError:
    known = "; ".join(f"{layout.name} ({', '.join(layout.splits['train'][:2])}, ...)" for layout in card.local)
    if best is None or not best.files:
        return DataError(f"{folder} holds no files of {card.id!r}\nlooked there and below for: {known}")
    lacking = ", ".join(name for names in best.missing.values() for name in names)
    what = f"{best.folder} holds {card.id!r} ({best.layout.name}) {in_part(best.files, best.missing)}"
    return DataError(f"{what}\nmissing: {lacking}\nlooked there and below for: {known}")
