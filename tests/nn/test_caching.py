"""Nothing is silently lost: H is kept inside a scope, and outside of it never stale."""

import copy
import gc
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.nn.utils import parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import phmctl
from phmctl import PHMEmbedding, PHMLinear
from phmctl.algebra import bilinear, execution, rules
from phmctl.algebra.execution import EXECUTIONS
from phmctl.algebra.initialisation import learned_rule
from phmctl.algebra.kronecker import materialise_reference
from phmctl.backends import choices, products
from phmctl.errors import DimensionError, UserError
from phmctl.nn import caching
from phmctl.nn.derived import DerivedWeightError
from phmctl.nn.kronecker_weight import apply_weight


def eval_layer(**options) -> PHMLinear:
    return PHMLinear(12, 8, n=4, **options).eval()


@pytest.fixture
def x() -> torch.Tensor:
    return torch.randn(3, 12, generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def check(layer: PHMLinear, x: torch.Tensor) -> None:
    """Check that a layer answers by the parameters that it has now."""
    H = materialise_reference(layer.A, layer.S)
    torch.testing.assert_close(
        layer(x), (x.double() @ H.T + layer.bias.double()).to(layer.S.dtype), atol=1e-5, rtol=1e-4
    )


# --- the scope


@torch.no_grad()
def test_h_is_built_once_inside_and_anew_outside() -> None:
    layer = eval_layer()
    assert layer.weight is not layer.weight
    with phmctl.cached():
        kept = layer.weight
        assert layer.weight is kept
        with phmctl.cached():
            assert layer.weight is kept  # a scope inside another is a part of it
        assert layer.weight is kept
        assert layer.train().weight is kept  # H does not know the mode
    assert layer.weight is not kept


@torch.no_grad()
def test_a_scope_that_ends_by_an_exception() -> None:
    layer, kept = eval_layer(), []

    def fail() -> None:
        with phmctl.cached():
            kept.append(layer.weight)
            raise ValueError

    with pytest.raises(ValueError):
        fail()
    layer.S.zero_()
    with phmctl.cached():
        assert not layer.weight.any()


def test_nothing_is_kept_where_a_gradient_is_wanted(x: torch.Tensor) -> None:
    layer = eval_layer()
    with phmctl.cached():
        with torch.no_grad():
            layer(x)
        layer(x).sum().backward()
        assert layer.S.grad.any()
        assert layer.A.grad.any()


@torch.no_grad()
def test_what_is_written_inside_is_seen_after(x: torch.Tensor) -> None:
    layer = eval_layer()
    with phmctl.cached():
        before = layer(x)
        layer.S.mul_(2)
        assert layer(x).equal(before)  # as torch's parametrize.cached() has it, and as is documented
    check(layer, x)


@torch.no_grad()
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("rows", [3, 70])
def test_a_weight_that_is_laid_out_is_the_layer_s(
    n: int, rows: int, measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is the fastest; and another parameter in the weight's place is seen."""
    if products.PACKED not in products.libraries(kept=True):
        pytest.skip("this torch has no oneDNN")
    monkeypatch.setattr(products, "SMALL", 0)
    monkeypatch.setattr(execution, "SMALL", 0)
    rank = {name: place for place, name in enumerate((products.PACKED, products.ONEDNN, products.MKL))}
    monkeypatch.setattr(choices, "lowest_seconds", lambda calls, _: {each: 1.0 + rank[each.library] for each in calls})
    taken = []
    monkeypatch.setattr(products, "_packed", lambda weight, made=products._packed: taken.append(1) or made(weight))
    layer, table = PHMLinear(8, 12, n=n), PHMEmbedding(20, 8, n=n)
    x = torch.randn(rows, 8)
    with phmctl.cached(), torch.no_grad():
        for call in range(3):
            torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-6)
            torch.testing.assert_close(apply_weight(table, x), F.linear(x, table.weight), rtol=1e-5, atol=1e-6)
            if not call:
                assert len(taken) >= 2
                taken.clear()  # with them what was laid out for the measurement
        assert not taken
        name = "weight" if n == 1 else "S"
        setattr(layer, name, nn.Parameter(torch.randn_like(getattr(layer, name))))
        torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)
    assert len(taken) == 1


@torch.no_grad()
@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("packs", [True, False])
def test_weights_are_kept_in_the_precision_of_the_scope(n: int, packs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not packs:
        monkeypatch.setattr(products, "_lays_out_bfloat16", lambda: False)
    layer, table = PHMLinear(64, 96, n=n), PHMEmbedding(128, 64, n=n)
    x, few = torch.randn(200, 64), torch.randn(3, 64)
    calls = [lambda: layer(x), lambda: apply_weight(table, x)]
    exact = [F.linear(x, layer.weight, layer.bias), F.linear(x, table.weight)]
    with phmctl.cached(torch.bfloat16):
        for _ in range(2):
            for call, expected in zip(calls, exact, strict=True):
                error = (call() - expected).norm() / expected.norm()
                assert call().dtype == torch.float32
                assert 1e-4 < error < 1e-2  # bfloat16 has 8 bits
        torch.testing.assert_close(layer(few), F.linear(few, layer.weight, layer.bias), rtol=1e-5, atol=1e-6)
        with pytest.raises(DimensionError):
            layer(x[:, 1:])
    torch.testing.assert_close(layer(x), exact[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 4])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_a_gradient_goes_through_a_frozen_layer(
    n: int, dtype: torch.dtype | None, measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "SMALL", 0)
    monkeypatch.setattr(execution, "SMALL", 0)
    rank = {name: place for place, name in enumerate((products.PACKED, products.ONEDNN, products.MKL))}
    monkeypatch.setattr(choices, "lowest_seconds", lambda calls, _: {each: 1.0 + rank[each.library] for each in calls})
    layer, table = PHMLinear(8, 12, n=n).requires_grad_(False), PHMEmbedding(20, 8, n=n).requires_grad_(False)
    x = torch.randn(70, 8, requires_grad=True)
    with phmctl.cached(dtype):
        for _ in range(2):
            for weight, y in ((layer.weight, layer(x)), (table.weight, apply_weight(table, x))):
                (gradient,) = torch.autograd.grad(y.sum(), x)
                torch.testing.assert_close(gradient, weight.sum(0).expand_as(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_no_thread_finds_a_layer_without_the_precision_of_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    monkeypatch.setattr(caching.Held, "__setitem__", lambda self, key, value: found.append(set(value)))
    with phmctl.cached(torch.bfloat16):
        PHMLinear(64, 96, n=4)(torch.randn(200, 64))
    assert found
    assert all(products.LOWER in each for each in found)


@pytest.mark.parametrize("dtype", [torch.int8, torch.complex64, "bfloat16"])
def test_a_dtype_that_can_hold_no_weight(dtype: object) -> None:
    with pytest.raises(UserError, match=r"for example torch\.bfloat16"):
        phmctl.cached(dtype)  # type: ignore[arg-type]


def test_another_tensor_dtype_or_autocast_is_seen_inside(x: torch.Tensor) -> None:
    layer = eval_layer(execution="dense")
    with phmctl.cached():
        check(layer, x)
        layer.load_state_dict(PHMLinear(12, 8, n=4).state_dict(), assign=True)
        check(layer, x)
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        check(layer, x)
        other = {name: torch.randn_like(part) for name, part in layer.named_parameters()}
        moved = torch.func.functional_call(layer, other, (x,))
        assert not torch.allclose(moved, layer(x))
        check(layer.double(), x.double())


@pytest.mark.parametrize("execution", ["dense", "factored", "rank"])
@torch.no_grad()
def test_what_is_kept_has_the_dtype_of_autocast(execution: str, x: torch.Tensor) -> None:
    layer = eval_layer(execution=execution, parametrization="factors")
    with torch.autocast("cpu", torch.bfloat16), phmctl.cached():
        for name in ("H", "T", "A"):
            assert layer.built(name).dtype == torch.bfloat16
        layer.double()
        assert layer.built("H").dtype == layer(x.double()).dtype == torch.float64  # autocast leaves it alone
    torch.testing.assert_close(layer(x.double()), layer.to_dense()(x.double()))


@pytest.mark.parametrize("execution", ["dense", "factored", "rank"])
@torch.no_grad()
def test_what_is_at_hand_is_applied_as_it_stands(execution: str, x: torch.Tensor) -> None:
    layer = eval_layer(execution=execution, parametrization="factors")
    with phmctl.cached() as scope:
        check(layer, x), check(layer, x)
        held = scope.values_of(layer)
        assert list(held.calls) == [x.numel()]
        with pytest.raises(DimensionError, match=r"\(12, 3\) does not end in in_features = 12"):
            layer(x.t())  # as many numbers
        for name in EXECUTIONS:
            layer.execution = name
            check(layer, x)
        layer.S = nn.Parameter(torch.randn_like(layer.S))
        check(layer, x)
        calls = held.calls
        with torch.enable_grad():
            assert layer(x).requires_grad
        with torch.autocast("cpu", torch.bfloat16):
            assert layer(x).dtype == torch.bfloat16
        assert torch.func.vmap(layer)(x[None]).shape == (1, 3, 8)
        assert held.calls is calls
        layer.double()
        check(layer, x.double())
        layer.register_forward_hook(lambda *_: x)
        assert layer(x.double()) is x
    assert not scope.held


@torch.no_grad()
def test_what_is_held_of_a_layer_goes_with_it(x: torch.Tensor) -> None:
    layer = eval_layer()
    with phmctl.cached() as scope:
        layer(x)
        assert len(scope.held) == 1
        del layer
        gc.collect()
        assert not scope.held


@torch.no_grad()
def test_a_decorator_gives_each_call_its_own_scope() -> None:
    layer, seen = eval_layer(), []

    @phmctl.cached()
    def call() -> None:
        seen.append(layer.weight)
        assert layer.weight is seen[-1]

    call(), call()
    assert seen[0] is not seen[1]


def in_threads(work: Callable[[], None], count: int = 4) -> None:
    failed: list[BaseException] = []

    def caught() -> None:
        try:
            work()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=caught) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed[0]


def test_one_scope_serves_many_threads(x: torch.Tensor) -> None:
    layer, scope, seen = eval_layer(), phmctl.cached(), []

    def work() -> None:
        with scope, torch.inference_mode():
            for _ in range(20):
                check(layer, x)
            seen.append(layer.weight)

    with scope:
        with torch.no_grad():
            kept = layer.weight
        in_threads(work)
    assert all(weight is kept for weight in seen)
    with torch.no_grad(), scope:
        assert layer.weight is not kept  # the last has left: it was emptied


def test_a_scope_is_its_own_threads_only(x: torch.Tensor) -> None:
    layer = eval_layer()

    def work() -> None:
        with torch.no_grad():
            assert layer.weight is not layer.weight

    with phmctl.cached(), torch.no_grad():
        layer(x)
        in_threads(work, 1)


# --- outside of it


def optimizer_step(make: Callable[[list[nn.Parameter]], torch.optim.Optimizer], layer: PHMLinear) -> None:
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    make(list(layer.parameters())).step()


def assign_data(layer: PHMLinear) -> None:
    layer.S.data = torch.randn_like(layer.S)


def write_in_place(layer: PHMLinear) -> None:
    with torch.no_grad():
        layer.A.mul_(2)


def replace_parameter(layer: PHMLinear) -> None:
    layer.A = nn.Parameter(torch.randn(4, 4, 4))


def average(layer: PHMLinear) -> None:
    """Put the moving average of the weights into the model, as EMA does for an evaluation."""
    averaged = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for _ in range(2):
        optimizer_step(lambda p: torch.optim.SGD(p, lr=0.5), layer)
        averaged.update_parameters(layer)
    for mine, mean in zip(layer.parameters(), averaged.module.parameters(), strict=True):
        mine.data.copy_(mean.data)


CHANGES = {
    "load_state_dict": lambda layer: layer.load_state_dict(PHMLinear(12, 8, n=4).state_dict()),
    "sgd fused": lambda layer: optimizer_step(lambda p: torch.optim.SGD(p, lr=0.5, fused=True), layer),
    "adam foreach": lambda layer: optimizer_step(lambda p: torch.optim.Adam(p, lr=0.5, foreach=True), layer),
    "to": lambda layer: layer.to(torch.float64),
    "data": assign_data,
    "into data": lambda layer: layer.S.data.mul_(2),
    "in place": write_in_place,
    "EMA": average,
    "replaced": replace_parameter,
    "drawn anew": lambda layer: layer.reset_parameters(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_in_evaluation_is_seen(change: Callable[[PHMLinear], object], x: torch.Tensor) -> None:
    layer = eval_layer()
    with torch.no_grad(), phmctl.cached():
        before = layer(x)
    change(layer)
    check(layer, x.to(layer.S.dtype))
    with torch.no_grad(), phmctl.cached():
        same = torch.allclose(layer(x.to(layer.S.dtype)).float(), before, atol=1e-5)
    assert same is (layer.S.dtype == torch.float64)


def test_a_rule_that_other_layers_share(x: torch.Tensor) -> None:
    rule = learned_rule(4)
    first, second = PHMLinear(12, 8, n=4, rule=rule).eval(), PHMLinear(12, 20, n=4, rule=rule).eval()
    check(second, x)
    optimizer_step(lambda p: torch.optim.SGD(p, lr=0.5), first)
    check(second, x)


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize(
    "write",
    [
        lambda layer: nn.init.zeros_(layer.weight),
        lambda layer: nn.init.normal_(layer.weight),
        lambda layer: layer.weight.data.zero_(),
        lambda layer: layer.weight.detach().mul_(2),
        lambda layer: layer.weight[0].fill_(1),
        lambda layer: layer.weight.t().zero_(),
        lambda layer: layer.weight.__setitem__(0, 1.0),
        lambda layer: layer.weight.__imul__(2),
        lambda layer: torch.add(layer.weight, 1, out=layer.weight),
        lambda layer: layer.weight.requires_grad_(False),
        lambda layer: setattr(layer.weight, "data", torch.zeros(8, 12)),
        lambda layer: [nn.init.zeros_(part) for part in layer.weight.chunk(2)],
        lambda layer: torch.split(layer.weight, 4)[1].zero_(),
        lambda layer: torch.tensor_split(input=layer.weight, sections=2)[0].zero_(),
        lambda layer: layer.weight.unbind()[0].zero_(),
        lambda layer: [number.zero_() for row in layer.weight for number in row],
        lambda layer: torch.atleast_3d([layer.weight])[0].zero_(),
        lambda layer: torch._foreach_mul_([torch.zeros(2), layer.weight], 2),
        lambda layer: torch.max(torch.zeros(8, 12), 0, out=(layer.weight[0], torch.zeros(12, dtype=torch.long))),
        lambda layer: F.relu(layer.weight, inplace=True),
    ],
)
@torch.no_grad()
def test_writing_into_a_derived_weight_is_an_error(
    write: Callable[[PHMLinear], object], mode: bool, x: torch.Tensor
) -> None:
    layer = eval_layer().train(mode)
    with pytest.raises(DerivedWeightError, match="made of A and S"):
        write(layer)
    with phmctl.cached(), pytest.raises(DerivedWeightError):
        write(layer)
    check(layer, x)


def test_a_derived_weight_can_be_read_as_any_tensor(x: torch.Tensor) -> None:
    layer = PHMLinear(12, 8, n=4)
    y = nn.functional.linear(x, layer.weight, layer.bias)
    assert type(y) is torch.Tensor
    torch.testing.assert_close(y, layer(x))
    y.sum().backward()
    assert layer.S.grad.any()
    assert type(layer.weight.clone()) is torch.Tensor
    copied = layer.weight.detach().clone().zero_()  # a copy is its owner's
    assert not copied.any()
    torch.zeros(8, 12).add_(layer.weight.detach())
    torch._foreach_copy_([torch.zeros(8, 12)], [layer.weight.detach()])
    assert [type(part) for part in torch.max(layer.weight, 0)] == [torch.Tensor] * 2
    with pytest.raises(KeyError, match="already exists"):
        layer.weight = nn.Parameter(torch.zeros(8, 12))


@pytest.mark.parametrize(
    "array",
    [
        lambda weight: weight.numpy(),
        np.asarray,
        lambda weight: np.asarray(weight[0]),
        lambda weight: next(iter(weight)).numpy(),
        torch.from_dlpack,
        np.from_dlpack,
    ],
)
@torch.no_grad()
def test_an_array_of_a_derived_weight_is_a_copy(array: Callable[[torch.Tensor], Any]) -> None:
    layer = eval_layer()
    with phmctl.cached():
        kept = layer.weight.detach().clone()
        found = array(layer.weight.detach())
        assert (found == array(kept)).all()
        found[...] = 0
        assert torch.equal(layer.weight, kept)
    with pytest.raises(RuntimeError, match="requires grad"), torch.enable_grad():
        layer.weight.numpy()


def test_n_1_is_written_as_any_parameter() -> None:
    layer = PHMLinear(12, 8, n=1)
    nn.init.zeros_(layer.weight)
    assert not layer(torch.randn(2, 12)).sub(layer.bias).any()


@pytest.mark.parametrize("name", ["A", "S"])
@pytest.mark.parametrize("execution", ["auto", "dense", "factored"])
def test_a_parametrised_rule_or_component(name: str, execution: str, x: torch.Tensor) -> None:
    class Doubled(nn.Module):
        def forward(self, part: torch.Tensor) -> torch.Tensor:
            return 2 * part

    layer = PHMLinear(12, 8, n=4, execution=execution)
    plain = copy.deepcopy(layer)
    parametrize.register_parametrization(layer, name, Doubled())
    with torch.no_grad():
        getattr(plain, name).mul_(2)
    for mode in (True, False):
        torch.testing.assert_close(layer.train(mode)(x), plain(x))
    layer(x).sum().backward()
    assert getattr(layer.parametrizations, name).original.grad.any()
    with torch.no_grad(), phmctl.cached():
        torch.testing.assert_close(layer(x), plain(x))
    layer.to(torch.float64)
    parametrize.remove_parametrizations(layer, name)
    torch.testing.assert_close(layer(x.double()), plain.double()(x.double()))


def test_a_parametrised_table_and_a_parametrised_dense_weight() -> None:
    table = PHMEmbedding(12, 8, n=4)
    nn.utils.parametrizations.weight_norm(table, "S")
    assert table(torch.tensor([1, 2])).shape == (2, 8)
    layer = PHMLinear(8, 8, n=1)
    nn.utils.parametrizations.weight_norm(layer)
    assert layer(torch.randn(2, 8)).shape == (2, 8)


# --- factors that were found


def test_found_factors_outlive_what_leaves_the_rule_alone(x: torch.Tensor) -> None:
    layer, other = eval_layer(execution="rank"), PHMLinear(4, 4, n=2)
    factors = layer.decompose()
    optimizer_step(lambda p: torch.optim.Adam(p, lr=0.5, fused=True), other)
    assert layer.factors is factors
    layer.to("cpu").train().eval()
    for part, found in zip(layer.factors, factors, strict=True):
        assert torch.equal(part, found)
    check(layer, x)
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), layer.double()):
        assert twin.factors is not None
        check(twin, x.to(twin.S.dtype))
    layer.A.data.mul_(2)
    assert layer.factors is None


def test_a_copy_goes_its_own_way(x: torch.Tensor) -> None:
    layer = eval_layer()
    with torch.no_grad(), phmctl.cached():
        check(layer, x)
        twin = copy.deepcopy(layer)
        twin.S.zero_()
        check(twin, x)
        check(pickle.loads(pickle.dumps(layer)), x)


def test_frozen_layer_passes_the_gradient_of_its_input(x: torch.Tensor) -> None:
    layer = eval_layer().requires_grad_(False)
    leaf = x.clone().requires_grad_()
    with phmctl.cached():
        with torch.inference_mode():
            layer(x)  # H is first built here, and must be of use in a graph
        layer(leaf).sum().backward()
    torch.testing.assert_close(leaf.grad, layer.weight.sum(dim=0).expand(3, -1))


def test_inference_mode(x: torch.Tensor) -> None:
    layer = eval_layer()
    with torch.inference_mode(), phmctl.cached():
        expected = layer(x)
        born = PHMLinear(12, 8, n=4).eval()
        check(born, x)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected)


# --- caches of the process


@pytest.fixture
def fresh() -> None:
    for cached in (rules._fixed_table, bilinear._fixed_numbers):
        cached.cache_clear()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("mode", ["meta", "fake", "inference"])
@pytest.mark.parametrize(("algebra", "n"), [("sedenion", 16), ("quaternion", 4)])
def test_no_cache_of_the_process_is_poisoned(mode: str, algebra: str, n: int) -> None:
    modes = {"meta": torch.device("meta"), "fake": FakeTensorMode(), "inference": torch.inference_mode()}
    with modes[mode]:
        early = PHMLinear(32, 32, n=n, algebra=algebra)
        early(torch.randn(3, 32))
        if n < 16:
            _ = early.factors
    layer = PHMLinear(32, 32, n=n, algebra=algebra)
    check(layer, torch.randn(3, 32))
    if n < 16:
        layer.execution = "rank"
        x = torch.randn(3, 32, requires_grad=True)
        layer(x).sum().backward()
        check(layer, x.detach())
        assert layer.S.grad.any()
