import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from phmctl.answering.opening import load_translator
from phmctl.answering.translator import Translator
from phmctl.errors import RunError
from phmctl.metrics.text import bleu, bleu_by, copy_baseline, length_parts
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.storage import write_json
from phmctl.tasks import translation as module
from tests.tasks.translation.runs import REFERENCES, SOURCES, evaluate, make_run


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return make_run(tmp_path)


@pytest.fixture
def decodings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Counts how often a run is really decoded."""
    calls, real = list[str](), module.load_translator
    monkeypatch.setattr(
        module, "load_translator", lambda run, *how, **more: calls.append(run.name) or real(run, *how, **more)
    )
    return calls


def kept(run: Run) -> Path:
    """Where the run's only translations are kept."""
    (path,) = run.results_folder.glob("*.hyp")
    return path


def lines_of(path: Path | None) -> list[str]:
    assert path is not None
    return path.read_text(encoding="utf-8").split("\n")[:-1]


def translations(run: Run, **how: Any) -> list[str]:
    """What an evaluation scored."""
    report = evaluate(run, **how).as_json()
    return lines_of(next(one.answers for one in read_results(run) if one.report == report))


def by_hand(run: Run, checkpoint: str = "best") -> list[str]:
    return [found[0].text for found in load_translator(run, checkpoint, "cpu").translate(SOURCES)]


def test_scores_are_those_of_the_runs_translations(run: Run) -> None:
    expected = by_hand(run)
    found = evaluate(run)
    (result,) = read_results(run)
    assert lines_of(result.answers) == expected
    assert found.scores[0] == bleu(expected, REFERENCES)
    assert found.bleu_by_source_length == bleu_by(length_parts(SOURCES), expected, REFERENCES)
    assert found.sentences == len(SOURCES)
    assert found.checkpoint == "step-000002"
    assert result.report == found.as_json()
    assert result.scores == {score.name: score.value for score in found.scores}


def shown_below(run: Run, **how: Any) -> list[str]:
    return list(next(evaluate(run, **how).tables()).below)


def test_what_a_copier_scores_is_stored_always_and_said_where_both_sides_are_one_language(tmp_path: Path) -> None:
    of_two, of_one = make_run(tmp_path), make_run(tmp_path, "one", references=[*SOURCES[:5], *REFERENCES[5:]])
    assert not [line for line in shown_below(of_two) if "copying" in line]
    (stored,) = read_results(of_two)
    assert stored.report["copy"] == asdict(copy_baseline(SOURCES, REFERENCES))
    expected = copy_baseline(SOURCES, [*SOURCES[:5], *REFERENCES[5:]])
    assert expected.bleu > 50
    assert shown_below(of_one)[0] == f"copying the source scores {expected.bleu:.2f} BLEU"
    for name, lines in (("a", SOURCES), ("b", SOURCES), ("c", REFERENCES)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    below = shown_below(of_two, source=tmp_path / "a", reference=[tmp_path / "c", tmp_path / "b"])
    assert below[0] == "copying the source scores 100.00 BLEU"


def test_translations_are_kept_whatever_the_batch_size(run: Run, decodings: list[str]) -> None:
    first = evaluate(run)
    assert evaluate(run) == first
    translations(run, batch_tokens=9)
    assert decodings == [run.name]
    assert first.as_json()["decoding_seconds"] > 0


@pytest.mark.parametrize("change", ["settings", "checkpoint", "text", "record", "lines"])
def test_translations_are_made_anew_when_anything_differs(run: Run, decodings: list[str], change: str) -> None:
    before = translations(run)
    path = kept(run)
    settings = {"alpha": 0.0} if change == "settings" else {}
    if change == "checkpoint":
        run.set_pointer("best", 1)
    elif change == "text":
        (run.text_folder / "test.source").write_text("Ein Mann .\n" * len(SOURCES), encoding="utf-8")
        write_json(run.folder / "data.json", run.data())
    elif change == "record":
        path.with_suffix(".decoding.json").write_text("{", encoding="utf-8")
    elif change == "lines":
        path.write_text("".join(f"{line}\n" for line in before[:-1]), encoding="utf-8")
    after = translations(run, **settings)
    assert decodings == [run.name, run.name]
    if change in {"record", "lines"}:
        assert after == before
    if change in {"settings", "checkpoint"}:  # a file of its own; the other stays
        (other,) = {*run.results_folder.glob("*.hyp")} - {path}
        assert (lines_of(path), lines_of(other)) == (before, after)
    else:
        assert lines_of(path) == after


def test_the_longest_names_are_names_of_files(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs", "a" * 100)
    text = tmp_path / ("s" * 200)
    text.write_text("Ein Hund .\n")
    evaluate(run, source=text, reference=[text])
    assert len(read_results(run)) == 1
    with pytest.raises(ValueError, match="at most 100"):
        make_run(tmp_path, "c" * 101)


def test_a_training_beside_removes_the_checkpoint(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real, pruned = load_translator, []

    def load(run, checkpoint, *rest, **options):
        if not pruned:
            pruned.append(checkpoint)
            run.set_pointer("best", 1)
            shutil.rmtree(run.checkpoints_folder / checkpoint)
        return real(run, checkpoint, *rest, **options)

    monkeypatch.setattr(module, "load_translator", load)
    with pytest.raises(RunError, match=r"step-000002.*step-000001"):
        evaluate(run)
    assert evaluate(run).checkpoint == "step-000001"
    assert translations(run) == by_hand(run, "step-000001")


def test_tokenised_references_are_said_once(run, monkeypatch, capsys) -> None:
    (run.text_folder / "test.target").write_text("".join(f"word {number} .\n" for number in range(len(SOURCES))))
    write_json(run.folder / "data.json", run.data())
    monkeypatch.setattr(Translator, "answer", lambda self, lines, **how: [("", {})] * len(lines))
    evaluate(run)
    printed = capsys.readouterr().err
    assert printed.count("tokenised") == 1
