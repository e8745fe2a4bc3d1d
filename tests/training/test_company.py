"""Beats, and a starter that is gone."""

import os
import signal
import socket
import threading

import pytest

from phmctl.devices import Place
from phmctl.training.company import JOB, Company

BESIDE = [pytest.param("job", True, id="torchrun-is-gone"), pytest.param(None, False, id="no-torchrun")]


@pytest.mark.parametrize(("job", "stops"), BESIDE)
def test_a_process_whose_starter_is_gone_is_asked_to_stop(
    monkeypatch: pytest.MonkeyPatch, job: str | None, stops: bool
) -> None:
    with socket.socket() as free:
        free.bind(("localhost", 0))
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    monkeypatch.delenv(JOB, raising=False)
    if job is not None:
        monkeypatch.setenv(JOB, job)
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
