"""What the builder makes for an algebra, an n and a reach of the rules."""

import pytest
import torch
from torch import nn

from phmctl.errors import DimensionError
from phmctl.nn.build import LinearBuilder
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import PHMLinear


@pytest.mark.parametrize("algebra", ["real", "phm"])
def test_n_1_is_a_plain_weight_without_a_rule(algebra: str) -> None:
    layer = LinearBuilder(algebra, 1).linear(8, 12)
    assert type(layer) is PHMLinear
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {"weight": (12, 8), "bias": (12,)}


def test_a_learned_rule_is_a_parameter() -> None:
    layer = LinearBuilder("phm", 4).linear(8, 12)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {"A": (4, 4, 4), "S": (4, 3, 2), "bias": (12,)}


@pytest.mark.parametrize(("algebra", "n"), [("complex", 2), ("quaternion", 4), ("octonion", 8), ("sedenion", 16)])
def test_a_fixed_rule_is_none(algebra: str, n: int) -> None:
    layer = LinearBuilder(algebra, n, rules="model").linear(16, 32)
    assert (layer.algebra, layer.n) == (algebra, n)
    assert {name for name, _ in layer.named_parameters()} == {"S", "bias"}


@pytest.mark.parametrize(("asked", "given", "has"), [(True, None, True), (False, None, False), (False, True, True)])
def test_a_map_s_own_bias_goes_before_the_builder_s(asked: bool, given: bool | None, has: bool) -> None:
    layer = LinearBuilder("phm", 2, bias=asked).linear(4, 4, bias=given)
    assert (layer.bias is not None) is has


def rules_of(builder: LinearBuilder, sublayers: int = 2, maps: int = 2) -> list[list[nn.Parameter]]:
    return [[inner.linear(8, 8).A for _ in range(maps)] for inner in (builder.sublayer() for _ in range(sublayers))]


@pytest.mark.parametrize(("reach", "distinct"), [("separate", 4), ("sublayer", 2), ("model", 1)])
def test_a_rule_reaches_as_far_as_asked(reach: str, distinct: int) -> None:
    (a, b), (c, d) = rules_of(LinearBuilder("phm", 2, rules=reach))
    assert len({id(rule) for rule in (a, b, c, d)}) == distinct
    assert (a is b) == (c is d) == (reach != "separate")


def test_a_rule_held_as_factors_reaches_as_far_as_asked() -> None:
    builder = LinearBuilder("phm", 4, rules="sublayer", parametrization="factors", rank=6, execution="rank")
    (a, b), (c, _) = [[inner.linear(8, 8) for _ in range(2)] for inner in (builder.sublayer(), builder.sublayer())]
    assert (tuple(a.W.shape), tuple(a.V.shape), a.execution) == ((4, 6), (6, 4), "rank")
    assert (a.W is b.W, a.V is b.V, a.W is c.W) == (True, True, False)


@pytest.mark.parametrize(("algebra", "n"), [("phm", 1), ("quaternion", 4)])
def test_where_no_rule_is_learned_there_are_no_factors(algebra: str, n: int) -> None:
    layer = LinearBuilder(algebra, n, parametrization="factors").linear(8, 8)
    assert "W" not in dict(layer.named_parameters())


def test_a_shared_rule_gets_the_gradients_of_all_its_maps() -> None:
    torch.manual_seed(0)
    builder = LinearBuilder("phm", 2, rules="model", bias=False)
    first, second = builder.linear(4, 4), builder.linear(4, 4)
    x = torch.randn(3, 4)
    one, other = (torch.autograd.grad(layer(x).sum(), first.A)[0] for layer in (first, second))
    (both,) = torch.autograd.grad(first(x).sum() + second(x).sum(), first.A)
    torch.testing.assert_close(both, one + other)


def test_an_embedding_is_dense_or_of_the_algebra() -> None:
    builder = LinearBuilder("phm", 4)
    dense, hypercomplex = (builder.embedding(20, 8, hypercomplex=each) for each in (False, True))
    assert type(dense) is type(hypercomplex) is PHMEmbedding
    assert (dense.n, hypercomplex.n) == (1, 4)
    assert (sum(p.numel() for p in dense.parameters()), sum(p.numel() for p in hypercomplex.parameters())) == (
        160,
        160 // 4 + 64,
    )


def test_meta_allocates_nothing() -> None:
    layer = LinearBuilder("phm", 4, device="meta").linear(1 << 20, 1 << 20)
    assert layer.S.is_meta
    assert layer.A.is_meta


def test_n_that_does_not_divide() -> None:
    with pytest.raises(DimensionError, match="does not divide"):
        LinearBuilder("phm", 3).linear(8, 12)


def test_what_is_asked_of_the_maps_reaches_them() -> None:
    builder = LinearBuilder("phm", 4, execution="rank", parametrization="factors", rank=5)
    layer = builder.linear(8, 8)
    assert (layer.execution, len(layer.V)) == ("rank", 5)
