"""Download files over HTTP, and unpack archives."""

import http.client
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Self

from phmctl.console import progress
from phmctl.data.card import Url
from phmctl.errors import DataError, DownloadError
from phmctl.files import clear, open_without_links, replacing, sync, writing
from phmctl.files import sha256 as sha256_of

_CHUNK = 1 << 18  # bytes
LARGEST = 64 << 30  # bytes of a file, of a dataset of the hub, and of an archive's content
_ATTEMPTS = 3
_TIMEOUT = 20.0  # seconds without data
_PAUSE = 1.0  # seconds before the second attempt; doubles each time
_PERMANENT_ERRORS = {400, 401, 403, 404, 410, 451}  # HTTP status codes for which another attempt is pointless
_RANGE_NOT_SATISFIABLE = 416
_LONGEST_HEADER = 1 << 16  # bytes of a tar header with a long name or attributes
_LONG_HEADERS = {
    *(tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
}


def download(url: str, target: Path, *, sha256: str | None = None, refetch: bool = False) -> None:
    """Download `url` to `target` unless the file exists with this SHA-256. Only one process may do so at a time.

    Partial content stays in ``<target>.part``. A later call continues it if the SHA-256 is known, because only then
    parts of different versions are noticed. Raises DownloadError.
    """
    if target.is_file() and not refetch and (sha256 is None or sha256_of(target) == sha256):
        return
    part = target.with_name(f"{target.name}.part")
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        _receive_with_retries(url, part, resume=sha256 is not None)
        if sha256 is not None and (actual := sha256_of(part)) != sha256:
            part.unlink()
            raise DownloadError(
                f"{url} has SHA-256 {actual[:12]}..., but {sha256[:12]}... was expected; the download was deleted\n"
                "the publisher has changed the file, or the transfer damaged it: try again, or use --source DIR"
            )
        sync(part)
        part.replace(target)
        sync(target.parent)


def _receive_with_retries(url: str, part: Path, *, resume: bool) -> None:
    with progress(f"fetching {part.stem}", None) as advance:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _receive(url, part, resume, advance)
                return
            except (OSError, http.client.HTTPException, ValueError) as error:  # disk errors are already OutputErrors
                status = None
                if isinstance(error, urllib.error.HTTPError):
                    status = error.code
                    error.close()
                if status == _RANGE_NOT_SATISFIABLE:
                    part.unlink(missing_ok=True)
                if status in _PERMANENT_ERRORS or attempt == _ATTEMPTS:
                    raise DownloadError(
                        f"cannot fetch {url}: {str(error) or type(error).__name__}\n"
                        "check the network and run it again; if you have the files, use --source DIR"
                    ) from error
            time.sleep(_PAUSE * 2 ** (attempt - 1))


def _receive(url: str, part: Path, resume: bool, advance: Callable[[int], None]) -> None:
    size = part.stat().st_size if resume and part.is_file() else 0
    headers = {"User-Agent": "phmctl"}
    if size:
        headers["Range"] = f"bytes={size}-"
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as response:
        if getattr(response, "status", None) != http.client.PARTIAL_CONTENT:
            size = 0  # the server sends the complete file
        with writing(part):
            handle = open_without_links(part, "a" if size else "w")
        received = 0
        with handle:
            while chunk := response.read1(_CHUNK):
                received += len(chunk)
                if size + received > LARGEST:
                    part.unlink()
                    raise DownloadError(f"{url} has more than {LARGEST:,} bytes")
                with writing(part):
                    handle.write(chunk)
                advance(len(chunk))
        expected = response.headers.get("Content-Length")
        if expected is not None and received < int(expected):
            raise ConnectionError(f"the connection ended after {received:,} of {int(expected):,} bytes")


# Text compresses 3 to 20 times. An archive with a larger ratio was made to fill a disk.
_LARGEST_RATIO = 200
_ALWAYS_ALLOWED = 256 << 20  # bytes that any archive may unpack to
_MOST_MEMBERS = 100_000
EXTRACTED = ".extracted-by-phmctl"  # the file that marks a folder of extracted files


def fetch_all(urls: Iterable[Url], cache: Path, *, refetch: bool = False) -> None:
    """Download a card's files into the cache and unpack its archives. Only one process may do so at a time."""
    for item in urls:
        target = cache / item.file
        download(item.url, target, sha256=item.sha256, refetch=refetch)
        if item.extract:
            folder = cache / f"{item.file}.extracted"
            clear(folder)
            if refetch or not folder.is_dir():
                extract(target, folder)


class _Member(NamedTuple):
    name: str
    size: int  # bytes
    is_plain: bool  # a file or a folder
    unpack: Callable[[Path], object]  # into a folder


class _Header(tarfile.TarInfo):
    """A tar header of limited size, because tarfile reads a long name and attributes into memory at once."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        header = super().frombuf(buf, encoding, errors)
        if header.type in _LONG_HEADERS and header.size > _LONGEST_HEADER:
            raise ValueError(f"a header has {header.size:,} bytes, more than {_LONGEST_HEADER:,}")
        return header


def extract(archive: Path, folder: Path) -> None:
    """Unpack a tar (plain or compressed) or zip archive into a new folder, completely or not at all.

    Links and devices are refused, because a link can lead out of the folder, as are archives that unpack to more than
    256 MiB and 200 times their size.
    """
    limit = min(LARGEST, max(_ALWAYS_ALLOWED, _LARGEST_RATIO * archive.stat().st_size))
    with replacing(folder, EXTRACTED) as content:
        try:
            total = 0
            for number, member in enumerate(_members(archive), start=1):
                total += max(member.size, 0)
                if total > limit or number > _MOST_MEMBERS:
                    raise DataError(
                        f"{archive} contains more than {limit:,} bytes or {_MOST_MEMBERS:,} members; nothing was "
                        "extracted\nif that is intended, unpack it yourself and use --source DIR"
                    )
                _check_member(archive, member)
                member.unpack(content)
        except DataError:
            raise
        except Exception as error:  # tarfile, zipfile and the decompressors raise a dozen types
            if isinstance(error, OSError) and error.errno is not None:  # raised by the operating system
                with writing(folder):
                    raise
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(f"{archive} is not a complete tar or zip archive ({reason}); use --refetch") from error
        with writing(folder):
            (content / EXTRACTED).touch()
            for file in filter(Path.is_file, content.rglob("*")):
                sync(file)


def _check_member(archive: Path, member: _Member) -> None:
    if not member.is_plain:
        raise DataError(f"{archive}: member {member.name!r} is a link or a device; nothing was extracted")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{archive}: member {member.name!r} is outside the archive's folder; nothing was extracted")


def _members(archive: Path) -> Iterator[_Member]:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as zipped:
            for info in zipped.infolist():
                file_type = info.external_attr >> 28  # Unix file type; 0 in archives from other systems
                yield _Member(info.filename, info.file_size, file_type in (0, 4, 8), partial(zipped.extract, info))
        return
    with tarfile.open(archive, tarinfo=_Header) as tar:
        for member in tar:
            is_plain = member.isfile() or member.isdir()
            yield _Member(member.name, member.size, is_plain, partial(tar.extract, member, filter="data"))
        while tar.fileobj is not None and tar.fileobj.read(_CHUNK):
            pass  # read to the end, so that the compressed stream's checksum is verified
