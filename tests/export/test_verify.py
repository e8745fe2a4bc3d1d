"""Verification counts what is equal, what is a tie and what differs, and nothing that differs is written."""

import shutil
from pathlib import Path

import pytest

from phmctl import exports
from phmctl.decoding.translator import Hypothesis
from phmctl.errors import PhmctlError
from phmctl.export import verb
from phmctl.export.verify import open_subject, verify_translator
from phmctl.files import write_json
from phmctl.runs import Run


class Wrong:
    """An engine that answers as another, but for the first sentence of each batch."""

    name = "torch"

    def __init__(self, engine):
        self.engine = engine

    def search(self, sources, settings, *, allowed, n_best):
        found = self.engine.search(sources, settings, allowed=allowed, n_best=n_best)
        best = found[0][0]
        return [[Hypothesis([*best.tokens[:-1], 9, 9], best.score, best.log_prob)], *found[1:]]


def test_what_differs_is_counted(tiny_run: Run) -> None:
    subject = open_subject(tiny_run, "best")
    same = verify_translator(subject, subject.answering, subject.answering.engine, 8)
    assert (same.texts, same.equal, same.ties, same.different, same.largest) == (8, 8, 0, 0, 0.0)
    other = verify_translator(subject, subject.answering, Wrong(subject.answering.engine), 8)
    assert (other.equal + other.ties + other.different, other.equal) == (8, 7)
    assert other.scores["torch"] == same.scores["torch"]


def test_bleu_splits_as_the_language_says(tiny_run: Run, tmp_path: Path) -> None:
    run = Run.open(shutil.copytree(tiny_run.folder, tmp_path / "run"))
    write_json(run.folder / "data.json", run.data() | {"target_language": "zh"})
    subject = open_subject(run, "best")
    found = verify_translator(subject, subject.answering, subject.answering.engine, 4)
    assert "tok:zh" in found.scores["signature"]


def test_an_export_that_answers_otherwise_is_not_written(
    tiny_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = verb.open_engine
    monkeypatch.setattr(verb, "open_engine", lambda *given, **options: Wrong(right(*given, **options)))
    monkeypatch.setattr("phmctl.export.verify.NEAR", 0.0)
    with pytest.raises(PhmctlError, match="answers 1 of 8 texts of valid otherwise than the run"):
        verb.export(tiny_run, exports.SAFETENSORS, tmp_path / "out", texts=8)
    assert list(tmp_path.iterdir()) == []
