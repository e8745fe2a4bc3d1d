"""Fetching a card's corpus: files over HTTP, archives, and datasets of the Hugging Face hub."""

import http.client
import lzma
import re
import shutil
import struct
import sys
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from phmctl.console import note, progress
from phmctl.data.card import Hub, Url
from phmctl.data.readers import as_line, field_of, named_label
from phmctl.data.rows import Row, SourceFile, Splits
from phmctl.errors import DataError, DownloadError
from phmctl.files import clear, replacing, sync_file, sync_folder, writing
from phmctl.files import sha256 as sha256_of

_CHUNK = 1 << 18  # bytes
_LARGEST = 64 << 30  # bytes of a file, and of what an archive unpacks to
_FINAL = {400, 401, 403, 404, 410, 451}  # answers that asking again does not change


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    refetch: bool = False,
    attempts: int = 3,
    timeout: float = 20.0,
    pause: float = 1.0,
    limit: int = _LARGEST,
) -> Path:
    """Fetch `url` into `target`, unless it is there with this SHA-256. One process at a time may do so.

    What arrives stays in ``<target>.part``; where a SHA-256 will tell whether the parts fit, a later call asks for the
    rest of it. Raises DownloadError.
    """
    if target.is_file() and not refetch and (sha256 is None or sha256_of(target) == sha256):
        return target
    part = target.with_name(f"{target.name}.part")
    with writing(target), progress(f"fetching {target.name}", None) as advance:
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, attempts + 1):
            try:
                _receive(url, part, sha256 is not None, timeout, limit, advance)
                break
            except (OSError, http.client.HTTPException, ValueError) as error:  # a disk's is an OutputError by now
                reason, final = str(getattr(error, "reason", error)) or type(error).__name__, type(error) is ValueError
                if isinstance(error, urllib.error.HTTPError):
                    error.close()
                    reason, final = f"the server answers {error.code} {error.reason}", error.code in _FINAL
                    if error.code == 416:  # nothing lies behind the part that is here
                        part.unlink(missing_ok=True)
                if final or attempt == attempts:
                    raise DownloadError(
                        f"cannot fetch {url}: {reason}\n"
                        "with the network back, run it again; if you have the files, use --source DIR"
                    ) from error
            time.sleep(pause * 2 ** (attempt - 1))
        if sha256 is not None and (actual := sha256_of(part)) != sha256:
            part.unlink()
            raise DownloadError(
                f"{url} has SHA-256 {actual[:12]}..., but {sha256[:12]}... was expected; what arrived was dropped\n"
                "the publisher has changed the file, or something on the way did; try again, or use --source DIR"
            )
        sync_file(part)
        part.replace(target)
        sync_folder(target.parent)
    return target


def _receive(url: str, part: Path, resume: bool, timeout: float, limit: int, advance: Callable[[int], None]) -> None:
    """Receive what is missing over one connection."""
    size = part.stat().st_size if resume and part.is_file() else 0
    headers = {"User-Agent": "phmctl", **({"Range": f"bytes={size}-"} if size else {})}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as response:
        if getattr(response, "status", None) != 206:
            size = 0  # the server sends the whole file
        with writing(part):
            handle = part.open("ab" if size else "wb")
        received = 0
        with handle:
            while chunk := response.read1(_CHUNK):
                received += len(chunk)
                if size + received > limit:
                    part.unlink()
                    raise ValueError(f"the file has more than {limit:,} bytes")
                with writing(part):
                    handle.write(chunk)
                advance(len(chunk))
        expected = response.headers.get("Content-Length")
        if expected is not None and received < int(expected):
            raise ConnectionError(f"the connection ended after {received:,} of {int(expected):,} bytes")


# ------------------------------------------------------------------------------------------ archives

# What tarfile, zipfile and those below them raise for bytes that mean nothing; RuntimeError is zipfile's "encrypted".
_UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(OSError, EOFError, NotImplementedError, RuntimeError, ValueError, ArithmeticError, LookupError, MemoryError),
)

# Text packs 3 to 20 times, so an archive that unpacks to more than this was made to fill a disk.
_RATIO = 200
_ALWAYS = 256 << 20  # bytes that any archive may unpack to


class DamagedError(DataError):
    """An archive that is not whole: another fetch may bring a better one."""


def fetch_all(urls: Iterable[Url], cache: Path, *, refetch: bool = False) -> None:
    """Fetch a card's files into the cache, and unpack archives there. Nobody else may write there meanwhile.

    An archive that proves damaged is removed, and one that was in the cache is fetched again.
    """
    for item in urls:
        target, folder = cache / item.file, cache / f"{item.file}.extracted"
        kept = target.is_file() and not refetch
        path = download(item.url, target, sha256=item.sha256, refetch=refetch)
        if not item.extract:
            continue
        clear(folder)
        try:
            extract(path, folder, limit=item.unpacked, members=item.members, anew=refetch)
        except DamagedError:
            path.unlink(missing_ok=True)
            if not kept:
                raise
            fetch_all([item], cache)


def extract(
    archive: Path, folder: Path, *, limit: int | None = None, members: int = 100_000, anew: bool = False
) -> Path:
    """Unpack a tar (plain or compressed) or zip archive into a new folder, which appears only when it is whole.

    A folder that is there already stays, unless `anew`. Links and devices are refused: a corpus has no need of them,
    and a link can lead out. `limit` is in bytes; by default 200 times the archive's size, or 256 MiB if that is more.
    """
    if folder.is_dir() and not anew:
        return folder
    limit = limit or min(_LARGEST, max(_ALWAYS, _RATIO * archive.stat().st_size))
    with replacing(folder) as content:
        left = limit
        try:
            for number, (name, size, plain, unpack) in enumerate(_members(archive), start=1):
                left -= max(size, 0)
                if left < 0 or number > members:
                    raise DataError(
                        f"{archive} holds more than {f'{limit:,} bytes' if left < 0 else f'{members:,} members'}: no "
                        "corpus, it seems; nothing was extracted\n"
                        "if it is right, its entry in the card may say how much it is: unpacked: BYTES, members: NUMBER"
                    )
                path = PurePosixPath(name)
                if not plain or path.is_absolute() or ".." in path.parts:
                    what = "leads out of the archive's folder" if plain else "is a link or a device"
                    raise DataError(f"{archive}: member {name!r} {what}; nothing was extracted")
                unpack(content)
        except _UNREADABLE as error:
            if isinstance(error, OSError) and error.errno is not None:  # the operating system's, no reader's
                with writing(folder):
                    raise
            reason = str(error) or type(error).__name__
            raise DamagedError(f"{archive} is not a whole tar or zip archive ({reason}); fetch it again") from error
        with writing(folder):
            for file in filter(Path.is_file, content.rglob("*")):
                sync_file(file)
    return folder


def _members(archive: Path) -> Iterator[tuple[str, int, bool, Callable[[Path], object]]]:
    """Yield each member's name and bytes, whether it is a file or a folder, and what unpacks it into a folder."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as packed:
            for info in packed.infolist():
                kind = info.external_attr >> 28  # the file type of Unix, 0 where the archive was made elsewhere
                yield info.filename, info.file_size, kind in (0, 4, 8), partial(packed.extract, info)
        return
    with tarfile.open(archive) as tar:
        for member in tar:
            yield (
                member.name,
                member.size,
                member.isfile() or member.isdir(),
                partial(tar.extract, member, filter="data"),
            )
        while tar.fileobj is not None and tar.fileobj.read(_CHUNK):
            pass  # to the compressed stream's end, where its checksum stands


# ---------------------------------------------------------------------------------------------------------- hub

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


def load_rows(hub: Hub, cache: Path, *, refetch: bool = False) -> tuple[Splits, list[SourceFile], str]:
    """Load a dataset of the hub, or of a local folder. What was fetched once is kept in the cache, as Arrow.

    Returns its splits by our names, its files, and where it came from in words: with the commit that was fetched, as
    the library's record of its files' addresses has it, or the revision.
    """
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
    addresses = " ".join(next(iter(dataset.values())).info.download_checksums or {})
    commit = re.search(r"@([0-9a-f]{40})/", addresses)
    version = commit[1] if commit else hub.revision
    return splits, files, f"hub {hub.id}{f' at {version}' if version else ''}"


def _load_once(hub: Hub, kept: Path, refetch: bool) -> Any:
    """Fetch a dataset into the folder `kept`, unless it is there; return it memory-mapped."""
    import datasets

    clear(kept)
    if refetch or not kept.is_dir():
        with replacing(kept) as folder:
            fetched = _load(hub, folder / ".cache")
            with writing(kept):
                fetched.save_to_disk(str(folder))
                shutil.rmtree(folder / ".cache", ignore_errors=True)
    try:
        return datasets.load_from_disk(str(kept))
    except Exception as error:  # as many kinds as in _load
        raise DataError(f"{kept} is damaged ({_reason(error)}); fetch it anew: --refetch") from error


def _load(hub: Hub, cache: Path) -> Any:
    import datasets
    import huggingface_hub

    hidden = not (sys.stderr.isatty() or datasets.are_progress_bars_disabled())
    if hidden:
        datasets.disable_progress_bars()
    note(f"loading {hub.id} through datasets ...")
    try:
        if not (Path(hub.id).is_dir() or huggingface_hub.constants.HF_HUB_OFFLINE):  # `datasets` would ask for minutes
            huggingface_hub.HfApi().dataset_info(hub.id, timeout=_TIMEOUT)
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
