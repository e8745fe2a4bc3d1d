"""Atomic files, locks, folders that are replaced, sealed folders, checkpoints."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from phmctl.errors import DataError, OutputError, RunError, UserError, WriteFailedError
from phmctl.saving import load_model, model_tensors
from phmctl.storage import (
    MANIFEST,
    discard,
    is_locked,
    lock,
    read_checkpoint,
    read_seal,
    replacing,
    save_tensors,
    seal,
    sha256,
    sole_writer,
    verify,
    whole_steps,
    write_atomic,
    write_checkpoint,
    writing,
)
from tests.training.fake import FakeModel


def file_names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


# ------------------------------------------------------------------------------------------------------- writing


@pytest.mark.parametrize("content", ["Straße\n", b"\x00\xff"])
def test_written_content_replaces_the_old_and_no_temporary_stays(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "new" / "file"
    write_atomic(path, "before")
    write_atomic(path, content)
    assert path.read_bytes() == (content.encode("utf-8") if isinstance(content, str) else content)
    assert file_names(path.parent) == ["file"]


def test_a_full_disk_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old")
    with path.open() as reader:
        monkeypatch.setattr(os, "fsync", fill_disk)
        with pytest.raises(OutputError, match="file"):
            write_atomic(path, "new")
        monkeypatch.undo()
        assert (path.read_text(), file_names(tmp_path)) == ("old", ["file"])
        write_atomic(path, "new")
        assert reader.read() == "old"  # a reader of the old file reads it to the end


def test_bytes_are_flushed_before_the_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, exists_at_flush = tmp_path / "file", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: exists_at_flush.append(path.exists()))
    write_atomic(path, "x")
    assert exists_at_flush == [False, True]  # the file's bytes, then the folder's entry


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_written_through_a_planted_link(tmp_path: Path, exists: bool) -> None:
    link, foreign = tmp_path / "link", tmp_path / "foreign"
    if exists:
        foreign.write_text("foreign")
    link.symlink_to(foreign)
    with pytest.raises(OutputError, match="link"), lock(link):
        pass
    is_locked(link)
    write_atomic(link, "new")
    assert (link.read_text(), link.is_symlink()) == ("new", False)
    assert foreign.exists() is exists
    assert not exists or foreign.read_text() == "foreign"


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EACCES, 2)])
def test_a_failing_disk_is_not_the_user_s_fault(tmp_path: Path, number: int, code: int) -> None:
    with pytest.raises(OutputError) as caught, writing(tmp_path):
        raise OSError(number, os.strerror(number))
    assert caught.value.exit_code == code
    assert isinstance(caught.value, WriteFailedError) is (code == 1)


# --------------------------------------------------------------------------------------------------------- locks


def test_one_process_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    assert is_locked(path) is False
    with lock(path):
        assert is_locked(path) is True
        with pytest.raises(UserError, match="held"), lock(path, busy=UserError("held")):
            pass
    assert is_locked(path) is False
    with path.open("rb") as file:  # another process that looks
        fcntl.flock(file, fcntl.LOCK_SH)
        assert is_locked(path) is False
    with lock(path, busy=UserError("held")):
        pass


def test_a_lock_whose_file_is_removed_excludes_all_others(tmp_path: Path) -> None:
    path, counter = tmp_path / ".lock", tmp_path / "counter"
    counter.write_text("0")

    def count(_: int) -> None:
        for _ in range(20):
            with lock(path, remove=True):
                counter.write_text(str(int(counter.read_text()) + 1))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(4)))
    assert counter.read_text() == "80"
    assert not path.exists()


def test_a_place_where_no_file_can_be_created_is_an_output_error() -> None:
    for place in (Path("/proc/phmctl"), Path("/proc/phmctl/new")):  # with `busy` no test waits forever
        with pytest.raises(OutputError), lock(place, busy=RunError("busy")):
            pass


def test_a_failed_writer_leaves_no_folder_that_it_created(tmp_path: Path) -> None:
    """A process that waits for the lock creates the folders again."""
    (tmp_path / "old").mkdir()
    place = tmp_path / "old" / "new" / "newer" / "out"

    def write() -> None:
        with sole_writer(place):
            make_folder(place, "content")

    def fail(pool: ThreadPoolExecutor) -> Future[None]:
        with suppress(KeyError), sole_writer(place):
            waiting = pool.submit(write)
            time.sleep(0.2)
            raise KeyError
        return waiting

    with ThreadPoolExecutor(1) as pool:
        fail(pool).result()
    assert file_names(place.parent) == ["out"]
    with pytest.raises(KeyError), sole_writer(tmp_path / "old" / "another" / "out"):
        raise KeyError
    assert file_names(tmp_path / "old") == ["new"]


@pytest.mark.parametrize("number", [errno.ENOLCK])
def test_a_file_system_without_locks_costs_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    entered = False
    with lock(tmp_path / "lock"):
        entered = True
    assert entered
    assert str(tmp_path) in capsys.readouterr().err
    assert not is_locked(tmp_path / "lock")


# --------------------------------------------------------------------------------------------------- temporaries


def make_folder(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "file").write_text(content)


@pytest.mark.parametrize("exists", [True, False])
def test_the_next_holder_of_the_lock_clears_what_a_killed_process_left(tmp_path: Path, exists: bool) -> None:
    for name in (".out.0123abcd.tmp", ".out.0123abcd.old", ".another.0123abcd.old", *["out"][:exists]):
        make_folder(tmp_path / name, name)
    (tmp_path / ".out.4711abcd.tmp").touch()
    (tmp_path / ".out.tmp").touch()  # not one of ours
    with sole_writer(tmp_path / "out"):
        assert file_names(tmp_path) == [".another.0123abcd.old", ".out.lock", ".out.tmp", "out"]
    assert (tmp_path / "out" / "file").read_text() == ("out" if exists else ".out.0123abcd.old")
    with sole_writer(tmp_path / "*"):
        pass
    assert file_names(tmp_path) == [".out.tmp", "another", "out"]


def write_folder(target: Path, content: str) -> None:
    with replacing(target, "manifest.json", "kind") as folder:
        (folder / "file").write_text(content)
        seal(folder, "manifest.json", {"kind": "test"})


def test_a_folder_is_replaced_if_the_block_succeeds_and_stays_otherwise(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"
    target.parent.mkdir()
    for content in ("first", "second"):
        write_folder(target, content)
        assert (target / "file").read_text() == content
    with pytest.raises(FileNotFoundError), replacing(target, "manifest.json", "kind") as folder:
        (folder / "missing").rename(folder / "file")
    assert (target / "file").read_text() == "second"
    assert file_names(target.parent) == ["out"]
    with pytest.raises(OutputError, match="below"):
        write_folder(target / "file" / "below", "third")


def everything(folder: Path) -> dict[str, str]:
    paths = [path for path in sorted(folder.rglob("*")) if not path.is_dir() or path.is_symlink()]
    return {str(path): str(path.readlink()) if path.is_symlink() else path.read_text() for path in paths}


@pytest.mark.parametrize(
    "plant",
    [
        lambda target: (target / "note").write_text("precious"),
        lambda target: (target / "link").symlink_to("/"),
        lambda target: (target / "manifest.json").write_text('{"kind": "of another program"}'),
        lambda target: seal(target, "manifest.json", {"another kind": ""}),
        lambda target: target.rename(target.with_name("moved")) and target.symlink_to("moved"),
        lambda target: target.rename(target.with_name("moved")) and target.symlink_to("missing"),
        lambda target: target.rename(target.with_name("moved")) and target.write_text("precious"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_folder_with_anything_foreign_is_neither_replaced_nor_removed(
    tmp_path: Path, plant: Callable[[Path], object], late: bool
) -> None:
    """Also if another process puts it there while the new folder is filled."""
    target = tmp_path / "out"
    write_folder(target, "old")

    def replace_late() -> None:
        with replacing(target, "manifest.json", "kind"):
            assert late
            plant(target)

    if not late:
        plant(target)
    with pytest.raises(OutputError, match="out"):
        replace_late()
    before = everything(tmp_path)
    with pytest.raises(OutputError, match="out"):
        discard(target, "manifest.json", "kind")
    assert everything(tmp_path) == before


# ------------------------------------------------------------------------------------------------ sealed folders


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    for name in ("b", "below/a"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_a_manifest_lists_all_files(folder: Path) -> None:
    manifest = seal(folder, "manifest.json", {"format": 1})
    assert manifest == read_seal(folder / "manifest.json", DataError, "")
    assert manifest == json.loads((folder / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert [entry["name"] for entry in manifest["files"]] == ["b", "below/a"]
    assert manifest["files"][1] == {"name": "below/a", "bytes": 7, "sha256": sha256(folder / "below/a")}


@pytest.mark.parametrize("content", ["", "{}", '{"files": ['])
def test_a_manifest_without_files_is_damaged(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(DataError, match="manifest"):
        read_seal(folder / "manifest.json", DataError, "prepare the data again")


def test_a_file_that_the_manifest_does_not_list_cannot_be_verified(folder: Path) -> None:
    entries = seal(folder, "manifest.json", {})["files"]
    verify(folder, entries[1:], DataError, "", ["below/a", "missing"])
    with pytest.raises(DataError, match=r"b .*the advice"):
        verify(folder, entries[1:], DataError, "the advice", ["b"])


@pytest.mark.parametrize("content", [None, "other00", "below/a and more"])
def test_damage_is_found_in_the_files_that_are_checked(folder: Path, content: str | None) -> None:
    entries = seal(folder, "manifest.json", {})["files"]
    verify(folder, entries, DataError, "")
    (folder / "below/a").unlink()
    if content is not None:
        (folder / "below/a").write_text(content)
    verify(folder, entries, DataError, "", ["b"])
    with pytest.raises(DataError, match=r"below/a.*the advice"):
        verify(folder, entries, DataError, "the advice")


# ----------------------------------------------------------------------------------------------------- checkpoints

CPU = torch.device("cpu")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tensors = {
        "model": {"w": torch.arange(6.0).view(2, 3), "half": torch.ones(2, dtype=torch.bfloat16)},
        "random": {"cpu": torch.tensor([1, 255], dtype=torch.uint8)},
    }
    target = tmp_path / "checkpoints" / "step-000010"
    target.parent.mkdir()
    write_checkpoint(target, tensors, {"step": 10, "loss": 0.1 + 0.2})
    return target


def test_a_checkpoint_reads_as_it_was_written(checkpoint: Path) -> None:
    read = read_checkpoint(checkpoint, ["model", "random"])
    assert torch.equal(read.tensors["model"]["w"], torch.arange(6.0).view(2, 3))
    assert read.tensors["model"]["half"].dtype == torch.bfloat16
    assert read.tensors["random"]["cpu"].tolist() == [1, 255]
    assert read.state == {"step": 10, "loss": 0.1 + 0.2}
    names = {entry["name"] for entry in json.loads((checkpoint / MANIFEST).read_text())["files"]}
    assert names == {"state.json", "model.safetensors", "random.safetensors"}  # nothing is pickled


@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_any_flipped_byte_is_noticed(checkpoint: Path, name: str) -> None:
    content = (checkpoint / name).read_bytes()
    for position in range(0, len(content), 7):
        flipped = bytearray(content)
        flipped[position] ^= 1
        (checkpoint / name).write_bytes(flipped)
        with pytest.raises(RunError, match=name):
            read_checkpoint(checkpoint, ["model"])


def test_the_message_names_another_checkpoint(checkpoint: Path) -> None:
    for other in ("step-000005", "average"):
        write_checkpoint(checkpoint.with_name(other), {}, {})
    (checkpoint / "state.json").unlink()
    with pytest.raises(RunError, match=r"checkpoint step-000005 .*average, step-000005"):
        read_checkpoint(checkpoint, ["model"])


def test_the_manifest_is_written_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash before the end leaves no checkpoint of the checkpoint's name, and the next write clears what it left."""
    monkeypatch.setattr("phmctl.storage.shutil.rmtree", lambda *args, **kwargs: None)  # a crash cleans nothing up
    monkeypatch.setattr("phmctl.storage.write_json", _crash)
    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path / "step-000001", {}, {})
    assert not (tmp_path / "step-000001").exists()
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.undo()
    write_checkpoint(tmp_path / "step-000002", {}, {})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000002"]


def _crash(*args: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("failing", ["rename", "sync"])
def test_a_replacement_that_fails_leaves_the_old(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    original = Path.rename

    def rename(self: Path, target: Path) -> Path:
        return fail(self) if self.suffix == ".tmp" and self.is_dir() else original(self, target)

    def fail(path: Path) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((Path, "rename", rename) if failing == "rename" else ("phmctl.storage.sync", fail)))
    with pytest.raises(OutputError) as caught:
        write_checkpoint(checkpoint, {"model": {"w": torch.ones(1)}}, {"step": 11})
    assert caught.value.exit_code == 1
    assert read_checkpoint(checkpoint, []).state["step"] == 10
    assert [entry.name for entry in checkpoint.parent.iterdir()] == ["step-000010"]


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
def test_a_checkpoint_without_a_piece_is_not_whole(checkpoint: Path, name: str) -> None:
    assert whole_steps(checkpoint.parent) == [10]
    (checkpoint / name).write_bytes((checkpoint / name).read_bytes()[:-1])
    assert whole_steps(checkpoint.parent) == ([10] if name == "manifest.json" else [])
    (checkpoint / name).unlink()
    assert whole_steps(checkpoint.parent) == []


def test_tensors_that_no_library_reads_are_a_run_error(checkpoint: Path) -> None:
    """Their SHA-256 is right: they were written so."""
    path = checkpoint / "model.safetensors"
    path.write_bytes(b"\xff" * 64)
    seal(checkpoint, MANIFEST, {})
    with pytest.raises(RunError, match=r"model\.safetensors"):
        read_checkpoint(checkpoint, ["model"])


def test_any_tensor_keeps_type_shape_and_values(tmp_path: Path) -> None:
    """No elements, no dimensions, views, names beyond ASCII."""
    dtypes = ("bool", "uint8", "float16", "bfloat16", "float32", "float64", "int64")
    named = {f"{dtype}.{n}": torch.arange(n).to(getattr(torch, dtype)) for dtype in dtypes for n in (0, 5)}
    named |= {'ü"\\\n': torch.randn(2, 3), "scalar": torch.tensor(3.5), "view": torch.randn(4, 6).t()}
    save_tensors(tmp_path / "file", named)
    read = load_file(tmp_path / "file")
    assert read.keys() == named.keys()
    assert all(torch.equal(read[name], tensor) and read[name].dtype == tensor.dtype for name, tensor in named.items())
