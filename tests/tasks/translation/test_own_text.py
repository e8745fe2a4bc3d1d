"""Scoring text that was never prepared: files, several references, sacrebleu's tokenizers."""

import json
from pathlib import Path
from typing import Any

import pytest

import phmctl
from phmctl.answering.opening import load_translator
from phmctl.errors import DataError, UserError
from phmctl.metrics.text import all_scores
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.storage import write_json
from phmctl.tasks.translation import scored_answers
from tests.calls import call
from tests.data.helpers import put
from tests.tasks.translation.runs import REFERENCES, SOURCES, make_run

OTHERS = ["something else .", *REFERENCES[1:]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path)


def evaluate(run: Run, *arguments: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call("eval", run.folder, *arguments, "--device", "cpu", "--json").stdout)
    return found


def test_files_are_translated_and_scored_against_every_reference(run: Run, tmp_path: Path) -> None:
    source, one = put(tmp_path / "news.de", *SOURCES[:5]), put(tmp_path / "a.en", *REFERENCES[:5])
    two = put(tmp_path / "b.en", *OTHERS[:5])
    found = evaluate(run, "--source", source, "--reference", one, "--reference", two)
    translations = [best[0].text for best in load_translator(run, "best", "cpu").translate(SOURCES[:5])]
    expected = all_scores(translations, REFERENCES[:5], other_references=[OTHERS[:5]])
    assert [score["value"] for score in found["scores"]] == pytest.approx([score.value for score in expected])
    assert all("nrefs:2" in score["signature"] for score in found["scores"])
    assert (found["split"], found["sentences"]) == ("news.de", 5)
    (result,) = read_results(run)
    assert result.answers is not None
    assert result.answers.read_text(encoding="utf-8").split("\n")[:-1] == translations
    assert len(result.settings["references_sha256"]) == 2
    assert scored_answers(run, result) is None  # no split of the run


def test_a_file_called_as_a_split_is_not_that_split(run: Run, tmp_path: Path) -> None:
    source, reference = put(tmp_path / "test", *SOURCES[:5]), put(tmp_path / "a.en", *REFERENCES[:5])
    assert evaluate(run, "--source", source, "--reference", reference)["split"] == "file-test"
    assert not [result for result in read_results(run) if result.split == "test"]


def test_text_goes_through_what_the_corpus_went_through(run: Run, tmp_path: Path) -> None:
    write_json(run.folder / "data.json", {"settings": {"cleaning": {"entities": "decode"}}})
    source, reference = put(tmp_path / "s", " a &amp; b"), put(tmp_path / "r", "c &quot; d  ")
    text = phmctl.evaluate(run.folder, source=source, reference=[reference], device="cpu")
    assert text.split == "s"
    plain = put(tmp_path / "p", "a & b"), put(tmp_path / "q", 'c " d')
    same = phmctl.evaluate(run.folder, source=plain[0], reference=[plain[1]], device="cpu")
    assert same.scores == text.scores


def test_files_that_do_not_fit(run: Run, tmp_path: Path) -> None:
    for name, lines in (("s", ["a", "b"]), ("r", ["c", "d"]), ("short", ["c"]), ("empty", [])):
        put(tmp_path / name, *lines)
    for source, references in (
        ("s", []),
        (None, ["r"]),
        ("s", ["r", "short"]),
        ("s", ["nowhere"]),
        ("empty", ["empty"]),
    ):
        paths = {"reference": [tmp_path / name for name in references], "source": source and tmp_path / source}
        with pytest.raises(DataError):
            phmctl.evaluate(run.folder, device="cpu", **paths)
    with pytest.raises(UserError, match=r"split=valid .*source"):
        phmctl.evaluate(run.folder, "valid", source=tmp_path / "s", reference=[tmp_path / "r"])
    assert not list(run.results_folder.glob("*"))


def test_the_tokenizer_is_an_option_and_follows_the_target_language(run: Run) -> None:
    usual = evaluate(run)
    assert "tok:13a" in usual["scores"][0]["signature"]
    asked = evaluate(run, "--tokenize", "char")
    assert "tok:char" in asked["scores"][0]["signature"]
    assert len(read_results(run)) == 2
    (result,) = [each for each in read_results(run) if each.settings.get("tokenize") == "char"]
    answers = scored_answers(run, result)
    write_json(run.folder / "data.json", {"target_language": "zh", "settings": {"cleaning": {}}})
    assert answers is None or answers.score_options["tokenize"] == "char"
    assert "tok:zh" in evaluate(run)["scores"][0]["signature"]
    with pytest.raises(UserError, match=r"tokenize.13b: sacrebleu has"):
        evaluate(run, "--tokenize", "13b")
