"""Multiplication rules: the tensor A that says how the components of two hypercomplex numbers multiply.

A rule is ``A[i, a, b]``: component a of the product S·x takes ``A[i, a, b] * S_i * x_b``. The fixed rules (complex,
quaternion, octonion, sedenion) come from the Cayley–Dickson construction; a learned rule starts at random.
"""

import torch
from torch import Tensor

from phmctl.backends.pristine import computed_once
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


def _conjugate(p: Tensor) -> Tensor:
    """Negate every component but the first. (..., n) -> (..., n)."""
    return torch.cat((p[..., :1], -p[..., 1:]), dim=-1)


def _cayley_dickson(p: Tensor, q: Tensor) -> Tensor:
    """Multiply by the doubling ``(a, b)(c, d) = (ac − d̄b, da + bc̄)``. (..., n) x (..., n) -> (..., n)."""
    if p.shape[-1] == 1:
        return p * q
    a, b = p.chunk(2, dim=-1)  # (..., n/2) each
    c, d = q.chunk(2, dim=-1)
    real = _cayley_dickson(a, c) - _cayley_dickson(_conjugate(d), b)
    imaginary = _cayley_dickson(d, a) + _cayley_dickson(b, _conjugate(c))
    return torch.cat((real, imaginary), dim=-1)  # (..., n)


@computed_once
def _fixed_table(algebra: str) -> list[list[list[float]]]:
    n = FIXED_DIMENSION[algebra]
    basis = torch.eye(n, dtype=torch.float64)
    left = basis[:, None].expand(n, n, n)  # (i, b, :) = e_i
    right = basis[None].expand(n, n, n)  # (i, b, :) = e_b
    products = _cayley_dickson(left, right)  # (i, b, a): component a of e_i e_b
    return products.transpose(1, 2).tolist()  # (i, a, b)


def fixed_rule(algebra: str, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None) -> Tensor:
    """Return the structure tensor of a fixed algebra.

    For the quaternions ``Σᵢ kron(A[i], S[i])`` is the Hamilton product matrix of Zhang et al. (2021), eq. 3.4.

    Args:
        algebra: ``real``, ``complex``, ``quaternion``, ``octonion`` or ``sedenion``.
        device: where the rule shall lie.
        dtype: of the rule; torch's default where None.

    Returns:
        A of shape (n, n, n) with entries in {-1, 0, 1}; a fresh tensor.

    Raises:
        UserError: no fixed algebra has this name; names the nearest.
    """
    check_known("fixed algebra", algebra, FIXED_DIMENSION)
    return torch.empty((), device=device, dtype=dtype).new_tensor(_fixed_table(algebra))


def multiply(rule: Tensor, p: Tensor, q: Tensor) -> Tensor:
    """Return the product p·q of two hypercomplex numbers under a rule.

    Args:
        rule: A, (n, n, n).
        p: (..., n) components of the left factor.
        q: (..., n) components of the right factor.

    Returns:
        (..., n) components of the product.
    """
    return torch.einsum("iab,...i,...b->...a", rule, p, q)
