"""A run of which a piece is missing or cut off: each a run error that names the file, and nothing is written."""

from collections.abc import Callable
from pathlib import Path

import pytest

from phmctl.errors import RunError
from phmctl.runs import Run
from phmctl.storage import write_atomic
from tests.calls import call
from tests.data.helpers import files_below

MODEL = "checkpoints/step-000006/model.safetensors"
PIECES = {
    "recipe.yaml": "recipe.yaml",
    "data.json": "data.json",
    "tokenizer/tokenizer.json": "tokenizer.json",
    "text/test.source": "test.source",
    "text/test.target": "test.target",
    "checkpoints/last": "last",
    "checkpoints/step-000006/manifest.json": "manifest.json",
    "checkpoints/step-000006/state.json": "state.json",
    MODEL: "model.safetensors",
}


def empty(path: Path) -> None:
    path.write_bytes(b"")


def cut_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def refuse(command: Callable[[Path], object], run: Path, place: str) -> None:
    before = files_below(run)
    with pytest.raises(RunError, match=place) as caught:
        command(run)
    assert caught.value.exit_code == 2
    assert len(str(caught.value).splitlines()) <= 3
    assert files_below(run) == before


def decode(run: Path) -> None:
    write_atomic(run.parent / "in", "Der Mann schläft.\n")
    call("decode", run, "--checkpoint", "last", "--input", run.parent / "in", "--output", run.parent / "out")


def score(run: Path) -> None:
    call("eval", run, "--checkpoint", "last")


@pytest.mark.parametrize("damage", [Path.unlink, empty, cut_last_byte])
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("command", [decode, score])
def test_a_piece_that_is_missing_or_cut_is_named(
    copied_run: Run, command: Callable[[Path], None], piece: str, damage: Callable[[Path], None]
) -> None:
    if command is decode and piece.startswith("text/"):
        pytest.skip("it reads no text of the run")
    damage(copied_run.folder / piece)
    refuse(command, copied_run.folder, PIECES[piece].replace(".", r"\."))
    assert not (copied_run.folder.parent / "out").exists()
