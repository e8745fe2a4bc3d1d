"""Reading ``metrics.jsonl``: a JSON object for each log interval, validation, early stop and average."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from zlib import crc32

from phmctl.console import warn
from phmctl.errors import RunError

_MARK = b', "crc32": "'


def entry_line(entry: Mapping[str, Any]) -> bytes:
    """An entry as it is written: its checksum comes last."""
    body = json.dumps(entry).encode()[:-1]
    return body + _MARK + b'%08x"}\n' % crc32(body)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The entries of a metrics file. A line that is none is left out, with a warning that names it.

    An end that a crash cut short, without a line break, is left out silently.
    """
    lines, end = read_lines(path)
    entries = [read_entry(line) for line in lines]
    warn_of_foreign(path, entries)
    return [entry for entry in (*entries, read_entry(end)) if entry is not None]


def read_lines(path: Path) -> tuple[list[bytes], bytes]:
    """The file's lines, and what stands behind the last line break. Raises RunError where it cannot be read."""
    try:
        *lines, end = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return [], b""
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); copy the run again") from error
    return lines, end


def warn_of_foreign(path: Path, entries: list[dict[str, Any] | None]) -> None:
    """Warn of lines that are no entries, by their numbers."""
    wrong = [str(number) for number, entry in enumerate(entries, start=1) if entry is None]
    if wrong:
        numbers = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        warn(f"{path}, line {numbers}: no JSON object with a step; left out, the other lines count")


def read_entry(line: bytes) -> dict[str, Any] | None:
    """A line's entry: a JSON object with a step and, if any, seconds that are a number; None for another.

    None too where the line is not what was written, by its checksum; a line without one is taken.
    """
    body, mark, checksum = line.rpartition(_MARK)
    if mark:
        if checksum != b'%08x"}' % crc32(body):
            return None
        line = body + b"}"
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # bytes that are not UTF-8 too
        return None
    sound = isinstance(entry, dict) and type(entry.get("step")) is int
    return entry if sound and isinstance(entry.get("seconds", 0.0), (int, float)) else None


def series(entries: Iterable[Mapping[str, Any]], event: str, name: str) -> list[tuple[int, float]]:
    """A curve: the steps and values of one figure, such as ``loss``, in the entries of one event."""
    found = ((entry["step"], entry.get(name)) for entry in entries if entry.get("event") == event)
    return [(step, float(value)) for step, value in found if isinstance(value, (int, float))]
