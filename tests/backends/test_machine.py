"""The machine's file: an aid that is never in the way."""

import json
import os
import threading
from pathlib import Path

import pytest

from phmctl.backends import machine


@pytest.fixture(autouse=True)
def folder(measuring: Path) -> Path:
    machine._warn_once.cache_clear()
    return measuring


def test_what_is_added_is_read(folder: Path) -> None:
    assert machine.read() == {}
    machine.add({"a use": "dense mkl"})
    machine.add({"another": "rank mkl", "a use": "factored mkl"})
    assert machine.read() == {"a use": "dense mkl", "another": "rank mkl"}  # what stands there stays
    (path,) = folder.glob("*.json")
    assert json.loads(path.read_text())["processor"] == machine.processor()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 1, "choices": {"a": 2}}', "\x00" * 9])
def test_a_damaged_file_is_warned_of_once_and_written_anew(content: str, capsys: pytest.CaptureFixture[str]) -> None:
    machine.add({"a": "dense mkl"})
    path = machine.path()
    assert path is not None
    path.write_text(content)
    assert machine.read() == machine.read() == {}
    assert capsys.readouterr().err.count("is damaged") == 1
    machine.add({"b": "dense mkl"})
    assert machine.read() == {"b": "dense mkl"}


def test_a_file_of_another_format_is_not_read(capsys: pytest.CaptureFixture[str]) -> None:
    machine.add({"a": "dense mkl"})
    path = machine.path()
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    assert machine.read() == {}
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("word", ["off", "OFF", "0", ""])
def test_none_is_kept(word: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv(machine.VARIABLE, word)
    machine.add({"a": "dense mkl"})
    assert machine.path() is None
    assert machine.read() == {}
    assert not folder.exists()


def test_by_default_it_lies_in_the_user_s_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(machine.VARIABLE)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert machine.path().parent == tmp_path / "phmctl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert machine.path().parent == tmp_path / ".cache" / "phmctl"


def test_a_folder_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(machine.VARIABLE, str(tmp_path / "file"))
    machine.add({"a": "dense mkl"})
    assert machine.read() == {}
    folder = tmp_path / "closed"
    folder.mkdir(mode=0o500)
    if not os.access(folder, os.W_OK):  # root writes everywhere
        monkeypatch.setenv(machine.VARIABLE, str(folder))
        machine.add({"a": "dense mkl"})
        assert machine.read() == {}


def test_many_writers_lose_nothing() -> None:
    writers = [threading.Thread(target=machine.add, args=({f"use {number}": "dense mkl"},)) for number in range(12)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(machine.read()) == 12
