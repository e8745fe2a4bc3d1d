"""What prepared data was made from and whether that has changed, its building, and vocabularies that others lend."""

import glob
import hashlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from phmctl.console import note
from phmctl.data.card import Cleaning
from phmctl.data.copies import load_cleaning, load_tokenizers
from phmctl.data.corpus import Corpus
from phmctl.data.prepared.folder import MANIFEST, PreparedData, Section, read_manifest
from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import DataError, OutputError
from phmctl.files import clear, locked, replacing, sha256, sha256_text, temporaries, tidying, writing
from phmctl.runs import Run
from phmctl.runs.find import find_run
from phmctl.sealed import damage

Entries = list[dict[str, Any]]
CARD = "card_sha256"  # what a manifest calls the card's digest
VECTORS = "vectors"  # what a manifest calls the split and the side of word vectors


class Sources:
    """A corpus' origin, as the manifest keeps it: its files with SHA-256, or the text's own where it has no files.

    A file's entry says which split and side it is read as, so that two that change places are noticed.
    """

    def __init__(self, corpus: Corpus, vectors: Path | None = None) -> None:
        self._corpus = corpus
        self._vectors = [] if vectors is None else [_entry(vectors, VECTORS, VECTORS)]
        self._files = [_entry(file.path, file.split, file.side) for file in corpus.files]

    def describe(self) -> dict[str, Any]:
        corpus = self._corpus
        return {
            "corpus": corpus.name,
            **corpus.sides,
            "origin": corpus.origin,
            **self._made(),
            "sources": [*(self._files or self._texts(corpus.splits)), *self._vectors],
        }

    def changed(self, manifest: Mapping[str, Any]) -> list[str]:
        """Return the names of what is another than in the manifest: of its keys, or of the sources."""
        made, corpus = self._made(), self._corpus
        # Lists in memory (the built-in corpora) are cheap to go through again. A hub's origin names the revision.
        now = self._files or self._texts(name for name, rows in corpus.splits.items() if isinstance(rows, list))
        changed = [key for key in (CARD, "held_out") if made.get(key) != manifest.get(key)]
        if not now and corpus.origin != manifest["origin"]:
            changed.append("origin")
        if changed:
            return changed
        # without vectors, those that are there already do not matter
        before = [entry for entry in manifest["sources"] if (self._vectors if entry.get("side") == VECTORS else now)]
        now = [*now, *self._vectors]
        names = {entry["name"] for entry in [*before, *now] if before.count(entry) != now.count(entry)}
        return sorted(names) or ["sources"] * (before != now)

    def _made(self) -> dict[str, Any]:
        made = {CARD: self._corpus.card, "held_out": dict(self._corpus.held_out)}
        return {key: value for key, value in made.items() if value}

    def _texts(self, splits: Iterable[str]) -> Entries:
        return [_split(name, self._corpus.lines(name)) for name in splits]


def _entry(path: Path, split: str, side: str) -> dict[str, Any]:
    try:
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path), "split": split, "side": side}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def _split(name: str, pairs: Iterable[Sequence[str]]) -> dict[str, Any]:
    """Return the entry of a split without files: the digest of its lines, as ``source LF target LF``."""
    count, digest = 0, hashlib.sha256()
    for count, pair in enumerate(pairs, start=1):  # noqa: B007 (the last is how many there are)
        digest.update(("\n".join(pair) + "\n").encode("utf-8"))
    return {"name": name, "pairs": count, "sha256": digest.hexdigest()}


def build(
    folder: Path,
    settings: Mapping[str, Any],
    sources: Sources,
    write: Callable[[Path, dict[str, Any]], None],
    *,
    workers: int = 1,
    force: bool = False,
) -> None:
    """Build a prepared folder, unless it is there already, of the same sources and settings and whole.

    `write` writes everything into the empty folder given; its second argument is for the manifest. The folder takes its
    name when it is complete.
    """
    lock = folder.with_name(f".{folder.name}.lock")
    if force or not current(folder, settings, sources):
        with locked(lock), tidying(lock):  # a second process waits, and then finds it done
            with writing(folder):
                for entry in () if folder.exists() else temporaries(folder):
                    if not _changed(entry, settings, sources):  # complete: its process was killed at the very end
                        entry.rename(folder)
                        break
                clear(folder)  # what is half written goes; without a new folder the former one is put back
            if force or not current(folder, settings, sources, say=True):
                with replacing(folder) as temporary, _threads(workers):
                    write(temporary, {"settings": dict(settings), **sources.describe()})
                note(f"prepared in {folder}")
    elif temporaries(folder) or any(folder.parent.glob(f".{glob.escape(folder.name)}.*.old")):
        with suppress(OSError, OutputError), locked(lock, wait=False) as held:
            if held:  # what a process left that was killed; nobody else is at work there
                clear(folder)


def current(
    folder: Path, settings: Mapping[str, Any], sources: Sources | None, *, card: str = "", say: bool = False
) -> bool:
    """Return whether a folder holds these sources (None: whichever the card with this digest has) so set, whole."""
    changed = _changed(folder, settings, sources, card)
    if not changed:
        note(f"{folder} is up to date")
    elif say and (folder / MANIFEST).exists():
        note(f"{folder} is out of date ({', '.join(changed)} changed): preparing anew")
    return not changed


def _changed(folder: Path, settings: Mapping[str, Any], sources: Sources | None, card: str = "") -> list[str]:
    try:
        manifest = read_manifest(folder)
        if manifest is None:
            return [MANIFEST]
        before = manifest["settings"]
        changed = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
        if sources is not None:
            changed += sources.changed(manifest)
        elif card and card != manifest.get(CARD):
            changed.append(CARD)
        return changed + [each["name"] for each in manifest["files"] if damage(folder, each)]
    except (DataError, KeyError, TypeError):  # damaged
        return [MANIFEST]


@contextmanager
def _threads(workers: int) -> Iterator[None]:
    """Let the tokenizer use so many threads; it reads its limits from the environment."""
    limits = {"TOKENIZERS_PARALLELISM": "true" if workers > 1 else "false", "RAYON_NUM_THREADS": str(workers)}
    before = {name: os.environ[name] for name in limits if name in os.environ}
    os.environ.update(limits)
    try:
        yield
    finally:
        for name in limits:
            os.environ.pop(name, None)
        os.environ.update(before)


_DECIDES = ("tokenizer", "vocabulary", "joint")  # settings that a vocabulary was made by


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary, and what its text went through."""

    origin: str  # where it is from, in words
    tokenizers: TokenizerPair
    cleaning: Cleaning
    settings: Mapping[str, Any]  # those it was made by

    @classmethod
    def of(cls, path: Path) -> "Vocabulary":
        if (path / MANIFEST).is_file():
            prepared = PreparedData.open(path)
            settings = prepared.manifest["settings"]
            return cls(str(path), prepared.tokenizers, Cleaning(**settings["cleaning"]), settings)
        if inside := sorted(str(each.parent) for each in path.glob(f"[!.]*/{MANIFEST}")):
            raise DataError(f"{path} is the folder of a corpus; name a preparation in it: {', '.join(inside)}")
        run = Run.open(find_run(path))
        settings = run.data().get("settings", {})
        if "vocabulary" not in settings:
            raise DataError(f"{run.name} has no vocabulary of its own; name another run")
        return cls(run.name, load_tokenizers(run), load_cleaning(run), settings)

    @property
    def sha256(self) -> str:
        return sha256_text([self.tokenizers.source.engine_json(), self.tokenizers.target.engine_json()])

    def settings_for(self, section: type[BaseModel]) -> dict[str, Any]:
        """Return the settings of a data section that tell of the vocabulary and of how long a text may be."""
        made = {"joint": self.tokenizers.joint, **self.settings}  # of labelled text the settings do not name it
        return {key: made[key] for key in (*_DECIDES, "max_tokens") if key in section.model_fields}

    def check(self, data: Section) -> None:
        if not hasattr(data, "joint") and not self.tokenizers.joint:
            raise DataError(f"{self.origin} has one vocabulary for each side; labelled text has one in all")
        for key, value in self.settings_for(type(data)).items():
            if key in _DECIDES and getattr(data, key) != value:
                raise DataError(
                    f"the vocabulary of {self.origin} was made with {key} {value!r}, not {getattr(data, key)!r}: "
                    f"leave that out, or set data.{key} so in the recipe"
                )
