"""Unpacking tar and zip archives without ever writing outside their folder, and fetching them first."""

import lzma
import os
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO

from phmctl.data.catalog import Url
from phmctl.data.download import download
from phmctl.errors import DataError
from phmctl.files import writing

_UNREADABLE = (OSError, EOFError, NotImplementedError, RuntimeError)  # RuntimeError: zipfile's word for "encrypted"

_CHUNK = 1 << 20  # bytes


def fetch_all(urls: Iterable[Url], cache: Path) -> None:
    """Fetch a card's files into the cache, and unpack those that are archives, each into a folder of its own.

    Raises:
        DownloadError: a server cannot be reached, or refuses.
        DataError: an archive is damaged.
        OutputError: the cache cannot be written.
    """
    for item in urls:
        path = download(item.url, cache / item.file, sha256=item.sha256)
        if item.extract:
            extract(path, cache / f"{item.file}.extracted")


def extract(archive: Path, folder: Path) -> Path:
    """Unpack a tar (plain or compressed) or zip archive into a new folder.

    All members are checked before the first is written, and the folder appears only when it is whole. One that is there
    already is left as it is. Links and devices are refused: a corpus has no need of them, and a link can lead out.

    Returns:
        the folder.

    Raises:
        DataError: the archive is damaged, or a member's name leads out of the folder; nothing is extracted then.
        OutputError: the folder cannot be written.
    """
    if folder.is_dir():
        return folder
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    content = temporary / "content"  # with the user's own permissions, which `temporary` has not
    try:
        with _reading(archive):
            content.mkdir()
            if zipfile.is_zipfile(archive):
                _extract_zip(archive, content)
            else:
                _extract_tar(archive, content)
        with writing(folder):
            content.rename(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    try:
        yield
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, *_UNREADABLE) as error:
        raise DataError(f"{archive} is not a whole tar or zip archive ({error}); fetch it again") from error


def _extract_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
        while tar.fileobj is not None and tar.fileobj.read(_CHUNK):
            pass  # to the compressed stream's end, where its checksum stands
        for member in members:
            _check(archive, member.name, regular=member.isfile() or member.isdir())
        for member in members:
            if member.isfile():
                _write(tar.extractfile(member), folder / member.name)


def _extract_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        for member in members:
            kind = member.external_attr >> 28  # the file type of Unix, 0 where the archive was made elsewhere
            _check(archive, member.filename, regular=kind in (0, 4, 8))
        for member in members:
            if not member.is_dir():
                with packed.open(member) as content:
                    _write(content, folder / member.filename)


def _check(archive: Path, name: str, *, regular: bool) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if ".." in parts or PureWindowsPath(name).anchor:  # an anchor: /, \\ or a drive
        raise DataError(f"{archive}: member {name!r} leads out of the archive's folder; nothing was extracted")
    if not regular:
        raise DataError(f"{archive}: member {name!r} is a link or a device; nothing was extracted")


def _write(content: IO[bytes] | None, path: Path) -> None:
    if content is None:
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as handle:
            shutil.copyfileobj(content, handle)
            handle.flush()
            os.fsync(handle.fileno())
