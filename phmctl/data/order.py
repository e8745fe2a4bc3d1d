"""Random numbers that are ours: the order of batches must not change with a library's version.

NumPy promises no stream of ``Generator`` across versions. Here the j-th number of a stream is SplitMix64's mixing of
``key + j·γ`` (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", §4), with a key mixed from
the seeds; integer arithmetic modulo 2⁶⁴ is the same everywhere.
"""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T")

ORDER = 1  # the number of this way to order batches, which a training's state records; 0 was NumPy's

_WORD = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15  # 2⁶⁴ divided by the golden ratio
_FIRST, _SECOND = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mixed(*parts: int) -> int:
    """Return a number below 2⁶⁴ that is a function of whole numbers and their order."""
    key = 0
    for part in parts:
        for shift in range(0, max(part.bit_length(), 1), 64):
            key = _mix((key + (part >> shift & _WORD) + _GAMMA) & _WORD)
        key = _mix(key ^ _GAMMA)  # the end of a part
    return key


class RandomNumbers:
    """A stream of random numbers; other seeds, such as the run's and the epoch, give another one."""

    def __init__(self, *seeds: int) -> None:
        self._key = mixed(*seeds)
        self._drawn = 0

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Draw numbers below 2⁶⁴. (count,)."""
        places = np.arange(self._drawn + 1, self._drawn + count + 1, dtype=np.uint64)
        self._drawn += count
        words = np.uint64(self._key) + places * np.uint64(_GAMMA)  # arrays wrap around without a warning
        words = (words ^ (words >> np.uint64(30))) * np.uint64(_FIRST)
        words = (words ^ (words >> np.uint64(27))) * np.uint64(_SECOND)
        return words ^ (words >> np.uint64(31))

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Draw an order of ``0 … count − 1``. (count,)."""
        return np.argsort(self.words(count), kind="stable")

    def chosen(self, count: int, share: float) -> npt.NDArray[np.bool_]:
        """Choose each of `count` with probability `share`. (count,)."""
        return self.words(count) < np.uint64(int(share * 2.0**64))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return [items[place] for place in self.permutation(len(items))]


def _mix(word: int) -> int:
    word = ((word ^ (word >> 30)) * _FIRST) & _WORD
    word = ((word ^ (word >> 27)) * _SECOND) & _WORD
    return word ^ (word >> 31)
