from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phmctl.algebra import products as module
from phmctl.algebra.products import MKL, ONEDNN, VARIABLE, block_products, library, linear
from phmctl.errors import UserError

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    module._library.cache_clear()
    yield
    module._library.cache_clear()


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every float32 product goes to oneDNN, however small."""
    if not module._has_onednn():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setenv(VARIABLE, ONEDNN)
    for bound in ("_MULTIPLICATIONS", "_TRAINED", "_CONVOLVED", "_CONVOLVED_ROWS"):
        monkeypatch.setattr(module, bound, 1)


def drawn(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, dtype=dtype, generator=generator).requires_grad_() for shape in shapes]


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 40), d=st.integers(1, 40), k=st.integers(1, 40), biased=st.booleans())
@pytest.mark.usefixtures("onednn")
def test_linear_and_its_gradients_are_those_of_torch(tokens: int, d: int, k: int, biased: bool) -> None:
    x, weight, bias = drawn((2, tokens, d), (k, d), (k,))
    parts = [x, weight, bias] if biased else [x, weight]
    (gradient,) = drawn((2, tokens, k))
    mine, exact = linear(*parts), F.linear(*(part.double() for part in parts))
    assert "_Linear" in repr(mine.grad_fn.next_functions)
    torch.testing.assert_close(mine, exact.float(), **CLOSE)
    for one, other in zip(
        torch.autograd.grad(mine, parts, gradient), torch.autograd.grad(exact, parts, gradient.double()), strict=True
    ):
        torch.testing.assert_close(one, other, **CLOSE)


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize("wanted", [(0,), (1,), (2,), (0, 2)])
def test_only_the_gradients_that_are_wanted(wanted: tuple[int, ...]) -> None:
    parts = [part.requires_grad_(index in wanted) for index, part in enumerate(drawn((5, 3), (4, 3), (4,)))]
    linear(*parts).sum().backward()
    assert [index for index, part in enumerate(parts) if part.grad is not None] == list(wanted)


@pytest.mark.usefixtures("onednn")
def test_gradients_of_gradients() -> None:
    x, weight = drawn((6, 5), (4, 5))

    def twice(product: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        (first,) = torch.autograd.grad(product(x, weight).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.square().sum(), weight)[0]

    torch.testing.assert_close(twice(linear), twice(F.linear), rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("onednn")
@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own, of a forward derivative
@pytest.mark.parametrize(
    "use",
    [
        torch.func.vmap(linear, (0, None)),
        lambda x, w: torch.func.jvp(linear, (x, w), (x, w))[1],
        lambda x, w: torch.func.grad(lambda v: linear(v, w).square().sum())(x),
    ],
    ids=["vmap", "jvp", "grad"],
)
def test_transforms_of_functions_see_a_plain_product(use: Callable[[Tensor, Tensor], Tensor]) -> None:
    x, weight = (part.detach() for part in drawn((3, 6, 5), (4, 5)))
    mine = use(x, weight)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "is_large", lambda *_, **__: False)
        assert mine.equal(use(x, weight))


@pytest.mark.usefixtures("onednn")
def test_other_types_and_autocast_are_left_to_torch() -> None:
    x, weight = drawn((8, 5), (4, 5), dtype=torch.float64)
    assert linear(x, weight).equal(F.linear(x, weight))
    with torch.autocast("cpu", torch.bfloat16):
        assert linear(x.float(), weight.float()).dtype == torch.bfloat16


@settings(max_examples=30, deadline=None)
@given(tokens=st.sampled_from([1, 15, 16, 32, 48]), R=st.integers(1, 9), s=st.integers(1, 20), t=st.integers(1, 20))
@pytest.mark.usefixtures("onednn")
def test_products_with_blocks(tokens: int, R: int, s: int, t: int) -> None:
    x, blocks = (part.detach() for part in drawn((tokens, R, t), (R, s, t)))
    exact = torch.einsum("mrt,rst->mrs", x.double(), blocks.double()).float()
    torch.testing.assert_close(block_products(x, blocks), exact, **CLOSE)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(block_products(strided, blocks), exact, **CLOSE)


@pytest.mark.parametrize(
    ("processor", "capability", "expected"),
    [
        ("AuthenticAMD", "AVX512", ONEDNN),
        ("AuthenticAMD", "AVX2", MKL),
        ("GenuineIntel", "AVX512", MKL),
        ("", "NEON", MKL),
    ],
)
def test_the_library_goes_by_the_processor(
    processor: str, capability: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(module, "_has_onednn", lambda: True)
    monkeypatch.setattr(module, "_processor", lambda: processor)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert library() == expected


def test_the_variable_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_is_amd_with_avx512", lambda: True)
    monkeypatch.setenv(VARIABLE, MKL)
    assert library() == MKL


def test_a_library_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "onedn")
    with pytest.raises(UserError, match="did you mean 'onednn'"):
        library()


@pytest.mark.usefixtures("onednn")
def test_a_library_for_a_while() -> None:
    with module.preferred_library(MKL):
        assert library() == MKL
        with module.preferred_library(ONEDNN):
            assert library() == ONEDNN
        assert library() == MKL
    assert library() == ONEDNN
    with pytest.raises(UserError, match="did you mean 'mkl'"), module.preferred_library("mlk"):
        pass


def test_a_torch_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    module._has_onednn.cache_clear()
    monkeypatch.setenv(VARIABLE, ONEDNN)
    with pytest.raises(UserError, match="no oneDNN"):
        library()
    module._has_onednn.cache_clear()


def test_an_operator_that_torch_has_renamed_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise AttributeError("no such operator")

    monkeypatch.setattr(module, "_operator", gone)
    module._has_onednn.cache_clear()
    assert not module._has_onednn()
    module._has_onednn.cache_clear()


def test_the_processor_is_read_from_the_system() -> None:
    if Path("/proc/cpuinfo").exists() and "vendor_id" in Path("/proc/cpuinfo").read_text():
        assert module._processor() in Path("/proc/cpuinfo").read_text()


@pytest.mark.usefixtures("onednn")
@pytest.mark.parametrize(
    "shapes", [((3, 0), (4, 0), (4,)), ((0, 3), (4, 3), (4,)), ((3,), (4, 3), (4,)), ((2, 3), (4, 3), (1,))]
)
def test_odd_shapes_are_as_torch_has_them(shapes: tuple[tuple[int, ...], ...]) -> None:
    parts = drawn(*shapes)
    torch.testing.assert_close(linear(*parts), F.linear(*parts), **CLOSE)


@pytest.mark.usefixtures("onednn")
def test_what_does_not_fit_is_refused_in_torch_s_words() -> None:
    x, weight = drawn((2, 3), (4, 5))
    with pytest.raises(RuntimeError, match="cannot be multiplied"):
        linear(x, weight)


@pytest.mark.usefixtures("onednn")
def test_what_no_gradient_wants_may_change() -> None:
    x, weight, bias = drawn((5, 3), (4, 3), (4,))
    fixed, frozen = x.detach().clone(), weight.detach().clone()
    y = linear(fixed, frozen, bias)
    fixed.zero_(), frozen.zero_()
    y.sum().backward()
    assert bias.grad is not None
    with torch.inference_mode(), torch.enable_grad():
        assert linear(x, weight, bias).equal(linear(x, weight, bias))


@pytest.mark.usefixtures("onednn")
def test_a_compiler_sees_a_plain_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    x, weight = drawn((5, 3), (4, 3))
    assert library() == MKL
    assert "_Linear" not in repr(linear(x, weight).grad_fn)
