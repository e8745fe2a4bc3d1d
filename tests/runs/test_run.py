"""Run directories: creating, finding, opening; the copies of data in them."""

import os
import shlex
import shutil
from pathlib import Path

import pytest

from phmctl.data.prepared import PreparedData
from phmctl.errors import OutputError, RunError, WriteFailedError
from phmctl.recipe.schema import Recipe, differences
from phmctl.runs import Run
from phmctl.runs.copies import load_tokenizers, read_text
from phmctl.runs.run import runs_root
from phmctl.storage import write_checkpoint
from tests.calls import call
from tests.training.fake import make_recipe


def test_versions_count_up_and_nothing_is_overwritten(tmp_path: Path) -> None:
    first, second = (Run.create(tmp_path, make_recipe()) for _ in range(2))
    assert [first.name, second.name] == ["fake/phm-n4/v001", "fake/phm-n4/v002"]
    for name in ("v999", "v1000"):
        (tmp_path / "fake/phm-n4" / name).mkdir()
    assert Run.create(tmp_path, make_recipe()).folder.name == "v1001"
    assert first.environment() == Run.open(first.folder).environment()


def test_a_failed_start_leaves_nothing(tmp_path: Path) -> None:
    def fill(run: Run) -> None:
        raise KeyError("boom")

    with pytest.raises(KeyError):
        Run.create(tmp_path, make_recipe(), fill=fill)
    assert list(tmp_path.iterdir()) == []


def test_recipe_and_environment_survive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["program", "--password", "hush"])  # a program's own are no business of a run's
    recipe = make_recipe(learning_rate=1e-7, steps=33, seed=5)
    run = Run.open(Run.create(tmp_path, recipe, environment={"device": "cpu"}).folder)
    written = run.environment()
    assert run.recipe == recipe
    assert (written["seed"], written["device"]) == (5, "cpu")
    assert set(written["libraries"]) >= {"torch", "tokenizers", "sacrebleu"}
    assert {"phmctl", "git", "python", "platform", "started"} <= set(written)
    assert "hush" not in str(written)


def test_open_takes_a_variant_a_recipe_a_name_and_a_moved_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Run.create(tmp_path, make_recipe())
    newest = Run.create(tmp_path, make_recipe()).folder
    monkeypatch.setenv("PHMCTL_RUNS", str(tmp_path))
    shutil.copytree(newest, newest.with_name("v003.bak"))
    for path in (tmp_path / "fake/phm-n4", tmp_path / "fake", "fake", "fake/phm-n4", "fake/phm-n4/v002"):
        assert Run.open(path).folder == newest
    moved = newest.rename(tmp_path / "v002")
    monkeypatch.chdir(moved)
    assert [Run.open(path).name for path in (moved, Path())] == ["fake/phm-n4/v002"] * 2


def test_a_commands_folder_of_runs_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHMCTL_RUNS", str(tmp_path / "usual"))
    Run.create(tmp_path / "other", make_recipe())
    assert "v001" in call("runs", "--runs", tmp_path / "other").stdout
    assert os.environ["PHMCTL_RUNS"] == str(runs_root()) == str(tmp_path / "usual")


def test_a_start_that_failed_does_not_hide_the_run_before(
    trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = Run.create(tmp_path, make_recipe())
    for path in (tmp_path / "fake/phm-n4", tmp_path / "fake"):
        assert Run.open(path).folder == trained.folder
        assert capsys.readouterr().err.startswith(str(failed.folder))
    assert [run.folder for run in Run.trained_with(tmp_path, make_recipe(), differences)] == [
        failed.folder,
        trained.folder,
    ]
    (failed.folder.parent / "v009").mkdir()  # no complete run
    assert len(list(Run.trained_with(tmp_path, make_recipe(), differences))) == 2
    assert Run.open(failed.folder).folder == failed.folder


def test_what_names_no_run_names_those_that_are_near(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Run.create(tmp_path / "runs", make_recipe())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=r"fake/phm-n8.*'fake/phm-n4'"):
        Run.open("fake/phm-n8")
    with pytest.raises(RunError, match="v001/results"):
        Run.open("runs/fake/phm-n4/v001/results")
    (tmp_path / "runs/fake/real/v001").mkdir(parents=True)
    with pytest.raises(RunError, match=r"phm-n4, .*real"):
        Run.open("fake")


@pytest.fixture
def trained(tmp_path: Path) -> Run:
    run = Run.create(tmp_path, make_recipe())
    for step in (5, 10):
        write_checkpoint(run.checkpoints_folder / f"step-{step:06d}", {}, {"step": step})
    run.set_pointer("last", 10)
    run.set_pointer("best", 5)
    return run


def test_checkpoints_are_found_by_every_name(trained: Run) -> None:
    names = {name: trained.checkpoint(name).name for name in ("last", "best", "step-000005", "5")}
    assert names == {"last": "step-000010", "best": "step-000005", "step-000005": "step-000005", "5": "step-000005"}
    assert trained.checkpoint_names() == ["last", "best", "step-000005", "step-000010"]


def test_a_run_chooses_what_its_recipe_asks_for(
    trained: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The average if the recipe has one, else the best, else the last; a note explains a substitute."""
    wanting = Run(trained.folder, make_recipe(average=2))

    def used(run: Run) -> tuple[str, str]:
        return run.chosen("auto"), capsys.readouterr().err

    assert used(trained) == ("step-000005", "")
    name, note = used(wanting)
    assert name == "step-000005"
    assert "average" in note
    write_checkpoint(trained.checkpoints_folder / "average", {}, {"steps": [5, 10]})
    assert used(wanting) == ("average", "")
    assert used(trained) == ("step-000005", "")
    trained.set_pointer("best", None)
    name, note = used(trained)
    assert name == "step-000010"
    assert "no best" in note
    assert wanting.checkpoint("auto").name == "average"


def test_what_cannot_be_written_is_an_output_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(OutputError):
        Run.create(tmp_path / "file", make_recipe())

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phmctl.storage.os.fsync", full)
    with pytest.raises(WriteFailedError):
        Run.create(tmp_path, make_recipe())


def test_a_run_without_checkpoints_says_how_to_go_on(tmp_path: Path) -> None:
    run = Run.create(tmp_path / "my runs; $HOME", make_recipe())
    assert shlex.split(run.resume_command) == ["phmctl", "train", str(run.folder), "--resume"]
    with pytest.raises(RunError) as caught:
        run.checkpoint("best")
    assert str(caught.value).endswith(run.resume_command)


def test_a_checkpoint_that_is_none_is_refused_with_those_that_are(trained: Run) -> None:
    for name in ("bets", "../results", "", ".", "step-000099"):
        with pytest.raises(RunError, match="last, best, step-000005"):
            trained.checkpoint(name)


@pytest.mark.parametrize("name", ["last", "best"])
@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"step-000005\nstep-000010\n", b".", b"step-000007\n"])
def test_a_pointer_that_leads_nowhere_is_refused(trained: Run, name: str, content: bytes | None) -> None:
    path = trained.checkpoints_folder / name
    trained.set_pointer(name, None) if content is None else path.write_bytes(content)
    with pytest.raises(RunError, match=f"{name}.*checkpoint "):
        trained.checkpoint(name)


@pytest.mark.parametrize("content", [None, b"{"])
def test_a_damaged_record_is_refused(tmp_path: Path, content: bytes | None) -> None:
    run = Run.create(tmp_path, make_recipe())
    path = run.folder / "environment.json"
    path.unlink() if content is None else path.write_bytes(content)
    with pytest.raises(RunError, match=r"environment\.json"):
        run.environment()


# --------------------------------------------------------------------------------------------------- copies of the data


def test_the_copies_are_those_of_the_prepared_data(tiny_run: Run, tiny_recipe: Recipe, miniature_data: Path) -> None:
    prepared = PreparedData.find(tiny_recipe.data, miniature_data)
    assert read_text(tiny_run, "test", "source") == prepared.split("test").texts[0]
    assert read_text(tiny_run, "valid", "target") == prepared.split("valid").texts[1]
    assert load_tokenizers(tiny_run) == prepared.tokenizers
    assert tiny_run.data().items() >= prepared.manifest.items()


def test_text_that_is_not_utf_8(copied_run: Run) -> None:
    (copied_run.text_folder / "test.source").write_bytes(b"\xff\n")
    with pytest.raises(RunError, match=r"text/test\.source"):
        read_text(copied_run, "test", "source")


def test_line_ends_of_windows_change_nothing(copied_run: Run) -> None:
    """git's autocrlf converts text when a run is checked out."""
    before, tokenizers = read_text(copied_run, "test", "source"), load_tokenizers(copied_run)
    for path in (copied_run.text_folder / "test.source", copied_run.tokenizer_folder / "tokenizer.json"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_text(copied_run, "test", "source") == before
    assert load_tokenizers(copied_run) == tokenizers
