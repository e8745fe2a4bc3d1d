"""Results: named by what decides them, and read again unless they were changed."""

from pathlib import Path

import pytest

from phmctl import __version__
from phmctl.runs import Run, Weights
from phmctl.runs.results import Setting, find_result, read_results, write_result
from tests.training.fake import make_recipe

WEIGHTS = Weights("step-000010", "a" * 64)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.create(tmp_path, make_recipe(seed=7))


def test_what_is_written_is_read(run: Run) -> None:
    setting = Setting("test", WEIGHTS, {"beam": 4}, "beam-4")
    answers = setting.path(run, "hyp")
    answers.touch()
    path = write_result(run, setting, {"bleu": 1.5}, {"BLEU": 1.5}, answers=answers)
    (found,) = read_results(run)
    assert path.name.startswith("test.step-000010.beam-4.")
    assert (found.path, found.answers) == (path, answers)
    assert (found.settings, found.scores, found.report) == ({"beam": 4}, {"BLEU": 1.5}, {"bleu": 1.5})
    assert (found.checkpoint_sha256, found.seed, found.version) == ("a" * 64, 7, __version__)


@pytest.mark.parametrize(
    "other",
    [
        Setting("valid", WEIGHTS, {"beam": 4}, "x"),
        Setting("test", Weights("step-000010", "b" * 64), {"beam": 4}, "x"),
        Setting("test", Weights("average", "a" * 64), {"beam": 4}, "x"),
        Setting("test", WEIGHTS, {"beam": 5}, "x"),
    ],
)
def test_what_decides_a_result_decides_its_name(run: Run, other: Setting) -> None:
    setting = Setting("test", WEIGHTS, {"beam": 4}, "x")
    assert setting.path(run, "json") != other.path(run, "json")
    assert setting.path(run, "json") == Setting("test", WEIGHTS, {"beam": 4}, "x").path(run, "json")


def test_a_name_is_a_plain_file_name(run: Run) -> None:
    setting = Setting("test", Weights("step-000010 (onnx)", "a"), {}, "against.a/b/v001")
    assert setting.path(run, "json").parent == run.results_folder
    assert setting.path(run, "json").name.startswith("test.step-000010-onnx.against.a-b-v001.")


def test_what_was_changed_since_is_left_out_and_said(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    setting = Setting("test", WEIGHTS, {"beam": 4})
    answers = setting.path(run, "hyp")
    answers.write_text("a\n")
    path = write_result(run, setting, {"bleu": 1.5, "lines": {1: float("nan")}}, {"BLEU": 1.5}, answers=answers)
    assert read_results(run)[0].answers == answers
    answers.write_text("b\n")
    assert (read_results(run)[0].answers, find_result(run, setting)) == (None, None)
    assert str(answers) in capsys.readouterr().err
    for edited in ('"bleu": 2.5', '"BLEU": 2.5'):
        kept = path.read_text()
        path.write_text(kept.replace(edited.replace("2", "1"), edited))
        assert read_results(run) == []
        assert str(path) in capsys.readouterr().err
        path.write_text(kept)


@pytest.mark.parametrize("content", [b"[1]", b'{"split": "test"}'])
def test_what_is_no_result_is_left_out(run: Run, content: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    (run.results_folder / "test.json").write_bytes(content)
    assert read_results(run) == []
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", [b"", b"\xff", b'{"made": {}}', b'{"made": 3}', b"{" * 9999])
def test_of_a_damaged_result_file_and_reason_are_said(
    run: Run, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    path = run.results_folder / "test.json"
    path.write_bytes(content)
    assert read_results(run) == []
    assert capsys.readouterr().err.startswith(f"warning: {path} is damaged (")


def test_a_result_of_another_format_is_left_out(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_result(run, Setting("test", WEIGHTS, {}, ""), {}, {"BLEU": 1.0})
    assert len(read_results(run)) == 1
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    assert read_results(run) == []
    assert capsys.readouterr().err.startswith(f"warning: {path} is of format 2")


def test_a_result_is_found_by_its_setting_while_it_and_its_answers_are_whole(run: Run) -> None:
    setting = Setting("test", WEIGHTS, {"beam": 4}, "beam-4")
    assert find_result(run, setting) is None
    answers = setting.path(run, "hyp")
    answers.touch()
    path = write_result(run, setting, {"bleu": 1.5}, {"BLEU": 1.5}, answers=answers)
    found = find_result(run, setting)
    assert found is not None
    assert found.path == path
    assert find_result(run, setting.beside("other/run/v001", WEIGHTS)) is None
    answers.unlink()
    assert find_result(run, setting) is None


def test_a_result_without_its_folder(run: Run) -> None:
    run.results_folder.rmdir()
    assert read_results(run) == []
