"""The dimension n of a layer: the n of each algebra, and the n that divide a layer's sizes."""

import math
import operator
from collections.abc import Sequence

from phmctl.errors import DimensionError

LEARNED = "phm"  # the algebra whose rule is a parameter, for any n
LOW_RANK = "low-rank"  # two thin maps in sequence, for comparison, not an algebra
FIXED_DIMENSION = {"real": 1, "complex": 2, "quaternion": 4, "octonion": 8, "sedenion": 16}


def check_channels(n: int, inputs: int, outputs: int, kernel: Sequence[int], groups: int = 1) -> int:
    """Check that n divides the inputs and outputs of each group of a weight, as :func:`check_divides`."""
    unit = "channels" if kernel else "features"
    of_group = f" / {groups} groups" if groups > 1 else ""
    return check_divides(n, **{f"in_{unit}{of_group}": inputs, f"out_{unit}{of_group}": outputs})


def check_count(name: str, value: int) -> int:
    """Return a value, which may be an integer of numpy, as an int. Raises DimensionError unless it is at least 1."""
    try:
        integer = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:  # a text, a fraction, an array
        integer = 0
    if integer < 1:
        raise DimensionError(f"{name} = {value!r} must be an integer of at least 1")
    return integer


def check_divides(n: int, **dimensions: int) -> int:
    """Return n, which may be an integer of numpy, as an int.

    Raises DimensionError, which names the nearest valid n, if n does not divide every dimension (name=size).
    """
    for name, size in dimensions.items():
        if size < 1:
            raise DimensionError(f"{name} = {size} must be at least 1")
    n = check_count("n", n)
    indivisible = [f"{name} = {size}" for name, size in dimensions.items() if size % n]
    if not indivisible:
        return n
    common = math.gcd(*dimensions.values())
    divisors = [candidate for candidate in range(1, common + 1) if common % candidate == 0]
    smaller = [divisor for divisor in divisors if divisor < n]
    larger = [divisor for divisor in divisors if divisor > n]
    choices = " or ".join(map(str, smaller[-1:] + larger[:1]))
    raise DimensionError(f"n = {n} does not divide {' and '.join(indivisible)}; use n = {choices}")
