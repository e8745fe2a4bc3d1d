"""Load datasets of the Hugging Face hub with the ``datasets`` library."""

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phmctl.console import is_terminal, note
from phmctl.data.card import Hub
from phmctl.data.fetch import EXTRACTED, LARGEST
from phmctl.data.readers import parse_row
from phmctl.data.rows import Location, Row, SourceFile, Splits, repeatable
from phmctl.errors import DataError, DownloadError
from phmctl.storage import clear, replacing, seal, writing


@repeatable
def hub_rows(dataset: Any, hub: Hub, name: str) -> Iterator[Row]:
    """Yield the rows of a split, a ``datasets.Dataset``; error messages contain `name`."""
    row_format = hub.row_format
    for number, record in enumerate(dataset, start=1):
        yield parse_row(record, [], row_format, Location(name, number))


def load_rows(hub: Hub, cache: Path, *, refetch: bool = False) -> tuple[Splits, list[SourceFile], str]:
    """Load a dataset of the hub; a fetched dataset is kept in the cache as Arrow files.

    Returns the splits by the card's names, their files, and a description of the origin with the commit, which the
    library records in the addresses of its downloads, or with the revision.
    """
    names = filter(None, (hub.id, hub.config, hub.folder, hub.revision))
    folder = cache / re.sub(r"[^\w.-]+", "--", "@".join(names))
    with _no_bars_without_terminal():
        dataset = _load_once(hub, folder, refetch)
    splits: Splits = {}
    files: list[SourceFile] = []
    for split, name in hub.splits.items():
        if name not in dataset:
            raise DataError(f"{hub.id} lacks the split {name!r}; it has {', '.join(sorted(dataset))}")
        splits[split] = hub_rows(dataset[name], hub, f"{hub.id} ({name})")
        files += [SourceFile(Path(file["filename"]), split, "rows") for file in dataset[name].cache_files]
    addresses = " ".join(next(iter(dataset.values())).info.download_checksums or {})
    commit = re.search(r"@([0-9a-f]{40})/", addresses)
    version = commit[1] if commit else hub.revision
    return splits, files, f"hub {hub.id} at {version}" if version else f"hub {hub.id}"


@contextmanager
def _no_bars_without_terminal() -> Iterator[None]:
    """Disable the library's progress bars if stderr is not a terminal; restore its setting afterwards."""
    import datasets

    disable = not is_terminal(sys.stderr) and not datasets.are_progress_bars_disabled()
    if disable:
        datasets.disable_progress_bars()
    try:
        yield
    finally:
        if disable:
            datasets.enable_progress_bars()


def _load_once(hub: Hub, folder: Path, refetch: bool) -> Any:
    """Return a dataset memory-mapped from its folder, which is filled from the hub if it is missing."""
    import datasets

    clear(folder)
    if refetch or not folder.is_dir():
        if Path(f"./{hub.id}").exists():  # `datasets` would read it instead of the hub's dataset
            raise DataError(f"a local folder has the name {hub.id!r} of the hub's dataset; read it with --source DIR")
        note(f"loading {hub.id} through datasets ...")
        with replacing(folder, EXTRACTED, "files") as temporary:
            _fetch(hub, folder, temporary)
    try:
        return datasets.load_from_disk(str(folder))
    except Exception as error:
        raise DataError(f"{folder} is damaged ({_reason(error)}); use --refetch") from error


def _fetch(hub: Hub, folder: Path, temporary: Path) -> None:
    import datasets
    from huggingface_hub import constants

    downloads = temporary / ".cache"
    try:
        if not constants.HF_HUB_OFFLINE:
            _check_size(hub)
        dataset = datasets.load_dataset(
            hub.id, hub.config, data_dir=hub.folder, revision=hub.revision, cache_dir=str(downloads)
        )
    except Exception as error:  # the library and its dependencies raise dozens of types
        raise DownloadError(
            f"the hub does not give {hub.id!r}: {_reason(error)}\nif you have the files, use --source DIR"
        ) from error
    with writing(folder):
        dataset.save_to_disk(str(temporary))
        shutil.rmtree(downloads, ignore_errors=True)
        seal(temporary, EXTRACTED, {})


def _check_size(hub: Hub) -> None:
    """Fail soon if the hub does not answer, for which `datasets` takes minutes, or if the dataset is too large."""
    from huggingface_hub import HfApi

    info = HfApi().dataset_info(hub.id, revision=hub.revision, files_metadata=True, timeout=10)
    prefix = f"{hub.folder}/" if hub.folder else ""
    size = sum(file.size or 0 for file in info.siblings or () if file.rfilename.startswith(prefix))
    if hub.config is None and size > LARGEST:
        raise ValueError(f"its files have {size:,} bytes, more than {LARGEST:,}")


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
