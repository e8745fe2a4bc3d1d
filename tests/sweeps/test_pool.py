"""Several processes at once: their answers, codes and last words."""

import signal
import sys
from pathlib import Path

import pytest

from phmctl import __version__
from phmctl.devices import check_jobs
from phmctl.errors import UserError
from phmctl.sweeps.pool import Job, run_jobs, threads_each


def test_one_that_fails_stops_no_other() -> None:
    jobs = [Job("bad", ["recipes", "hamiltn"]), Job("good", ["--version"])]
    seen: list[tuple[str, int | None]] = []
    assert run_jobs(jobs, 1, lambda job, line: seen.append((job.label, job.code))) is None
    assert [job.code for job in jobs] == [2, 0]
    assert jobs[1].answer == f"phmctl {__version__}\n"
    assert (jobs[0].problem or "").startswith("error: no recipe 'hamiltn'")
    assert seen[0] == ("bad", None)
    assert seen[-2:] == [("good", None), ("good", 0)]
    assert [code for _, code in seen].count(2) == 1


@pytest.mark.parametrize(("name", "code"), [("long", -signal.SIGTERM), ("short", 0)])
def test_an_error_in_what_looks_at_them_stops_what_runs_and_what_waits(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\n[ "$3" = short ] || exec sleep 20\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    jobs = [Job(name, [name]), Job("waiting", ["short"])]

    def changed(job: Job, line: str | None) -> None:
        if name == "long" or job.code is not None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_jobs(jobs, 1, changed)
    assert [job.code for job in jobs] == [code, None]


def test_threads_are_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert [threads_each(jobs) for jobs in (1, 2, 3, 7, 9)] == [7, 3, 2, 1, 1]
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads_each(1) >= 1
    with pytest.raises(UserError, match="--jobs 99999: this machine has"):
        check_jobs(99999)
