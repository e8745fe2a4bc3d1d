"""What an execution costs, by a model with six constants for each: by it ``auto`` chooses.

Seconds are ``product·p + mixing·m + weight·w + far·f + build·b + call·c``, with p the multiplications of the large
products, m those of mixing, w the numbers of weights that are touched, f those of them that a cache does not hold, b
the multiplications that build H or the blocks (none in evaluation, where they are kept), and c the calls of a product.
The constants were fitted to measurements by ``phmctl bench grid --fit``; only their proportions count, so they hold on
machines that are faster or slower as a whole.
"""

from functools import lru_cache
from typing import NamedTuple

from phmctl.algebra.rank_product import TILE

DENSE, FACTORED, RANK = "dense", "factored", "rank"

CACHED = 1 << 21  # weights that stay near, 8 MiB; of 2^17 to 3·2^20, what fits the measurements best


class Work(NamedTuple):
    """What an execution does, in multiplications, in numbers, and in calls."""

    product: float
    mixing: float
    weight: float
    far: float
    build: float
    call: float


class Constants(NamedTuple):
    """Nanoseconds for each unit of :class:`Work`."""

    product: float
    mixing: float
    weight: float
    far: float
    build: float
    call: float

    def seconds(self, work: Work) -> float:
        """Return the seconds that work takes."""
        return 1e-9 * sum(cost * amount for cost, amount in zip(self, work, strict=True))


# (trains, execution) -> constants. Fitted to 180 cells (n = 2, 4, 8; d and k of 256 to 4096; 1 to 1024 tokens), taken
# in float32 on an AMD EPYC virtual machine with AVX-512 and nothing else to do. Training: forward and backward.
_Table = dict[tuple[bool, str], Constants]
ONE_THREAD: _Table = {
    (True, DENSE): Constants(0.0622, 0, 0.98, 1.36, 0.137, 126300),
    (True, FACTORED): Constants(0.0617, 0.218, 1.3, 0, 0, 126900),
    (True, RANK): Constants(0.0701, 0.185, 3.69, 12.2, 0, 111700),
    (False, DENSE): Constants(0.0207, 0, 0.0434, 0.107, 0, 6.5e03),
    (False, FACTORED): Constants(0.0206, 0.0359, 0.155, 0, 0, 17800),
    (False, RANK): Constants(0.0239, 0.0514, 0.0655, 0.172, 0, 35600),
}
TWO_THREADS: _Table = {
    (True, DENSE): Constants(0.0341, 0, 1.05, 1.14, 0.102, 271400),
    (True, FACTORED): Constants(0.0326, 0.193, 1.27, 0, 0, 266100),
    (True, RANK): Constants(0.0452, 0.123, 2.81, 6.93, 0, 348900),
    (False, DENSE): Constants(0.0115, 0, 0.053, 0.18, 0, 8.27e03),
    (False, FACTORED): Constants(0.0112, 0.0293, 0.199, 0, 0, 40000),
    (False, RANK): Constants(0.0161, 0.0405, 0.0532, 0.101, 0, 72800),
}


def work_of(execution: str, tokens: int, d: int, k: int, n: int, rank: int | None, *, trains: bool) -> Work:
    """Return what an execution does in one forward pass, for which the backward pass is in proportion."""
    products, weights = float(tokens * d * k), float(d * k)
    if execution == DENSE:
        return _work(products, 0.0, weights, n * weights if trains else 0.0)
    if execution == FACTORED:
        return _work(products, float(tokens * n**2 * min(d, k)), weights / n, 0.0)
    R = rank or 0
    weights *= R / n**2
    tiles = -(-tokens // TILE["cpu"])
    return _work(products * R / n**2, float(tokens * R * (d + k)), weights, n * weights if trains else 0.0, tiles)


def _work(product: float, mixing: float, weights: float, build: float, calls: int = 1) -> Work:
    return Work(product, mixing, weights, max(0.0, weights - CACHED), build, calls)


@lru_cache(maxsize=4096)  # asked at every use of a layer: a lookup costs a tenth of the sums
def cheapest(tokens: int, d: int, k: int, n: int, rank: int | None, *, trains: bool, threads: int = 1) -> str:
    """Return the execution that costs least on so many threads of a CPU; ``rank`` only where R is known."""
    names = (DENSE, FACTORED) if rank is None else (DENSE, FACTORED, RANK)
    table = ONE_THREAD if threads == 1 else TWO_THREADS

    def seconds(name: str) -> float:
        return table[trains, name].seconds(work_of(name, tokens, d, k, n, rank, trains=trains))

    return min(names, key=seconds)
