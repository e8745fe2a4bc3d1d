"""What an execution costs, by a model with five constants for each: by it ``auto`` chooses.

Seconds are ``product·p + mixing·m + weight·w + build·b + call``, with p the multiplications of the large products, m
those of mixing, w the numbers of weights that are touched, b the multiplications that build H or the blocks (none in
evaluation, where they are kept). The constants were fitted to measurements by ``phmctl bench grid --fit``; only their
proportions count, so they hold on machines that are faster or slower as a whole.
"""

from typing import NamedTuple

DENSE, FACTORED, RANK = "dense", "factored", "rank"


class Work(NamedTuple):
    """What an execution does, in multiplications and in numbers."""

    product: float
    mixing: float
    weight: float
    build: float
    call: float = 1.0


class Constants(NamedTuple):
    """Nanoseconds for each unit of :class:`Work`; of a call in all."""

    product: float
    mixing: float
    weight: float
    build: float
    call: float

    def seconds(self, work: Work) -> float:
        """Return the seconds that work takes."""
        return 1e-9 * sum(cost * amount for cost, amount in zip(self, work, strict=True))


# (trains, execution) -> constants. Fitted to 180 cells (n = 2, 4, 8; d and k of 256 to 4096; 1 to 1024 tokens), taken
# in float32 on one thread of an AMD EPYC virtual machine with AVX-512 that had other work too. Training: forward and
# backward.
CPU: dict[tuple[bool, str], Constants] = {
    (True, DENSE): Constants(0.069, 0, 1.28, 0.19, 143900),
    (True, FACTORED): Constants(0.0677, 0.296, 1.52, 0, 153900),
    (True, RANK): Constants(0.0804, 0.248, 4.7, 0, 116400),
    (False, DENSE): Constants(0.023, 0, 0.0619, 0, 5600),
    (False, FACTORED): Constants(0.0229, 0.0462, 0.156, 0, 20600),
    (False, RANK): Constants(0.0271, 0.0677, 0.0842, 0, 38300),
}


def work_of(execution: str, tokens: int, d: int, k: int, n: int, rank: int | None, *, trains: bool) -> Work:
    """Return what an execution does in one forward pass, for which the backward pass is in proportion."""
    products, weights = float(tokens * d * k), float(d * k)
    if execution == DENSE:
        return Work(products, 0.0, weights, n * weights if trains else 0.0)
    if execution == FACTORED:
        return Work(products, float(tokens * n**2 * min(d, k)), weights / n, 0.0)
    share = (rank or 0) / n**2
    return Work(
        products * share, float(tokens * (rank or 0) * (d + k)), weights * share, n * share * weights if trains else 0.0
    )


def cheapest(tokens: int, d: int, k: int, n: int, rank: int | None, *, trains: bool) -> str:
    """Return the execution that costs least on a CPU; ``rank`` only where R is known."""
    names = (DENSE, FACTORED) if rank is None else (DENSE, FACTORED, RANK)

    def seconds(name: str) -> float:
        return CPU[trains, name].seconds(work_of(name, tokens, d, k, n, rank, trains=trains))

    return min(names, key=seconds)
