"""Fetching files over HTTP, and unpacking archives."""

import http.client
import tarfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from phmctl.console import progress
from phmctl.data.card import Url
from phmctl.errors import DataError, DownloadError
from phmctl.files import clear, replacing, sync, writing
from phmctl.files import sha256 as sha256_of

_CHUNK = 1 << 18  # bytes
LARGEST = 64 << 30  # bytes of a file, of a dataset of the hub, and of what an archive unpacks to
_ATTEMPTS, _TIMEOUT, _PAUSE = 3, 20.0, 1.0  # seconds without an answer; between attempts, at first
_FINAL = {400, 401, 403, 404, 410, 451}  # answers that asking again does not change


def download(url: str, target: Path, *, sha256: str | None = None, refetch: bool = False) -> None:
    """Fetch `url` into `target`, unless it is there with this SHA-256. One process at a time may do so.

    What arrives stays in ``<target>.part``; where a SHA-256 will tell whether the parts fit, a later call asks for the
    rest of it. Raises DownloadError.
    """
    if target.is_file() and not refetch and (sha256 is None or sha256_of(target) == sha256):
        return
    part = target.with_name(f"{target.name}.part")
    with writing(target), progress(f"fetching {target.name}", None) as advance:
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                _receive(url, part, sha256 is not None, advance)
                break
            except (OSError, http.client.HTTPException, ValueError) as error:  # a disk's is an OutputError by now
                status = None
                if isinstance(error, urllib.error.HTTPError):
                    status = error.code
                    error.close()
                if status == 416:  # nothing lies behind the part that is here
                    part.unlink(missing_ok=True)
                if status in _FINAL or attempt == _ATTEMPTS:
                    raise DownloadError(
                        f"cannot fetch {url}: {str(error) or type(error).__name__}\n"
                        "with the network back, run it again; if you have the files, use --source DIR"
                    ) from error
            time.sleep(_PAUSE * 2 ** (attempt - 1))
        if sha256 is not None and (actual := sha256_of(part)) != sha256:
            part.unlink()
            raise DownloadError(
                f"{url} has SHA-256 {actual[:12]}..., but {sha256[:12]}... was expected; what arrived was dropped\n"
                "the publisher has changed the file, or something on the way did; try again, or use --source DIR"
            )
        sync(part)
        part.replace(target)
        sync(target.parent)


def _receive(url: str, part: Path, resume: bool, advance: Callable[[int], None]) -> None:
    size = part.stat().st_size if resume and part.is_file() else 0
    headers = {"User-Agent": "phmctl", **({"Range": f"bytes={size}-"} if size else {})}
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as response:
        if getattr(response, "status", None) != 206:
            size = 0  # the server sends the whole file
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


# Text packs 3 to 20 times, so an archive that unpacks to more than this was made to fill a disk.
_RATIO = 200
_ALWAYS = 256 << 20  # bytes that any archive may unpack to
_MEMBERS = 100_000


def fetch_all(urls: Iterable[Url], cache: Path, *, refetch: bool = False) -> None:
    """Fetch a card's files into the cache, and unpack archives there. Nobody else may write there meanwhile."""
    for item in urls:
        target, folder = cache / item.file, cache / f"{item.file}.extracted"
        download(item.url, target, sha256=item.sha256, refetch=refetch)
        if item.extract:
            clear(folder)
            if refetch or not folder.is_dir():
                extract(target, folder)


def extract(archive: Path, folder: Path) -> None:
    """Unpack a tar (plain or compressed) or zip archive into a new folder, which appears only when it is whole.

    Links and devices are refused: a corpus has no need of them, and a link can lead out. So is what unpacks to more
    than 200 times the archive's size and 256 MiB.
    """
    left = limit = min(LARGEST, max(_ALWAYS, _RATIO * archive.stat().st_size))
    with replacing(folder) as content:
        try:
            for number, (name, size, plain, unpack) in enumerate(_members(archive), start=1):
                left -= max(size, 0)
                if left < 0 or number > _MEMBERS:
                    raise DataError(
                        f"{archive} holds more than {limit:,} bytes or {_MEMBERS:,} members; nothing was extracted\n"
                        "if it is right, unpack it yourself and name the folder: --source DIR"
                    )
                path = PurePosixPath(name)
                if not plain or path.is_absolute() or ".." in path.parts:
                    what = "leads out of the archive's folder" if plain else "is a link or a device"
                    raise DataError(f"{archive}: member {name!r} {what}; nothing was extracted")
                unpack(content)
        except DataError:
            raise
        except Exception as error:  # tarfile, zipfile and those below them raise a dozen kinds
            if isinstance(error, OSError) and error.errno is not None:  # the operating system's, no reader's
                with writing(folder):
                    raise
            reason = " ".join(str(error).split()) or type(error).__name__
            raise DataError(
                f"{archive} is not a whole tar or zip archive ({reason}); fetch it anew: --refetch"
            ) from error
        with writing(folder):
            for file in filter(Path.is_file, content.rglob("*")):
                sync(file)


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
            plain = member.isfile() or member.isdir()
            yield member.name, member.size, plain, partial(tar.extract, member, filter="data")
        while tar.fileobj is not None and tar.fileobj.read(_CHUNK):
            pass  # to the compressed stream's end, where its checksum stands
