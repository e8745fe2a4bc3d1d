"""Download files over HTTP, and unpack archives."""

import http.client
import math
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple, cast

from phmctl.console import progress
from phmctl.data.card import Url
from phmctl.errors import DataError, DownloadError
from phmctl.storage import clear, replacing, seal, sync, writing
from phmctl.storage import sha256 as sha256_of

_CHUNK = 1 << 18  # bytes
LARGEST = 64 << 30  # bytes of a file, of a dataset of the hub, and of an archive's content
_ATTEMPTS = 3
_TIMEOUT = 20.0  # seconds without data
_PAUSE = 1.0  # seconds before the second attempt; doubles each time
_PERMANENT_ERRORS = {400, 401, 403, 404, 410, 451}  # HTTP status codes for which another attempt is pointless
_RANGE_NOT_SATISFIABLE = 416
_LONGEST_HEADER = 1 << 16  # bytes of a tar member's header with its name and attributes


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
            handle = part.open("ab" if size else "wb")
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
_HEADER_BYTES = 4096  # bytes of a tar member's header, on average, and of the attributes of all members
EXTRACTED = ".extracted-by-phmctl"  # the manifest of a folder of extracted files


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


def extract(archive: Path, folder: Path) -> None:
    """Unpack a tar (plain or compressed) or zip archive into a new folder, completely or not at all.

    Links and devices are refused, because a link can lead out of the folder, as are archives that unpack to more than
    256 MiB and 200 times their size. All members are checked before the first is unpacked.
    """
    limit = min(LARGEST, max(_ALWAYS_ALLOWED, _LARGEST_RATIO * archive.stat().st_size))
    with replacing(folder, EXTRACTED, "files") as content, ExitStack() as opened:
        try:
            members: list[_Member] = []
            total = 0
            for member in _members(archive, opened):
                members.append(member)
                total += max(member.size, 0)
                if total > limit or len(members) > _MOST_MEMBERS:
                    raise DataError(
                        f"{archive} contains more than {limit:,} bytes or {_MOST_MEMBERS:,} members; nothing was "
                        "extracted\nif that is intended, unpack it yourself and use --source DIR"
                    )
                _check_member(archive, member)
            for member in members:
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
            seal(content, EXTRACTED, {})


def _check_member(archive: Path, member: _Member) -> None:
    if not member.is_plain:
        raise DataError(f"{archive}: member {member.name!r} is a link, a device or sparse; nothing was extracted")
    path = PurePosixPath(member.name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{archive}: member {member.name!r} is outside the archive's folder; nothing was extracted")


def _members(archive: Path, opened: ExitStack) -> Iterator[_Member]:
    """Yield the members of an archive, which can be unpacked until `opened` is closed."""
    if zipfile.is_zipfile(archive):
        zipped = opened.enter_context(zipfile.ZipFile(archive))
        for info in zipped.infolist():
            file_type = info.external_attr >> 28  # Unix file type; 0 in archives from other systems
            yield _Member(info.filename, info.file_size, file_type in (0, 4, 8), partial(zipped.extract, info))
        return
    file = opened.enter_context(archive.open("rb"))
    tar = opened.enter_context(_Tar.open(fileobj=file))
    for member in tar:
        if sum(map(len, chain.from_iterable(tar.pax_headers.items()))) > _HEADER_BYTES:  # copied for each member
            raise _too_long_headers()
        member.pax_headers = {}  # already applied
        tar.reader.allow(_HEADER_BYTES)
        is_plain = (member.isfile() or member.isdir()) and not member.issparse()
        yield _Member(member.name, member.size, is_plain, partial(tar.extract, member, filter="data"))
    tar.reader.allow(math.inf)
    while tar.reader.read(_CHUNK):
        pass  # read to the end, so that the compressed stream's checksum is verified


def _too_long_headers() -> ValueError:
    return ValueError("its names or attributes are too long")


class _Tar(tarfile.TarFile):
    """A tar archive whose headers are read up to a limit, because tarfile reads each into memory as a whole."""

    def __init__(self, name: Any = None, mode: Any = "r", fileobj: Any = None, **options: Any) -> None:
        self.reader = _LimitedReader(fileobj)
        super().__init__(name, mode, cast("Any", self.reader), **options)


class _LimitedReader:
    """A binary file of which only a number of bytes may be read. To seek is free."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek, self.tell, self.close = file.seek, file.tell, file.close
        self._file = file
        self._allowed: float = _LONGEST_HEADER

    def allow(self, size: float) -> None:
        """Allow `size` further bytes; a finite number does not add up to more than the longest header."""
        self._allowed = size if size == math.inf else min(self._allowed + size, _LONGEST_HEADER)

    def read(self, size: int = -1) -> bytes:
        self._allowed -= size
        if self._allowed < 0:
            raise _too_long_headers()
        return self._file.read(size)
