"""What prepared data was made from, and whether that has changed since."""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from phmctl.data.corpus import Corpus
from phmctl.errors import DataError, OutputError
from phmctl.files import sha256, write_json

Entries = list[dict[str, Any]]
CARD = "card_sha256"  # what a manifest calls the card's digest
_SEEN = TypeAdapter(dict[str, tuple[int, int, str]])  # a file's size, its time and its SHA-256, by its path
VECTORS = "vectors"  # what a manifest calls the split and the side of word vectors


class Sources:
    """A corpus' origin, as the manifest keeps it: its files with SHA-256, or the text's own where it has no files.

    A file's entry says which split and side it is read as, so that two that change places are noticed. The file
    `memory` keeps sizes and times of files seen before, so that unchanged ones are not read again. It lies beside the
    prepared folder, not in it, since times differ where the bytes do not.
    """

    def __init__(self, corpus: Corpus, memory: Path, vectors: Path | None = None) -> None:
        self._vectors = vectors
        self._corpus = corpus
        self._memory = memory
        self._news = False
        self._seen: dict[str, tuple[int, int, str]] = {}
        with suppress(OSError, ValueError):  # a damaged one is as good as none
            self._seen = _SEEN.validate_json(memory.read_bytes())

    def describe(self) -> dict[str, Any]:
        corpus = self._corpus
        return {
            "corpus": corpus.name,
            **corpus.sides,
            "origin": corpus.origin,
            **({CARD: corpus.card} if corpus.card else {}),
            **({"held_out": dict(corpus.held_out)} if corpus.held_out else {}),
            "sources": [
                *(self._files() or [_split(name, corpus.lines(name)) for name in corpus.splits]),
                *self._beside(),
            ],
        }

    def changed(self, manifest: Mapping[str, Any]) -> list[str]:
        corpus = self._corpus
        if dict(corpus.held_out) != manifest.get("held_out", {}):
            return ["the division into splits changed"]
        if corpus.card != manifest.get(CARD, ""):
            return ["the card changed"]
        before: dict[bool, Entries] = {True: [], False: []}
        for entry in manifest["sources"]:
            before[entry.get("side") == VECTORS].append(entry)
        if self._vectors is not None and (changed := _differences(before[True], self._beside())):
            return changed  # without vectors, those that are there already do not matter
        # Lists in memory (the built-in corpora) are cheap to go through again. A hub's origin names the revision.
        lists = [name for name, rows in corpus.splits.items() if isinstance(rows, list)]
        now = self._files() or [_split(name, corpus.lines(name)) for name in lists]
        if not now:
            return ["origin changed"] if corpus.origin != manifest["origin"] else []
        return _differences(before[False], now)

    def remember(self) -> None:
        """Keep sizes and times, where they are new. It may fail, since it only saves time."""
        if self._news:
            with suppress(OutputError):
                write_json(self._memory, self._seen)

    def _files(self) -> Entries:
        return [{**self._file(each.path), "split": each.split, "side": each.side} for each in self._corpus.files]

    def _beside(self) -> Entries:
        return [] if self._vectors is None else [{**self._file(self._vectors), "split": VECTORS, "side": VECTORS}]

    def _file(self, path: Path) -> dict[str, Any]:
        try:
            state = path.stat()
            key, stamp = str(path.resolve()), (state.st_size, state.st_mtime_ns)
            if self._seen.get(key, ())[:2] != stamp:
                self._seen[key], self._news = (*stamp, sha256(path)), True
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error
        return {"name": path.name, "bytes": state.st_size, "sha256": self._seen[key][2]}


def _split(name: str, pairs: Iterable[Sequence[str]]) -> dict[str, Any]:
    """Return the entry of a split without files: the digest of its lines, as ``source LF target LF``."""
    count, digest = 0, hashlib.sha256()
    for count, pair in enumerate(pairs, start=1):  # noqa: B007 (the last is how many there are)
        digest.update(("\n".join(pair) + "\n").encode("utf-8"))
    return {"name": name, "pairs": count, "sha256": digest.hexdigest()}


def _differences(before: Entries, now: Entries) -> list[str]:
    """Return in words which files are others, more or fewer, or stand in another place."""
    names = {entry["name"] for entry in [*before, *now] if before.count(entry) != now.count(entry)}
    if names:
        return [f"{', '.join(sorted(names))} changed"]
    return ["order of the files changed"] if before != now else []
