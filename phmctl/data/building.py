"""A prepared folder is built beside its name, takes it when it is complete, and is left alone while nothing changes."""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from phmctl.console import note
from phmctl.data.manifest import MANIFEST, read_manifest
from phmctl.data.provenance import CARD, Sources
from phmctl.errors import DataError
from phmctl.files import damaged_files, locked, sync_folder, writing

LEARNED = 1_000_000  # rows that a vocabulary is learned from, at most
_CHUNK = 4096  # rows that are tokenized at a time

Row = TypeVar("Row")


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

    Args:
        folder: where it is to be.
        settings: what decides on its content, beside the sources.
        sources: what it is made from.
        write: writes everything into the folder given, which is empty; its second argument is for the manifest.
        workers: threads of the tokenizer. Its pool is made at its first use in a process and keeps its size.
        force: build it even if nothing has changed.

    Raises:
        DataError: what `write` raises, or a source cannot be read.
        OutputError: the folder cannot be written.
    """
    if force or not current(folder, settings, sources):
        lock = folder.with_name(f".{folder.name}.lock")
        with locked(lock), tidying(lock):  # a second process waits, and then finds it done
            if force or not current(folder, settings, sources, say=True):
                with _replacing(folder) as temporary, _threads(workers):
                    write(temporary, {"settings": dict(settings), **sources.describe()})
                note(f"prepared in {folder}")
    sources.remember()


def memory_of(folder: Path) -> Path:
    """Return the file beside a prepared folder that keeps what was seen of its sources."""
    return folder.with_name(f".{folder.name}.seen.json")


def current(
    folder: Path, settings: Mapping[str, Any], sources: Sources | None, *, card: str = "", say: bool = False
) -> bool:
    """Return whether a folder holds these sources (None: whichever the card with this digest has) so set, whole."""
    try:
        manifest = read_manifest(folder)
        if manifest is None:
            return False
        changed = _changed(folder, manifest, settings, sources, card)
    except (DataError, KeyError, TypeError):  # damaged
        changed = [MANIFEST]
    if not changed:
        note(f"{folder} is up to date")
    elif say:
        note(f"{folder} is out of date ({', '.join(changed)} changed): preparing anew")
    return not changed


def _changed(
    folder: Path, manifest: Mapping[str, Any], settings: Mapping[str, Any], sources: Sources | None, card: str
) -> list[str]:
    """Return the names of what differs between a prepared folder and what is wanted."""
    changed = [] if manifest["settings"] == settings else ["settings"]
    if sources is not None:
        changed += sources.changed(manifest)
    elif card and card != manifest.get(CARD, card):
        changed.append("the card")
    return changed + damaged_files(folder, manifest["files"])


def chunks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield the rows in lists of up to :data:`_CHUNK`."""
    remaining = iter(rows)
    while chunk := list(islice(remaining, _CHUNK)):
        yield chunk


@contextmanager
def tidying(lock: Path) -> Iterator[None]:
    """Remove a lock's folder when the block fails and nothing else is in it. The lock is held, so it may go too."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            if [*lock.parent.iterdir()] == [lock]:
                lock.unlink()
                lock.parent.rmdir()
        raise


@contextmanager
def _replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` when the block ends well, and vanishes otherwise."""
    temporary, old = (folder.with_name(f".{folder.name}.{suffix}") for suffix in ("new", "old"))
    for leftover in (temporary, old):  # of a process that was killed
        shutil.rmtree(leftover, ignore_errors=True)
    with writing(folder):
        temporary.mkdir()
    try:
        yield temporary
        with writing(folder):
            sync_folder(temporary)
            if folder.exists():
                folder.rename(old)
            temporary.rename(folder)
            sync_folder(folder.parent)
    finally:
        for leftover in (temporary, old):
            shutil.rmtree(leftover, ignore_errors=True)


@contextmanager
def _threads(workers: int) -> Iterator[None]:
    """Let the tokenizer use so many threads; it reads its limits from the environment."""
    limits = {"TOKENIZERS_PARALLELISM": "true" if workers > 1 else "false", "RAYON_NUM_THREADS": str(workers)}
    before = {name: os.environ.get(name) for name in limits}
    os.environ.update(limits)
    try:
        yield
    finally:
        for name, value in before.items():
            with suppress(KeyError):
                del os.environ[name]
            if value is not None:
                os.environ[name] = value
