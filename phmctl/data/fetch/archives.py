"""Unpacking tar and zip archives without ever writing outside their folder, and fetching them first."""

import lzma
import os
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, NamedTuple, Self

from phmctl.data.card import Url
from phmctl.data.fetch.http import download
from phmctl.errors import DataError
from phmctl.files import clear, replacing, writing

# What tarfile, zipfile and those below them raise for bytes that mean nothing; RuntimeError is zipfile's "encrypted".
_UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error),
    *(OSError, EOFError, NotImplementedError, RuntimeError, ValueError, ArithmeticError, LookupError, MemoryError),
)

_CHUNK = 1 << 20  # bytes
# Text packs 3 to 20 times, so an archive that unpacks to more than this was made to fill a disk.
_RATIO = 200
_ALWAYS = 256 << 20  # bytes that any archive may unpack to
_LARGEST = 64 << 30
_NAMES = 32 << 20  # bytes that a tar archive's names and attributes may have
_EXTENSIONS = {
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
}


class DamagedError(DataError):
    """An archive that is not whole: another fetch may bring a better one."""


def fetch_all(urls: Iterable[Url], cache: Path, *, refetch: bool = False) -> None:
    """Fetch a card's files into the cache, and unpack archives there. Nobody else may write there meanwhile."""
    for item in urls:
        _fetch(item, cache, refetch)


def _fetch(item: Url, cache: Path, refetch: bool) -> None:
    """Fetch a file. An archive that proves damaged is removed, and one that was in the cache is fetched again."""
    target, folder = cache / item.file, cache / f"{item.file}.extracted"
    kept = target.is_file() and not refetch
    path = download(item.url, target, sha256=item.sha256, refetch=refetch)
    if not item.extract:
        return
    clear(folder)
    try:
        extract(path, folder, limit=item.unpacked, members=item.members, anew=refetch)
    except DamagedError:
        path.unlink(missing_ok=True)
        if not kept:
            raise
        _fetch(item, cache, refetch)


def extract(
    archive: Path, folder: Path, *, limit: int | None = None, members: int = 100_000, anew: bool = False
) -> Path:
    """Unpack a tar (plain or compressed) or zip archive into a new folder, which appears only when it is whole.

    A folder that is there already stays, unless `anew`. Links and devices are refused: a corpus has no need of them,
    and a link can lead out. `limit` is in bytes; by default 200 times the archive's size, or 256 MiB if that is more.
    """
    if folder.is_dir() and not anew:
        return folder
    with replacing(folder) as content, _reading(archive):
        limits = _Limits(archive, limit, members)
        for member in (_in_zip if zipfile.is_zipfile(archive) else _in_tar)(archive, limits):
            _check(archive, member)
            if member.open is not None:
                _write(archive, member, content / member.name)
    return folder


class _Member(NamedTuple):
    name: str
    plain: bool  # a file or a folder, no link or device
    open: Callable[[], IO[bytes] | None] | None  # None of a folder


class _Limits:
    def __init__(self, archive: Path, limit: int | None, members: int) -> None:
        packed = archive.stat().st_size
        self._archive, self._members, self._left = archive, members, members
        self._limit = limit or min(_LARGEST, max(_ALWAYS, _RATIO * packed))
        self._bytes, self._names = self._limit, _NAMES

    def take(self, size: int, members: int = 1, *, names: bool = False) -> None:
        """Count bytes, of names if they are such, and members; raises :class:`DataError` where they are too many."""
        self._bytes -= max(size, 0)
        self._names -= size if names else 0
        self._left -= members
        if min(self._bytes, self._names, self._left) < 0:
            much = f"{self._limit:,} bytes" if self._bytes < 0 else f"{self._members:,} members"
            much = f"{_NAMES:,} bytes of names" if self._names < 0 else much
            raise DataError(
                f"{self._archive} holds more than {much}: no corpus, it seems; nothing was extracted\n"
                "if it is right, its entry in the card may say how much it is: unpacked: BYTES, members: NUMBER"
            )


@contextmanager
def _reading(archive: Path) -> Iterator[None]:
    try:
        yield
    except _UNREADABLE as error:
        reason = str(error) or type(error).__name__
        raise DamagedError(f"{archive} is not a whole tar or zip archive ({reason}); fetch it again") from error


def _in_tar(archive: Path, limits: _Limits) -> Iterator[_Member]:
    class Header(tarfile.TarInfo):
        """Counts what headers of long names and attributes hold, before it is read into memory at once."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            header = super().frombuf(buf, encoding, errors)
            if header.type in _EXTENSIONS:
                limits.take(header.size, members=0, names=True)
            return header

    with tarfile.open(archive, tarinfo=Header) as tar:
        for member in tar:
            limits.take(member.size)
            read = partial(tar.extractfile, member) if member.isfile() else None
            yield _Member(member.name, member.isfile() or member.isdir(), read)
        while tar.fileobj is not None and (rest := tar.fileobj.read(_CHUNK)):
            limits.take(len(rest), members=0)  # to the compressed stream's end, where its checksum stands


def _in_zip(archive: Path, limits: _Limits) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as packed:
        for member in packed.infolist():
            limits.take(member.file_size)
            kind = member.external_attr >> 28  # the file type of Unix, 0 where the archive was made elsewhere
            read = None if member.is_dir() else partial(packed.open, member)
            yield _Member(member.filename, kind in (0, 4, 8), read)


def _check(archive: Path, member: _Member) -> None:
    parts = PurePosixPath(member.name.replace("\\", "/")).parts
    if ".." in parts or PureWindowsPath(member.name).anchor:  # an anchor: /, \\ or a drive
        raise DataError(f"{archive}: member {member.name!r} leads out of the archive's folder; nothing was extracted")
    if not member.plain:
        raise DataError(f"{archive}: member {member.name!r} is a link or a device; nothing was extracted")


def _write(archive: Path, member: _Member, path: Path) -> None:
    content = member.open and member.open()
    if content is None:
        return
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("xb")
        except (FileExistsError, NotADirectoryError) as error:
            where = f"{archive}: member {member.name!r} stands where another does"
            raise DataError(f"{where}; nothing was extracted") from error
    with content, handle:
        while chunk := content.read(_CHUNK):
            with writing(path):
                handle.write(chunk)
        with writing(path):
            handle.flush()
            os.fsync(handle.fileno())
