"""Provenance of prepared data, its comparison with the current sources, and vocabularies of other data or runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from phmctl.console import note
from phmctl.data.card import Cleaning
from phmctl.data.corpus import Corpus
from phmctl.data.prepared import MANIFEST, PreparedData, Section, read_manifest
from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import DataError
from phmctl.storage import clear, damage, file_entry, leftovers, lock, replacing, sha256_text

CARD = "card_sha256"  # key of the card's digest in a manifest
VECTORS = "vectors"  # split and side of word vectors in a manifest


def provenance(corpus: Corpus, vectors: Path | None = None) -> dict[str, Any]:
    """Return the manifest's keys about a corpus' origin, with the SHA-256 of its files.

    The entry of a file contains its split and side, so that exchanged files are noticed.
    """
    content: dict[str, Any] = {"corpus": corpus.name}
    if corpus.languages:
        content["source_language"], content["target_language"] = corpus.languages
    else:
        content["texts"] = corpus.texts
    content["origin"] = corpus.origin
    if corpus.card:
        content[CARD] = corpus.card
    if corpus.held_out:
        content["held_out"] = dict(corpus.held_out)
    content["sources"] = [_entry(file.path, file.split, file.side) for file in corpus.files]
    if vectors is not None:
        content["sources"].append(_entry(vectors, VECTORS, VECTORS))
    return content


def _entry(path: Path, split: str, side: str) -> dict[str, Any]:
    try:
        return {**file_entry(path.parent, path.name), "split": split, "side": side}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def changed_sources(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the sources that differ, or ["sources"] if only their order does.

    Earlier word vectors are ignored unless there are new ones.
    """
    if not any(entry.get("side") == VECTORS for entry in after):
        before = [entry for entry in before if entry.get("side") != VECTORS]
    names = {entry["name"] for entry in [*before, *after] if before.count(entry) != after.count(entry)}
    if not names and before != after:
        return ["sources"]
    return sorted(names)


def build(
    folder: Path, settings: Mapping[str, Any], origin: Mapping[str, Any], write: Callable[[Path], None], *, force: bool
) -> None:
    """Build a prepared folder unless it exists, undamaged, with these settings and this provenance.

    `write` fills an empty temporary folder, which is renamed when it is complete.
    """
    folder = folder.resolve() if folder.is_symlink() else folder  # data on another disk stays there
    lock_path = folder.with_name(f".{folder.name}.lock")
    # Leftovers and a lock without a holder are of a killed process.
    if force or leftovers(folder) or lock_path.exists() or changes(folder, settings, origin):
        with lock(lock_path, remove=True):  # a second process waits and finds the folder up to date
            clear(folder)  # removes incomplete folders; restores a replaced one without successor
            changed = changes(folder, settings, origin)
            if force or changed:
                if changed and (folder / MANIFEST).exists():
                    note(f"{folder} is out of date ({', '.join(changed)} changed): preparing again")
                with replacing(folder, MANIFEST, "settings") as temporary:
                    write(temporary)
                note(f"prepared in {folder}")
                return
    note(f"{folder} is up to date")


def changes(folder: Path, settings: Mapping[str, Any], origin: Mapping[str, Any]) -> list[str]:
    """Return the names of settings, sources and files that differ from a folder's manifest.

    `origin` can lack the sources: then only the card's digest is compared.
    """
    try:
        manifest = read_manifest(folder)
        before = manifest["settings"]
        changed = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
        keys = (CARD, "held_out") if "sources" in origin else (CARD,)
        changed += [key for key in keys if origin.get(key) != manifest.get(key)]
        if not changed and "sources" in origin:
            changed = changed_sources(manifest["sources"], origin["sources"])
        return changed or [entry["name"] for entry in manifest["files"] if damage(folder, entry)]
    except (DataError, KeyError, TypeError):  # missing or damaged
        return [MANIFEST]


_VOCABULARY_SETTINGS = ("tokenizer", "vocabulary", "joint")  # data settings that determine a vocabulary
OF_VOCABULARY = ("lowercase", "normalise", "min_count")  # cleaning settings that determine a vocabulary


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of prepared data or of a run, with the settings by which they were learned."""

    origin: str  # the folder or the run's name
    tokenizers: TokenizerPair
    cleaning: Cleaning
    settings: Mapping[str, Any]

    @classmethod
    def of_folder(cls, folder: Path) -> "Vocabulary":
        """Read the vocabulary of a prepared folder."""
        prepared = PreparedData(folder)
        settings = prepared.manifest["settings"]
        return cls(str(folder), prepared.tokenizers, Cleaning(**settings["cleaning"]), settings)

    @property
    def sha256(self) -> str:
        return sha256_text([self.tokenizers.source.engine_json(), self.tokenizers.target.engine_json()])

    def settings_for(self, section: type[BaseModel]) -> dict[str, Any]:
        """Return the vocabulary's settings and the longest text as keys of a data section."""
        settings = {"joint": self.tokenizers.joint, **self.settings}  # the settings of labelled text lack "joint"
        return {key: settings[key] for key in (*_VOCABULARY_SETTINGS, "max_tokens") if key in section.model_fields}

    def pair(self, data: Section) -> TokenizerPair:
        """Return the tokenizers of the data's source and target, exchanged if the data has the opposite direction."""
        pair = self.tokenizers
        reversed_sides = self.settings.get("direction", "forward") != getattr(data, "direction", "forward")
        return TokenizerPair(pair.target, pair.source) if reversed_sides and not pair.joint else pair

    def check(self, data: Section, cleaning: Cleaning) -> None:
        """Raise DataError if settings of the data contradict the vocabulary."""
        if not hasattr(data, "joint") and not self.tokenizers.joint:
            raise DataError(f"{self.origin} has one vocabulary for each side, but labelled text needs a joint one")
        learned = {**self.settings_for(type(data)), **self.cleaning.model_dump(include={*OF_VOCABULARY})}
        chosen = {**data.model_dump(), **cleaning.model_dump()}
        for key, expected in learned.items():
            if key != "max_tokens" and chosen[key] != expected:
                raise DataError(
                    f"--{key.replace('_', '-')}: the vocabulary of {self.origin} was learned with {expected!r}, not "
                    f"{chosen[key]!r}; leave the option out, or set this value in the recipe"
                )
