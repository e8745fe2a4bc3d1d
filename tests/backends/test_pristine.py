"""What is computed as in a process that has just begun."""

import threading
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from typing import Any

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.flop_counter import FlopCounterMode

from phmctl.backends.pristine import computed_once, undisturbed

VALUE: ContextVar[str] = ContextVar("value", default="nobody's")
MODES = {
    "none": nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "device": lambda: torch.device("meta"),
    "dispatch": lambda: FlopCounterMode(display=False),
    "hooks": lambda: saved_tensors_hooks(lambda x: x.half(), lambda x: x.float()),
}


def look() -> dict[str, Any]:
    x = torch.ones(2, 2, requires_grad=True)
    y = x @ (x + 0.0001)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    return {
        "dtype": y.dtype,
        "inference": y.is_inference(),
        "meta": y.is_meta,
        "watched": torch._C._len_torch_dispatch_stack(),
        "gradient": gradient.sum().item(),  # half precision of what is saved would show
        "value": VALUE.get(),
    }


@pytest.mark.parametrize("mode", MODES)
def test_no_mode_is_seen(mode: str) -> None:
    expected = look()
    entered: AbstractContextManager[Any] = MODES[mode]()
    token = VALUE.set("the caller's")
    try:
        with entered:
            assert undisturbed(look)() == expected
    finally:
        VALUE.reset(token)


@pytest.mark.parametrize("mode", MODES)
def test_only_what_must_not_be_seen_takes_another_thread(mode: str) -> None:
    # Another thread has workers of its own, and to measure there is to measure how they are woken.
    with MODES[mode]():
        same = undisturbed(threading.get_ident)() == threading.get_ident()
    assert same == (mode in ("none", "no_grad", "inference"))


@pytest.mark.parametrize("mode", ["none", "device"])
def test_an_error_is_the_callers(mode: str) -> None:
    def fail() -> None:
        raise ZeroDivisionError("mine")

    with MODES[mode](), pytest.raises(ZeroDivisionError, match="mine"):
        undisturbed(fail)()


def test_what_is_computed_once_has_numbers_for_everyone() -> None:
    calls = []

    @computed_once
    def made(size: int) -> torch.Tensor:
        calls.append(size)
        return torch.zeros(size)

    with torch.device("meta"), torch.inference_mode():
        first = made(3)
    assert not first.is_meta
    assert not first.is_inference()
    assert made(3) is first
    assert calls == [3]
