"""``decode``: what a model answers to lines of text, as they come."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import emit, json_text, warn
from phmctl.errors import OutputError
from phmctl.inference.answers_file import AnswersFile
from phmctl.metrics.degenerate import Degenerate

if TYPE_CHECKING:
    from phmctl.runs import Run, Weights
    from phmctl.tasks.model import Model


def answer(
    model: "Model",
    groups: Iterable[Sequence[str]],
    *,
    predict: Callable[..., list[Any]] | None = None,
    output: AnswersFile | None = None,
    as_json: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Answer groups of lines as they come: into a file, on stdout, or both. What is wrong with all of them is said.

    Args:
        model: answers.
        groups: of lines; those that the file has already answered are passed over.
        predict: how lines are answered, if not by the model alone.
        output: a file for the answers as lines of text; without it they go to stdout.
        as_json: print a JSON object a line of input on stdout: ``line``, its number, and what the task answers.
        advance: told how many lines are done, for a progress bar.

    Raises:
        OutputError: the file or stdout cannot be written, or the file answers other lines.
    """
    number = 1 + (output.lines if output else 0)
    counted = Degenerate()
    advance(number - 1)
    for group in groups if output is None else output.unanswered(groups):
        found = (predict or model.predict)(group, numbers=range(number, number + len(group)), advance=advance)
        answers = list(model.lines(found, first_line=number))
        text = "".join(f"{line}\n" for line in answers)
        if len(answers) == len(group):
            counted.add(group, answers)
        if output is not None:
            output.add(group, text)
        if as_json:
            objects = ({"line": place, **each} for place, each in enumerate(model.as_json(found), start=number))
            emit("".join(f"{json_text(each)}\n" for each in objects))
        elif output is None:
            emit(text)
        number += len(group)
    if output is not None:
        output.finish()
    for remark in counted.remarks():
        warn(remark)


def open_output(path: Path, model: "Model", run: "Run", weights: "Weights", *, resume: bool) -> AnswersFile:
    """Open the file that a model's answers go to; see :class:`~phmctl.inference.answers_file.AnswersFile`."""
    origin: dict[str, Any] = {"run": run.name, "checkpoint": weights.name, "weights": weights.sha256}
    return AnswersFile(path, {**origin, **model.origin()}, resume=resume)


def refuse_same_file(source: Path | None, output: Path) -> None:
    """Refuse (OutputError) to write over the text that is read; None is stdin."""
    try:
        read = os.fstat(sys.stdin.fileno()) if source is None else source.stat()
        same = output.is_file() and os.path.samestat(read, output.stat())
    except (OSError, ValueError, AttributeError):  # no such file, or a stdin that is none
        return
    if same:
        raise OutputError(f"{output} is the text that is read; name another file for the answers")
