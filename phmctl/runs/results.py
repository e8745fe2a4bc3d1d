"""Read and write a run's scores (``results/``) and the training log (``metrics.jsonl``).

Each scoring writes two files: a JSON report and the scored answers::

    test.step-001800.beam-5.alpha-0.6.1f3a9c02.json    the report. `made` identifies the weights and settings
    test.step-001800.beam-5.alpha-0.6.7b20d1e4.hyp     the scored answers

The file name contains the split, the checkpoint, the main settings, and a digest of the weights and all settings, so
that another beam size or further training never overwrites an earlier result. A warning names a torn report, which is
skipped.

The log has a JSON object for each logged interval, validation, early stop and average.
"""

import json
import re
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from phmctl.console import warn
from phmctl.errors import RunError
from phmctl.runs.run import Trained, Weights, git_revision
from phmctl.storage import FORMAT, read_json_object, sha256_text, sole_writer, write_atomic, write_json, writing
from phmctl.version import __version__

_NOT_IN_FILE_NAMES = re.compile(r"[^A-Za-z0-9.-]+")
_ADVICE = "the result is skipped: remove it and score the run again"


@dataclass(frozen=True)
class ScoringKey:
    """Identify a result: the same split, weights and settings always give the same file name."""

    split: str  # test, valid, a named test set, or the name of a file
    weights: Weights
    settings: Mapping[str, object] = field(default_factory=dict)  # settings that change the scores, not the speed
    label: str = ""  # short form of the main settings for the file name: beam-5.alpha-0.6

    def path(self, run: Trained, suffix: str) -> Path:
        """Return the file of this result in a run with the given suffix (``json``, ``hyp``).

        Its name has plain characters and at most 255 bytes.
        """
        identity = json.dumps([self.weights.sha256, dict(self.settings)], sort_keys=True)
        digest = sha256_text([identity])[:8]
        parts = [part for part in (self.split, self.weights.name, self.label, digest, suffix) if part]
        plain = [_NOT_IN_FILE_NAMES.sub("-", part).strip("-")[:60] or "text" for part in parts]
        return run.results_folder / ".".join(plain)


@dataclass(frozen=True)
class Result:
    """A scored split of a run, as read from the report file."""

    path: Path  # the report
    report: Mapping[str, Any]  # the output of eval --json
    answers: Path | None  # scored answers, one line per example (.hyp or .predictions.tsv)
    split: str  # test, valid, a named test set, or the name of a file
    checkpoint: str  # name of the checkpoint's folder: step-001800, average
    settings: Mapping[str, Any]  # settings that change the scores: beam size, length penalty, lowercasing
    scores: Mapping[str, float]  # by metric: BLEU, chrF, TER, accuracy as a fraction, or the errors of a rule
    checkpoint_sha256: str  # the checkpoint's manifest
    seed: int  # the training's
    phmctl: str  # version
    git: str | None  # commit
    date: str  # when it was scored

    def as_json(self) -> dict[str, object]:
        """Return the file name, the scores and where they come from, without the report."""
        return {"file": self.path.name, **{name: getattr(self, name) for name in _ORIGIN_KEYS}}


_ORIGIN_KEYS = tuple(field.name for field in fields(Result) if field.name not in ("path", "report", "answers"))


def write_result(run: Trained, key: ScoringKey, report: Mapping[str, Any], answers: Path | None = None) -> Path:
    """Write a report into a run and return the file. `answers` is the file of the scored answers."""
    origin = {
        "format": FORMAT,
        "split": key.split,
        "checkpoint": key.weights.name,
        "checkpoint_sha256": key.weights.sha256,
        "settings": dict(key.settings),
        "scores": scores_of(report),
        "answers": None if answers is None else answers.name,
        "seed": run.recipe.training.seed,
        "phmctl": __version__,
        "git": git_revision(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    path = key.path(run, "json")
    write_record(path, {"made": origin, **report})
    return path


def write_record(path: Path, content: str | Mapping[str, object]) -> None:
    """Write a text or an object as JSON into a folder of records. Several processes may write there at once."""
    with sole_writer(path.with_name("*")):
        if isinstance(content, str):
            write_atomic(path, content)
        else:
            write_json(path, content)


def check_scorable(run: Trained) -> None:
    """Raise OutputError, before any work, if a run's scores cannot be written into it."""
    folder = run.results_folder if run.results_folder.exists() else run.folder
    with writing(folder):
        tempfile.TemporaryFile(dir=folder).close()


def read_results(run: Trained) -> list[Result]:
    """Return the results of a run, sorted by file name. Warn about torn files and skip them."""
    results = []
    for path in sorted(run.results_folder.glob("[!.]*.json")):
        try:
            report = read_json_object(path, RunError, _ADVICE)
        except RunError as error:
            warn(str(error))
            continue
        origin = report.pop("made", None)
        if origin is None:  # another record, such as probing.json
            continue
        if origin["format"] != FORMAT:
            warn(f"{path} has format {origin['format']!r}, and this phmctl reads format {FORMAT}: score the run again")
            continue
        answers = None if origin["answers"] is None else path.with_name(origin["answers"])
        if answers is not None and not answers.is_file():
            warn(f"{answers} is missing, so no test uses it: score the run again")
            answers = None
        results.append(Result(path, report, answers, **{name: origin[name] for name in _ORIGIN_KEYS}))
    return results


def scores_of(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the scores by which runs are compared, from the output of ``eval --json``."""
    if "accuracy" in report:
        return {"accuracy": float(report["accuracy"]["value"])}
    if "scores" in report:
        return {score["name"]: float(score["value"]) for score in report["scores"]}
    return {name: float(report[name]) for name in ("map_error", "loss")}


def log_line(entry: Mapping[str, object]) -> bytes:
    """Return the line of an entry in a training log."""
    return json.dumps(entry).encode() + b"\n"


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a training log, or an empty list if the file is missing. Raises RunError."""
    return [entry for _, entry in read_log_lines(path)]


def read_log_lines(path: Path, mark: bytes = b"") -> list[tuple[bytes, dict[str, Any]]]:
    """Return the lines of a training log, each with the entry. Lines that a kill or a full disk cut are skipped.

    Except for the last ones, lines without `mark` are skipped unparsed. Raises RunError.
    """
    try:
        lines = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}): copy the run again") from error
    entries = []
    for line in [line for line in lines[:-3] if mark in line] + lines[-3:]:
        with suppress(ValueError):  # includes invalid UTF-8
            entry = json.loads(line)
            if isinstance(entry, dict):
                entries.append((line, entry))
    return entries


def series(entries: Iterable[Mapping[str, Any]], event: str, name: str) -> list[tuple[int, float]]:
    """Return the (step, value) pairs of one quantity, for example ``loss``, in the entries of one event."""
    points = []
    for entry in entries:
        value = entry.get(name)
        if entry.get("event") == event and isinstance(value, (int, float)):
            points.append((entry["step"], float(value)))
    return points
