"""What a linear map and an embedding share: a weight that is a sum of Kronecker products."""

from collections.abc import Callable
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from phmctl.algebra.bilinear import QUICK, Factors, decompose, fixed_factors, recompose
from phmctl.algebra.initialisation import (
    initialise_components_,
    initialise_dense_,
    initialise_factors_,
    initialise_rule_,
)
from phmctl.algebra.kronecker import materialise
from phmctl.algebra.nearest import check_numbers, nearest_components, nearest_kronecker_sum
from phmctl.algebra.rank_product import blocks_of
from phmctl.algebra.rules import LEARNED, check_algebra, fixed_rule
from phmctl.backends.operators import autocast_dtype, compute_dtype, is_recorded, is_transformed, without_autocast
from phmctl.backends.products import LOWER, kept_choice, kept_product, linear
from phmctl.errors import DimensionError, RankError, UserError
from phmctl.nn.caching import values_of
from phmctl.nn.derived import as_derived


class KroneckerWeight(nn.Module):
    """A weight ``H = Σᵢ kron(A[i], S[i])`` of shape (rows, columns).

    With n = 1 it holds a plain parameter ``weight`` and no rule. Otherwise ``S`` (n, rows/n, columns/n) is a
    parameter, and ``A`` (n, n, n) is a parameter for the learned algebra ``phm``, and for a fixed one a buffer
    that no checkpoint holds. A learned rule may also be held as its factors: then ``W`` (n, R), ``U`` (n, R) and
    ``V`` (R, n) are the parameters, and ``A`` is made of them where it is asked for. A checkpoint of either form loads
    as either.

    H is built at every use. Inside ``with phmctl.cached():`` it is built once, where no gradient is wanted.
    """

    A: Tensor
    S: Tensor
    changes = 0  # of what is no other parameter: the device and dtype of these, the factors, the execution
    _found: tuple[Tensor, Factors] | None = None  # a rule that is no parameter of ours to factorise, and its factors

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
        self._holds_factors = False
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
        self._holds_factors = True
        for name, part in zip("WUV", factors, strict=True):
            self.register_parameter(name, cast("nn.Parameter", part))

    def __getattr__(self, name: str) -> Any:
        if name == "A" and self.__dict__.get("_holds_factors"):
            return recompose(Factors(self.W, self.U, self.V))
        return super().__getattr__(name)

    @property
    def weight(self) -> Tensor:
        """H, (rows, columns); differentiable in A and S wherever a gradient is wanted. n = 1: the parameter itself.

        With n > 1 it is made of A and S, so what is written into it would be lost: that is an error
        (:class:`~phmctl.nn.derived.Derived`).
        """
        if self.n == 1:
            return super().__getattr__("weight")  # type: ignore[return-value]
        values = self._values()
        if values is None:
            return as_derived(self.built("H"))
        if "weight" not in values:
            values["weight"] = as_derived(self.built("H"))
        return values["weight"]  # type: ignore[no-any-return]

    @property
    def factors(self) -> Factors | None:
        """The rule as a sum of products: its parameters, a fixed algebra's own, those that were found or set, or None.

        Factors that :meth:`decompose` found, or that were set, count as long as the rule has the values that it had.
        None for the sedenions, whose decomposition takes minutes, until :meth:`decompose` is called.
        """
        if self.n == 1:
            return None
        if self._holds_factors:
            return Factors(self.W, self.U, self.V)
        if self._found is None and self.algebra != LEARNED and self.n <= QUICK and not is_recorded():
            self.factors = fixed_factors(self.algebra)
        if self._found is None:
            return None
        rule, factors = self._found
        if self.algebra == LEARNED and not _same(self.A, rule):
            return None
        return factors

    @factors.setter
    def factors(self, factors: Factors) -> None:
        """Take factors for those of the rule as it is now, which the caller knows them to be."""
        with torch.inference_mode(False), torch.no_grad():
            rule = self.A.detach().clone()
            self._found = rule, Factors(*(part.detach().to(rule, copy=True) for part in factors))
        self.changes += 1

    def decompose(self, rank: int | None = None, *, seed: int = 0) -> Factors:
        """Find the factors of the rule as it is now; :attr:`factors` has them until it changes.

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
        if self._holds_factors:
            return found
        self.factors = found
        return self.factors or found

    @torch.no_grad()
    def set_nearest(self, weight: Tensor) -> float:
        """Take the A and S whose H is nearest to a weight (rows, columns); with a fixed or shared rule the S.

        Returns:
            the relative error ‖W − H‖ / ‖W‖ (Frobenius).

        Raises:
            RankError: the layer's factors are of too low a rank for the rule that was found.
            UserError: the weight has no numbers, or some that are not finite.
        """
        if self.n == 1:
            check_numbers(weight)
            self.weight.copy_(weight)
            return 0.0
        if self.algebra != LEARNED or not self._owns_rule:
            S, error = nearest_components(weight, self.A)
        else:
            A, S, error = nearest_kronecker_sum(weight, self.n)
            held = decompose(A, len(self.V)).factors if self._holds_factors else (A,)
            for mine, found in zip((self.W, self.U, self.V) if self._holds_factors else (self.A,), held, strict=True):
                mine.copy_(found)
        self.S.copy_(S)
        return error

    def initialise(self, scheme: str, fan_in: int, fan_out: int) -> None:
        """Draw the parameters anew, so that H has the variance of the dense scheme; a shared rule is left as it is."""
        if next(self.parameters()).is_meta:
            return  # nothing to draw; torch would import its compiler to do so
        if self.n == 1:
            initialise_dense_(self.weight, scheme, fan_in, fan_out)
            return
        if self.algebra == LEARNED and self._owns_rule:
            if self._holds_factors:
                initialise_factors_(self.W, self.U, self.V)
            else:
                initialise_rule_(self.A)
        initialise_components_(self.S, self.A, scheme, fan_in, fan_out)

    def built(self, name: str) -> Tensor:
        """Return what the layer is applied with, from the scope of ``phmctl.cached()`` where there is one.

        Args:
            name: ``H``, (rows, columns); the blocks ``T``, (R, rows/n, columns/n); or the rule ``A``, (n, n, n).
        """
        return self._kept(name, self._values())

    def _kept(self, name: str, values: dict[Any, Any] | None) -> Tensor:
        """Return the same, given what the scope holds of this layer."""
        if values is None:
            return self._make(name)
        kept: Tensor | None = values.get(name)
        if kept is None:
            dtype = compute_dtype(self.S)
            with torch.inference_mode(False), torch.no_grad(), without_autocast(self.S.device.type):
                kept = self._make(name).to(dtype)
            if type(kept) is Tensor:  # not one without numbers, of a FakeTensorMode that will end
                values[name] = kept
        return kept

    def _values(self) -> dict[Any, Any] | None:
        """Return what the scope holds of this layer as it is; None outside a scope, and where it must be built."""
        held = None if is_compiling() else values_of(self)
        if held is None or is_recorded() or is_transformed() or self._wants_graph():
            return None
        S = self.weight if self.n == 1 else self.S
        parts = (*self._parameters.values(), *self._buffers.values())
        state = (*map(id, parts), S.dtype, S.device, autocast_dtype(S.device.type))
        known = held.get(state)
        if known is None:
            known = {"of": parts}  # held, so that no other tensor gets one of these ids
            if held.dtype is not None:
                known[LOWER] = held.dtype
            held[state] = known  # whole: other threads read it from here on
        return known

    def _wants_graph(self) -> bool:
        """Whether what is built is part of a graph: some gradient of it is wanted."""
        if not torch.is_grad_enabled():
            return False
        own = self.parameters() if self._modules else self._parameters.values()  # parametrizations have theirs
        return any(part is not None and part.requires_grad for part in own)

    def _make(self, name: str) -> Tensor:
        if name == "A":
            return self.A
        if name == "H":
            return materialise(self.A, self.S)
        factors = self.factors
        if factors is None:
            raise RankError("the rule has no factors; call decompose() after it has changed")
        return blocks_of(factors.W, self.S)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.changes += 1
        if self.n == 1 or self._holds_factors:
            return self
        if self.algebra == LEARNED:
            found = self._found and (self._found[0], *self._found[1])
            if found is not None:
                rule, *parts = map(fn, found)
                self._found = rule, Factors(*parts)
        elif "A" in self._buffers:
            self._renew_rule(self.A)
        return self

    def _renew_rule(self, like: Tensor) -> None:
        """Make a fixed rule anew where a tensor is: no checkpoint holds it, and to_empty() leaves it undefined."""
        had_factors = self._found is not None
        self.A = fixed_rule(self.algebra, device=like.device, dtype=like.dtype)
        self._found = None
        if had_factors:
            _ = self.factors  # found now: what is compiled cannot look for them

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a rule that was saved in the other form, as A or as factors, in the form that this layer holds."""
        A, parts = f"{prefix}A", [f"{prefix}{name}" for name in "WUV"]
        if self._holds_factors and A in state and parts[0] not in state:
            found = decompose(state.pop(A), self.W.shape[1]).factors
            state.update(zip(parts, found, strict=True))
        elif (
            not self._holds_factors
            and self.algebra == LEARNED
            and A not in state
            and all(part in state for part in parts)
        ):
            state[A] = recompose(Factors(*(state.pop(part) for part in parts)))
        super()._load_from_state_dict(state, prefix, *rest)
        S = self._parameters.get("S")
        if S is not None and "A" in self._buffers and (S.device, S.dtype) != (self.A.device, self.A.dtype):
            self._renew_rule(S)  # assign=True has put other parameters in the place of ours


def weight_of(module: nn.Module) -> Tensor:
    """Return the weight of a map or a table, PHM or torch's own, to compute with: H without a guard around it."""
    if isinstance(module, KroneckerWeight) and module.n > 1:
        return module.built("H")
    return module.weight  # type: ignore[return-value]


def sources_of(module: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that a map's or a table's weight is made of, those of its parametrizations too."""
    return [part for name, part in module.named_parameters() if "bias" not in name.split(".")]


def learns(module: nn.Module) -> bool:
    """Whether any parameter does that a map's or a table's weight is made of."""
    return any(part.requires_grad for part in sources_of(module))


def learn_as(module: nn.Module, weight: Tensor) -> None:
    """Freeze, or thaw, what a map's or a table's weight is made of, as another weight is."""
    for part in sources_of(module):
        part.requires_grad_(weight.requires_grad)


def apply_weight(module: nn.Module, x: Tensor) -> Tensor:
    """Return ``x Wᵀ``, (..., columns) -> (..., rows), by a table's weight: of a generator that is tied to it."""
    weight, values = weight_of(module), module._values() if isinstance(module, KroneckerWeight) else None
    if values is None:
        return linear(x, weight)
    return kept_product(weight, None, kept_choice(x, weight, values).library, values)(x)


def _same(A: Tensor, rule: Tensor) -> bool:
    """Whether a rule still has the values that it had; what is compiled asks when it runs, and refuses."""
    if torch.compiler.is_compiling():
        torch._assert_async((rule == A).all(), "the rule has changed since decompose()")
        return True
    return A.device == rule.device and torch.equal(A, rule)


def _empty_factors(n: int, rank: int, **factory: Any) -> Factors:
    return Factors(*(nn.Parameter(torch.empty(*shape, **factory)) for shape in ((n, rank), (n, rank), (rank, n))))


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
