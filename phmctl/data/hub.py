"""Datasets of the Hugging Face hub, through ``datasets``."""

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from phmctl.console import note
from phmctl.data.card import Hub
from phmctl.data.fetch import LARGEST
from phmctl.data.readers import field_of, join_lines, rename_label
from phmctl.data.rows import Row, SourceFile, Splits, repeatable
from phmctl.errors import DataError, DownloadError
from phmctl.files import clear, replacing, writing


@repeatable
def hub_rows(rows: Any, hub: Hub, name: str) -> Iterator[Row]:
    """Yield the rows of a split, a ``datasets.Dataset``; `name` is for messages."""
    for number, row in enumerate(rows, start=1):
        texts = [field_of(row, column) for column in hub.texts]
        label = hub.label and field_of(row, hub.label)
        if not all(isinstance(text, str) for text in texts) or (hub.label and label is None):
            wanted = ", ".join((*hub.texts, *filter(None, [hub.label])))
            raise DataError(f"{name}, row {number}: expected text in {wanted}; it has {str(row)[:200]}")
        yield Row(tuple(map(join_lines, texts)), hub.label and rename_label(str(label), hub), location=(name, number))


def load_rows(hub: Hub, cache: Path, *, refetch: bool = False) -> tuple[Splits, list[SourceFile], str]:
    """Load a dataset of the hub. What was fetched once is kept in the cache, as Arrow.

    Returns its splits by our names, its files, and where it came from in words: with the commit that was fetched, as
    the library's record of its files' addresses has it, or the revision.
    """
    import datasets

    kept = cache / re.sub(r"[^\w.-]+", "--", "@".join(filter(None, (hub.id, hub.config, hub.folder, hub.revision))))
    with ExitStack() as stack:
        if not (sys.stderr.isatty() or datasets.are_progress_bars_disabled()):
            datasets.disable_progress_bars()
            stack.callback(datasets.enable_progress_bars)
        dataset = _load_once(hub, kept, refetch)
    splits: Splits = {}
    files: list[SourceFile] = []
    for split, name in hub.splits.items():
        if name not in dataset:
            raise DataError(f"{hub.id} has no split {name!r}; it has {', '.join(sorted(dataset))}")
        splits[split] = hub_rows(dataset[name], hub, f"{hub.id} ({name})")
        files += [SourceFile(Path(file["filename"]), split, "rows") for file in dataset[name].cache_files]
    addresses = " ".join(next(iter(dataset.values())).info.download_checksums or {})
    commit = re.search(r"@([0-9a-f]{40})/", addresses)
    version = commit[1] if commit else hub.revision
    return splits, files, f"hub {hub.id}{f' at {version}' if version else ''}"


def _load_once(hub: Hub, kept: Path, refetch: bool) -> Any:
    """Fetch a dataset into the folder `kept`, unless it is there; return it memory-mapped."""
    import datasets
    from huggingface_hub import HfApi, constants

    clear(kept)
    if refetch or not kept.is_dir():
        if Path(f"./{hub.id}").exists():  # `datasets` would read it in place of the hub's
            raise DataError(f"a folder here is called {hub.id!r}, as the hub's dataset is: name it with --source DIR")
        note(f"loading {hub.id} through datasets ...")
        with replacing(kept) as folder:
            cache = folder / ".cache"
            try:
                if not constants.HF_HUB_OFFLINE:  # `datasets` would ask for minutes
                    info = HfApi().dataset_info(hub.id, revision=hub.revision, files_metadata=True, timeout=10)
                    below = f"{hub.folder}/" if hub.folder else ""
                    sizes = (file.size or 0 for file in info.siblings or () if file.rfilename.startswith(below))
                    if hub.config is None and (size := sum(sizes)) > LARGEST:
                        raise ValueError(f"its files have {size:,} bytes, more than {LARGEST:,}")
                fetched = datasets.load_dataset(
                    hub.id, hub.config, data_dir=hub.folder, revision=hub.revision, cache_dir=str(cache)
                )
            except Exception as error:  # the library and those below it raise dozens of kinds
                refused = f"the hub does not give {hub.id!r}: {_reason(error)}"
                raise DownloadError(f"{refused}\nif you have the files, name their folder: --source DIR") from error
            with writing(kept):
                fetched.save_to_disk(str(folder))
                shutil.rmtree(cache, ignore_errors=True)
    try:
        return datasets.load_from_disk(str(kept))
    except Exception as error:
        raise DataError(f"{kept} is damaged ({_reason(error)}); fetch it anew: --refetch") from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
