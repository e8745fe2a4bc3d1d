"""Dropout is a function of (seed, step, micro-batch, piece)."""

import torch

from phmctl.training.randomness import seed_dropout


def _draw(*place: int) -> tuple[float, ...]:
    seed_dropout(*place)
    return tuple(torch.rand(4).tolist())


def test_the_same_place_draws_the_same_whatever_was_drawn_before() -> None:
    first = _draw(1, 7, 2)
    torch.rand(13)
    assert _draw(1, 7, 2) == first


def test_every_place_draws_its_own() -> None:
    places = [(1, 7, 2), (2, 7, 2), (1, 8, 2), (1, 7, 3), (1, 2, 7), (1, 7, 2, 1)]
    assert len({_draw(*place) for place in places}) == len(places)
