"""A corpus: the splits of a card, or of a user's own files, ready to be read."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from phmctl.console import note
from phmctl.data.card import Card, Divide
from phmctl.data.fetch.cache import from_network, held_out_of_train
from phmctl.data.find import find_files, read_split
from phmctl.data.readers import Pair, PairSource, ParallelFiles, SourceFile, TabSeparated, read_lines
from phmctl.errors import DataError


@dataclass(frozen=True)
class Corpus:
    """Parallel text in named splits.

    Attributes:
        name: the card's id, or the user's name for it.
        source_language, target_language: codes, or names of the two sides.
        splits: the pairs of ``train``, ``valid`` and ``test`` (a user's own corpus may lack ``test``).
        files: the original files in the order in which they are read, for the manifest's SHA-256; empty where there
            are none. A file that two splits are taken from stands here twice.
        origin: where the text came from, in words.
        held_out: the splits that the corpus has not of its own, and which of its pairs they are, in words.
        card: the digest of the card that says all this; empty for a user's own files.
    """

    name: str
    source_language: str
    target_language: str
    splits: Mapping[str, PairSource]
    files: Sequence[SourceFile] = field(default_factory=list)
    origin: str = ""
    held_out: Mapping[str, str] = field(default_factory=dict)
    card: str = ""

    @property
    def sides(self) -> dict[str, str]:
        """What the manifest says of the sides."""
        return {"source_language": self.source_language, "target_language": self.target_language}

    def lines(self, split: str) -> Iterator[Pair]:
        """Yield the pairs of a split."""
        yield from self.splits[split]


def open_corpus(card: Card, source: Path | None, cache: Path, *, refetch: bool = False) -> Corpus:
    """Open a card's corpus; nothing is read before a split is iterated.

    Where the card says how to divide it, splits that the source lacks are held out of train.

    Args:
        card: the dataset card.
        source: a folder with the files (``--source``), or None: the card's URLs or the hub.
        cache: where downloads are kept.
        refetch: download what is kept there, too.

    Raises:
        DataError: the folder does not hold the files.
        DownloadError: neither server nor hub gives them.
    """
    corpus = replace(_opened(card, source, cache, refetch), card=card.digest)
    return corpus if card.divide is None else divided(corpus, card.divide)


def divided(corpus: Corpus, divide: Divide) -> Corpus:
    """Return a corpus whose missing splits are pairs held out of train: always the same ones, whatever the source.

    Args:
        corpus: the corpus; it has a train split.
        divide: which pairs are for valid and test. A split that the corpus has already stays as it is.
    """
    made, words = held_out_of_train(corpus.splits, divide, "pairs")
    return replace(corpus, splits={**corpus.splits, **made}, held_out=words) if made else corpus


@dataclass(frozen=True)
class TurnedRound:
    """Pairs of which the target comes first."""

    pairs: PairSource

    def __iter__(self) -> Iterator[Pair]:
        """Yield (target, source) in order."""
        return ((target, source) for source, target in self.pairs)


def turned_round(corpus: Corpus) -> Corpus:
    """Return a corpus whose sources are the targets of another: for the other direction of translation.

    Splits are divided, where the card says so, before: both directions have the same pairs in each.
    """
    sides = {"source": "target", "target": "source"}
    return replace(
        corpus,
        source_language=corpus.target_language,
        target_language=corpus.source_language,
        splits={name: TurnedRound(pairs) for name, pairs in corpus.splits.items()},
        files=[replace(file, side=sides.get(file.side, file.side)) for file in corpus.files],
        origin=f"{corpus.origin}, turned round",
    )


def _opened(card: Card, source: Path | None, cache: Path, refetch: bool) -> Corpus:
    if source is not None:
        return _from_folder(card, source, f"folder {source.resolve().name}")
    if card.built_in:
        return _generated(card)
    load = partial(_from_hub, card, refetch=refetch)
    return from_network(card, cache, partial(_from_folder, card), load, refetch=refetch)


def corpus_from_files(
    name: str,
    train: Sequence[Path],
    valid: Sequence[Path],
    test: Sequence[Path] | None = None,
    *,
    languages: tuple[str, str] = ("source", "target"),
    columns: tuple[int, int] = (0, 1),
) -> Corpus:
    """Make a corpus of a user's own files.

    Args:
        name: how the corpus is called from now on.
        train, valid, test: for each split the source and the target file (plain text, ``.gz``, IWSLT's names), or
            one file of tab-separated pairs.
        languages: names of the two sides.
        columns: where source and target stand in tab-separated pairs, counted from 0.

    Raises:
        DataError: a file is missing.
    """
    given: dict[str, Sequence[Path]] = {"train": train, "valid": valid}
    if test is not None:
        given["test"] = test
    for split, paths in given.items():
        _check_files(split, paths)
    given = {split: _told_apart(split, paths) for split, paths in given.items()}
    splits = {split: _own_split(paths, columns) for split, paths in given.items()}
    files = [SourceFile(path, split, side) for split, paths in given.items() for path, side in _sides(paths)]
    return Corpus(name, *languages, splits=splits, files=files, origin="files given by the user")


def _check_files(split: str, paths: Sequence[Path]) -> None:
    if len(paths) not in (1, 2):
        raise DataError(f"--{split} wants a source and a target file, or one tab-separated file, not {len(paths)}")
    for path in paths:
        if not path.is_file():
            raise DataError(f"--{split}: no file {path}")


def _told_apart(split: str, paths: Sequence[Path]) -> Sequence[Path]:
    """Return a split's files; one of tab-separated pairs that is named as both sides is one file."""
    if len(paths) == 1 or not paths[0].samefile(paths[1]):
        return paths
    if "\t" not in next(read_lines(paths[0]), ""):
        raise DataError(f"--{split}: {paths[0]} is named as both sides; name the source file and the target file")
    note(f"--{split}: {paths[0]} is both sides, so it is read by columns: source, tab, target")
    return paths[:1]


def _sides(paths: Sequence[Path]) -> list[tuple[Path, str]]:
    return [*zip(paths, ("pairs",) if len(paths) == 1 else ("source", "target"), strict=True)]


def _own_split(paths: Sequence[Path], columns: tuple[int, int]) -> PairSource:
    return TabSeparated(paths, columns) if len(paths) == 1 else ParallelFiles(paths[:1], paths[1:], None)


def _from_folder(card: Card, folder: Path, origin: str) -> Corpus:
    match = find_files(card, folder)
    splits: dict[str, PairSource] = {
        split: read_split(files, match.found) for split, files in match.layout.splits.items()
    }
    return Corpus(
        card.id,
        card.source_language,
        card.target_language,
        splits=splits,
        files=match.files,
        origin=f"{origin} ({match.layout.name})",
    )


def _generated(card: Card) -> Corpus:
    """Return the built-in miniature."""
    from phmctl.miniature import generate

    return Corpus(card.id, card.source_language, card.target_language, splits=generate(), origin="generated, seed 1")


def _from_hub(card: Card, cache: Path, *, refetch: bool) -> Corpus:
    from phmctl.data.fetch.hub import load_splits

    if card.hub is None:
        raise DataError(f"card {card.id!r} names no hub")
    loaded = load_splits(card.hub, cache, refetch=refetch)
    return Corpus(
        card.id,
        card.source_language,
        card.target_language,
        splits=loaded.splits,
        files=loaded.files,
        origin=loaded.origin,
    )
