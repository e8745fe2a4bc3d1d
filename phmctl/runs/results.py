"""The log of a run and its results.

The log, ``metrics.jsonl``, has an object for each interval, validation, early stop and average. Results are files in
``results/`` that say what was found and what made it: settings, checkpoint, seed, version. One file a setting::

    test.step-001800.beam-5.alpha-0.6.1f3a9c02.json    the report, and under `made` what made it
    test.step-001800.beam-5.alpha-0.6.7b20d1e4.hyp     what was scored, under a name of its own settings

The digits are of the weights and of all settings, so nothing is overwritten by another beam or by weights that were
trained further. A result holds the SHA-256 of what was scored: what was changed since is left out, with a warning.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from phmctl import __version__
from phmctl.console import warn
from phmctl.errors import RunError
from phmctl.files import sha256, sha256_text, write_json
from phmctl.runs.run import Run, Weights, git_revision

_FORMAT = 1  # of `made`
_UNFIT = re.compile(r"[^A-Za-z0-9.-]+")


@dataclass(frozen=True)
class Setting:
    """What decides a result; it names the result's files."""

    split: str  # test or valid
    weights: Weights  # which checkpoint, and what tells its weights from others
    values: Mapping[str, Any] = field(default_factory=dict)  # settings that decide what is found, not the speed
    label: str = ""  # the settings that people look for, shortly: beam-5.alpha-0.6

    def beside(self, against: str, weights: Weights) -> Self:
        """What decides the comparison of this with a baseline's weights."""
        values = {**self.values, "against": against, "against_sha256": weights.sha256}
        return replace(self, values=values, label=f"{self.label}.against.{against}".lstrip("."))

    def path(self, run: Run, suffix: str) -> Path:
        """The file with this suffix (``json``, ``hyp``) in a run's results."""
        digest = sha256_text([json.dumps([self.weights.sha256, dict(self.values)], sort_keys=True)])[:8]
        parts = [self.split, self.weights.name, self.label, digest, suffix]
        return run.results_folder / ".".join(_UNFIT.sub("-", part).strip("-")[:100] or "text" for part in parts if part)


@dataclass(frozen=True)
class Result:
    """A result's file: the report, and what stands under `made`."""

    path: Path  # the file
    report: Mapping[str, Any]  # all that the task found, as eval --json prints it
    answers: Path | None  # the file of what was scored, a line an example: .hyp, .predictions.tsv
    split: str  # test or valid
    checkpoint: str  # the name of the checkpoint's folder: step-001800, average
    settings: Mapping[str, Any]  # what decided it beside the weights: of a translator decoding and lowercase
    scores: Mapping[str, float]  # by name: BLEU, chrF and TER; accuracy, a share; a rule's errors
    against: str | None  # the baseline's name where the report holds a comparison
    checkpoint_sha256: str  # of the checkpoint's manifest
    seed: int  # of the training
    phmctl: str  # its version
    git: str | None  # its commit
    date: str  # on which it was scored

    def as_json(self) -> dict[str, Any]:
        """What tells results apart, and the scores; the file has the report."""
        return {"file": self.path.name, **{name: getattr(self, name) for name in _MADE}}


_MADE = tuple(field.name for field in fields(Result) if field.name not in ("path", "report", "answers"))


def write_result(run: Run, setting: Setting, report: Mapping[str, Any], answers: Path | None = None) -> Path:
    """Write a result into a run; return its file. `answers` is the file of what was scored."""
    made = {
        "format": _FORMAT,
        "split": setting.split,
        "checkpoint": setting.weights.name,
        "checkpoint_sha256": setting.weights.sha256,
        "settings": dict(setting.values),
        "scores": scores_of(report),
        "against": setting.values.get("against"),
        "answers": None if answers is None else answers.name,
        "answers_sha256": sha256(answers) if answers is not None and answers.is_file() else None,
        "seed": run.recipe.training.seed,
        "phmctl": __version__,
        "git": git_revision(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    path = setting.path(run, "json")
    write_json(path, {"made": made, **report})
    return path


def read_results(run: Run) -> list[Result]:
    """The results that lie in a run, by file name. What is no result is left out; of what is damaged is warned."""
    return [found for path in sorted(run.results_folder.glob("*.json")) if (found := _read(path)) is not None]


def _read(path: Path) -> Result | None:
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        made = report.pop("made", None) if isinstance(report, dict) else None
        if made is None:  # no result
            return None
        if made["format"] != _FORMAT:
            warn(f"{path} is of format {made['format']!r}, and this phmctl reads {_FORMAT}; score the run anew")
            return None
        named = None if made["answers"] is None else path.with_name(made["answers"])
        answers = named if named is not None and named.is_file() else None
        if answers is not None and made["answers_sha256"] not in (None, sha256(answers)):
            warn(f"{answers} is not what was scored: no test has it; score the run again")
            answers = None
        if [type(made[name]) for name in ("split", "checkpoint", "settings", "scores")] != [str, str, dict, dict]:
            raise TypeError
        sum(made["scores"].values())  # of numbers
        return Result(path, report, answers, **{name: made[name] for name in _MADE})
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError) as error:
        reason = " ".join(str(error).split()) if isinstance(error, OSError | ValueError) else "not what eval writes"
        warn(f"{path} is damaged ({reason}), so its result is left out; remove it and score the run again")
        return None


def scores_of(report: Mapping[str, Any]) -> dict[str, float]:
    """The figures by which runs are compared from what a task found, as ``eval --json`` prints it."""
    if "accuracy" in report:
        return {"accuracy": float(report["accuracy"]["value"])}
    if "scores" in report:
        return {score["name"]: float(score["value"]) for score in report["scores"]}
    if "tasks" in report:  # of probing
        return {name: float(task["figures"]["run"]["value"]) for name, task in report["tasks"].items()}
    return {name: float(report[name]) for name in ("map_error", "loss")}


def tests_of(report: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    """The tests against a baseline from what a task found: what was compared, the difference, p."""
    tests = report.get("paired_bootstrap", {}).items()
    found = [(name, test["difference"]["value"], test["p_value"]) for name, test in tests]
    if one := report.get("compared"):
        found.append((f"accuracy % {report['split']}", 100 * one["difference"], one["p_value"]))
    return found


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
    """A line's entry: a JSON object with a step and, if any, seconds that are a number; None for another."""
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
