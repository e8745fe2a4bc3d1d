"""Atomic writes, locks, temporaries and sealed folders."""

import errno
import fcntl
import json
import multiprocessing
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from phmctl.data.prepared import write_manifest
from phmctl.errors import DataError, OutputError, RunError, UserError, WriteFailedError
from phmctl.files import (
    clear,
    discard,
    is_locked,
    lock,
    open_without_links,
    read_json_object,
    read_seal,
    remove_abandoned,
    replacing,
    restore_replaced,
    seal,
    sha256,
    sha256_text,
    verify,
    write_atomic,
    writing,
)


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


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(pipe, "ä\n", follow=True)
        assert os.read(reader, 100) == "ä\n".encode()
    finally:
        os.close(reader)
    assert pipe.is_fifo()


def test_a_link_that_the_user_names_is_followed(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    link, target = tmp_path / "link", tmp_path / "folder" / "target"
    link.symlink_to(target)
    for content in ("new", "newer"):
        write_atomic(link, content, follow=True)
        assert target.read_text() == content
    assert link.is_symlink()


@pytest.mark.parametrize("exists", [True, False])
def test_nothing_is_written_through_a_planted_link(tmp_path: Path, exists: bool) -> None:
    link, foreign = tmp_path / "link", tmp_path / "foreign"
    if exists:
        foreign.write_text("foreign")
    link.symlink_to(foreign)
    for mode in "aw":
        with pytest.raises(OSError, match="link"):
            open_without_links(link, mode)
    with pytest.raises(OutputError, match="link"), lock(link):
        pass
    is_locked(link)
    write_atomic(link, "new")
    assert (link.read_text(), link.is_symlink()) == ("new", False)
    assert foreign.exists() is exists
    assert not exists or foreign.read_text() == "foreign"


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EIO, 1), (errno.EDQUOT, 1), (errno.EACCES, 2)])
def test_a_failing_disk_is_not_the_user_s_fault(tmp_path: Path, number: int, code: int) -> None:
    with pytest.raises(OutputError) as caught, writing(tmp_path):
        raise OSError(number, os.strerror(number))
    assert caught.value.exit_code == code
    assert isinstance(caught.value, WriteFailedError) is (code == 1)


def test_an_error_that_is_not_the_operating_system_s_passes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^mine$"), writing(tmp_path):
        raise ValueError("mine")


# --------------------------------------------------------------------------------------------------------- locks


def test_one_process_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "new" / ".lock"
    assert is_locked(path) is False
    with lock(path):
        assert is_locked(path) is True
        with pytest.raises(UserError, match="held"), lock(path, busy=UserError("held")):
            pass
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


def test_an_error_under_the_lock_passes_and_releases_it(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    with pytest.raises(FileNotFoundError), lock(path):  # not an OutputError about the lock
        raise FileNotFoundError
    assert is_locked(path) is False


def test_another_process_waits(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    path, written = tmp_path / ".lock", tmp_path / "written"
    with lock(path):
        process = context.Process(target=_write_under_lock, args=(path, written))
        process.start()
        process.join(1.5)
        assert not written.exists()
    process.join(60)
    assert written.read_text() == "done"


def _write_under_lock(path: Path, written: Path) -> None:
    with lock(path):
        written.write_text("done")


def test_a_lock_that_cannot_be_created_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="file"), lock(tmp_path / "file" / ".lock"):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
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
    assert is_locked(tmp_path / "lock") is None or number == errno.ENOSYS  # filelock removes its file after ENOSYS


# --------------------------------------------------------------------------------------------------- temporaries


def abandon(path: Path) -> Path:
    """Date a file or folder back by two days."""
    two_days_ago = time.time() - 2 * 86_400
    os.utime(path, (two_days_ago, two_days_ago))
    return path


def test_old_temporaries_are_removed_and_new_ones_and_other_files_stay(tmp_path: Path) -> None:
    for name in (".file.0123abcd.tmp", ".other.4711abcd.tmp", ".hidden.tmp", "file.0123abcd.tmp", ".file.0123abcd.old"):
        (tmp_path / name).touch()
        abandon(tmp_path / name)
    (tmp_path / ".folder.0123abcd.tmp").mkdir()
    abandon(tmp_path / ".folder.0123abcd.tmp")
    (tmp_path / ".new.0123abcd.tmp").touch()
    remove_abandoned(tmp_path / "*")
    assert file_names(tmp_path) == [".file.0123abcd.old", ".hidden.tmp", ".new.0123abcd.tmp", "file.0123abcd.tmp"]


def test_a_write_removes_the_old_temporaries_of_its_name(tmp_path: Path) -> None:
    for name in (".file.0123abcd.tmp", ".fil.0123abcd.tmp", ".folder.0123abcd.tmp"):
        (tmp_path / name).touch()
        abandon(tmp_path / name)
    write_atomic(tmp_path / "file", "x")
    with replacing(tmp_path / "folder", "manifest.json", "kind"):
        pass
    assert file_names(tmp_path) == [".fil.0123abcd.tmp", "file", "folder"]


def make_folder(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "file").write_text(content)


@pytest.mark.parametrize("exists", [True, False])
def test_a_killed_process_s_files_are_cleared(tmp_path: Path, exists: bool) -> None:
    make_folder(tmp_path / ".out.0123abcd.tmp", "half written")
    make_folder(tmp_path / ".out.0123abcd.old", "old")
    make_folder(tmp_path / ".another.0123abcd.old", "of another name")
    if exists:
        make_folder(tmp_path / "out", "new")
    restore_replaced(tmp_path / "out")
    assert file_names(tmp_path) == [".another.0123abcd.old", ".out.0123abcd.tmp", "out"]
    clear(tmp_path / "out")
    assert file_names(tmp_path) == [".another.0123abcd.old", "out"]
    assert (tmp_path / "out" / "file").read_text() == ("new" if exists else "old")


def write_folder(target: Path, content: str) -> None:
    with replacing(target, "manifest.json", "kind") as folder:
        (folder / "file").write_text(content)
        seal(folder, "manifest.json", {"kind": "test"})


def test_a_folder_is_replaced_if_the_block_succeeds_and_stays_otherwise(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"
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


def test_sha256_of_text_is_that_of_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("äöü\n€", encoding="utf-8")
    assert sha256_text(["ä", "öü\n", "", "€"]) == sha256(tmp_path / "file")


@pytest.mark.parametrize("name", ["a" * 300, "a\0b", "folder/" + "b" * 5000])
def test_an_impossible_file_name_is_a_missing_file(tmp_path: Path, name: str) -> None:
    """Found by tests/fuzz in an export's manifest."""
    entries = [{"name": name, "bytes": 1, "sha256": "0"}]
    with pytest.raises(UserError):
        verify(tmp_path, entries, UserError, "")


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


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"files": []}', '{"files": [3]}', '{"files": [{"name": "a", "bytes": 1}]}']
)
def test_a_manifest_without_files_is_damaged(folder: Path, content: str) -> None:
    (folder / "manifest.json").write_text(content)
    with pytest.raises(DataError, match="manifest"):
        read_seal(folder / "manifest.json", DataError, "prepare the data again")


def test_a_manifest_that_lists_a_file_twice_is_damaged(folder: Path) -> None:
    """Each entry would cost a reading of the file."""
    manifest = seal(folder, "manifest.json", {})
    manifest["files"].append(manifest["files"][0])
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(DataError, match="manifest"):
        read_seal(folder / "manifest.json", DataError, "")


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


def test_a_full_disk_while_prepared_data_are_sealed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by tests/faults."""
    monkeypatch.setattr(os, "fsync", fill_disk)
    with pytest.raises(WriteFailedError):
        write_manifest(folder, {})


def test_a_json_file_with_a_key_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "manifest.json"
    path.write_text('{"format": 1, "files": [{"name": "a", "name": "b"}]}')
    with pytest.raises(RunError, match=r'manifest\.json.*"name"'):
        read_json_object(path, RunError, "copy it again")
