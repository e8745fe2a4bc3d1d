"""Checkpoints: what is written is what is read, and damage is noticed."""

import errno
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from phmctl.checkpoints import (
    MANIFEST,
    load_model,
    model_tensors,
    prune,
    read_checkpoint,
    save_tensors,
    saved_steps,
    step_name,
    step_of,
    whole_steps,
    write_checkpoint,
)
from phmctl.errors import OutputError, RunError
from phmctl.files import seal
from tests.training.fake import FakeModel

CPU = torch.device("cpu")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tensors = {
        "model": {"w": torch.arange(6.0).view(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
        "random": {"cpu": torch.tensor([1, 255], dtype=torch.uint8)},
    }
    target = tmp_path / "checkpoints" / "step-000010"
    write_checkpoint(target, tensors, {"step": 10, "loss": 0.1 + 0.2})
    return target


def test_a_checkpoint_reads_as_it_was_written(folder: Path) -> None:
    read = read_checkpoint(folder, ["model", "random"])
    assert torch.equal(read.tensors["model"]["w"], torch.arange(6.0).view(2, 3))
    assert read.tensors["model"]["half"].dtype == torch.bfloat16
    assert read.tensors["random"]["cpu"].tolist() == [1, 255]
    assert read.state == {"step": 10, "loss": 0.1 + 0.2}
    names = {entry["name"] for entry in json.loads((folder / MANIFEST).read_text())["files"]}
    assert names == {"state.json", "model.safetensors", "random.safetensors"}  # nothing is pickled


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_any_flipped_byte_is_noticed(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 1
        (folder / name).write_bytes(flipped)
        with pytest.raises(RunError, match=name):
            read_checkpoint(folder, ["model"])


def test_the_message_names_another_checkpoint(folder: Path) -> None:
    for other in ("step-000005", "average"):
        write_checkpoint(folder.with_name(other), {}, {})
    (folder / "state.json").unlink()
    with pytest.raises(RunError, match=r"--checkpoint step-000005 .*average, step-000005"):
        read_checkpoint(folder, ["model"])


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before the end leaves no folder of the checkpoint's name, and the next write clears what it left."""
    monkeypatch.setattr("phmctl.files.shutil.rmtree", lambda *args, **kwargs: None)  # a crash cleans nothing up
    monkeypatch.setattr("phmctl.files.write_json", _crash)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "step-000001", {}, {})
    assert not (tmp_path / "step-000001").exists()
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.undo()
    write_checkpoint(tmp_path / "step-000002", {}, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000002"]


def _crash(*args: object) -> None:
    raise KeyboardInterrupt


def test_every_file_is_made_as_the_users_others_are(folder: Path) -> None:
    """Whoever may read the state may read the weights."""
    (folder.parent / "other").touch()
    assert {path.stat().st_mode for path in folder.iterdir()} == {(folder.parent / "other").stat().st_mode}


def _dying(moves: int) -> Callable[[Path, Path], Path]:
    """A rename of a process that dies after so many: nothing it tries later happens."""
    original, remaining = Path.rename, [moves]

    def rename(self: Path, target: Path) -> Path:
        if not remaining[0]:
            raise KeyboardInterrupt
        remaining[0] -= 1
        return original(self, target)

    return rename


@pytest.fixture
def aside(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint whose writer died between the two renames that replace it."""
    monkeypatch.setattr(Path, "rename", _dying(1))
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(folder, {}, {"step": 11})
    monkeypatch.undo()
    (old,) = folder.parent.iterdir()
    assert re.fullmatch(r"\.step-000010\.[0-9a-f]{8}\.old", old.name)
    return folder


@pytest.mark.parametrize("failing", ["rename", "sync"])
def test_a_replacement_that_fails_leaves_the_old(folder: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    original = Path.rename

    def rename(self: Path, target: Path) -> Path:
        return fail(self) if self.suffix == ".tmp" and self.is_dir() else original(self, target)

    def fail(path: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((Path, "rename", rename) if failing == "rename" else ("phmctl.files.sync", fail)))
    with pytest.raises(OutputError) as caught:
        write_checkpoint(folder, {"model": {"w": torch.ones(1)}}, {"step": 11})
    assert caught.value.exit_code == 1
    assert read_checkpoint(folder, []).state["step"] == 10
    assert [entry.name for entry in folder.parent.iterdir()] == ["step-000010"]


def test_pruning_keeps_what_is_asked(tmp_path: Path) -> None:
    for step in (5, 10, 15, 20):
        write_checkpoint(tmp_path / step_name(step), {}, {})
    write_checkpoint(tmp_path / "average", {}, {})
    prune(tmp_path, {5, 20})
    assert saved_steps(tmp_path) == [5, 20]
    assert (tmp_path / "average").is_dir()


def test_other_names_are_no_steps() -> None:
    assert [step_of(name) for name in ("average", "step-12", "step-000012x", ".step-000012.1.tmp")] == [None] * 4


def test_a_shared_parameter_is_saved_once_and_loaded_twice() -> None:
    model = FakeModel()
    tensors = {name: tensor.clone() for name, tensor in model_tensors(model).items()}
    assert "shared.weight" not in tensors
    other = FakeModel()
    load_model(other, tensors, Path("here"), CPU)
    assert torch.equal(other.shared.weight, model.second.weight)
    assert other.shared.weight is other.second.weight


def test_a_model_of_another_shape_is_refused() -> None:
    tensors = model_tensors(nn.Linear(3, 2))
    without_bias = {"weight": tensors["weight"]}
    for model, stored, place in (
        (nn.Linear(4, 2), tensors, r"weight .*\(2, 3\) .*\(2, 4\)"),
        (nn.Linear(3, 2, bias=False), tensors, "bias"),
        (nn.Linear(3, 2), without_bias, "bias"),
    ):
        with pytest.raises(RunError, match=place):
            load_model(model, stored, Path("path"), CPU)


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_a_checkpoint_without_a_piece_is_not_whole(folder: Path, name: str) -> None:
    assert whole_steps(folder.parent) == [10]
    (folder / name).write_bytes((folder / name).read_bytes()[:-1])
    assert whole_steps(folder.parent) == ([10] if name == "manifest.json" else [])
    (folder / name).unlink()
    assert whole_steps(folder.parent) == []


def test_tensors_that_no_library_reads_are_a_run_error(folder: Path) -> None:
    """Their SHA-256 is right: they were written so."""
    path = folder / "model.safetensors"
    path.write_bytes(b"\xff" * 64)
    seal(folder, MANIFEST, {})
    with pytest.raises(RunError, match=r"model\.safetensors"):
        read_checkpoint(folder, ["model"])


@pytest.mark.parametrize("content", ["{", '{"files": [{"name": "state.json"}]}', '{"files": []}'])
def test_a_damaged_manifest_is_noticed(folder: Path, content: str) -> None:
    (folder / MANIFEST).write_text(content)
    with pytest.raises(RunError, match="step-000010"):
        read_checkpoint(folder, ["model"])


def test_the_next_write_puts_back_what_stood_aside(aside: Path) -> None:
    write_checkpoint(aside.with_name("step-000020"), {}, {})
    assert saved_steps(aside.parent) == [10, 20]
    assert read_checkpoint(aside, ["model"]).state["step"] == 10


def test_any_tensor_keeps_type_shape_and_values(tmp_path: Path) -> None:
    """No elements, no dimensions, views, names beyond ASCII."""
    dtypes = ("bool", "uint8", "float16", "bfloat16", "float32", "float64", "int64")
    named = {f"{dtype}.{n}": torch.arange(n).to(getattr(torch, dtype)) for dtype in dtypes for n in (0, 5)}
    named |= {'ü"\\\n': torch.randn(2, 3), "scalar": torch.tensor(3.5), "view": torch.randn(4, 6).t()}
    save_tensors(tmp_path / "file", named, {"format": "pt"})
    read = load_file(tmp_path / "file")
    assert read.keys() == named.keys()
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in named.items())
