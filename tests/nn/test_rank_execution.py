"""The layer applied by block products: the same function as by H, in training, in evaluation, from any checkpoint."""

import copy
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import phmctl
from phmctl import PHMLinear
from phmctl.algebra.bilinear import Factors, recompose
from phmctl.algebra.execution import EXECUTIONS
from phmctl.algebra.initialisation import natural_rank
from phmctl.algebra.kronecker import kronecker_sum_reference
from phmctl.backends import choices, machine
from phmctl.backends.choices import from_text
from phmctl.errors import DimensionError, RankError, UserError
from phmctl.nn.kept_factors import set_execution
from phmctl.nn.linear import MANY


def by_definition(layer: PHMLinear, x: torch.Tensor) -> torch.Tensor:
    bias = 0 if layer.bias is None else layer.bias.double()
    return x.double() @ kronecker_sum_reference(layer.A, layer.S).T + bias


def factored(n: int = 4, **options) -> PHMLinear:
    torch.manual_seed(0)
    return PHMLinear(n * 6, n * 4, n=n, parametrization="factors", execution="rank", dtype=torch.float64, **options)


@settings(max_examples=20, deadline=None)
@given(n=st.sampled_from([2, 3, 4, 5]), leading=st.lists(st.integers(0, 4), max_size=2), training=st.booleans())
def test_factors_against_the_definition(n: int, leading: list[int], training: bool) -> None:
    layer = factored(n).train(training)
    x = torch.randn(*leading, n * 6, dtype=torch.float64)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), by_definition(layer, x))


@pytest.mark.parametrize("keep", [True, False])
def test_gradients_reach_every_factor(keep: bool) -> None:
    layer = factored()
    layer.keep_products = keep
    dense = copy.deepcopy(layer)
    dense.execution = "dense"
    x = torch.randn(7, 24, dtype=torch.float64)
    for each in (layer, dense):
        each(x).square().sum().backward()
    named = dict(dense.named_parameters())
    assert set(named) == {"W", "U", "V", "S", "bias"}
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, named[name].grad)


@pytest.mark.parametrize("algebra", ["complex", "quaternion", "octonion"])
def test_fixed_algebras_train_by_rank(algebra: str) -> None:
    n = {"complex": 2, "quaternion": 4, "octonion": 8}[algebra]
    layer = PHMLinear(n * 3, n * 2, n=n, algebra=algebra, execution="rank", dtype=torch.float64)
    x = torch.randn(5, n * 3, dtype=torch.float64)
    y = layer(x)
    torch.testing.assert_close(y, by_definition(layer, x))
    y.sum().backward()
    assert layer.S.grad.abs().sum() > 0
    assert set(layer.state_dict()) == {"S", "bias"}


def test_a_trained_rule_is_decomposed_for_evaluation() -> None:
    layer = PHMLinear(24, 16, n=4, dtype=torch.float64, execution="rank").eval()
    x = torch.randn(5, 24, dtype=torch.float64)
    with torch.no_grad(), pytest.raises(RankError, match="call decompose"):
        layer(x)
    factors = layer.decompose()
    assert factors.rank == 7
    assert layer.decompose() is factors
    with torch.no_grad():
        torch.testing.assert_close(layer(x), by_definition(layer, x))
        layer.A.mul_(2)
        assert layer.factors is None
        with pytest.raises(RankError, match="call decompose"):
            layer(x)


def test_float32_is_exact_to_rounding() -> None:
    torch.manual_seed(0)
    layer = PHMLinear(512, 512, n=8, execution="rank").eval()
    layer.decompose()
    x = torch.randn(256, 512)
    with torch.no_grad():
        y, exact = layer(x), by_definition(layer, x)
    assert ((y - exact).norm() / exact.norm()).item() < 5e-6


def test_a_rule_without_factors_trains_as_ever() -> None:
    layer = PHMLinear(24, 16, n=4, execution="rank")
    layer.decompose()  # of no use in training: the rule changes
    layer(torch.randn(5, 24)).sum().backward()
    assert layer.A.grad.abs().sum() > 0


@pytest.mark.parametrize("source", ["rule", "factors"])
def test_a_checkpoint_of_either_form_loads_as_either(source: str) -> None:
    target = "factors" if source == "rule" else "rule"
    saved = PHMLinear(24, 16, n=4, parametrization=source, dtype=torch.float64)
    layer = PHMLinear(24, 16, n=4, parametrization=target, dtype=torch.float64)
    state = saved.state_dict()
    before = {name: part.clone() for name, part in state.items()}
    layer.load_state_dict(state)
    torch.testing.assert_close(layer.weight, saved.weight)
    torch.testing.assert_close(state, before)  # what was passed in is as it was


def test_a_checkpoint_whose_rule_wants_a_higher_rank() -> None:
    saved = PHMLinear(24, 16, n=4)
    with pytest.raises(RankError, match="rank 3"):
        PHMLinear(24, 16, n=4, parametrization="factors", rank=3).load_state_dict(saved.state_dict())


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("low", [False, True])
def test_h_begins_with_the_dense_variance(n: int, low: bool) -> None:
    torch.manual_seed(0)
    rank = max(2, natural_rank(n) // 2) if low else None
    wanted = 1 / (3 * 240)
    weights = [PHMLinear(240, 240, n=n, parametrization="factors", rank=rank).weight for _ in range(6)]
    assert torch.stack(weights).var().item() == pytest.approx(wanted, rel=0.15)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8])
def test_a_rule_of_factors_begins_with_unit_fibres(n: int) -> None:
    torch.manual_seed(0)
    one, other = (PHMLinear(n, n, n=n, parametrization="factors", dtype=torch.float64).A for _ in range(2))
    torch.testing.assert_close(one.square().sum(dim=0), torch.ones(n, n, dtype=torch.float64))
    assert (one - other).abs().max() > 0.1


def test_kept_blocks_follow_the_parameters() -> None:
    layer = factored().eval()
    x = torch.randn(5, 24, dtype=torch.float64)
    with torch.no_grad():
        for change in (layer.S, layer.W, layer.U, layer.V):
            layer(x)
            change.mul_(1.5)
            torch.testing.assert_close(layer(x), by_definition(layer, x))


def test_factors_can_be_shared() -> None:
    first = factored()
    second = PHMLinear(24, 16, n=4, rule=first.factors, dtype=torch.float64)
    assert second.W is first.W
    torch.testing.assert_close(second.A, first.A)
    assert isinstance(first.factors, Factors)
    torch.testing.assert_close(recompose(first.factors), second.A)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"execution": "ranks"}, "did you mean 'rank'"),
        ({"parametrization": "factor"}, "did you mean 'factors'"),
        ({"parametrization": "factors", "rank": 0}, "rank = 0 must be at least 1"),
        ({"algebra": "quaternion", "parametrization": "factors"}, "no learned rule"),
    ],
)
def test_what_a_user_can_get_wrong(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        PHMLinear(8, 8, n=4, **arguments)


def test_wrong_width_in_any_state() -> None:
    for layer in (PHMLinear(8, 8, n=1), factored(2), PHMLinear(8, 8, n=4).eval()):
        with pytest.raises(DimensionError, match="does not end in in_features"), torch.no_grad():
            layer(torch.zeros(4, 5))


def rank_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    order = {"rank": 1, "factored": 2, "dense": 3}
    monkeypatch.setattr(choices, "lowest_seconds", lambda calls, clock: {c: order[c.execution] for c in calls})


def test_a_choice_of_dense_is_thought_over_when_factors_are_found(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a scope it is made once, by its own measurement."""
    rank_is_fastest(monkeypatch)
    layer, x = PHMLinear(1024, 1024, n=4).eval(), torch.randn(2048, 1024)
    with torch.no_grad(), phmctl.cached():
        before = layer(x)
        assert layer.choice_for(2048).execution == "factored"
        layer.decompose()
        assert layer.choice_for(2048).execution == "rank"
        after = layer(x)
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)


def test_a_loaded_model_finds_factors_where_rank_is_fastest(measuring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank_is_fastest(monkeypatch)
    layer, x = PHMLinear(64, 64, n=4).eval(), torch.randn(MANY, 64)
    with torch.inference_mode(), phmctl.cached():
        before = layer(x)
    assert layer.factors is None
    set_execution(layer, "auto")
    assert layer.factors is None
    with torch.inference_mode(), phmctl.cached():
        few = layer(x[:2])
        assert layer.factors is None
        after = layer(x)
        assert layer.factors is not None
        assert layer.choice_for(MANY).execution == "rank"
    torch.testing.assert_close(after, before, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(few, before[:2], rtol=1e-4, atol=1e-5)


def test_larger_rules_are_not_decomposed_unasked(measuring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rank_is_fastest(monkeypatch)
    layer = PHMLinear(64, 64, n=8).eval()
    set_execution(layer, "auto")
    with torch.no_grad(), phmctl.cached():
        layer(torch.randn(MANY, 64))
    assert layer.factors is None


@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
def test_in_16_bits_auto_goes_by_rank_with_learned_factors_only(
    lower: torch.dtype, trains: bool, measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_is_fastest(monkeypatch)
    fixed, decomposed, loaded = PHMLinear(64, 64, n=4, algebra="quaternion"), *(PHMLinear(64, 64, n=4) for _ in "12")
    decomposed.decompose()
    set_execution(loaded, "auto")
    learned = PHMLinear(64, 64, n=4, parametrization="factors")
    with torch.set_grad_enabled(trains), nullcontext() if trains else phmctl.cached():
        assert fixed.choice_for(MANY).execution == "rank"
        for layer in (fixed, decomposed, loaded):
            with torch.autocast("cpu", lower):
                assert layer.choice_for(MANY).execution != "rank"
            assert layer.to(lower).choice_for(MANY).execution != "rank"
        assert learned.to(lower).choice_for(MANY).execution == "rank"
        fixed.execution = "rank"
        assert fixed.choice_for(MANY).execution == "rank"  # who asks for it has it


def test_a_graph_under_autocast_takes_the_choice_for_its_dtype(
    measuring: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank_is_fastest(monkeypatch)
    layer, x = PHMLinear(32, 32, n=4, algebra="quaternion"), torch.randn(MANY, 32)
    layer(x)
    assert layer.choice_for(MANY).execution == "rank"
    with torch.autocast("cpu", torch.bfloat16):
        compiled = torch.compile(layer, fullgraph=True, backend="eager")
        assert torch.equal(compiled(x), torch.nn.functional.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("mode", ["train", "eval", "kept"])
def test_what_is_measured_is_computed_as_it_was_before(execution: str, mode: str, measuring: Path) -> None:
    """With real measurements, whatever they say."""
    torch.manual_seed(0)
    layer, x = PHMLinear(64, 96, n=4, parametrization="factors", execution=execution), torch.randn(700, 64)
    exact = x.double() @ layer.weight.double().t() + layer.bias.double()
    with torch.set_grad_enabled(mode == "train"), phmctl.cached() if mode == "kept" else nullcontext():
        y = layer(x)
    assert (y - exact).norm() / exact.norm() < 5e-6
    assert len(from_text(machine.read())) >= 1


def test_a_copy_keeps_the_factors_that_were_found() -> None:
    layer, x = PHMLinear(8, 8, n=4, execution="rank").eval(), torch.randn(3, 8)
    layer.decompose()
    other = copy.deepcopy(layer)
    with torch.no_grad():
        assert other(x).equal(layer(x))
        assert other.factors is not None
        assert all(mine is not own for mine, own in zip(other.factors, layer.factors, strict=True))
        other.A.mul_(2)  # another rule: the factors found are not its own
        with pytest.raises(RankError, match="call decompose"):
            other(x)
        assert layer(x).isfinite().all()


def test_a_copy_of_a_changed_rule_has_no_factors() -> None:
    layer = PHMLinear(8, 8, n=4)
    layer.decompose()
    with torch.no_grad():
        layer.A.mul_(2)
    assert copy.deepcopy(layer).factors is None


def test_a_copy_in_inference_mode() -> None:
    layer = PHMLinear(8, 8, n=4).eval()
    layer.decompose()
    with torch.inference_mode():
        copy.deepcopy(layer)(torch.randn(3, 8))
