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
    """The entries of a metrics file; none of a file that is not there. Raises RunError where it cannot be read."""
    return [entry for _, entry in read_lines(path)]


def read_lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """The lines of a metrics file and their entries. A line that is none is left out, with a warning that names it.

    An end that a crash cut short, without a line break, is left out silently.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); copy the run again") from error
    entries = [read_entry(line) for line in lines]
    wrong = [str(number) for number, entry in enumerate(entries[:-1], start=1) if entry is None]
    if wrong:
        numbers = ", ".join(wrong[:5]) + (f" and {len(wrong) - 5} more" if len(wrong) > 5 else "")
        warn(f"{path}, line {numbers}: no JSON object with a step; left out, the other lines count")
    return [(line, entry) for line, entry in zip(lines, entries, strict=True) if entry is not None]


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
