"""The layer by block products: the same function as by H, from any checkpoint; and `tune`."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import phmctl
from phmctl import PHMLinear
from phmctl.algebra.initialisation import natural_rank
from phmctl.errors import RankError, UserError
from tests.references import kronecker_sum_reference


def by_definition(layer: PHMLinear, x: Tensor) -> Tensor:
    return x.double() @ kronecker_sum_reference(layer.A, layer.S).T + layer.bias.double()


def by_rank(d: int = 24, k: int = 16, n: int = 4, **options: object) -> PHMLinear:
    torch.manual_seed(0)
    return PHMLinear(d, k, n=n, **({"parametrization": "factors", "execution": "rank"} | options))


def test_float32_is_exact_to_rounding() -> None:
    layer, x = by_rank(512, 512, 8), torch.randn(256, 512)
    exact = by_definition(layer, x)
    assert ((layer(x) - exact).norm() / exact.norm()).item() < 5e-6


@pytest.mark.parametrize(("algebra", "n"), [("complex", 2), ("quaternion", 4)])
def test_fixed_algebras_with_a_table(algebra: str, n: int) -> None:
    layer = PHMLinear(n * 64, n * 64, n=n, algebra=algebra, execution="rank")
    x = torch.randn(50, n * 64)
    y, exact = layer(x), by_definition(layer, x)
    assert (y - exact).norm() / exact.norm() < 5e-7
    y.sum().backward()
    assert layer.S.grad.any()
    assert set(layer.state_dict()) == {"S", "bias"}
    lower = layer.bfloat16()(x.bfloat16())
    assert (lower - exact).norm() / exact.norm() < 0.01


def test_to_factors_is_the_same_function() -> None:
    for options in ({}, {"algebra": "quaternion"}, {"algebra": "complex", "n": 2}):
        layer = PHMLinear(24, 16, **({"n": 4} | options), dtype=torch.float64)
        converted = layer.to_factors()
        assert converted.training
        x = torch.randn(5, 24, dtype=torch.float64)
        for converted.execution in ("dense", "rank"):
            torch.testing.assert_close(converted(x), layer(x))
        assert not any(part.requires_grad for part in layer.requires_grad_(False).to_factors().parameters())
    with pytest.raises(RankError):
        PHMLinear(24, 16, n=1).to_factors()


@pytest.mark.parametrize("source", ["rule", "factors"])
def test_a_checkpoint_of_either_form_loads_as_either(source: str) -> None:
    target = "factors" if source == "rule" else "rule"
    saved = PHMLinear(24, 16, n=4, parametrization=source, dtype=torch.float64)
    layer = PHMLinear(24, 16, n=4, parametrization=target, dtype=torch.float64)
    state = saved.state_dict()
    before = {name: part.clone() for name, part in state.items()}
    layer.load_state_dict(state)
    torch.testing.assert_close(layer.weight, saved.weight)
    torch.testing.assert_close(state, before)  # the caller's dict stays as it is

    with pytest.raises(RankError):
        PHMLinear(24, 16, n=4, rank=3).load_state_dict({"A": saved.A, "S": saved.S, "bias": saved.bias})


@pytest.mark.parametrize(
    ("n", "low"), [(2, False), (3, True), (4, False), (5, True), (8, False), (8, True), (16, False)]
)
def test_h_begins_with_the_dense_variance(n: int, low: bool) -> None:
    torch.manual_seed(0)
    rank, size = max(2, natural_rank(n) // 2) if low else None, 256 if n == 16 else 240
    weights = [PHMLinear(size, size, n=n, parametrization="factors", rank=rank).weight for _ in range(6)]
    assert torch.stack(weights).var().item() == pytest.approx(1 / (3 * size), rel=0.15)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_a_rule_of_factors_begins_with_unit_fibres(n: int) -> None:
    torch.manual_seed(0)
    first, second = (PHMLinear(n, n, n=n, parametrization="factors", dtype=torch.float64).A for _ in range(2))
    torch.testing.assert_close(first.square().sum(dim=0), torch.ones(n, n, dtype=torch.float64))
    assert (first - second).abs().max() > 0.1


@pytest.mark.parametrize(
    ("d", "options", "execution"),
    [
        (512, {"rank": 4}, "rank"),
        (512, {"rank": 7}, "dense"),  # R/n² = 0.44
        (256, {"rank": 4}, "dense"),
        (512, {}, "dense"),
        (512, {"algebra": "quaternion"}, "dense"),
        (512, {"rank": 4, "dtype": torch.bfloat16}, "dense"),
        (4096, {"rank": 4, "device": "meta"}, "dense"),
    ],
)
def test_the_default_execution(d: int, options: dict[str, object], execution: str) -> None:
    layer = PHMLinear(d, 512, n=4, **options)
    assert layer.execution == execution
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.execution == "dense"
    layer.execution = "rank"
    layer.execution = None
    assert layer.execution == execution


def test_an_execution_that_is_set_later_is_refused_at_its_use() -> None:
    layer = PHMLinear(8, 8, n=4)
    layer.execution = "rank"
    with pytest.raises(RankError):
        layer(torch.randn(2, 8))
    with pytest.raises(UserError, match="int64"):
        by_rank()(torch.ones(2, 24, dtype=torch.long))


def test_backward_within_autocast_of_a_forward_pass_without_it() -> None:
    x, gradients = torch.randn(5, 24), []
    for within in (False, True):
        layer = by_rank()
        y = layer(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=within):
            gradients.append(torch.autograd.grad(y.sum(), [layer.U, layer.V]))
    torch.testing.assert_close(*gradients)


def test_tune_times_each_shape_and_sets_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[list[str]] = []

    def alternate(calls: dict[str, Callable[[], object]], **_: object) -> dict[str, list[float]]:
        timed.append(list(calls))
        for call in calls.values():
            call()
        return {"dense": [3.0, 3.0, 3.0], "rank": [2.0, 9.0, 2.0]}

    monkeypatch.setattr("phmctl.nn.tuning.alternate", alternate)
    net = nn.Sequential(by_rank(24, 24, execution="dense"), by_rank(24, 24), by_rank(24, 48), PHMLinear(48, 8, n=4))
    precisions = []
    net[0].register_forward_hook(lambda *seen: precisions.append(seen[2].dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert phmctl.tune(net, tokens=5) == {"0": "rank", "1": "rank", "2": "rank"}
    assert precisions == [torch.bfloat16] * 2
    assert timed == [["dense", "rank"]] * 2
    assert [layer.execution for layer in net] == ["rank", "rank", "rank", "dense"]
    assert all(parameter.grad is None for parameter in net.parameters())


def bytes_saved(forward: Callable[[], object]) -> int:
    """Return the bytes that a forward pass saves for the backward pass, each storage once."""
    sizes: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        sizes[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        forward()
    return sum(sizes.values())


def test_tensors_saved_for_the_backward_pass() -> None:
    x, layer = torch.randn(2048, 512, requires_grad=True), by_rank(512, 512)
    products = 4 * 2048 * 7 * 512 // 4
    assert products <= bytes_saved(lambda: layer(x)) <= products + 1.3 * bytes_saved(lambda: nn.Linear(512, 512)(x))
    with torch.no_grad():
        assert bytes_saved(lambda: layer(x)) == 0
