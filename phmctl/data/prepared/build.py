"""A prepared folder is built beside its name, takes it when it is complete, and is left alone while nothing changes."""

import glob
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from phmctl.console import note
from phmctl.data.prepared.folder import MANIFEST, read_manifest
from phmctl.data.prepared.provenance import CARD, Sources
from phmctl.errors import DataError, OutputError
from phmctl.files import clear, locked, replacing, temporaries, tidying, writing
from phmctl.sealed import damage


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

    `write` writes everything into the empty folder given; its second argument is for the manifest.
    """
    lock = folder.with_name(f".{folder.name}.lock")
    if force or not current(folder, settings, sources):
        with locked(lock), tidying(lock):  # a second process waits, and then finds it done
            with writing(folder):
                _recover(folder, settings, sources)
            if force or not current(folder, settings, sources, say=True):
                with replacing(folder) as temporary, _threads(workers):
                    write(temporary, {"settings": dict(settings), **sources.describe()})
                note(f"prepared in {folder}")
    elif temporaries(folder) or any(folder.parent.glob(f".{glob.escape(folder.name)}.*.old")):
        with suppress(OSError, OutputError), locked(lock, wait=False) as held:
            if held:  # what a process left that was killed; nobody else is at work there
                clear(folder)
    sources.remember()


def memory_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.seen.json")


def current(
    folder: Path, settings: Mapping[str, Any], sources: Sources | None, *, card: str = "", say: bool = False
) -> bool:
    """Return whether a folder holds these sources (None: whichever the card with this digest has) so set, whole."""
    changed = _changed(folder, settings, sources, card)
    if not changed:
        note(f"{folder} is up to date")
    elif say and (folder / MANIFEST).exists():
        note(f"{folder} is out of date ({'; '.join(changed)}): preparing anew")
    return not changed


def _changed(folder: Path, settings: Mapping[str, Any], sources: Sources | None, card: str = "") -> list[str]:
    try:
        manifest = read_manifest(folder)
        if manifest is None:
            return [f"{MANIFEST} changed"]
        before = manifest["settings"]
        changed = [f"{key} changed" for key in {**before, **settings} if before.get(key) != settings.get(key)]
        if sources is not None:
            changed += sources.changed(manifest)
        elif card and card != manifest.get(CARD):
            changed.append("the card changed")
        return changed + [f"{each['name']} changed" for each in manifest["files"] if damage(folder, each)]
    except (DataError, KeyError, TypeError):  # damaged
        return [f"{MANIFEST} changed"]


def _recover(folder: Path, settings: Mapping[str, Any], sources: Sources) -> None:
    """Take what a process left that was killed at its end: the new folder if it is complete, else the former one.

    The lock is held, so the process is dead. What is half written goes.
    """
    if not folder.exists():
        for entry in temporaries(folder):
            if not _changed(entry, settings, sources):
                entry.rename(folder)
                break
    clear(folder)


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
