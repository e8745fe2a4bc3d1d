"""Fetching one file over HTTP: into a part beside the target, resumed where it broke off, verified, then renamed."""

import http.client
import os
import re
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from phmctl.console import progress
from phmctl.errors import DownloadError
from phmctl.files import sha256 as sha256_of
from phmctl.files import sync_folder, write_atomic, writing

_CHUNK = 1 << 18  # bytes
_BROKEN = (OSError, http.client.HTTPException)  # a disk's OSError has become an OutputError before
_STRONG_TAG = re.compile('"[\x21\x23-\x7e\x80-\xff]*"')  # as RFC 9110 has it
_LARGEST = 64 << 30  # bytes of a file
_SLOWEST = 1 << 12  # bytes a second of a connection
_FINAL = {400, 401, 403, 404, 410, 451}  # answers that asking again does not change


class _IncompleteError(Exception):
    """The connection ended before the file did."""


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
    """Fetch `url` into `target`, unless it is there already. One process at a time may do so.

    What arrives is kept in ``<target>.<random>.part``, and a later call takes it over and goes on from there. The
    server is asked to send the rest only if the file is still the same; where neither its ETag nor a SHA-256 could
    tell, the fetch begins anew.

    Args:
        url: an ``http(s)`` or ``file`` address.
        target: the file to make, and to return.
        sha256: the content's SHA-256 in hexadecimal, if known; a file that has another is fetched again.
        refetch: fetch it even if it is there; what was there stays until the new one is whole.
        attempts: connections tried in a row.
        timeout: seconds without an answer, or with less than 4 KiB a second, after which a connection counts as broken.
        pause: seconds before the second attempt, doubled for each further one.
        limit: bytes of the file, at most.

    Raises:
        DownloadError: the server cannot be reached, refuses, redirects to what is no HTTP, or sends too much or
            something else than the SHA-256 says.
        OutputError: the folder cannot be written.
    """
    if target.is_file() and not refetch and (sha256 is None or sha256_of(target) == sha256):
        return target
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    part = _Part(target, trusted=sha256 is not None, limit=limit)
    _fetch(url, part, attempts, timeout, pause)
    part.verify(url, sha256)
    part.publish()
    return target


def _fetch(url: str, part: "_Part", attempts: int, timeout: float, pause: float) -> None:
    """Receive the whole file, over as many connections as it takes and `attempts` allows."""
    with progress(f"fetching {part.target.name}", None) as advance:
        for attempt in range(1, attempts + 1):
            try:
                return _receive(url, part, timeout, advance)
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in _FINAL or attempt == attempts:
                    raise _refused(url, f"the server answers {error.code} {error.reason}") from error
            except (*_BROKEN, _IncompleteError, ValueError) as error:
                if attempt == attempts or isinstance(error, ValueError):
                    raise _refused(url, str(getattr(error, "reason", error)) or type(error).__name__) from error
            time.sleep(pause * 2 ** (attempt - 1))
    return None


def _receive(url: str, part: "_Part", timeout: float, advance: Callable[[int], None]) -> None:
    """Receive what is missing over one connection."""
    rest = part.headers()
    request = urllib.request.Request(url, headers={"User-Agent": "phmctl", **rest})
    try:
        response = urllib.request.build_opener(_Redirects).open(request, timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code == 416 and rest:  # nothing behind what we have: whole already, or of another file
            error.close()
            return part.settle(error.headers.get("Content-Range", ""))
        raise
    with response:
        resumed = getattr(response, "status", None) == 206
        part.begin(response, resumed=resumed)
        expected = response.headers.get("Content-Length")
        received = part.append(response, timeout, resumed=resumed, advance=advance)
        if expected is not None and received < int(expected):
            raise _IncompleteError(f"the connection ended after {received:,} of {int(expected):,} bytes")
    return None


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows a server to HTTP addresses alone."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith(("http://", "https://")):
            raise urllib.error.HTTPError(newurl, code, f"{msg}: {newurl} is no http address", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Part:
    """What has arrived of a file, and the ETag of the file that it belongs to."""

    def __init__(self, target: Path, *, trusted: bool, limit: int = _LARGEST) -> None:
        self.target, self.limit = target, limit
        self.path = target.with_name(f"{target.name}.{secrets.token_hex(4)}.part")
        self.tag_path = self._tag_of(self.path)
        self.trusted = trusted  # a SHA-256 will tell whether the pieces fit
        with writing(target):
            self._take_over()

    def _take_over(self) -> None:
        """Go on with what the last fetch that ended early left; sweep what others did."""
        name = re.compile(re.escape(self.target.name) + r"(?:\.[0-9a-f]{8})?\.part")
        left = [path for path in self.target.parent.iterdir() if name.fullmatch(path.name)]
        left.sort(key=lambda path: path.stat().st_mtime_ns)
        for path in left[:-1]:
            path.unlink()
            self._tag_of(path).unlink(missing_ok=True)
        for path in left[-1:]:
            path.rename(self.path)
            with suppress(FileNotFoundError):
                self._tag_of(path).rename(self.tag_path)

    @staticmethod
    def _tag_of(path: Path) -> Path:
        return path.with_name(path.name + ".etag")

    @property
    def size(self) -> int:
        """Bytes that are there."""
        return self.path.stat().st_size if self.path.is_file() else 0

    def headers(self) -> dict[str, str]:
        """Return the request's headers that ask for the rest."""
        tag = self.tag_path.read_text(encoding="latin-1") if self.tag_path.is_file() else ""
        if not self.size or not (tag or self.trusted):
            return {}
        return {"Range": f"bytes={self.size}-"} | ({"If-Range": tag} if tag else {})

    def begin(self, response: Any, *, resumed: bool) -> None:
        """Check that a partial answer begins where the part ends; note which file a whole one belongs to."""
        if resumed:
            if not str(response.headers.get("Content-Range", "")).startswith(f"bytes {self.size}-"):
                self.discard()
                raise _IncompleteError("the server sends another part than was asked for")
            return
        tag = str(response.headers.get("ETag", ""))
        if _STRONG_TAG.fullmatch(tag):  # a weak one, W/"...", promises no equal bytes
            write_atomic(self.tag_path, tag.encode("latin-1"))
        else:
            self.tag_path.unlink(missing_ok=True)

    def append(self, response: Any, timeout: float, *, resumed: bool, advance: Callable[[int], None]) -> int:
        """Write the answer's body; return its bytes."""
        received, began = 0, time.monotonic()
        with writing(self.path):
            handle = self.path.open("ab" if resumed else "wb")
        with handle:
            while chunk := response.read1(_CHUNK):
                with writing(self.path):
                    handle.write(chunk)
                received += len(chunk)
                advance(len(chunk))
                if handle.tell() > self.limit:
                    self.discard()
                    raise ValueError(f"the file has more than {self.limit:,} bytes")
                seconds = time.monotonic() - began
                if seconds > timeout and received < _SLOWEST * seconds:
                    raise _IncompleteError(f"only {received:,} bytes came in {seconds:.0f} seconds")
        return received

    def settle(self, content_range: str) -> None:
        """Keep a part that is as long as the file; drop one that is not."""
        if content_range != f"bytes */{self.size}":
            self.discard()
            raise _IncompleteError("the file on the server has changed")

    def verify(self, url: str, expected: str | None) -> None:
        """Compare the SHA-256, where it is known."""
        if expected is None:
            return
        actual = sha256_of(self.path)
        if actual != expected:
            self.discard()
            raise DownloadError(
                f"{url} has SHA-256 {actual[:12]}..., but {expected[:12]}... was expected; what arrived was dropped\n"
                "the publisher has changed the file, or something on the way did; try again, or use --source DIR"
            )

    def publish(self) -> None:
        """Give the finished file its name."""
        with writing(self.target):
            with self.path.open("rb+") as handle:
                os.fsync(handle.fileno())
            self.path.replace(self.target)
            self.tag_path.unlink(missing_ok=True)
            sync_folder(self.target.parent)

    def discard(self) -> None:
        """Forget what has arrived."""
        self.path.unlink(missing_ok=True)
        self.tag_path.unlink(missing_ok=True)


def _refused(url: str, reason: str) -> DownloadError:
    return DownloadError(
        f"cannot fetch {url}: {reason}\nwith the network back, run it again; if you have the files, use --source DIR"
    )
