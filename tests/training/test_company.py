"""Beats, and a starter that is gone."""

import os
import signal
import socket
import threading

import pytest

from phmctl.devices import Place
from phmctl.training.company import JOB, Company
from phmctl.training.processes import job

BESIDE = [pytest.param("job", True, id="torchrun-is-gone"), pytest.param(None, False, id="no-torchrun")]


@pytest.mark.parametrize(("start", "stops"), BESIDE)
def test_a_process_whose_starter_is_gone_is_asked_to_stop(
    monkeypatch: pytest.MonkeyPatch, start: str | None, stops: bool
) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.delenv(JOB, raising=False)
    if start is not None:
        monkeypatch.setenv(JOB, start)
    monkeypatch.setattr("phmctl.training.company.GROUP", "company")  # this process keeps the store
    parents = iter([1234, 1234])
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    asked = threading.Event()
    previous = signal.signal(signal.SIGTERM, lambda *_: asked.set())
    try:
        with Company(Place(0, 2, 0, 2)):
            assert asked.wait(8 if stops else 2) is stops
    finally:
        signal.signal(signal.SIGTERM, previous)


def test_jobs_without_an_id_are_told_apart_by_their_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    """By default ``torchrun`` calls every job "none"; one that was started again goes on with its own run only."""
    monkeypatch.setenv(JOB, "job7")
    assert job() == "job7"
    monkeypatch.setenv(JOB, "none")
    mine = job()
    assert mine == job()
    assert str(os.getppid()) in str(mine)
    monkeypatch.setattr(os, "getppid", os.getpid)
    assert job() not in (mine, "none")
    monkeypatch.delenv(JOB)
    assert job() is None
