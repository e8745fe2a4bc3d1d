"""What an execution costs, by a model with eight constants for each: by it ``auto`` chooses.

Seconds are ``product·p + fast·q + mixing·m + token·t + weight·w + far·f + build·b + call·c``, with p the
multiplications of the products that MKL takes and q of those that oneDNN takes (:mod:`phmctl.algebra.products`), m
those of mixing, t the tokens that are mixed, each by a product of its own, w the numbers of weights that are touched, f
those of them that a cache does not hold, b the multiplications that build H or the blocks (none in evaluation, where
they are kept), and c the calls of a product. The constants were fitted to
measurements by ``phmctl bench grid --fit``; only their proportions count, so they hold on machines that are faster or
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
    far: float
    build: float
    call: float

    def seconds(self, work: Work) -> float:
        """Return the seconds that work takes."""
        return 1e-9 * sum(cost * amount for cost, amount in zip(self, work, strict=True))


# (trains, execution) -> constants. Fitted to 360 cells (n = 2, 4, 8; d and k of 256 to 4096; 1 to 1024 tokens; with MKL
# and with oneDNN), taken in float32 on an AMD EPYC virtual machine with AVX-512. Training: forward and backward.
_Table = dict[tuple[bool, str], Constants]
ONE_THREAD: _Table = {
    (True, DENSE): Constants(0.0619, 0.0297, 0, 0, 0.942, 1.11, 0.135, 151000),
    (True, FACTORED): Constants(0.0582, 0.0291, 0.218, 850, 1.3, 0, 0, 132000),
    (True, RANK): Constants(0.0641, 0.0476, 0.234, 741, 2.65, 7.83, 0, 140000),
    (False, DENSE): Constants(0.0206, 0.00893, 0, 0, 0.0385, 0.114, 0, 8180),
    (False, FACTORED): Constants(0.0201, 0.00947, 0.035, 71, 0.147, 0, 0, 18400),
    (False, RANK): Constants(0.0224, 0.0128, 0.0451, 87.4, 0.0669, 0.0704, 0, 28500),
}
TWO_THREADS: _Table = {
    (True, DENSE): Constants(0.0336, 0.016, 0, 0, 1.33, 0, 0.153, 215000),
    (True, FACTORED): Constants(0.0308, 0.0162, 0.204, 620, 1.16, 0, 0, 191000),
    (True, RANK): Constants(0.0366, 0.0247, 0.166, 1170, 1.94, 3.87, 0.0615, 251000),
    (False, DENSE): Constants(0.0121, 0.00488, 0, 0, 0.0468, 0.0988, 0, 8910),
    (False, FACTORED): Constants(0.0113, 0.00536, 0.0241, 42.5, 0.183, 0, 0, 28800),
    (False, RANK): Constants(0.0137, 0.0061, 0.0376, 312, 0.0401, 0.0497, 0, 42700),
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
    fast = products if library == ONEDNN and large else 0.0
    mixed = float(tokens) if execution != DENSE else 0.0
    return Work(products - fast, fast, mixing, mixed, weights, max(0.0, weights - CACHED), build, calls)


@lru_cache(maxsize=4096)  # asked at every use of a layer: a lookup costs a tenth of the sums
def cheapest(
    tokens: int, d: int, k: int, n: int, rank: int | None, *, trains: bool, threads: int = 1, library: str = MKL
) -> str:
    """Return the execution that costs least on so many threads of a CPU; ``rank`` only where R is known."""
    names = (DENSE, FACTORED) if rank is None else (DENSE, FACTORED, RANK)
    table = ONE_THREAD if threads == 1 else TWO_THREADS

    def seconds(name: str) -> float:
        return table[trains, name].seconds(work_of(name, tokens, d, k, n, rank, trains=trains, library=library))

    return min(names, key=seconds)
