"""The PHM layer: a drop-in for ``nn.Linear`` with about 1/n of its parameters (Zhang et al. 2021, §3.2)."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.compiler import is_compiling

from phmctl.algebra.bilinear import KNOWN_RANKS, Factors, generic_rank
from phmctl.algebra.execution import (
    AUTO,
    DENSE,
    EXECUTIONS,
    RANK,
    apply_blocks,
    apply_built,
    apply_factored,
    choose,
    standing,
)
from phmctl.algebra.initialisation import natural_rank
from phmctl.algebra.rules import LEARNED
from phmctl.backends.choices import BUILT, KEPT, TRAINED, Choice, Provisional
from phmctl.backends.operators import compute_dtype, is_recorded
from phmctl.backends.products import MKL, faster_library, kept_choice, kept_product, libraries, linear, lower_choice
from phmctl.dimension import check_divides
from phmctl.errors import DimensionError, RankError, check_known
from phmctl.nn.caching import Call, call_at_hand, keep_call
from phmctl.nn.derived import as_linear
from phmctl.nn.kronecker_weight import KroneckerWeight

RULE, FACTORS = "rule", "factors"
PARAMETRIZATIONS = (RULE, FACTORS)
MANY = 512  # tokens from which a rule may be decomposed for the sake of speed: it takes a twentieth of a second


class PHMLinear(KroneckerWeight):
    """``y = Hx + b`` with ``H = Σᵢ kron(A[i], S[i])``: kd/n + n³ parameters (and k with bias) instead of kd.

    Attributes:
        A: (n, n, n), the rule: a parameter for ``phm``, else a buffer. Not there for n = 1.
        S: (n, k/n, d/n), the components. Not there for n = 1.
        weight: H, (k, d). For n = 1 the parameter itself.
        bias: (k,) or None.
        W, U, V: the rule's factors, (n, R), (n, R), (R, n), in place of A where ``parametrization`` is ``factors``.
        execution: one of :data:`~phmctl.algebra.execution.EXECUTIONS`, and may be set at any time. ``rank`` wants the
            rule's factors: a layer that holds them or has a fixed algebra has them, any other after
            :meth:`decompose`, until its rule changes.
        keep_products: whether training by ``rank`` keeps what the gradient of U wants, or computes it again.
    """

    bias: nn.Parameter | None
    dense_type: type[nn.Module] | None = None  # what phmctl.convert found here, where that is not nn.Linear
    finds_factors = False  # whether `auto` decomposes the rule where kept weights would be applied by rank

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        n: int,
        algebra: str = LEARNED,
        rule: nn.Parameter | Factors | None = None,
        initialization: str = "default",
        splits: int = 1,
        execution: str = AUTO,
        parametrization: str = RULE,
        rank: int | None = None,
        keep_products: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer with parameters of its own.

        Args:
            in_features: d.
            out_features: k.
            bias: add a learned b.
            n: the PHM hyperparameter; 1 is ``nn.Linear``.
            algebra: ``phm`` for a learned rule, or ``real`` (n = 1), ``complex`` (2), ``quaternion`` (4),
                ``octonion`` (8), ``sedenion`` (16).
            rule: a learned rule (:func:`~phmctl.algebra.initialisation.learned_rule`), or the factors of one, to share
                with other layers.
            initialization: one of :data:`~phmctl.algebra.initialisation.SCHEMES`. H and, for ``default``, the bias are
                distributed as in ``nn.Linear``; with every other scheme the bias begins at zero.
            splits: how many maps are stacked in this one (3 for fused Q, K, V): the fan-out is k/splits.
            execution: ``auto``, ``dense``, ``factored`` or ``rank``; the same function, to rounding.
            parametrization: hold a learned rule as A (``rule``) or as W, U and V (``factors``).
            rank: R of the factors, by default that of a random rule; a smaller one makes a more constrained rule.
            keep_products: in training by ``rank``, keep what the gradient of U wants (R·k/n numbers a token), or
                compute it again.
            device: of the parameters.
            dtype: of the parameters.

        Raises:
            DimensionError: n does not divide k and d, or is not the algebra's own.
            UserError: no such algebra, initialization, execution or parametrization; or factors of a rule that is not
                learned.
        """
        check_divides(n, in_features=in_features, out_features=out_features)
        check_known("parametrization", parametrization, PARAMETRIZATIONS)
        if parametrization == FACTORS and rank is None and rule is None and n > 1:
            rank = natural_rank(n)
        super().__init__(out_features, in_features, n, algebra, rule, rank=rank, device=device, dtype=dtype)
        self.in_features = in_features
        self.out_features = out_features
        self.initialization = initialization
        self.splits = splits
        self.execution = execution
        self.keep_products = keep_products
        values = torch.empty(out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if values is None else nn.Parameter(values))
        self.reset_parameters()

    @property
    def execution(self) -> str:
        """How the map is applied, one of :data:`~phmctl.algebra.execution.EXECUTIONS`; another name is refused."""
        return self._execution

    @execution.setter
    def execution(self, name: str) -> None:
        check_known("execution", name, EXECUTIONS)
        self._execution = name
        self.changes += 1
        if name == RANK and self.algebra in KNOWN_RANKS:
            _ = self.factors  # found now: what is compiled cannot look for them

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the parameters anew. A rule that was passed in is left as it is."""
        self.initialise(self.initialization, self.in_features, self.out_features // self.splits)
        if self.bias is None or self.bias.is_meta:
            return
        if self.initialization == "default":
            bound = 1 / math.sqrt(self.in_features)
            self.bias.uniform_(-bound, bound)
        else:
            self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis. (..., d) -> (..., k).

        Raises:
            DimensionError: the last axis is not d long.
        """
        call = None if is_compiling() else call_at_hand(self, x)
        if call is not None:
            try:
                return call(x)
            except RuntimeError:
                _check_width(x, self.in_features)
                raise
        _check_width(x, self.in_features)
        values = self._values()
        if self.n > 1:
            choice = self._chosen(_rows_of(x), values)
            call = self._call(choice, values)
        elif values is None:
            return linear(x, self.weight, self.bias)
        else:
            choice = kept_choice(x, self.weight, values)
            call = kept_product(self.weight, self.bias, choice.library, values)
        if values is not None and not isinstance(choice, Provisional):
            keep_call(self, x, call)
        return call(x)

    def _call(self, choice: Choice, values: dict[Any, Any] | None) -> Call:
        """Return the map as it is applied by a choice, given what the scope holds of this layer."""
        execution, library = choice
        bias, d, k = self.bias, self.in_features, self.out_features
        if execution == DENSE and values is None:
            A, S = self.A, self.S
            return lambda x: apply_built(x, A, S, bias, library)
        if execution == DENSE:
            return kept_product(self._kept("H", values), bias, library, values or {})
        apply: Call  # (T, d) -> (T, k)
        if execution == RANK:
            factors = self.factors
            if factors is None:
                raise RankError("execution 'rank' wants the factors of the rule; call decompose() after it has changed")
            T, keep = self._kept("T", values), self.keep_products

            def apply(flat: Tensor) -> Tensor:
                return apply_blocks(flat, T, factors, bias, library, keep=keep)
        else:
            A, S = self._kept("A", values) if self._holds_factors else self.A, self.S

            def apply(flat: Tensor) -> Tensor:
                return apply_factored(flat, A, S, bias, library)

        def flattened(x: Tensor) -> Tensor:
            _check_width(x, d)
            return apply(x.reshape(-1, d)).view(*x.shape[:-1], k)

        return flattened

    def choice_for(self, tokens: int) -> Choice:
        """Return the execution, and the library, that a forward pass over so many tokens would take now.

        It is measured now, if it was not before.
        """
        if self.n == 1:
            weight, values = self.weight, self._values()
            lower = None if values is None else lower_choice(tokens * weight.numel(), values)
            if lower is not None:
                return lower
            trains = torch.is_grad_enabled() and weight.requires_grad
            plain = libraries(weight.device.type, compute_dtype(weight)) == libraries()
            shape = tokens, self.in_features, self.out_features
            return Choice(DENSE, faster_library(*shape, trains=trains, kept=values is not None) if plain else MKL)
        return self._chosen(tokens, self._values())

    def _chosen(self, tokens: int, values: dict[Any, Any] | None) -> Choice:
        """Return the choice for so many tokens; inside a scope it is made once."""
        if is_recorded():  # one graph for any number of tokens
            return self._standing()
        if values is None:
            return self._choice(tokens, BUILT)
        if self._execution in (AUTO, DENSE):
            lower = lower_choice(tokens * self.in_features * self.out_features, values)
            if lower is not None:
                return lower
        use = tokens, self._execution, self._found is None
        choice = values.get(use)
        if choice is None:
            choice = self._choice(tokens, KEPT)
            if not isinstance(choice, Provisional):
                values[use] = choice
        return choice

    def _choice(self, tokens: int, mode: str) -> Choice:
        S = self.S
        mode = TRAINED if self._wants_graph() else mode
        rank, execution, device = self._rank(mode == TRAINED), self._execution, S.device
        if execution == RANK and rank is None:
            if mode != TRAINED:
                return Choice(RANK, MKL)  # an error when it is applied
            execution = AUTO
        finds = rank is None and self.finds_factors and mode == KEPT and tokens >= MANY and not self._is_coarse
        choice = choose(
            tokens,
            self.in_features,
            self.out_features,
            self.n,
            generic_rank(self.n) if finds else rank,
            mode=mode,
            learned=self.algebra == LEARNED,
            execution=execution,
            device=device,
            dtype=compute_dtype(S),
        )
        if finds and choice.execution == RANK:
            self.decompose()
        return choice

    def _standing(self) -> Choice:
        """Return the choice for a graph that is recorded, for any number of tokens."""
        trains = self._wants_graph()
        rank = self._rank(trains)
        if self._execution != AUTO:
            return Choice(DENSE if self._execution == RANK and rank is None else self._execution, MKL)
        mode, learned = TRAINED if trains else BUILT, self.algebra == LEARNED
        shape = self.in_features, self.out_features, self.n, rank or 0
        place = self.S.device.type, str(compute_dtype(self.S))
        return Choice(*standing(*shape, mode, learned, *place).split(" "))

    def _rank(self, trains: bool) -> int | None:
        """Return the rank that this layer could be applied with, None where its factors are not known.

        In training the factors must be parameters or constants: those that `decompose` found are neither. In 16 bits
        `auto` takes only those that are parameters: by others bfloat16 errs ten times as much as by H.
        """
        if self._holds_factors:
            return len(self.V)
        if self._is_coarse and self._execution == AUTO:
            return None
        if self.algebra in KNOWN_RANKS:
            return None if self._found is None and is_recorded() else KNOWN_RANKS[self.algebra]
        factors = None if trains else self.factors
        return None if factors is None else factors.rank

    @property
    def _is_coarse(self) -> bool:
        return compute_dtype(self.S).itemsize < 4

    @classmethod
    def from_dense(
        cls,
        linear: nn.Linear,
        n: int,
        *,
        algebra: str = LEARNED,
        parametrization: str = RULE,
        rank: int | None = None,
    ) -> tuple[Self, float]:
        """Return the PHM layer nearest to a dense one, with a copy of its bias.

        Args:
            linear: a dense layer, unchanged.
            n: the PHM hyperparameter; divides both its dimensions.
            algebra: ``phm``: the nearest A and S; a fixed one: the S that is nearest with its rule, by least squares.
            parametrization: hold the rule that was found as A (``rule``) or as W, U and V (``factors``).
            rank: R of the factors, by default one that gives the rule back exactly.

        Returns:
            the layer, on the same device and of the same dtype, and the relative error ‖W − H‖ / ‖W‖ (Frobenius)
            that it leaves: zero, but for rounding, when the weight is such a sum of n Kronecker products.

        Raises:
            DimensionError: n does not divide a dimension, or is not the algebra's own.
            RankError: the rule that was found wants a higher rank.
            UserError: the weight has no numbers, or some that are not finite.
        """
        weight, bias = linear.weight.detach(), linear.bias is not None
        options: dict[str, Any] = {"algebra": algebra, "parametrization": parametrization, "rank": rank}
        made: dict[str, Any] = {"device": "meta", "dtype": weight.dtype}  # no random numbers are drawn
        layer = cls(linear.in_features, linear.out_features, bias, n=n, **options, **made).train(linear.training)
        layer = layer.to_empty(device=weight.device)
        with torch.no_grad():
            if layer.bias is not None:
                layer.bias.copy_(linear.bias)
        return layer, layer.set_nearest(weight)

    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """Return an ``nn.Linear`` with H as its weight: the same map, to rounding, with parameters of its own."""
        return as_linear(self.weight, self.bias, training=self.training)

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, n={self.n}, "
            f"bias={self.bias is not None}, algebra={self.algebra!r}"
        )


def _check_width(x: Tensor, d: int) -> None:
    if x.shape[-1] != d:
        raise DimensionError(f"input of shape {tuple(x.shape)} does not end in in_features = {d}")


def _rows_of(x: Tensor) -> int:
    """Return how many rows x has; a number where the shape is one."""
    return math.prod(x.shape[:-1])
