"""What an execution costs, by a model with nine constants for each: by it ``auto`` chooses.

Seconds are ``product·p + fast·q + mixing·m + token·t + weight·w + fast_weight·v + far·f + build·b + call·c``, with p
the multiplications of the products that MKL takes and q of those that oneDNN takes (:mod:`phmctl.algebra.products`), m
those of mixing, t the tokens that are mixed, each by a product of its own, w the numbers of weights that MKL touches
and v that oneDNN does, f those of them that a cache does not hold, b the multiplications that build H or the blocks
(none in evaluation, where they are kept), and c the calls of a product. The constants were fitted to
measurements; only their proportions count, so they hold on machines that are faster or
slower as a whole.
"""

from functools import lru_cache
from typing import NamedTuple

from phmctl.algebra.products import MKL, ONEDNN, are_large, is_large
from phmctl.algebra.rank_product import TILE

DENSE, FACTORED, RANK = "dense", "factored", "rank"

CACHED = 1 << 21  # weights that stay near, 8 MiB; of 2^17 to 3·2^20, what fits the measurements best


class Work(NamedTuple):
    """What an execution does, in multiplications, in numbers, and in calls."""

    product: float
    fast: float
    mixing: float
    token: float
    weight: float
    fast_weight: float
    far: float
    build: float
    call: float


class Constants(NamedTuple):
    """Nanoseconds for each unit of :class:`Work`."""

    product: float
    fast: float
    mixing: float
    token: float
    weight: float
    fast_weight: float
    far: float
    build: float
    call: float

    def seconds(self, work: Work) -> float:
        """Return the seconds that work takes."""
        return 1e-9 * sum(cost * amount for cost, amount in zip(self, work, strict=True))


# (trains, execution) -> constants. Fitted to 360 cells (n = 2, 4, 8; d and k of 256 to 4096; 1 to 1024 tokens; with MKL
# and with oneDNN), on two threads in evaluation with 4096 tokens too, taken in float32 on an AMD EPYC virtual machine
# with AVX-512. Training: forward and backward.
_Table = dict[tuple[bool, str], Constants]
ONE_THREAD: _Table = {
    (True, DENSE): Constants(0.067, 0.0318, 0, 0, 1.23, 1.65, 0.936, 0.126, 174000),
    (True, FACTORED): Constants(0.0632, 0.0326, 0.237, 810, 1.51, 1.42, 0, 0, 147000),
    (True, RANK): Constants(0.072, 0.0482, 0.267, 733, 2.96, 4.43, 7.04, 0, 163000),
    (False, DENSE): Constants(0.0218, 0.0104, 0, 0, 0.0489, 0.0819, 0.128, 0, 8730),
    (False, FACTORED): Constants(0.0218, 0.0103, 0.0385, 80.4, 0.16, 0.281, 0, 0, 20400),
    (False, RANK): Constants(0.0245, 0.0113, 0.056, 63.9, 0.0815, 0.893, 0.163, 0, 30600),
}
TWO_THREADS: _Table = {
    (True, DENSE): Constants(0.0321, 0.0159, 0, 0, 1.29, 1.4, 0.322, 0.077, 253000),
    (True, FACTORED): Constants(0.0297, 0.0162, 0.174, 728, 1.15, 1.11, 0, 0, 188000),
    (True, RANK): Constants(0.0381, 0.022, 0.128, 1110, 2.03, 3.84, 4.14, 0, 263000),
    (False, DENSE): Constants(0.0108, 0.00525, 0, 0, 0.0504, 0.0298, 0.0516, 0, 9730),
    (False, FACTORED): Constants(0.0108, 0.00547, 0.0244, 63, 0.163, 0.156, 0, 0, 29700),
    (False, RANK): Constants(0.0138, 0.00585, 0.0267, 153, 0.0376, 0.348, 0.0546, 0, 43800),
}


def work_of(
    execution: str, tokens: int, d: int, k: int, n: int, rank: int | None, *, trains: bool, library: str = MKL
) -> Work:
    """Return what an execution does in one forward pass, for which the backward pass is in proportion."""
    products, mixing, weights, build, calls = float(tokens * d * k), 0.0, float(d * k), 0.0, 1
    large = is_large(tokens, d, k, trains=trains)
    if execution == FACTORED:
        mixing, weights = float(tokens * n**2 * min(d, k)), weights / n
    elif execution == RANK:
        R = rank or 0
        products, mixing, weights = products * R / n**2, float(tokens * R * (d + k)), weights * R / n**2
        large = are_large(min(tokens, TILE["cpu"]), R, d // n, k // n)
        calls = -(-tokens // TILE["cpu"])
    if trains and execution != FACTORED:
        build = n * weights
    fast, fast_weights = (products, weights) if library == ONEDNN and large else (0.0, 0.0)
    mixed, far = float(tokens) if execution != DENSE else 0.0, max(0.0, weights - CACHED)
    return Work(products - fast, fast, mixing, mixed, weights - fast_weights, fast_weights, far, build, calls)


@lru_cache(maxsize=4096)  # asked at every use of a layer: a lookup costs a tenth of the sums
def cheapest(
    tokens: int,
    d: int,
    k: int,
    n: int,
    rank: int | None,
    *,
    trains: bool,
    kept: bool = True,
    threads: int = 1,
    library: str = MKL,
) -> str:
    """Return the execution that costs least on so many threads of a CPU; ``rank`` only where R is known.

    In evaluation without `kept` H or the blocks are built for this use alone, at a third of the training's constant for
    building, which counts its backward pass too.
    """
    names = (DENSE, FACTORED) if rank is None else (DENSE, FACTORED, RANK)
    table = ONE_THREAD if threads == 1 else TWO_THREADS

    def seconds(name: str) -> float:
        seconds = table[trains, name].seconds(work_of(name, tokens, d, k, n, rank, trains=trains, library=library))
        if trains or kept or name == FACTORED:
            return seconds
        built = n * d * k * (1.0 if name == DENSE else (rank or 0) / n**2)
        return seconds + 1e-9 * built * table[True, DENSE].build / 3

    return min(names, key=seconds)
