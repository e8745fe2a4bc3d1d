"""Sinusoids against the formula, and a table that grows."""

import math

import pytest
import torch

from phmctl.nn.layers import SinusoidalPositions, sinusoids


@pytest.mark.parametrize("width", [4, 8, 64])
def test_values_are_those_of_the_formula(width: int) -> None:
    """sin(p·r) and cos(p·r) at rates r from 1 down to 1/10,000 in a geometric series."""
    table = sinusoids(50, width)
    half = width // 2
    assert table.shape == (50, width)
    for position in (0, 1, 7, 49):
        for index in range(half):
            angle = position * 10_000.0 ** (-index / (half - 1))
            assert table[position, index].item() == pytest.approx(math.sin(angle), abs=1e-5)
            assert table[position, half + index].item() == pytest.approx(math.cos(angle), abs=1e-5)


def test_the_narrowest_width_has_one_rate() -> None:
    torch.testing.assert_close(sinusoids(3, 2), torch.tensor([[math.sin(p), math.cos(p)] for p in range(3)]))


def test_rows_from_a_start_are_rows_of_the_whole() -> None:
    positions = SinusoidalPositions(16)
    torch.testing.assert_close(positions(3, start=4), sinusoids(7, 16)[4:])


def test_the_table_grows_for_a_longer_sentence_and_keeps_its_kind() -> None:
    positions = SinusoidalPositions(16).double()
    found = positions(700)
    assert found.shape == (700, 16)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, sinusoids(700, 16).double())
    assert not positions.state_dict()  # no checkpoint holds it


def test_a_table_that_was_on_meta_is_made_where_it_goes() -> None:
    positions = SinusoidalPositions(16, device="meta")
    assert positions.table.is_meta
    with torch.no_grad():
        torch.testing.assert_close(positions.to_empty(device="cpu")(9), sinusoids(9, 16))
