"""What a run is, from its files: its state, what was changed, its best score, its size."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from phmctl import verbs
from phmctl.errors import NonFiniteError, RunError
from phmctl.models import build
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import Recipe
from phmctl.results.ledger import rows_of
from phmctl.runs import Run
from phmctl.runs.results import log_line, read_metrics, series
from phmctl.runs.run import select_runs
from phmctl.runs.summary import count_stored, list_runs, summarise
from phmctl.saving import model_tensors
from phmctl.storage import write_checkpoint
from phmctl.tasks import task_of
from tests.training.fake import make_recipe


def make(root: Path, state: dict[str, Any] | None = None, log: str = "", **settings: Any) -> Run:
    """A run that has a checkpoint of this state."""
    n = settings.pop("n", 4)
    recipe = make_recipe(**settings)
    recipe = recipe.model_copy(update={"model": recipe.model.model_copy(update={"n": n})})
    run = Run.create(root, recipe, environment={"tag": None, "unmodified": {}})
    if state is not None:
        write_checkpoint(run.checkpoints_folder / f"step-{state['step']:06d}", {}, state)
    run.metrics_path.write_text(log)
    return run


def test_a_trained_run(tiny_run: Run) -> None:
    summary = summarise(tiny_run.folder)
    entries = read_metrics(tiny_run.metrics_path)
    loss = dict(series(entries, "validation", "loss"))
    assert (summary.state, summary.reason, summary.step) == ("finished", None, 6)
    assert summary.best is not None
    assert (summary.best.metric, summary.best.value) == ("loss", min(loss.values()))
    assert loss[summary.best.step] == summary.best.value
    assert summary.minutes == next(entry["seconds"] for entry in reversed(entries) if "seconds" in entry) / 60
    assert summary.as_json()["n"] == 4


def test_what_options_changed_is_noted(miniature_data: Path, tiny_recipe: Recipe, tmp_path: Path) -> None:
    written = tiny_recipe.model_dump()
    result = verbs.train(
        written, seed=3, settings={"model.dropout": 0.3}, steps=2, data=miniature_data, runs=tmp_path, tag="mine"
    )
    summary = summarise(result.run.folder)
    assert summary.changed == {"model.dropout": (0.0, 0.3), "training.steps": (6, 2)}
    assert (summary.tag, summary.recipe.training.seed) == ("mine", 3)
    assert select_runs(["mine"], tmp_path) == [result.run.folder]


def test_states(tmp_path: Path) -> None:
    new, begun = make(tmp_path), make(tmp_path, {"step": 4, "stale": 0}, steps=10)
    patient = make(tmp_path, {"step": 4, "stale": 2}, steps=10, patience=2)
    done, unaveraged = (make(tmp_path, {"step": 10, "stale": 0}, steps=10, average=average) for average in (0, 1))
    unvalidated = make(tmp_path, {"step": 10, "stale": 0, "validated": 5}, steps=10)
    states = [summarise(run.folder).state for run in (new, begun, patient, done, unaveraged, unvalidated)]
    assert states == ["stopped", "stopped", "finished", "finished", "stopped", "stopped"]


def test_a_run_that_is_held_is_running_and_is_not_disturbed(tmp_path: Path) -> None:
    run = make(tmp_path, {"step": 10, "stale": 0}, steps=10)
    with run.claimed():
        assert summarise(run.folder).state == "running"
        with pytest.raises(RunError, match=str(run.folder)), run.claimed():
            pass
    assert summarise(run.folder).state == "finished"


def test_what_failed_says_why_until_it_goes_well(tmp_path: Path) -> None:
    run = make(tmp_path, {"step": 4, "stale": 0}, steps=10)
    with pytest.raises(NonFiniteError), run.attempted():
        raise NonFiniteError("the loss is NaN at step 5\nlower it")
    assert (summarise(run.folder).state, summarise(run.folder).reason) == ("failed", "the loss is NaN at step 5")
    with run.attempted():
        pass
    assert summarise(run.folder).state == "stopped"


def test_what_is_stopped_did_not_fail(tmp_path: Path) -> None:
    run = make(tmp_path)
    for error in (SystemExit(130), KeyboardInterrupt()):
        with pytest.raises(type(error)), run.attempted():
            raise error
        assert summarise(run.folder).state == "stopped"


def test_the_best_validation_is_the_one_whose_figure_is_the_score(tmp_path: Path) -> None:
    log = ""
    for step, loss, share in ((2, 0.5, 0.7), (4, 0.6, 0.8)):
        entry = {"event": "validation", "step": step, "loss": loss, "accuracy": share, "seconds": 60.0 * step}
        log += log_line(entry).decode()
    run = make(tmp_path, {"step": 4, "stale": 0, "best_step": 4, "best_score": 0.8}, log + "torn", steps=10)
    summary = summarise(run.folder)
    assert summary.best is not None
    assert (summary.best.step, summary.best.metric, summary.best.value) == (4, "accuracy", 0.8)
    assert summary.best.metrics == {"loss": 0.6, "accuracy": 0.8}
    assert summary.minutes == 4.0
    run = make(tmp_path, {"step": 4, "stale": 0, "best_step": 4, "best_score": 0.8}, log[:-20], steps=10)
    assert summarise(run.folder).best is None  # the log line is damaged


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("miniature", ["model.n=4", "model.algebra=phm"]),
        ("miniature", ["model.embeddings=phm", "model.generator=phm", "model.n=4", "model.algebra=phm"]),
        ("miniature", ["data.joint=false", "model.share_embeddings=false", "model.generator=dense"]),
        ("agreement-resplit", ["model.width=32", "model.feed_forward=32"]),
        ("snli-counterfactual", ["model.n=5", "model.algebra=phm"]),
        ("hamilton", []),
    ],
)
def test_parameters_are_the_ledgers(tmp_path: Path, name: str, options: list[str]) -> None:
    recipe = load_recipe(name, options)
    task = task_of(recipe)
    model = build(recipe.model, dict.fromkeys(task.sizes(recipe, None).values, 40), device="cpu")
    write_checkpoint(tmp_path / "step-000001", {"model": model_tensors(model)}, {"step": 1})
    rows, _ = rows_of(model)
    summary = count_stored(tmp_path / "step-000001")
    assert summary is not None
    assert summary.total == sum(row.parameters for row in rows)
    assert summary.without_embeddings == sum(
        row.parameters for row in rows if row.kind not in ("embedding", "generator")
    )


def test_a_folder_that_may_not_be_read_hides_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path, {"step": 4, "stale": 0}, steps=10)
    is_file = Path.is_file

    def denied(path: Path) -> bool:
        if "lost+found" in path.parts:
            raise PermissionError(13, "Permission denied")
        return is_file(path)

    monkeypatch.setattr(Path, "is_file", denied)
    (tmp_path / "lost+found" / "inside").mkdir(parents=True)
    folders = [tmp_path / "lost+found", *tmp_path.iterdir()]  # the first one in the order of the disk
    iterdir = Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(folders) if path == tmp_path else iterdir(path))
    assert [summary.run.folder for summary in list_runs((), tmp_path)] == [run.folder]


def test_a_damaged_run_costs_its_own_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, cut, gone, odd = (make(tmp_path, {"step": 4, "stale": 0}, steps=10) for _ in range(4))
    text = (cut.folder / "recipe.yaml").read_text()
    (cut.folder / "recipe.yaml").write_text(text[: len(text) // 2])
    (gone.folder / "recipe.yaml").unlink()
    (odd.folder / "environment.json").write_text("[]")
    (tmp_path / "fake/phm-n4/notes.txt").touch()
    (tmp_path / ".cache/x/v001").mkdir(parents=True)
    assert [summary.run.folder for summary in list_runs((), tmp_path)] == [good.folder]
    lines = capsys.readouterr().err.splitlines()
    assert [str(run.folder) in line for run, line in zip((cut, gone, odd), lines, strict=True)] == [True] * 3
    assert "environment.json" in lines[2]


def test_a_damaged_header_has_no_count(tmp_path: Path) -> None:
    for content in (b"", b"\x00" * 7, b"\xff" * 64, b"\x02\0\0\0\0\0\0\0[]", b"\x08\0\0\0\0\0\0\0" + b'{"a": 1}'):
        (tmp_path / "model.safetensors").write_bytes(content)
        assert count_stored(tmp_path) is None


def test_selection(tmp_path: Path) -> None:
    runs = [make(tmp_path, n=n) for n in (16, 4, 4, 2)]
    names = [f"fake/phm-n{n}/{version}" for n, version in ((2, "v001"), (4, "v001"), (4, "v002"), (16, "v001"))]
    assert [str(folder.relative_to(tmp_path)) for folder in select_runs((), tmp_path)] == names
    assert select_runs(["fake/phm-n4", runs[1].folder], tmp_path) == [runs[1].folder, runs[2].folder]
    shutil.copytree(runs[0].folder, tmp_path / "elsewhere/mine")
    assert select_runs([tmp_path / "elsewhere"], tmp_path) == [tmp_path / "elsewhere/mine"]
    with pytest.raises(RunError) as caught:
        select_runs(["nosuch"], tmp_path)
    assert "did you mean" not in str(caught.value)  # what all paths below one folder share is no likeness


def test_a_run_is_opened_by_its_tag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHMCTL_RUNS", str(tmp_path))
    make(tmp_path)
    tagged = [Run.create(tmp_path, make_recipe(), environment={"tag": tag}) for tag in ("a", "b", "b")]
    assert Run.open("a").folder == tagged[0].folder
    assert Run.open("b").folder == tagged[2].folder


def test_nothing_heavy_is_imported(tiny_run: Run) -> None:
    code = f"import sys; from phmctl.runs.summary import list_runs; list_runs([{str(tiny_run.folder)!r}])\n"
    code += "print(sorted({'torch', 'numpy', 'datasets'} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
