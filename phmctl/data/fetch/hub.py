"""Corpora of the Hugging Face hub, through the ``datasets`` library."""

import http.client
import os
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from phmctl.console import note
from phmctl.data.card import Hub
from phmctl.data.readers import as_line, field_of, named_label
from phmctl.data.rows import Row, SourceFile, Splits
from phmctl.errors import DataError, DownloadError
from phmctl.files import clear, replacing, writing

_TIMEOUT = 10  # seconds until a hub that does not answer counts as away


@dataclass(frozen=True)
class HubRows:
    rows: Any  # datasets.Dataset
    hub: Hub
    name: str  # for messages

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        for number, row in enumerate(self.rows, start=1):
            texts = [field_of(row, column) for column in self.hub.text_columns]
            for column, value in zip(self.hub.text_columns, texts, strict=True):
                if not isinstance(value, str):
                    raise DataError(f"{self.name}, row {number}: column {column!r} holds {value!r}, not text")
            label = self.hub.label and named_label(str(field_of(row, self.hub.label)), self.hub)
            yield Row(tuple(map(as_line, texts)), label, place=(self.name, number))


class Loaded(NamedTuple):
    """A loaded dataset: its splits by our names, its files, and where it came from in words."""

    splits: Splits
    files: list[SourceFile]
    origin: str


def load_rows(hub: Hub, cache: Path, *, refetch: bool = False) -> Loaded:
    """Load a dataset of the hub, or of a local folder. What was fetched once is kept in the cache, as Arrow."""
    kept = cache / re.sub(r"[^\w.-]+", "--", "@".join(filter(None, (hub.id, hub.config, hub.folder, hub.revision))))
    dataset = _load(hub, cache) if Path(hub.id).is_dir() else _load_once(hub, kept, refetch)
    side = "pairs" if hub.label is None else "rows"
    splits: Splits = {}
    files: list[SourceFile] = []
    for split, name in hub.splits.items():
        if name not in dataset:
            raise DataError(f"{hub.id} has no split {name!r}; it has {', '.join(sorted(dataset))}")
        rows = dataset[name]
        for column in (*hub.text_columns, *filter(None, [hub.label])):
            if len(rows) and field_of(rows[0], column) is None:
                raise DataError(f"{hub.id} has no column {column!r}; it has {', '.join(rows.column_names)}")
        splits[split] = HubRows(rows, hub, f"{hub.id} ({name})")
        files += [SourceFile(Path(file["filename"]), split, side) for file in rows.cache_files]
    return Loaded(splits, files, f"hub {hub.id}{_version(hub, dataset)}")


def _load_once(hub: Hub, kept: Path, refetch: bool) -> Any:
    """Fetch a dataset into the folder `kept`, unless it is there; return it memory-mapped."""
    import datasets

    clear(kept)
    if refetch or not kept.is_dir():
        _check_reachable(hub.id)
        with replacing(kept) as folder:
            fetched = _load(hub, folder / ".cache")
            with writing(kept):
                fetched.save_to_disk(str(folder))
                shutil.rmtree(folder / ".cache", ignore_errors=True)
    try:
        return datasets.load_from_disk(str(kept))
    except Exception as error:  # as many kinds as in _load
        raise DataError(f"{kept} is damaged ({_reason(error)}); fetch it anew: --refetch") from error


def _version(hub: Hub, dataset: Any) -> str:
    """Return the commit that was fetched, as the library's record of its files' addresses has it, or the revision."""
    addresses = " ".join(next(iter(dataset.values())).info.download_checksums or {})
    commit = re.search(r"@([0-9a-f]{40})/", addresses)
    version = commit[1] if commit else hub.revision
    return f" at {version}" if version else ""


def _load(hub: Hub, cache: Path) -> Any:
    import datasets

    hidden = not (sys.stderr.isatty() or datasets.are_progress_bars_disabled())
    if hidden:
        datasets.disable_progress_bars()
    note(f"loading {hub.id} through datasets ...")
    try:
        return datasets.load_dataset(
            hub.id, hub.config, data_dir=hub.folder, revision=hub.revision, cache_dir=str(cache)
        )
    except Exception as error:  # the library and those below it raise dozens of kinds
        refused = f"the hub does not give {hub.id!r}: {_reason(error)}"
        raise DownloadError(f"{refused}\nif you have the files, name their folder: --source DIR") from error
    finally:
        if hidden:
            datasets.enable_progress_bars()


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _check_reachable(dataset: str) -> None:
    """Ask once whether the hub is there: the library itself retries for half a minute before it gives up."""
    if os.environ.get("HF_HUB_OFFLINE", "0").upper() in {"1", "TRUE", "YES", "ON"}:
        return  # the user wants what the library has cached
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    try:
        with urllib.request.urlopen(f"{endpoint}/api/datasets/{quote(dataset)}", timeout=_TIMEOUT):
            return
    except urllib.error.HTTPError as error:
        error.close()
        if error.code < 500:
            return  # it is there; what it refuses, the library says better
        reason = f"the hub {endpoint} answers {error.code}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = f"the hub {endpoint} cannot be reached ({getattr(error, 'reason', error)})"
    raise DownloadError(
        f"{reason}\nwith the network back, run it again; if you have the files, name their folder: --source DIR"
    )
