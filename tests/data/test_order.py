"""Random numbers of our own: the same everywhere, for ever."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from phmctl.data.batches import RandomNumbers, mixed


def test_words_are_those_of_splitmix64() -> None:
    """Published: the first outputs of the generator from state 0, and from 1234567."""
    numbers = RandomNumbers(0)
    numbers._key = 0
    assert numbers.words(3).tolist() == [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    numbers = RandomNumbers(0)
    numbers._key = 1234567
    assert numbers.words(2).tolist() == [6457827717110365317, 3203168211198807973]


def test_a_stream_is_pinned() -> None:
    """A change of these numbers is a change of every run's order: it wants a new number of `order` in the state."""
    assert RandomNumbers(1, 0).permutation(10).tolist() == [5, 8, 0, 3, 9, 4, 1, 6, 2, 7]
    assert mixed(1, 2) == 17821428774046391611


@given(count=st.integers(0, 300), seed=st.integers(0, 2**70), epoch=st.integers(0, 10))
def test_a_permutation_has_everything_once(count: int, seed: int, epoch: int) -> None:
    assert sorted(RandomNumbers(seed, epoch).permutation(count).tolist()) == list(range(count))


def test_seeds_and_their_order_matter() -> None:
    streams = [(1, 2), (2, 1), (1,), (1, 2, 0), (1 + (2 << 64),), (0, 1, 2)]
    assert len({tuple(RandomNumbers(*seeds).words(2).tolist()) for seeds in streams}) == len(streams)


def test_numbers_depend_on_their_place_alone() -> None:
    whole, parts = RandomNumbers(5), RandomNumbers(5)
    assert whole.words(9).tolist() == parts.words(4).tolist() + parts.words(5).tolist()


def test_shares_and_places_are_even() -> None:
    numbers = RandomNumbers(3)
    assert abs(numbers.chosen(100_000, 0.15).mean() - 0.15) < 0.004
    places = np.array([RandomNumbers(seed).permutation(5)[0] for seed in range(5000)])
    assert np.abs(np.bincount(places, minlength=5) - 1000).max() < 120
    assert sorted(numbers.shuffled("abcdef")) == list("abcdef")
