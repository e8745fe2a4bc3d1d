"""What a linear map and an embedding share: a weight that is a sum of Kronecker products, and when H is kept."""

from collections.abc import Callable
from typing import Any, NamedTuple, Self, cast

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from phmctl.algebra.bilinear import QUICK, Factors, decompose, fixed_factors, recompose
from phmctl.algebra.initialisation import (
    initialise_components_,
    initialise_dense_,
    initialise_factors_,
    initialise_rule_,
)
from phmctl.algebra.kronecker import materialise
from phmctl.algebra.rank_product import blocks_of
from phmctl.algebra.rules import LEARNED, check_algebra, fixed_rule
from phmctl.errors import DimensionError, RankError, UserError

_steps = 0


def _count_step(optimizer: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    global _steps  # noqa: PLW0603
    _steps += 1


# A tensor's version does not count what fused optimisers write into it (torch 2.13), so their steps are counted here:
# those of every optimiser in the process, for a layer does not know which one has its parameters.
register_optimizer_step_post_hook(_count_step)


class _Kept(NamedTuple):
    """What was built for evaluation, and what it was built from."""

    state: tuple[int, ...]  # address and version of each source; optimiser steps taken
    device_type: str
    precision: torch.dtype | None  # autocast's, None where it was off
    built: Tensor  # H (rows, columns), or the blocks T (R, rows/n, columns/n)
    version: int  # of what was built: nobody has written into it since
    sources: tuple[Tensor, ...]  # held so that no later tensor is given the same address, and so the same state

    def is_stale(self, state: tuple[int, ...]) -> bool:
        """Whether it must be built anew for sources in this state."""
        changed = self.state != state or self.built._version != self.version
        return changed or self.precision != autocast_dtype(self.device_type)


class KroneckerWeight(nn.Module):
    """A weight ``H = Σᵢ kron(A[i], S[i])`` of shape (rows, columns).

    With n = 1 it holds a plain parameter ``weight`` and no rule. Otherwise ``S`` (n, rows/n, columns/n) is a
    parameter, and ``A`` (n, n, n) is a parameter for the learned algebra ``phm``, and for a fixed one a buffer
    that no checkpoint holds. A learned rule may also be held as its factors: then ``W`` (n, R), ``U`` (n, R) and
    ``V`` (R, n) are the parameters, and ``A`` is made of them where it is asked for. A checkpoint of either form loads
    as either.

    **When H is kept.** In eval mode, where no gradient is wanted, H is built once. It is built again when A or S
    have changed since: by ``load_state_dict``, any optimiser's step, any in-place operation, a new tensor put in
    ``.data``; and after a change of mode, ``.to()`` and ``deepcopy``. One thing torch keeps no count of: writing
    *into* ``layer.S.data`` in eval mode. Call :meth:`forget` after it.
    """

    A: Tensor
    S: Tensor
    _kept: dict[str, _Kept]
    _found: tuple[tuple[int, ...], Factors] | None = None  # of a learned rule, by `decompose`

    def __init__(
        self,
        rows: int,
        columns: int,
        n: int,
        algebra: str,
        rule: nn.Parameter | Factors | None,
        *,
        rank: int | None = None,
        **factory: Any,
    ) -> None:
        """Allocate the parameters; the subclass initialises them.

        Args:
            rows: of H; n divides it.
            columns: of H; n divides it.
            n: the PHM hyperparameter.
            algebra: ``phm`` or a fixed algebra whose dimension is n.
            rule: a learned rule to share, or the factors of one, or None for one of its own.
            rank: hold a rule of its own as factors of this rank; None holds A.
            factory: ``device`` and ``dtype``.
        """
        super().__init__()
        check_algebra(algebra, n)
        self.n = n
        self.algebra = algebra
        self._rows = rows
        self._columns = columns
        self._owns_rule = rule is None
        self.forget()
        _check_rule(rule, n, algebra)
        _check_rank(rank, n, algebra)
        if n == 1:
            # Registered past nn.Module's check that no attribute has this name: `weight` is the property below.
            self._parameters["weight"] = nn.Parameter(torch.empty(rows, columns, **factory))
            return
        if algebra != LEARNED:
            self.register_buffer("A", fixed_rule(algebra, **factory), persistent=False)
        elif isinstance(rule, Factors) or rank is not None:
            self._hold(rule if isinstance(rule, Factors) else _empty_factors(n, rank or 0, **factory))
        else:
            self.A = nn.Parameter(torch.empty(n, n, n, **factory)) if rule is None else rule
        self.S = nn.Parameter(torch.empty(n, rows // n, columns // n, **factory))

    def _hold(self, factors: Factors) -> None:
        for name, part in zip("WUV", factors, strict=True):
            self.register_parameter(name, cast("nn.Parameter", part))

    def __getattr__(self, name: str) -> Any:
        if name == "A" and "W" in self._parameters:
            return recompose(Factors(self.W, self.U, self.V))
        return super().__getattr__(name)

    @property
    def weight(self) -> Tensor:
        """H, (rows, columns); differentiable in A and S wherever a gradient is wanted. n = 1: the parameter itself."""
        if self.n == 1:
            return self._parameters["weight"]  # type: ignore[return-value]
        return materialise(self.A, self.S) if self._builds() else self._keep("H")

    @property
    def factors(self) -> Factors | None:
        """The rule as a sum of products: its parameters, a fixed algebra's own, what :meth:`decompose` found, or None.

        None too for the sedenions, whose decomposition takes minutes, until :meth:`decompose` is called.
        """
        if self.n == 1:
            return None
        if "W" in self._parameters:
            return Factors(self.W, self.U, self.V)
        if self._found is not None and self._found[0] == _state_or_none(self._rule_sources()):
            return self._found[1]
        if self.algebra != LEARNED and self.n <= QUICK:
            return Factors(*(part.to(self.S) for part in fixed_factors(self.algebra)))
        return None

    def decompose(self, rank: int | None = None, *, seed: int = 0) -> Factors:
        """Find the factors of the rule as it is now, and remember them until it changes.

        Args:
            rank: R; by default the generic rank, or the next one that does.
            seed: of the search.

        Raises:
            RankError: n = 1 has no rule, or this rank is too low for it.
        """
        if self.n == 1:
            raise RankError("a layer with n = 1 has no rule to decompose")
        known = self.factors
        if known is not None and rank in (None, known.rank):
            return known
        found = decompose(self.A, rank, seed=seed).factors
        if "W" in self._parameters:
            return found
        self.remember(found)
        return self._found[1] if self._found else found

    def remember(self, factors: Factors) -> None:
        """Take factors for those of the rule as it is now, which the caller knows them to be, until it changes."""
        self._found = (_state(self._rule_sources()), Factors(*(part.to(self.S) for part in factors)))
        self.forget()

    def forget(self) -> None:
        """Drop what is kept for evaluation; the next use builds it again."""
        self._kept = {}

    def initialise(self, scheme: str, fan_in: int, fan_out: int) -> None:
        """Draw the parameters anew, so that H has the variance of the dense scheme; a shared rule is left as it is."""
        if self.n == 1:
            initialise_dense_(self.weight, scheme, fan_in, fan_out)
            return
        if self.algebra == LEARNED and self._owns_rule:
            if "W" in self._parameters:
                initialise_factors_(self.W, self.U, self.V)
            else:
                initialise_rule_(self.A)
        initialise_components_(self.S, self.A, scheme, fan_in, fan_out)

    def _builds(self) -> bool:
        """Whether H must be built at every use: in training, or as part of a graph."""
        return self.training or (torch.is_grad_enabled() and any(part.requires_grad for part in self._sources()))

    def _rule_sources(self) -> tuple[Tensor, ...]:
        """Return the tensors that hold the rule."""
        # Past nn.Module.__getattr__, which costs as much as all else that an eval forward does beyond nn.Linear's.
        parameters = self._parameters
        if "W" in parameters:
            return parameters["W"], parameters["U"], parameters["V"]  # type: ignore[return-value]
        A = parameters.get("A")
        return (self._buffers["A"] if A is None else A,)  # type: ignore[return-value]

    def _sources(self) -> tuple[Tensor, ...]:
        """Return the tensors that H is made of."""
        S = self._parameters.get("S")
        return (self.S if S is None else S, *self._rule_sources())

    def _keep(self, name: str) -> Tensor:
        """Return H or the blocks T as kept, in autocast's precision where that is on; build them where they are not."""
        sources = self._sources()
        state = _state_or_none(sources)
        if state is None:
            return self._make(name)
        kept = self._kept.get(name)
        if kept is None or kept.is_stale(state):
            if sources[0].is_meta:
                return self._make(name)
            device = sources[0].device.type
            precision = autocast_dtype(device)
            with torch.inference_mode(False), torch.no_grad(), torch.autocast(device, enabled=False):
                built = self._make(name).to(precision or sources[0].dtype)
            kept = _Kept(state, device, precision, built, built._version, tuple(part.detach() for part in sources))
            self._kept[name] = kept
        return kept.built

    def _make(self, name: str) -> Tensor:
        """Build H, (rows, columns), the blocks T, (R, rows/n, columns/n), or A, (n, n, n), of factors."""
        if name == "A":
            return self.A
        if name == "H":
            return materialise(self.A, self.S)
        factors = self.factors
        if factors is None:
            raise RankError("the rule has no factors yet; call decompose() first")
        return blocks_of(factors.W, self.S)

    def train(self, mode: bool = True) -> Self:
        """Set the mode and drop what is kept."""
        self.forget()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.forget()
        self._found = None
        if self.n > 1 and self.algebra != LEARNED:
            # No checkpoint holds a fixed rule, and to_empty() leaves it undefined.
            self.A = fixed_rule(self.algebra, device=self.A.device, dtype=self.A.dtype)
        return self

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a rule that was saved in the other form, as A or as factors, in the form that this layer holds."""
        A, parts = f"{prefix}A", [f"{prefix}{name}" for name in "WUV"]
        if "W" in self._parameters and A in state and parts[0] not in state:
            found = decompose(state.pop(A), self.W.shape[1]).factors
            state.update(zip(parts, found, strict=True))
        elif "A" in self._parameters and A not in state and all(part in state for part in parts):
            state[A] = recompose(Factors(*(state.pop(part) for part in parts)))
        super()._load_from_state_dict(state, prefix, *rest)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to copy or to pickle: not what is kept, and of the factors found those that still hold."""
        holds = self._found is not None and self._found[0] == _state_or_none(self._rule_sources())
        return {**self.__dict__, "_kept": {}, "_found": self._found if holds else None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take a state that was copied: factors that were found are those of the copy's rule."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        if self._found is not None:
            now = _state_or_none(self._rule_sources())
            self._found = None if now is None else (now, self._found[1])


def _empty_factors(n: int, rank: int, **factory: Any) -> Factors:
    return Factors(*(nn.Parameter(torch.empty(*shape, **factory)) for shape in ((n, rank), (n, rank), (rank, n))))


def _state(sources: tuple[Tensor, ...]) -> tuple[int, ...]:
    return (_steps, *(number for part in sources for number in (part.data_ptr(), part._version)))


def _state_or_none(sources: tuple[Tensor, ...]) -> tuple[int, ...] | None:
    """Return the state of tensors, None for those that have none: torch.func's, and those of inference mode."""
    try:
        return _state(sources)
    except RuntimeError:
        return None


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast computes in, None where it is off."""
    return torch.get_autocast_dtype(device_type) if torch.is_autocast_enabled(device_type) else None


def _check_rule(rule: nn.Parameter | Factors | None, n: int, algebra: str) -> None:
    if rule is None:
        return
    if algebra != LEARNED or n == 1:
        what = "n = 1" if n == 1 else f"the fixed algebra {algebra!r}"
        raise UserError(f"{what} has no rule to share; leave rule out, or use algebra 'phm' with n > 1")
    shapes = [tuple(part.shape) for part in rule] if isinstance(rule, Factors) else tuple(rule.shape)
    wanted = [(n, rule.rank), (n, rule.rank), (rule.rank, n)] if isinstance(rule, Factors) else (n, n, n)
    if shapes != wanted:
        raise DimensionError(f"rule has shape {shapes}, not (n, n, n) = {wanted}")


def _check_rank(rank: int | None, n: int, algebra: str) -> None:
    if rank is None:
        return
    if algebra != LEARNED or n == 1:
        what = "n = 1" if n == 1 else f"the fixed algebra {algebra!r}"
        raise UserError(f"{what} has no learned rule to hold as factors; use algebra 'phm' with n > 1")
    if rank < 1:
        raise UserError(f"rank = {rank} must be at least 1")
