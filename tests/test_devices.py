"""Choosing the device and the threads."""

import pytest
import torch

from phmctl.devices import pick_device
from phmctl.errors import RecipeError
from phmctl.threads import set_threads


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
