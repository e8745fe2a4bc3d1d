"""Triton's kernels give H and its gradients: interpreted on any machine (``make triton-check``), compiled on a GPU."""

import os
import subprocess
import sys
import time

import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # read when a kernel is defined
triton = pytest.importorskip("triton")

from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from phmctl.algebra import kronecker  # noqa: E402
from phmctl.algebra.execution import apply_built, candidates  # noqa: E402
from phmctl.algebra.kronecker import materialise, materialise_reference  # noqa: E402
from phmctl.backends import products, triton_kronecker  # noqa: E402
from phmctl.backends.choices import Choice, Use  # noqa: E402
from phmctl.backends.measuring import clock_of, lowest_seconds  # noqa: E402
from phmctl.backends.products import TRITON  # noqa: E402

NEAR = {torch.float64: 1e-12, torch.float32: 1e-6, torch.bfloat16: 1e-2}
shapes = st.tuples(st.integers(2, 9), st.integers(1, 9), st.integers(1, 9))


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype).requires_grad_()


def error(found: Tensor, exact: Tensor) -> float:
    return float((found.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize("dtype", NEAR)
@given(shape=shapes, seed=st.integers(0, 1000))
@settings(max_examples=10, deadline=None, phases=[Phase.explicit, Phase.generate])  # to shrink takes minutes
def test_h_and_its_gradients_are_the_definition(dtype: torch.dtype, shape: tuple[int, int, int], seed: int) -> None:
    n, rows, columns = shape
    parts = drawn(n, n, n, seed=seed, dtype=dtype), drawn(n, rows, columns, seed=seed + 1, dtype=dtype)
    gradient = drawn(n * columns, n * rows, seed=seed + 2, dtype=dtype).t().detach()  # not contiguous
    exact_parts = [part.detach().double().requires_grad_() for part in parts]
    H, exact = materialise(*parts, TRITON), materialise_reference(*exact_parts)
    assert "_ByTriton" in repr(H.grad_fn)
    assert (H.dtype, H.shape) == (dtype, exact.shape)
    assert error(H.detach(), exact.detach()) <= NEAR[dtype]
    found = torch.autograd.grad(H, parts, gradient)
    for mine, true in zip(found, torch.autograd.grad(exact, exact_parts, gradient.double()), strict=True):
        assert mine.dtype == dtype
        assert error(mine, true) <= NEAR[dtype]


@pytest.mark.parametrize(("n", "rows", "columns"), [(4, 40, 24), (16, 8, 40), (3, 64, 30)])
def test_more_than_a_tile(n: int, rows: int, columns: int) -> None:
    A, S = drawn(n, n, n), drawn(n, rows, columns, seed=1)
    assert rows * columns > triton_kronecker._tile(S)
    H = materialise(A, S, TRITON)
    assert error(H.detach(), materialise_reference(A, S).detach()) <= NEAR[torch.float64]
    gradient = drawn(*H.shape, seed=2).detach()
    exact = kronecker._gradients(A.detach(), S.detach(), gradient, True, True)
    for mine, true in zip(torch.autograd.grad(H, (A, S), gradient), exact, strict=True):
        assert true is not None
        assert error(mine, true) <= NEAR[torch.float64]


def test_gradients_of_any_order() -> None:
    A, S = drawn(3, 3, 3), drawn(3, 2, 4, seed=1)

    def build(A: Tensor, S: Tensor) -> Tensor:
        return materialise(A, S, TRITON)

    assert torch.autograd.gradcheck(build, (A, S))
    assert torch.autograd.gradgradcheck(build, (A, S))
    torch.testing.assert_close(torch.func.jacrev(build)(A, S), torch.func.jacrev(materialise)(A, S))


def test_many_gradients_at_once() -> None:
    A, S = drawn(2, 2, 2), drawn(2, 2, 3, seed=1)
    gradients = torch.eye(24, dtype=A.dtype, device=DEVICE).view(24, 4, 6)
    found, exact = (
        torch.autograd.grad(H, (A, S), gradients, is_grads_batched=True)
        for H in (materialise(A, S, TRITON), materialise(A, S))
    )
    torch.testing.assert_close(found, exact)


def test_numbers_that_32_bits_do_not_count_are_torch_s_own() -> None:
    A, S = torch.empty(2, 2, 2, device="meta"), torch.empty(2, 1 << 15, 1 << 15, device="meta")
    assert materialise(A, S, TRITON).shape == (1 << 16, 1 << 16)


@pytest.mark.parametrize("wanted", [0, 1])
def test_a_gradient_that_is_not_wanted_is_not_made(wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [drawn(4, 4, 4), drawn(4, 2, 3, seed=1)]
    parts[1 - wanted].requires_grad_(False)
    other = ("gradient_of_components", "gradient_of_rule")[wanted]
    monkeypatch.delattr(triton_kronecker, other)
    monkeypatch.setattr(triton_kronecker, other, None, raising=False)
    (found,) = torch.autograd.grad(materialise(*parts, TRITON).sum(), [parts[wanted]])
    (exact,) = torch.autograd.grad(materialise(*parts).sum(), [parts[wanted]])
    torch.testing.assert_close(found, exact)


def test_under_autocast_h_is_rounded_once() -> None:
    A, S = drawn(4, 4, 4, dtype=torch.float32), drawn(4, 8, 8, seed=1, dtype=torch.float32)
    with torch.autocast(DEVICE, torch.bfloat16):
        H = materialise(A, S, TRITON)
    assert H.dtype == torch.bfloat16
    exact = materialise(A, S, TRITON)  # the interpreter cuts where a GPU rounds
    torch.testing.assert_close(H.float(), exact, rtol=2**-7, atol=0)  # every number, those that nearly cancel too
    H.float().sum().backward()
    assert A.grad is not None
    assert A.grad.dtype == torch.float32


def test_the_same_numbers_give_the_same_bits() -> None:
    A, S = drawn(4, 4, 4, dtype=torch.float32), drawn(4, 48, 32, seed=1, dtype=torch.float32)
    H = materialise(A, S, TRITON)
    first, second = (torch.autograd.grad(H, (A, S), torch.ones_like(H), retain_graph=True) for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_it_is_a_candidate_of_the_dense_execution_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    use = Use(16, 24, 4, 0, 4, "train", "learned", "auto", "float32", DEVICE, 1, f"mkl+{TRITON}")
    calls = candidates(use)
    assert set(calls) == {Choice("dense", "mkl"), Choice("dense", TRITON), Choice("factored", "mkl")}
    found, exact = (calls[Choice("dense", library)]() for library in (TRITON, "mkl"))
    for mine, other in zip(found, exact, strict=True):  # type: ignore[call-overload]
        torch.testing.assert_close(mine, other)
    monkeypatch.setattr(products, "has_triton", lambda: True)
    kinds = "cuda", torch.bfloat16
    assert products.libraries(*kinds) == ("mkl", TRITON)
    assert products.libraries(*kinds, kept=True) == ("mkl",)  # H is at hand


def test_its_kernels_are_compiled_before_it_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    build, built = triton_kronecker.build, []

    def compiled_at_first(*arguments: object) -> Tensor:
        if not built:
            time.sleep(0.3)
        built.append(True)
        return build(*arguments)

    monkeypatch.setattr(triton_kronecker, "build", compiled_at_first)
    use = Use(16, 24, 4, 0, 4, "eval", "learned", "dense", "float32", DEVICE, 1, f"mkl+{TRITON}")
    seconds = lowest_seconds(candidates(use), clock_of(DEVICE))
    assert seconds[Choice("dense", TRITON)] < 0.3


def test_what_is_watched_or_compiled_goes_without_it() -> None:
    A, S, x = drawn(4, 4, 4), drawn(4, 2, 3, seed=1), drawn(5, 12, seed=2)
    with FlopCounterMode(display=False):
        assert "_ByTriton" not in repr(materialise(A, S, TRITON).grad_fn)
    compiled = torch.compile(apply_built, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, A, S, None, TRITON), apply_built(x, A, S, None))


PROGRAM = """
import subprocess, sys, tempfile, triton
from pathlib import Path
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from phmctl.backends import triton_kronecker as kernels
tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
for kernel in (kernels._build, kernels._components, kernels._rule):
    for n, kind in ((3, "fp32"), (4, "bf16"), (16, "fp32")):
        names = kernel.arg_names
        kinds = dict.fromkeys(names, "constexpr") | dict.fromkeys(names[:5], "i32")
        kinds |= dict.fromkeys(names[:3], "*" + kind)
        beside = triton.next_power_of_2(n)
        numbers = {"n": n, "BESIDE": beside, "TILE": max(kernels.NUMBERS // beside, 32)}
        source = ASTSource(fn=kernel, signature=kinds, constexprs=numbers)
        made = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32))
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            Path(file.name).write_bytes(made.asm["cubin"])
            says = subprocess.check_output([tool, "--dump-resource-usage", file.name], text=True)
        assert "STACK:0 " in says and "LOCAL:0 " in says, says  # nothing spills
        print(kernel.__name__, n, kind)
"""


@pytest.mark.parametrize("capability", ["80", "90"])
def test_the_kernels_compile_and_spill_no_registers(capability: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, capability]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 9
