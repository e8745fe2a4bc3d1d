"""A sealed folder: what its manifest says, and what is said of damage."""

import json
import os
from pathlib import Path

import pytest

from phmctl.data.prepared.folder import write_manifest
from phmctl.errors import DataError, WriteFailedError
from phmctl.files import read_seal, seal, sha256, verify


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
