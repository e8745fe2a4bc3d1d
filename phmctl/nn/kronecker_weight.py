"""What a linear map and an embedding share: a weight that is a sum of Kronecker products, and when H is kept."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from phmctl.algebra.initialisation import initialise_components_, initialise_dense_, initialise_rule_
from phmctl.algebra.kronecker import materialise
from phmctl.algebra.rules import LEARNED, check_algebra, fixed_rule
from phmctl.errors import DimensionError, UserError

_steps = 0


def _count_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    global _steps  # noqa: PLW0603
    _steps += 1


# A tensor's version does not count what fused optimisers write into it (torch 2.13), so their steps are counted here.
register_optimizer_step_post_hook(_count_step)


class _Kept(NamedTuple):
    """H as it was built, and what it was built from."""

    state: tuple[int, int, int, int, int]  # address and version of S, of A; optimiser steps taken
    device_type: str
    precision: torch.dtype | None  # autocast's, None where it was off
    weight: Tensor
    sources: tuple[Tensor, Tensor]  # held so that no later tensor is given the same address, and so the same state


class KroneckerWeight(nn.Module):
    """A weight ``H = Σᵢ kron(A[i], S[i])`` of shape (rows, columns).

    With n = 1 it holds a plain parameter ``weight`` and no rule. Otherwise ``S`` (n, rows/n, columns/n) is a
    parameter, and ``A`` (n, n, n) is a parameter for the learned algebra ``phm``, and for a fixed one a buffer
    that no checkpoint holds.

    **When H is kept.** In eval mode, where no gradient is wanted, H is built once. It is built again when A or S
    have changed since: by ``load_state_dict``, an optimiser's step, any in-place operation, a new tensor put in
    ``.data``; and after a change of mode, ``.to()`` and ``deepcopy``. One thing torch keeps no count of: writing
    *into* ``layer.S.data`` in eval mode. Call :meth:`forget` after it.
    """

    A: Tensor
    S: Tensor
    _kept: _Kept | None = None

    def __init__(
        self, rows: int, columns: int, n: int, algebra: str, rule: nn.Parameter | None, **factory: Any
    ) -> None:
        """Allocate the parameters; the subclass initialises them.

        Args:
            rows: of H; n divides it.
            columns: of H; n divides it.
            n: the PHM hyperparameter.
            algebra: ``phm`` or a fixed algebra whose dimension is n.
            rule: a learned rule to share, or None for one of its own.
            factory: ``device`` and ``dtype``.
        """
        super().__init__()
        check_algebra(algebra, n)
        self.n = n
        self.algebra = algebra
        self._rows = rows
        self._columns = columns
        self._owns_rule = rule is None
        _check_rule(rule, n, algebra)
        if n == 1:
            # Registered past nn.Module's check that no attribute has this name: `weight` is the property below.
            self._parameters["weight"] = nn.Parameter(torch.empty(rows, columns, **factory))
            return
        if algebra == LEARNED:
            self.A = nn.Parameter(torch.empty(n, n, n, **factory)) if rule is None else rule
        else:
            self.register_buffer("A", fixed_rule(algebra, **factory), persistent=False)
        self.S = nn.Parameter(torch.empty(n, rows // n, columns // n, **factory))

    @property
    def weight(self) -> Tensor:
        """H, (rows, columns); differentiable in A and S wherever a gradient is wanted. n = 1: the parameter itself."""
        if self.n == 1:
            return self._parameters["weight"]  # type: ignore[return-value]
        return materialise(self.A, self.S) if self._builds() else self._keep()

    def forget(self) -> None:
        """Drop the kept H; the next use builds it again."""
        self._kept = None

    def initialise(self, scheme: str, fan_in: int, fan_out: int) -> None:
        """Draw the parameters anew, so that H has the variance of the dense scheme; a shared rule is left as it is."""
        if self.n == 1:
            initialise_dense_(self.weight, scheme, fan_in, fan_out)
            return
        if self.algebra == LEARNED and self._owns_rule:
            initialise_rule_(self.A)
        initialise_components_(self.S, self.A, scheme, fan_in, fan_out)

    def _builds(self) -> bool:
        """Whether H must be built at every use: in training, or as part of a graph."""
        return self.training or (torch.is_grad_enabled() and (self.S.requires_grad or self.A.requires_grad))

    def _keep(self) -> Tensor:
        """Return the kept H, in autocast's precision where that is on; build it if there is none, or an old one."""
        # This is all that an eval forward does beyond nn.Linear's, so it goes past nn.Module.__getattr__ (0.4 µs).
        own_S, own_A = self._parameters.get("S"), self._parameters.get("A")
        S = self.S if own_S is None else own_S
        A = self.A if own_A is None else own_A
        try:
            state = (S.data_ptr(), S._version, A.data_ptr(), A._version, _steps)
        except RuntimeError:  # tensors without memory or version: torch.func, inference mode
            return materialise(A, S)
        kept = self._kept
        if kept is None or kept.state != state or kept.precision != _precision(kept.device_type):
            if S.is_meta:
                return materialise(A, S)
            precision = _precision(S.device.type)
            sources = (A.detach(), S.detach())
            kept = self._kept = _Kept(state, S.device.type, precision, _build(A, S, precision), sources)
        return kept.weight

    def train(self, mode: bool = True) -> Self:
        """Set the mode and drop the kept H."""
        self.forget()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.forget()
        if self.n > 1 and self.algebra != LEARNED:
            # No checkpoint holds a fixed rule, and to_empty() leaves it undefined.
            self.A = fixed_rule(self.algebra, device=self.A.device, dtype=self.A.dtype)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy or to pickle, without the kept H."""
        return {**self.__dict__, "_kept": None}


def _precision(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast computes in, None where it is off."""
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


def _build(A: Tensor, S: Tensor, precision: torch.dtype | None) -> Tensor:
    """Return H, made in the parameters' own precision; usable in and out of inference mode."""
    with torch.inference_mode(False), torch.no_grad(), torch.autocast(S.device.type, enabled=False):
        return materialise(A, S).to(precision or S.dtype)


def _check_rule(rule: nn.Parameter | None, n: int, algebra: str) -> None:
    if rule is None:
        return
    if algebra != LEARNED or n == 1:
        what = "n = 1" if n == 1 else f"the fixed algebra {algebra!r}"
        raise UserError(f"{what} has no rule to share; leave rule out, or use algebra 'phm' with n > 1")
    if rule.shape != (n, n, n):
        raise DimensionError(f"rule has shape {tuple(rule.shape)}, not (n, n, n) = {(n, n, n)}")
