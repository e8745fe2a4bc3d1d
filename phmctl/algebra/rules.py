"""Multiplication rules: the tensor A that says how the components of two hypercomplex numbers multiply.

A rule is ``A[i, a, b]``: component a of the product S·x takes ``A[i, a, b] * S_i * x_b``. The fixed rules (complex,
quaternion, octonion, sedenion) come from the Cayley–Dickson construction; a learned rule starts at random.
"""

import torch
from torch import Tensor

from phmctl.dimension import FIXED_DIMENSION
from phmctl.errors import DimensionError, check_known

LEARNED = "phm"
ALGEBRAS = (*FIXED_DIMENSION, LEARNED)


def check_algebra(algebra: str, n: int) -> None:
    """Check that there is such an algebra, and that it has dimension n.

    Raises:
        UserError: no algebra has this name; names the nearest.
        DimensionError: the algebra is a fixed one of another dimension.
    """
    check_known("algebra", algebra, ALGEBRAS)
    implied = FIXED_DIMENSION.get(algebra, n)
    if n != implied:
        raise DimensionError(f"algebra {algebra!r} has n = {implied}, not {n}; use n = {implied} or 'phm'")


def fixed_rule(algebra: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
    """Return the structure tensor of a fixed algebra.

    For the quaternions ``Σᵢ kron(A[i], S[i])`` is the Hamilton product matrix of Zhang et al. (2021), eq. 3.4.

    Args:
        algebra: ``real``, ``complex``, ``quaternion``, ``octonion`` or ``sedenion``.
        device: of the rule.
        dtype: of the rule; torch's default where None.

    Returns:
        A of shape (n, n, n) with entries in {-1, 0, 1}.

    Raises:
        UserError: no fixed algebra has this name; names the nearest.
    """
    check_known("fixed algebra", algebra, FIXED_DIMENSION)
    n = FIXED_DIMENSION[algebra]
    table = [[[0.0] * n for _ in range(n)] for _ in range(n)]  # (i, a, b)
    for i in range(n):
        for b in range(n):
            sign, a = _unit_product(i, b, n)
            table[i][a][b] = sign
    return torch.empty((), device=device, dtype=dtype).new_tensor(table)


def _unit_product(i: int, b: int, n: int) -> tuple[int, int]:
    """Return sign and index of the product of the units e_i and e_b, by ``(p, q)(r, s) = (pr − s̄q, sp + qr̄)``."""
    if n == 1:
        return 1, 0
    half = n // 2
    first, second = i % half, b % half
    conjugate = 1 if second == 0 else -1  # of e_second
    if i < half:
        sign, index = _unit_product(first, second, half) if b < half else _unit_product(second, first, half)
        return sign, index + (b - second)
    if b < half:
        sign, index = _unit_product(first, second, half)
        return conjugate * sign, index + half
    sign, index = _unit_product(second, first, half)
    return -conjugate * sign, index
