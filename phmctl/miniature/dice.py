"""Random choices that are the same on every platform and every Python."""

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Dice:
    """Choices made from ``random.Random(seed).random()`` alone, the one method that Python promises not to change."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def chance(self, probability: float) -> bool:
        """Return whether an event of this probability happens."""
        return self._random.random() < probability

    def between(self, low: int, high: int) -> int:
        """Return an integer in [low, high]."""
        return low + int(self._random.random() * (high - low + 1))

    def pick(self, values: Sequence[T]) -> T:
        """Return one of the values, each equally likely."""
        return values[int(self._random.random() * len(values))]

    def weighted(self, weights: dict[T, float]) -> T:
        """Return a key, as likely as its weight says; the order of the keys is part of the seed's meaning."""
        left = self._random.random() * sum(weights.values())
        for value, weight in weights.items():
            left -= weight
            if left < 0:
                return value
        return value
