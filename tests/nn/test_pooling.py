import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phmctl.errors import DimensionError
from phmctl.nn.layers import POOLINGS, last_pool, max_pool, mean_pool


def by_loops(name: str, states: Tensor, mask: Tensor) -> Tensor:
    """The definition, one number at a time."""
    pooled = torch.zeros(len(states), states.shape[2], dtype=states.dtype)
    for row in range(len(states)):
        for feature in range(states.shape[2]):
            values = [float(states[row, t, feature]) for t in range(states.shape[1]) if mask[row, t]]
            if values:
                pooled[row, feature] = {"max": max(values), "mean": sum(values) / len(values), "last": values[-1]}[name]
    return pooled


def gradient_by_loops(name: str, states: Tensor, mask: Tensor) -> Tensor:
    """Of the sum of all pooled numbers; no two values are equal."""
    gradient = torch.zeros_like(states)
    for row in range(len(states)):
        real = [t for t in range(states.shape[1]) if mask[row, t]]
        for feature in range(states.shape[2]):
            if real and name == "mean":
                gradient[row, real, feature] = 1 / len(real)
            elif real:
                best = max(real, key=lambda t: float(states[row, t, feature]))
                gradient[row, best if name == "max" else real[-1], feature] = 1.0
    return gradient


masks = st.integers(1, 6).flatmap(
    lambda steps: st.lists(st.lists(st.booleans(), min_size=steps, max_size=steps), min_size=1, max_size=4)
)


@pytest.mark.parametrize("name", POOLINGS)
@settings(max_examples=30, deadline=None)
@given(rows=masks, seed=st.integers(0, 1000))
def test_values_and_gradients_are_those_of_plain_loops(name: str, rows: list[list[bool]], seed: int) -> None:
    mask = torch.tensor(rows)
    states = torch.randn(*mask.shape, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    leaf = states.clone().requires_grad_()
    pooled = POOLINGS[name](leaf, mask)
    torch.testing.assert_close(pooled, by_loops(name, states, mask))
    (gradient,) = torch.autograd.grad(pooled.sum(), leaf)
    torch.testing.assert_close(gradient, gradient_by_loops(name, states, mask))


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("rubbish", [torch.nan, torch.inf, -torch.inf, 1e30])
def test_padding_is_never_read(name: str, rubbish: float) -> None:
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    clean = torch.randn(3, 3, 2).masked_fill(~mask[..., None], 0.0)
    dirty = clean.masked_fill(~mask[..., None], rubbish).requires_grad_()
    pooled = POOLINGS[name](dirty, mask)
    torch.testing.assert_close(pooled, POOLINGS[name](clean, mask), rtol=0, atol=0)
    (gradient,) = torch.autograd.grad(pooled.square().sum(), dirty)
    assert gradient.isfinite().all()
    assert gradient[~mask].eq(0).all()


@pytest.mark.parametrize("name", POOLINGS)
def test_a_sequence_of_padding_alone_gives_zeros_and_no_gradient(name: str) -> None:
    states = torch.randn(2, 4, 3, requires_grad=True)
    mask = torch.tensor([[False] * 4, [True] * 4])
    pooled = POOLINGS[name](states, mask)
    assert pooled[0].eq(0).all()
    (gradient,) = torch.autograd.grad(pooled.sum(), states)
    assert gradient[0].eq(0).all()
    assert gradient[1].sum() == pytest.approx(3.0)


def test_negative_values_are_not_beaten_by_padding() -> None:
    states, mask = torch.tensor([[[-3.0], [-2.0], [0.0]]]), torch.tensor([[True, True, False]])
    assert max_pool(states, mask).item() == -2.0
    assert mean_pool(states, mask).item() == -2.5
    assert last_pool(states, mask).item() == -2.0


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_dtype_stays(name: str, dtype: torch.dtype) -> None:
    assert POOLINGS[name](torch.ones(2, 3, 4, dtype=dtype), torch.ones(2, 3, dtype=torch.bool)).dtype == dtype


@pytest.mark.parametrize("name", POOLINGS)
@pytest.mark.parametrize(("states", "mask"), [((2, 3, 4), (2, 4)), ((2, 3), (2, 3)), ((2, 0, 4), (2, 0))])
def test_shapes_that_do_not_belong_together(name: str, states: tuple[int, ...], mask: tuple[int, ...]) -> None:
    with pytest.raises(DimensionError, match=r"not \(B, T, d\)|no step"):
        POOLINGS[name](torch.zeros(states), torch.ones(mask, dtype=torch.bool))
