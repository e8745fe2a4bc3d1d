"""What ``train`` and ``eval`` do with a sweep: print its commands, or carry it out and print what came of it."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

from phmctl.console import Table, emit, emit_json, note


class _Asked(Protocol):
    def commands(self) -> list[str]: ...


class _Report(Protocol):
    @property
    def exit_code(self) -> int: ...

    def as_json(self) -> dict[str, Any]: ...

    def tables(self) -> Iterable[Table]: ...

    def remarks(self) -> Iterable[str]: ...


_A = TypeVar("_A", bound=_Asked)


def carry_out(asked: _A, run: Callable[[_A, int], _Report], jobs: int | None, *, listed: bool, json: bool) -> int:
    """Print a sweep's commands if `listed`, else run it, so many jobs at once; return the exit code."""
    if listed:
        emit_json(asked.commands()) if json else emit("".join(f"{line}\n" for line in asked.commands()))
        return 0
    report = run(asked, jobs or 1)
    if json:
        emit_json(report.as_json())
    for table in () if json else report.tables():
        table.show()
    for remark in report.remarks():
        note(remark)
    return report.exit_code
