"""Choosing the device and the threads."""

import pytest
import torch

from phmctl.devices import pick_device, set_threads
from phmctl.errors import RecipeError


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> int:
    """Pretend that there are so many CUDA devices."""
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
    ("devices", "name", "message"),
    [
        (0, "cuda", r"device 'cuda': this machine has 0 CUDA devices; use cpu or auto"),
        (2, "cuda:2", r"device 'cuda:2': this machine has 2 CUDA devices"),
        (1, "gpu", r"device 'gpu' is not known; use auto, cpu, cuda or cuda:N"),
        (1, "meta", r"device 'meta' is not known; use auto, cpu, cuda or cuda:N"),
    ],
    indirect=["devices"],
)
def test_a_device_that_is_not_there(devices: int, name: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        pick_device(name)


def test_threads_are_set_and_0_leaves_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "set_num_threads", (asked := []).append)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # given back, or the commands of later tests have three threads
    set_threads(0)
    set_threads(3)
    assert asked == [3]
