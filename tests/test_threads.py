"""The device, and the threads, which are chosen before torch is loaded."""

import os
import sys
from pathlib import Path

import pytest
import torch

from phmctl import threads
from phmctl.devices import pick_device
from phmctl.errors import RecipeError, UserError
from phmctl.threads import choose_threads, set_threads, threads_of


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A process on four free cores that has not loaded torch, without variables of OpenMP."""
    for name in [name for name in os.environ if name.startswith(("OMP_", "GOMP_", "KMP_", "MKL_"))]:
        monkeypatch.delenv(name)
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY"):  # to be restored
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(threads, "_chosen", {})
    monkeypatch.setattr(threads, "visible_cores", lambda: 4)
    monkeypatch.setattr(threads, "_quotas", lambda: [8.0])
    monkeypatch.setattr(threads, "load", lambda: 0.1)
    return monkeypatch


def variables() -> tuple[str | None, str | None]:
    return os.environ.get("OMP_NUM_THREADS"), os.environ.get("OMP_WAIT_POLICY")


def test_a_free_machine_keeps_the_default(environment: pytest.MonkeyPatch) -> None:
    choose_threads()
    assert variables() == (None, None)


def test_threads_yield_on_a_busy_machine(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(threads, "load", lambda: 1.0)
    choose_threads()
    assert variables() == (None, "passive")


@pytest.mark.parametrize(("quota", "expected"), [(2.0, "2"), (1.5, "1"), (0.5, "1")])
def test_a_quota_is_the_number_of_threads(environment: pytest.MonkeyPatch, quota: float, expected: str) -> None:
    environment.setattr(threads, "_quotas", lambda: [8.0, quota])
    choose_threads()
    assert variables() == (expected, None)


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_CPU_AFFINITY", "MKL_NUM_THREADS"])
def test_what_a_user_has_set_is_not_touched(environment: pytest.MonkeyPatch, name: str) -> None:
    environment.setattr(threads, "load", lambda: 40.0)
    environment.setattr(threads, "_quotas", lambda: [1.0])
    environment.setenv(name, "3")
    before = dict(os.environ)
    choose_threads()
    assert dict(os.environ) == before


def test_nothing_is_chosen_for_a_loaded_torch(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(threads, "load", lambda: 40.0)
    environment.setitem(sys.modules, "torch", threads)
    choose_threads()
    assert variables() == (None, None)


@pytest.mark.parametrize(("mean", "running", "expected"), [(0.4, 9, 0.1), (4.0, 1, 0.0), (4.0, 9, 1.0), (40.0, 9, 2.0)])
def test_a_machine_is_busy_if_it_was_and_is(
    monkeypatch: pytest.MonkeyPatch, mean: float, running: int, expected: float
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setattr(os, "getloadavg", lambda: (mean, 0.0, 0.0))
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: f"4.00 3.00 2.00 {running}/300 4711\n")
    assert threads.load() == expected


def test_the_load_and_the_quotas_of_this_machine_can_be_read() -> None:
    assert threads.load() >= 0
    assert all(quota > 0 for quota in threads._quotas())
    assert 1 <= threads.cores() <= threads.visible_cores()


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({"cpu.max": "150000 100000"}, 1.5),
        ({"cpu.max": "max 100000"}, None),
        ({"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}, None),
    ],
)
def test_quotas_of_both_versions_of_control_groups(
    monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: float | None
) -> None:
    """The group's own folder has no quota here, and one of its parents has."""
    line = "0::/a/b" if "cpu.max" in files else "4:cpuacct,cpu:/a/b"

    def read(path: Path, encoding: str) -> str:
        if path == Path("/proc/self/cgroup"):
            return line
        if path.parent.name == "a" and path.name in files:
            return files[path.name]
        raise FileNotFoundError

    monkeypatch.setattr(Path, "read_text", read)
    assert [quota for quota in threads._quotas() if quota < 100] == ([] if expected is None else [expected])


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"threads": 2}, 2),
        ({"threads": 2, "resumed": [{"threads": 1}, {"threads": 3}]}, 3),
        ({"threads": 64}, 0),
        ({}, 0),
        ({"threads": True}, 0),
        ({"threads": 2, "resumed": ["x"]}, 0),
        ({"threads": 2, "resumed": None}, 2),
    ],
)
def test_a_resumed_training_takes_over_the_threads(
    environment: pytest.MonkeyPatch, record: dict[str, object], expected: int
) -> None:
    assert threads_of(record) == expected
    environment.setenv("OMP_NUM_THREADS", "1")
    assert threads_of(record) == 0


def test_processes_of_a_sweep_have_equal_shares_and_take_over_the_threads(environment: pytest.MonkeyPatch) -> None:
    environment.setattr(threads, "load", lambda: 9.0)
    choose_threads()
    child = threads.shared(2)
    assert not {"OMP_NUM_THREADS", "OMP_WAIT_POLICY"} & child.keys()
    environment.delenv("OMP_WAIT_POLICY")
    environment.setattr(threads, "_chosen", {})
    environment.setenv("PHMCTL_CORES", child["PHMCTL_CORES"])
    choose_threads()
    assert variables() == ("2", "passive")
    assert threads_of({"threads": 1}) == 1
    assert threads_of({"threads": 3}) == 3


def test_a_sweep_leaves_the_threads_that_a_user_has_set(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("OMP_NUM_THREADS", "3")
    choose_threads()
    assert threads.shared(2)["OMP_NUM_THREADS"] == "3"


def test_a_thousand_threads_are_refused(environment: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="threads = 1000"):
        threads.set_threads(1000)


# ----------------------------------------------------------------------------------------------------------- the device


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """Simulate a number of CUDA devices."""
    count: int = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    return count


@pytest.mark.parametrize(
    ("devices", "name", "expected"),
    [(0, "auto", "cpu"), (2, "auto", "cuda"), (2, "cpu", "cpu"), (2, "cuda", "cuda"), (2, "cuda:1", "cuda:1")],
    indirect=["devices"],
)
def test_the_device_of_a_name(devices: int, name: str, expected: str) -> None:
    assert pick_device(name) == torch.device(expected)


@pytest.mark.parametrize(
    ("devices", "name"), [(0, "cuda"), (2, "cuda:2"), (1, "gpu"), (1, "meta")], indirect=["devices"]
)
def test_a_missing_or_unknown_device_is_refused(devices: int, name: str) -> None:
    with pytest.raises(RecipeError, match=f"'{name}'"):
        pick_device(name)


def test_threads_are_set_and_0_leaves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", (requested := []).append)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # restored afterwards: the commands of later tests inherit it
    set_threads(0)
    set_threads(3)
    assert requested == [3]
