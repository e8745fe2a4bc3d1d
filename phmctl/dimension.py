"""Which n a layer can have: the one its algebra implies, and those that divide its dimensions."""

import math

from phmctl.errors import DimensionError

LOW_RANK, MONARCH = TWO_FACTORS = ("low-rank", "monarch")  # no algebras: two thin maps in a row, to compare with
WITH_N = ("phm", MONARCH)  # those that want to be told an n; monarch's is its number of blocks
WITH_FACTORS = ("complex", "quaternion")  # fixed ones whose factors are known exactly
FIXED_DIMENSION = {"real": 1, "complex": 2, "quaternion": 4, "octonion": 8, "sedenion": 16}


def check_divides(n: int, **dimensions: int) -> None:
    """Check that n divides every one of the named dimensions.

    Args:
        n: the PHM hyperparameter.
        dimensions: the name that the caller knows a dimension by, and its size.

    Raises:
        DimensionError: n is not positive, a dimension is not positive, or n does not divide one; names the
            nearest n that divide all of them.
    """
    for name, size in dimensions.items():
        if size < 1:
            raise DimensionError(f"{name} = {size} must be at least 1")
    if not isinstance(n, int) or n < 1:
        raise DimensionError(f"n = {n} must be a whole number of at least 1")
    wrong = [f"{name} = {size}" for name, size in dimensions.items() if size % n]
    if wrong:
        common = math.gcd(*dimensions.values())
        divisors = [each for each in range(1, common + 1) if common % each == 0]
        usable = [each for each in divisors if each < n][-1:] + [each for each in divisors if each > n][:1]
        choice = " and ".join(map(str, usable))
        fits = "nearest n that does is" if len(usable) == 1 else "nearest n that do are"
        raise DimensionError(f"n = {n} does not divide {' and '.join(wrong)}; the {fits} {choice}")
