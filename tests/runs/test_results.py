"""Results: named by what decides them, and read again."""

from pathlib import Path

import pytest

from phmctl import __version__
from phmctl.runs import Run, Weights
from phmctl.runs.results import ScoringKey, read_results, write_result
from phmctl.storage import write_json
from tests.training.fake import make_recipe

WEIGHTS = Weights("step-000010", "a" * 64)
SETTING = ScoringKey("test", WEIGHTS, {"beam": 4}, "beam-4")
REPORT = {"scores": [{"name": "BLEU", "value": 1.5}]}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, make_recipe(seed=7))


def test_what_is_written_is_read_and_found_with_what_made_it(run: Run) -> None:
    answers = SETTING.path(run, "hyp")
    answers.touch()
    path = write_result(run, SETTING, REPORT, answers)
    (result,) = read_results(run)
    assert path.name.startswith("test.step-000010.beam-4.")
    assert (result.path, result.answers) == (path, answers)
    assert (result.settings, result.scores, result.report) == ({"beam": 4}, {"BLEU": 1.5}, REPORT)
    assert (result.checkpoint_sha256, result.seed, result.phmctl) == ("a" * 64, 7, __version__)


def test_what_decides_a_result_decides_its_name_which_is_a_plain_file_name(run: Run) -> None:
    path = SETTING.path(run, "json")
    assert path == ScoringKey("test", WEIGHTS, {"beam": 4}, "beam-4").path(run, "json")
    for different in (
        ScoringKey("valid", WEIGHTS, {"beam": 4}, "beam-4"),
        ScoringKey("test", Weights("step-000010", "b" * 64), {"beam": 4}, "beam-4"),
        ScoringKey("test", Weights("average", "a" * 64), {"beam": 4}, "beam-4"),
        ScoringKey("test", WEIGHTS, {"beam": 5}, "beam-4"),
    ):
        assert path != different.path(run, "json")
    odd = ScoringKey("test", Weights("step-000010 (onnx)", "a"), {}, "a/b/v001").path(run, "json")
    assert odd.parent == run.results_folder
    assert odd.name.startswith("test.step-000010-onnx.a-b-v001.")


def test_a_damaged_report_and_missing_answers_are_said(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    answers = SETTING.path(run, "hyp")
    answers.write_text("a\n")
    path = write_result(run, SETTING, {**REPORT, "lines": {1: float("nan")}}, answers)
    assert read_results(run)[0].answers == answers
    answers.unlink()
    assert [(result.scores, result.answers) for result in read_results(run)] == [({"BLEU": 1.5}, None)]
    assert str(answers) in capsys.readouterr().err
    kept = path.read_text()
    for old, new in {'"format": 1': '"format": 2', "}\n": ""}.items():
        path.write_text(kept.replace(old, new))
        assert read_results(run) == []
        assert str(path) in capsys.readouterr().err


def test_what_is_no_result_is_left_out(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    write_json(run.results_folder / "probing.json", {"split": "test"})
    assert read_results(run) == []
    (run.results_folder / "probing.json").unlink()
    run.results_folder.rmdir()
    assert read_results(run) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", [b"", b"\xff", b"[1]", b"{" * 9999, b"\0" * 99])
def test_a_damaged_file_is_said(run: Run, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = run.results_folder / "test.json"
    path.write_bytes(content)
    assert read_results(run) == []
    assert capsys.readouterr().err.startswith(f"warning: {path} ")
