"""Table 3: the published figures, and the command that fills its columns."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phmctl import probes
from phmctl.cli.main import app
from phmctl.errors import DataError, RunError, StoppedError, UserError
from phmctl.metrics.classification import accuracy
from phmctl.probes import probe
from phmctl.runs import Run
from phmctl.shipped import shipped_names
from phmctl.tasks.probing.table import RECIPES, TABLE_3, Probed, ProbingReport, TaskScores

BRIEF = ("training.steps=60", "training.validate_every=30", "training.save_every=60", "data.language=null")
PRINTED = {  # Table 3, the rows of averages, and their relative improvements
    "surface": ("77.60", "77.81", "+0.3%"),
    "syntactic": ("65.00", "66.24", "+1.9%"),
    "semantic": ("74.61", "76.13", "+2.0%"),
}


def share(right: int, of: int = 100):
    return accuracy(["a"] * right + ["b"] * (of - right), ["a"] * of)


def test_the_published_averages_are_those_of_the_published_rows() -> None:
    [table] = ProbingReport(
        "r", "best", {"probe-subj-number": TaskScores(Probed(share(60), share(50)), share(40), 9)}
    ).tables()
    rows = {row[0].partition(",")[0]: row for row in table.rows if "average" in row[0]}
    assert {group: row[-3:] for group, row in rows.items()} == {group: list(cells) for group, cells in PRINTED.items()}
    assert set(RECIPES) == {name for name in shipped_names("recipes") if name.startswith("probe-")}
    assert [len(tasks) for tasks in TABLE_3.values()] == [2, 3, 5]


def test_averages_are_of_the_tasks_that_are_there_and_say_so() -> None:
    own, other = Probed(share(60), share(50)), Probed(share(50), share(45))
    scores = {
        "probe-subj-number": TaskScores(own, share(40), 900, other),
        "probe-coord-inversion": TaskScores(Probed(share(80), share(50)), share(50), 300, Probed(share(50), share(45))),
    }
    report = ProbingReport("r", "step-000009", scores, against="b")
    assert report.as_json()["averages"]["semantic"] == {
        "majority": pytest.approx(45),
        "run": pytest.approx(70),
        "run_bag": pytest.approx(50),
        "against": pytest.approx(50),
        "against_bag": pytest.approx(45),
    }
    [table] = report.tables()
    assert table.columns == ["", "majority", "base", "its bag", "run", "its bag", "Δ", "Base", "NI", "Δ"]
    semantic = next(row for row in table.rows if row[0] == "semantic, average of 2")
    assert semantic[1:7] == ["45.00", "50.00", "45.00", "70.00", "50.00", "+40.0%"]
    assert next(row for row in table.rows if row[0] == "WC")[1:7] == ["–"] * 6
    notes = "\n".join(report.notes())
    assert "300 to 900 sentences" in notes
    assert "no data for sentence-length, word-content" in notes


def test_one_command_probes_what_is_prepared_and_trains_nothing_twice(
    copied_run: Run, tiny_run: Run, probing_data: Path, tmp_path: Path
) -> None:
    runs = tmp_path / "probes"
    given = ("eval", str(copied_run.folder), "--probing", "--data", str(probing_data), "--runs", str(runs), "--json")
    given += tuple(part for each in BRIEF for part in ("--set", each))
    first = json.loads(CliRunner().invoke(app, given, catch_exceptions=False).stdout)
    assert [*first["tasks"]] == ["probe-subj-number"]
    trained = {path: path.stat().st_mtime_ns for path in runs.rglob("model.safetensors")}
    assert {path.relative_to(runs).parts[1] for path in trained} == {"real", "real-embeddings"}
    assert json.loads((copied_run.results_folder / "probing.json").read_text()) == first
    again = json.loads(CliRunner().invoke(app, given, catch_exceptions=False).stdout)
    assert again == first
    assert {path: path.stat().st_mtime_ns for path in runs.rglob("model.safetensors")} == trained
    report = probe(copied_run.folder, against=tiny_run.folder, data=probing_data, runs=runs, settings=BRIEF)
    scores = report.tasks["probe-subj-number"]
    assert scores.against is not None
    assert scores.against.encoder == scores.own.encoder  # equal weights, equal vectors
    assert scores.compared is not None
    assert scores.compared.p_value == 1
    assert scores.train == first["tasks"]["probe-subj-number"]["train"]


def test_probes_of_another_encoder_in_the_same_place_are_not_taken(
    copied_run: Run, probing_data: Path, tmp_path: Path
) -> None:
    common = {"data": probing_data, "runs": tmp_path / "probes", "settings": BRIEF}
    probe(copied_run.folder, checkpoint="step-000006", **common)
    weights = copied_run.checkpoints_folder / "step-000006"
    shutil.rmtree(weights)
    shutil.copytree(copied_run.checkpoints_folder / "step-000003", weights)
    probe(copied_run.folder, checkpoint="step-000006", **common)
    assert len(list((tmp_path / "probes" / "probe-subj-number" / "real").glob("v*"))) == 2


@pytest.mark.parametrize("key", ["model.encoder", "model.checkpoint", "model.vectors"])
def test_what_the_command_sets_is_refused(key: str, copied_run: Run, probing_data: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"--set {key}=best: --probing sets that; name the run, --against and"):
        probe(copied_run.folder, data=probing_data, runs=tmp_path, settings=(*BRIEF, f"{key}=best"))


def test_an_interruption_is_one(
    copied_run: Run, probing_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Interrupted:
        exit_code = 130

    monkeypatch.setattr(probes, "train", lambda *given, **options: Interrupted())
    with pytest.raises(StoppedError, match="goes on from here"):
        probe(copied_run.folder, data=probing_data, runs=tmp_path, settings=BRIEF)


def test_what_cannot_be_probed_is_refused(tiny_run: Run, probe_run: Run, probing_data: Path, tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no probing task is prepared in .*run: phmctl prepare-data probing-sentence-length"
    ):
        probe(tiny_run.folder, data=tmp_path, runs=tmp_path)
    with pytest.raises(RunError, match="only a translator has an encoder"):
        probe(probe_run.folder, data=probing_data, runs=tmp_path)
    for options, message in {
        ("--probing", "--beam", "4"): "--beam has no part in --probing",
        ("--data", "d", "--set", "a=1"): "--set, --data belongs to --probing",
        ("--runs", "r"): "--runs belongs to --probing: leave it out; name RUN by its folder",
        ("--runs", "r", "--beam", "1,2"): "--runs belongs to --probing",
    }.items():
        result = CliRunner().invoke(app, ["eval", str(tiny_run.folder), *options])
        assert isinstance(result.exception, UserError)
        assert message in str(result.exception)
