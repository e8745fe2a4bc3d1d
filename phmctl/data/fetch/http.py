"""Fetching one file over HTTP: into a part beside the target, resumed where it broke off, verified, then renamed."""

import http.client
import re
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from phmctl.console import progress
from phmctl.errors import DownloadError
from phmctl.files import sha256 as sha256_of
from phmctl.files import sync_file, sync_folder, write_atomic, writing

_CHUNK = 1 << 18  # bytes
_BROKEN = (OSError, http.client.HTTPException)  # a disk's OSError has become an OutputError before
_STRONG_TAG = re.compile('"[\x21\x23-\x7e\x80-\xff]*"')  # as RFC 9110 has it
_LARGEST = 64 << 30  # bytes of a file
_SLOWEST = 1 << 12  # bytes a second of a connection
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

    What arrives stays in ``<target>.part``. A later call asks for the rest if the file is still the same; where neither
    its ETag nor a SHA-256 could tell, it begins anew. A connection counts as broken after `timeout` seconds without an
    answer, or with less than 4 KiB a second.
    """
    if target.is_file() and not refetch and (sha256 is None or sha256_of(target) == sha256):
        return target
    part, tag = (target.with_name(target.name + end) for end in (".part", ".part.etag"))
    with writing(target), progress(f"fetching {target.name}", None) as advance:
        target.parent.mkdir(parents=True, exist_ok=True)
        for attempt in range(1, attempts + 1):
            try:
                _receive(url, part, tag, trusted=sha256 is not None, timeout=timeout, limit=limit, advance=advance)
                break
            except urllib.error.HTTPError as error:
                error.close()
                if error.code in _FINAL or attempt == attempts:
                    raise _refused(url, f"the server answers {error.code} {error.reason}") from error
            except (*_BROKEN, ValueError) as error:
                if attempt == attempts or isinstance(error, ValueError):
                    raise _refused(url, str(getattr(error, "reason", error)) or type(error).__name__) from error
            time.sleep(pause * 2 ** (attempt - 1))
        if sha256 is not None and (actual := sha256_of(part)) != sha256:
            _drop(part, tag)
            raise DownloadError(
                f"{url} has SHA-256 {actual[:12]}..., but {sha256[:12]}... was expected; what arrived was dropped\n"
                "the publisher has changed the file, or something on the way did; try again, or use --source DIR"
            )
        sync_file(part)
        part.replace(target)
        tag.unlink(missing_ok=True)
        sync_folder(target.parent)
    return target


def _receive(
    url: str, part: Path, tag: Path, *, trusted: bool, timeout: float, limit: int, advance: Callable[[int], None]
) -> None:
    """Receive what is missing over one connection; `trusted`: a SHA-256 will tell whether the pieces fit."""
    size = part.stat().st_size if part.is_file() else 0
    known = tag.read_text(encoding="latin-1") if tag.is_file() else ""
    headers = {"User-Agent": "phmctl"}
    if resuming := bool(size and (known or trusted)):
        headers |= {"Range": f"bytes={size}-"} | ({"If-Range": known} if known else {})
    try:
        opener = urllib.request.build_opener(_Redirects)
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=timeout)
    except urllib.error.HTTPError as error:
        if error.code != 416 or not resuming:
            raise
        error.close()  # nothing behind what we have: it is whole already, or of another file
        if error.headers.get("Content-Range", "") == f"bytes */{size}":
            return
        _drop(part, tag)
        raise ConnectionError("the file on the server has changed") from error
    with response:
        resumed = getattr(response, "status", None) == 206
        if resumed and not str(response.headers.get("Content-Range", "")).startswith(f"bytes {size}-"):
            _drop(part, tag)
            raise ConnectionError("the server sends another part than was asked for")
        if not resumed:
            _drop(part, tag)
            found = str(response.headers.get("ETag", ""))
            if _STRONG_TAG.fullmatch(found):  # a weak one, W/"...", promises no equal bytes
                write_atomic(tag, found.encode("latin-1"))
        received = _append(response, part, size if resumed else 0, timeout, limit, advance)
        expected = response.headers.get("Content-Length")
        if expected is not None and received < int(expected):
            raise ConnectionError(f"the connection ended after {received:,} of {int(expected):,} bytes")


def _append(response: Any, part: Path, size: int, timeout: float, limit: int, advance: Callable[[int], None]) -> int:
    """Write the answer's body behind the `size` bytes that are there; return its bytes."""
    received, began = 0, time.monotonic()
    with writing(part):
        handle = part.open("ab")
    with handle:
        while chunk := response.read1(_CHUNK):
            received += len(chunk)
            if size + received > limit:
                part.unlink()
                raise ValueError(f"the file has more than {limit:,} bytes")
            with writing(part):
                handle.write(chunk)
            advance(len(chunk))
            seconds = time.monotonic() - began
            if seconds > timeout and received < _SLOWEST * seconds:
                raise ConnectionError(f"only {received:,} bytes came in {seconds:.0f} seconds")
    return received


class _Redirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if not newurl.startswith(("http://", "https://")):
            raise urllib.error.HTTPError(newurl, code, f"{msg}: {newurl} is no http address", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _drop(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _refused(url: str, reason: str) -> DownloadError:
    return DownloadError(
        f"cannot fetch {url}: {reason}\nwith the network back, run it again; if you have the files, use --source DIR"
    )
