"""``decode``: what a model answers to lines of text as they come."""

import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from phmctl.console import emit, json_text, warn
from phmctl.decoding.model import Advance, Model, ignore
from phmctl.errors import OutputError
from phmctl.inference.answers_file import AnswersFile
from phmctl.metrics.text import Degenerate


def answer(
    model: Model,
    groups: Iterable[Sequence[str]],
    *,
    output: AnswersFile | None = None,
    as_json: bool = False,
    advance: Advance = ignore,
) -> None:
    """Answer groups of lines as they come: into a file, on stdout, or both. What is wrong with all of them is said.

    What `output` has already answered is passed over; without it the answers go to stdout. `as_json` prints a JSON
    object a line of input: ``line``, its number, and what the task answers. `advance` is told how many lines are done.
    OutputError: the file or stdout cannot be written, or the file answers other lines.
    """
    number = 1 + (output.lines if output else 0)
    counted = Degenerate()
    advance(number - 1)
    for group in groups if output is None else output.unanswered(groups):
        found = model.answer(group, first=number, advance=advance)
        answers = [line for line, _ in found]
        text = "".join(f"{line}\n" for line in answers)
        counted.add(group, answers)
        if output is not None:
            output.add(group, text)
        if as_json:
            objects = ({"line": place, **each} for place, (_, each) in enumerate(found, start=number))
            emit("".join(f"{json_text(each)}\n" for each in objects))
        elif output is None:
            emit(text)
        number += len(group)
    if output is not None:
        output.finish()
    for remark in counted.remarks():
        warn(remark)


def refuse_same_file(source: Path | None, output: Path) -> None:
    """Refuse (OutputError) to write over the text that is read; None is stdin."""
    with suppress(OSError, ValueError, AttributeError):  # no such file, or a stdin that is none
        read = os.fstat(sys.stdin.fileno()) if source is None else source.stat()
        if os.path.samestat(read, output.stat()):
            raise OutputError(f"{output} is the text that is read; name another file for the answers")
