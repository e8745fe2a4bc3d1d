"""What prepared data was made from and whether that has changed, its building, and vocabularies that others lend."""

import glob
from collections.abc import Callable, Mapping, Sequence
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
from phmctl.errors import DataError
from phmctl.files import clear, damage, lock, replacing, sha256, sha256_text, temporaries
from phmctl.runs import Run
from phmctl.runs.find import find_run

CARD = "card_sha256"  # what a manifest calls the card's digest
VECTORS = "vectors"  # what a manifest calls the split and the side of word vectors


def provenance(corpus: Corpus, vectors: Path | None = None) -> dict[str, Any]:
    """Return what the manifest says of a corpus' origin: its files with SHA-256.

    A file's entry says which split and side it is read as, so that two that change places are noticed.
    """
    sources = [_entry(file.path, file.split, file.side) for file in corpus.files]
    sources += [] if vectors is None else [_entry(vectors, VECTORS, VECTORS)]
    made = {CARD: corpus.card, "held_out": dict(corpus.held_out)}
    told = {key: value for key, value in made.items() if value}
    languages = zip(("source_language", "target_language"), corpus.languages or (), strict=False)
    sides = dict(languages) if corpus.languages else {"texts": corpus.texts}
    return {"corpus": corpus.name, **sides, "origin": corpus.origin, **told, "sources": sources}


def _entry(path: Path, split: str, side: str) -> dict[str, Any]:
    try:
        return {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256(path), "split": split, "side": side}
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from error


def changed_sources(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the sources that are others now; where no vectors are given, those there do not matter."""
    if not any(entry.get("side") == VECTORS for entry in now):
        before = [entry for entry in before if entry.get("side") != VECTORS]
    names = {entry["name"] for entry in [*before, *now] if before.count(entry) != now.count(entry)}
    return sorted(names) or ["sources"] * (before != now)


def build(
    folder: Path, settings: Mapping[str, Any], made: Mapping[str, Any], write: Callable[[Path], None], *, force: bool
) -> None:
    """Build a prepared folder, unless it is there already, of the same provenance and settings and whole.

    `write` writes everything into the empty folder given, which takes its name when it is complete.
    """
    folder = folder.resolve() if folder.is_symlink() else folder  # data on another disk stay there
    lock_path = folder.with_name(f".{folder.name}.lock")
    left = temporaries(folder) or any(folder.parent.glob(f".{glob.escape(folder.name)}.*.old"))  # by a killed process
    if force or left or changes(folder, settings, made):
        with lock(lock_path):  # a second process waits, and then finds it done
            clear(folder)  # what is half written goes; without a new folder the former one is put back
            changed = changes(folder, settings, made)
            if force or changed:
                if changed and (folder / MANIFEST).exists():
                    note(f"{folder} is out of date ({', '.join(changed)} changed): preparing anew")
                with replacing(folder) as temporary:
                    write(temporary)
                note(f"prepared in {folder}")
                return
    note(f"{folder} is up to date")


def changes(folder: Path, settings: Mapping[str, Any], made: Mapping[str, Any]) -> list[str]:
    """Return the names of what is another in a folder than the settings and the provenance say, or is damaged.

    Of a card that is not at hand the provenance has the digest alone.
    """
    try:
        manifest = read_manifest(folder)
        before = manifest["settings"]
        changed = [key for key in {**before, **settings} if before.get(key) != settings.get(key)]
        known = (CARD, "held_out") if "sources" in made else (CARD,)
        changed += [key for key in known if made.get(key) != manifest.get(key)]
        if not changed and "sources" in made:
            changed = changed_sources(manifest["sources"], made["sources"])
        return changed or [each["name"] for each in manifest["files"] if damage(folder, each)]
    except (DataError, KeyError, TypeError):  # missing or damaged
        return [MANIFEST]


_DECIDES = ("tokenizer", "vocabulary", "joint")  # settings that a vocabulary was made by
OF_VOCABULARY = ("lowercase", "normalise", "min_count")  # and of the cleaning


@dataclass(frozen=True)
class Vocabulary:
    origin: str  # where it is from, in words
    tokenizers: TokenizerPair
    cleaning: Cleaning
    settings: Mapping[str, Any]  # those it was made by

    @classmethod
    def of(cls, path: Path) -> "Vocabulary":
        if (path / MANIFEST).is_file():
            prepared = PreparedData(path)
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

    def pair(self, data: Section) -> TokenizerPair:
        """Return the tokenizers of the data's sides, which may be turned round."""
        pair = self.tokenizers
        turned = self.settings.get("direction", "forward") != getattr(data, "direction", "forward")
        return TokenizerPair(pair.target, pair.source) if turned and not pair.joint else pair

    def check(self, data: Section, cleaning: Cleaning) -> None:
        if not hasattr(data, "joint") and not self.tokenizers.joint:
            raise DataError(f"{self.origin} has one vocabulary for each side; labelled text has one in all")
        made = {key: (value, getattr(data, key)) for key, value in self.settings_for(type(data)).items()}
        made |= {key: (getattr(self.cleaning, key), getattr(cleaning, key)) for key in OF_VOCABULARY}
        for key, (theirs, asked) in made.items():
            if theirs != asked and key != "max_tokens":
                raise DataError(
                    f"--{key.replace('_', '-')}: the vocabulary of {self.origin} was made with {theirs!r}, not "
                    f"{asked!r}; leave that out, or set it so in the recipe"
                )
