from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phmctl.backends import choices
from phmctl.backends import products as module
from phmctl.backends.choices import Choice
from phmctl.backends.products import MKL, ONEDNN, VARIABLE, block_products, faster_library, libraries, linear
from phmctl.errors import UserError

CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    module._asked.cache_clear()
    yield
    module._asked.cache_clear()


@pytest.fixture
def onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every float32 product goes to oneDNN, however small."""
    if not module._has_onednn():
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setenv(VARIABLE, ONEDNN)
    monkeypatch.setattr(module, "SMALL", 0)


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
@pytest.mark.parametrize(("tokens", "k", "copied"), [(40, 20, (4, 40)), (40, 3, (3, 40)), (2, 20, (20, 2))])
def test_the_cheaper_copy_is_made_for_a_weight_s_gradient(
    tokens: int, k: int, copied: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first: list[tuple[int, ...]] = []
    product = module._onednn_linear
    monkeypatch.setattr(module, "_onednn_linear", lambda x, *rest: first.append(tuple(x.shape)) or product(x, *rest))
    gradient, x = (part.detach() for part in drawn((tokens, k), (tokens, 4)))
    torch.testing.assert_close(module.weight_gradient(gradient, x, ONEDNN), gradient.T @ x, **CLOSE)
    torch.testing.assert_close(module.weight_gradient(gradient, x, MKL), gradient.T @ x, **CLOSE)
    assert first == [copied]


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
        patch.setattr(module, "library_for", lambda *_, **__: MKL)
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
    torch.testing.assert_close(block_products(x, blocks, ONEDNN), exact, **CLOSE)
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    torch.testing.assert_close(block_products(strided, blocks, ONEDNN), exact, **CLOSE)


@settings(deadline=None)
@pytest.mark.usefixtures("onednn")
@given(rows=st.integers(0, 40), d=st.integers(1, 70), k=st.integers(1, 70), has_bias=st.booleans())
def test_a_kept_weight_that_was_laid_out_gives_the_product(rows: int, d: int, k: int, has_bias: bool) -> None:
    weight, bias = drawn((k, d), (k,))
    held: dict[Any, Any] = {}
    product = module.kept_product(weight, bias if has_bias else None, module.PACKED, held)
    for shape in ((rows, d), (2, rows, d)):  # one layout for any number of rows
        (x,) = drawn(shape)
        exact = F.linear(x.double(), weight.double(), bias.double() if has_bias else None)
        torch.testing.assert_close(product(x).double(), exact, **CLOSE)
    assert list(held) == [module.PACKED]
    with pytest.raises(RuntimeError, match="dtype"):
        product(torch.zeros(2, d, dtype=torch.float64))


def test_only_kept_weights_are_laid_out() -> None:
    if not module._has_onednn():
        pytest.skip("this torch has no oneDNN")
    assert libraries(kept=True) == (MKL, ONEDNN, module.PACKED)
    assert module.PACKED not in libraries()
    with module.preferred_library(MKL):
        assert libraries(kept=True) == (MKL,)


def test_the_faster_library_is_taken(measuring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not module._has_onednn():
        pytest.skip("this torch has no oneDNN")
    seconds = {Choice("dense", MKL): 1.0, Choice("dense", ONEDNN): 0.5}
    monkeypatch.setattr(choices, "lowest_seconds", lambda calls, clock: {name: seconds[name] for name in calls})
    assert faster_library(64, 512, 512, trains=False) == ONEDNN
    x, weight = drawn((64, 512), (512, 512))
    seconds[Choice("dense", ONEDNN)] = 0.97  # less than a twentieth: torch's own
    assert "_Linear" not in repr(linear(x, weight).grad_fn)
    assert faster_library(1, 512, 512, trains=False) == MKL  # so small that nothing is measured
    assert len(choices._known) == 2


@pytest.mark.slow
def test_candidates_are_the_products_that_are_used(measuring: Path) -> None:
    for trains in (False, True):
        assert faster_library(64, 512, 512, trains=trains) in libraries()


def test_a_variable_decides_and_nothing_is_measured(measuring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "lowest_seconds", lambda *_: pytest.fail("measured"))
    for name in (MKL, ONEDNN) if module._has_onednn() else (MKL,):
        monkeypatch.setenv(VARIABLE, name)
        module._asked.cache_clear()
        assert faster_library(4096, 512, 512, trains=True) == name


def test_other_types_have_torch_s_own_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_triton", lambda: False)
    assert libraries("cuda") == libraries("cpu", torch.float64) == libraries("cpu", torch.bfloat16) == (MKL,)


def test_triton_is_tried_once_on_the_thread_s_own_gpu_and_not_while_a_graph_is_recorded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded, tried = [True], []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recorded[0])
    monkeypatch.setattr(module, "_triton_runs", {})
    monkeypatch.setattr(module, "_tries_triton", lambda device: tried.append(device) or True)
    assert not module.has_triton()
    recorded[0] = False
    assert module.has_triton()
    recorded[0] = True
    assert module.has_triton()
    assert tried == [torch.device("cuda", 3)]


def test_a_library_that_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "onedn")
    with pytest.raises(UserError, match="did you mean 'onednn'"):
        libraries()


@pytest.mark.usefixtures("onednn")
def test_a_library_for_a_while() -> None:
    with module.preferred_library(MKL):
        assert libraries() == (MKL,)
        with module.preferred_library(ONEDNN):
            assert libraries() == (ONEDNN,)
        assert libraries() == (MKL,)
        with module.preferred_library(module.TRITON):  # whose products are torch's own
            assert libraries() == (MKL,)
    assert libraries() == (ONEDNN,)
    with pytest.raises(UserError, match="did you mean 'mkl'"), module.preferred_library("mlk"):
        pass


def test_a_torch_without_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    module._has_onednn.cache_clear()
    monkeypatch.setenv(VARIABLE, ONEDNN)
    with pytest.raises(UserError, match="no oneDNN"):
        libraries()
    module._has_onednn.cache_clear()


def test_an_operator_that_torch_has_renamed_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone() -> None:
        raise AttributeError("no such operator")

    monkeypatch.setattr(module, "_operator", gone)
    module._has_onednn.cache_clear()
    assert not module._has_onednn()
    module._has_onednn.cache_clear()


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
    assert "_Linear" not in repr(linear(x, weight).grad_fn)
