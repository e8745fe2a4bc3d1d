"""Unpacking tar and zip archives without ever writing outside their folder, and fetching them first."""

import lzma
import os
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import IO, Self

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
    """Fetch a card's files into the cache, and unpack those that are archives, each into a folder of its own.

    Nobody else may write there meanwhile: what a killed process left is swept. With `refetch` what is there already is
    fetched, too.

    Raises:
        DownloadError: a server cannot be reached, or refuses.
        DataError: an archive is damaged, or too large.
        OutputError: the cache cannot be written.
    """
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
    """Unpack a tar (plain or compressed) or zip archive into a new folder.

    All members are checked before the first is written, and the folder appears only when it is whole. One that is there
    already is left as it is. Links and devices are refused: a corpus has no need of them, and a link can lead out.

    Args:
        archive: the file.
        folder: the folder to make, and to return.
        limit: bytes of its content, at most; None: 200 times its size, or 256 MiB if that is more, up to 64 GiB.
        members: how many it may have.
        anew: replace a folder that is there already.

    Raises:
        DamagedError: the archive is not whole.
        DataError: it holds too much, or a member's name leads out of the folder; nothing is extracted then.
        OutputError: the folder cannot be written.
    """
    if folder.is_dir() and not anew:
        return folder
    with replacing(folder) as content, _reading(archive):
        room = _Room(archive, limit, members)
        if zipfile.is_zipfile(archive):
            _extract_zip(archive, content, room)
        else:
            _extract_tar(archive, content, room)
    return folder


class _Room:
    """How much an archive may still hold."""

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


def _extract_tar(archive: Path, folder: Path, room: _Room) -> None:
    class Header(tarfile.TarInfo):
        """Counts what headers of long names and attributes hold, before it is read into memory at once."""

        @classmethod
        def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
            header = super().frombuf(buf, encoding, errors)
            if header.type in _EXTENSIONS:
                room.take(header.size, members=0, names=True)
            return header

    with tarfile.open(archive, tarinfo=Header) as tar:
        members = []
        for member in tar:
            room.take(member.size)
            members.append(member)
        while tar.fileobj is not None and (rest := tar.fileobj.read(_CHUNK)):
            room.take(len(rest), members=0)  # to the compressed stream's end, where its checksum stands
        for member in members:
            _check(archive, member.name, regular=member.isfile() or member.isdir())
        for member in members:
            if member.isfile():
                _write(tar.extractfile(member), archive, folder, member.name)


def _extract_zip(archive: Path, folder: Path, room: _Room) -> None:
    with zipfile.ZipFile(archive) as packed:
        members = packed.infolist()
        for member in members:
            kind = member.external_attr >> 28  # the file type of Unix, 0 where the archive was made elsewhere
            _check(archive, member.filename, regular=kind in (0, 4, 8))
            room.take(member.file_size)
        for member in members:
            if not member.is_dir():
                with packed.open(member) as content:
                    _write(content, archive, folder, member.filename)


def _check(archive: Path, name: str, *, regular: bool) -> None:
    parts = PurePosixPath(name.replace("\\", "/")).parts
    if ".." in parts or PureWindowsPath(name).anchor:  # an anchor: /, \\ or a drive
        raise DataError(f"{archive}: member {name!r} leads out of the archive's folder; nothing was extracted")
    if not regular:
        raise DataError(f"{archive}: member {name!r} is a link or a device; nothing was extracted")


def _write(content: IO[bytes] | None, archive: Path, folder: Path, name: str) -> None:
    path = folder / name
    if content is None:
        return
    if path.exists() or any(above.is_file() for above in path.parents if above.is_relative_to(folder)):
        raise DataError(f"{archive}: member {name!r} stands where another does; nothing was extracted")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as handle:
            shutil.copyfileobj(content, handle)
            handle.flush()
            os.fsync(handle.fileno())
