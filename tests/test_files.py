"""Writing that survives a crash, and the lock."""

import errno
import fcntl
import json
import multiprocessing
import os
from pathlib import Path

import pytest

from phmctl.data.prepared.folder import write_manifest
from phmctl.errors import DataError, OutputError, UserError, WriteFailedError
from phmctl.files import (
    clear,
    held_beside,
    locked,
    read_seal,
    replacing,
    seal,
    sha256,
    sha256_text,
    sweep,
    verify,
    write_atomic,
    writing,
)


@pytest.mark.parametrize("content", ["Straße\n", b"\x00\xff"])
def test_what_is_written_is_there_and_nothing_else(tmp_path: Path, content: str | bytes) -> None:
    path = tmp_path / "new" / "file"
    write_atomic(path, "before")
    write_atomic(path, content)
    assert path.read_bytes() == (content.encode("utf-8") if isinstance(content, str) else content)
    assert [entry.name for entry in path.parent.iterdir()] == ["file"]


def test_a_disk_that_fills_up_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "file"
    write_atomic(path, "old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutputError, match=r"cannot write .*file: No space left on device; choose a folder"):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_bytes_are_on_the_disk_before_the_name_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, seen = tmp_path / "file", []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.append(path.exists()))
    write_atomic(path, "x")
    assert seen == [False, True]  # the file's bytes, then the folder's entry


def test_who_reads_the_old_file_reads_it_to_the_end(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomic(path, "old and long")
    with path.open() as reader:
        write_atomic(path, "new")
        assert reader.read() == "old and long"
    assert path.read_text() == "new"


def test_a_pipe_stays_a_pipe_and_is_written_to(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(pipe, "ä\n")
        assert os.read(reader, 100) == "ä\n".encode()
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    link, target = tmp_path / "link", tmp_path / "there" / "target"
    link.symlink_to(target)
    for content in ("new", "newer"):
        write_atomic(link, content)
        assert target.read_text() == content
    assert link.is_symlink()


def test_only_the_operating_system_s_refusals_are_turned() -> None:
    with pytest.raises(OutputError, match="cannot write here: Permission denied"), writing(Path("here")):
        raise PermissionError(13, "Permission denied")
    with pytest.raises(ValueError, match="mine"), writing(Path("here")):
        raise ValueError("mine")


def test_a_lock_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    with locked(path) as first, locked(path, wait=False) as second:
        assert (first, second) == (True, False)
    with locked(path, wait=False) as third:
        assert third


def test_who_waits_for_a_lock_that_is_removed_makes_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "new" / ".lock"
    tried: list[int] = []

    def lock(descriptor: int, operation: int) -> None:
        if not tried:  # its holder removes it while we wait
            path.unlink()
            path.parent.rmdir()
        tried.append(descriptor)

    monkeypatch.setattr("phmctl.files.fcntl.flock", lock)
    with locked(path) as held:
        assert held
        assert path.exists()
    assert len(tried) == 2


def test_an_error_under_the_lock_passes_and_gives_it_back(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with pytest.raises(FileNotFoundError), locked(path):  # not an OutputError about the lock
        raise FileNotFoundError
    with locked(path, wait=False) as held:
        assert held


def test_another_process_waits(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path, written = tmp_path / ".lock", tmp_path / "written"
    with locked(path):
        other = context.Process(target=_write_under_lock, args=(path, written))
        other.start()
        other.join(1.5)
        assert not written.exists()
    other.join(60)
    assert written.read_text() == "done"


def _write_under_lock(path: Path, written: Path) -> None:
    with locked(path):
        written.write_text("done")


def test_a_lock_that_cannot_be_made_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"), locked(tmp_path / "file" / ".lock"):
        pass


def test_sha256_of_text_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("äöü\n€", encoding="utf-8")
    assert sha256_text(["ä", "öü\n", "", "€"]) == sha256(tmp_path / "file")


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(tmp_path / "lock", wait=False) as held:
        assert held
    assert f"no locks are to be had in {tmp_path}: see to it" in capsys.readouterr().err
    write_atomic(tmp_path / "file", "x")
    with held_beside(tmp_path / "folder"):
        sweep(tmp_path)
        assert len(list(tmp_path.glob(".folder.*.tmp"))) == 1


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EIO, 1), (errno.EDQUOT, 1), (errno.EACCES, 2)])
def test_a_disk_that_fails_is_no_fault_of_the_input(tmp_path: Path, number: int, code: int) -> None:
    with pytest.raises(OutputError) as refused, writing(tmp_path):
        raise OSError(number, os.strerror(number))
    assert refused.value.exit_code == code
    assert isinstance(refused.value, WriteFailedError) is (code == 1)


def test_temporaries_of_the_dead_are_swept_and_those_of_the_living_left(tmp_path: Path) -> None:
    for name in (".file.0123abcd.tmp", ".other.4711abcd.tmp"):
        (tmp_path / name).touch()
    (tmp_path / ".folder.0123abcd.tmp").mkdir()
    others = [".hidden.tmp", "file.0123abcd.tmp", ".file.0123abcd.old"]
    for name in others:
        (tmp_path / name).touch()
    with held_beside(tmp_path / "folder") as (living, _):
        (living / "in").touch()
        sweep(tmp_path)
        assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([*others, living.name])
    assert not living.exists()


def test_a_write_sweeps_what_an_earlier_one_left(tmp_path: Path) -> None:
    for name in (".file.0123abcd.tmp", ".fil.0123abcd.tmp"):
        (tmp_path / name).touch()
    write_atomic(tmp_path / "file", "x")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == [".fil.0123abcd.tmp", "file"]


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "there/" + "b" * 5000])
def test_a_name_that_no_file_can_have_is_missing(tmp_path: Path, name: str) -> None:
    """Found by tests/fuzz in an export's manifest."""
    entries = [{"name": name, "bytes": 1, "sha256": "0"}]
    with pytest.raises(UserError, match="is missing"):
        verify(tmp_path, entries, UserError, "")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make(folder: Path, mark: str) -> None:
    folder.mkdir()
    (folder / "file").write_text(mark)


@pytest.mark.parametrize("stands", [True, False])
def test_what_a_killed_process_left_is_cleared(tmp_path: Path, stands: bool) -> None:
    make(tmp_path / ".out.0123abcd.tmp", "half made")
    make(tmp_path / ".out.0123abcd.old", "former")
    make(tmp_path / ".another.0123abcd.old", "of another")
    if stands:
        make(tmp_path / "out", "new")
    clear(tmp_path / "out")
    assert names(tmp_path) == [".another.0123abcd.old", "out"]
    assert (tmp_path / "out" / "file").read_text() == ("new" if stands else "former")


def test_a_folder_is_replaced_when_the_block_ends_well_and_stays_otherwise(tmp_path: Path) -> None:
    place = tmp_path / "new" / "out"
    for mark in ("first", "second"):
        with replacing(place) as folder:
            (folder / "file").write_text(mark)
            assert place.exists() is (mark == "second")
        assert (place / "file").read_text() == mark
    with pytest.raises(FileNotFoundError), replacing(place) as folder:
        (folder / "missing").rename(folder / "file")
    assert (place / "file").read_text() == "second"
    assert names(place.parent) == ["out"]
    with pytest.raises(OutputError, match="cannot write"), replacing(place / "file" / "below"):
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "below").mkdir()
    for name in ("b", "below/a"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_a_manifest_lists_all_files(folder: Path) -> None:
    made = seal(folder, "manifest.json", {"format": 1})
    assert (
        made == read_seal(folder / "manifest.json", DataError, "") == json.loads((folder / "manifest.json").read_text())
    )
    assert made["format"] == 1
    assert [entry["name"] for entry in made["files"]] == ["b", "below/a"]
    assert made["files"][1] == {"name": "below/a", "bytes": 7, "sha256": sha256(folder / "below/a")}


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"files": [3]}', '{"files": [{"name": "a", "bytes": 1}]}'])
def test_a_manifest_without_files_is_damaged(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(DataError, match="manifest"):
        read_seal(folder / "manifest.json", DataError, "prepare anew")


@pytest.mark.parametrize("content", [None, "other00", "below/a and more"])
def test_damage_is_found_where_it_is_asked_about(folder: Path, content: str | None) -> None:
    files = seal(folder, "manifest.json", {})["files"]
    verify(folder, files, DataError, "")
    (folder / "below/a").unlink()
    if content is not None:
        (folder / "below/a").write_text(content)
    verify(folder, files, DataError, "", ["b"])
    with pytest.raises(DataError, match=r"below/a is (missing|damaged).*prepare anew"):
        verify(folder, files, DataError, "prepare anew")


def test_a_disk_that_is_full_while_prepared_data_are_sealed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by tests/faults."""

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteFailedError):
        write_manifest(folder, {})
