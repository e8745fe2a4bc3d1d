"""Linear maps with few parameters: PHM layers (Zhang et al. 2021, §3.2), and low-rank maps for comparison.

A PHM layer is a drop-in for ``nn.Linear`` with about 1/n of the parameters.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from phmctl.algebra.dimension import LEARNED, check_count, check_divides
from phmctl.algebra.initialisation import dense_variance
from phmctl.algebra.kronecker import check_algebra, check_dtype
from phmctl.algebra.modes import compute_dtype
from phmctl.errors import UserError, check_known
from phmctl.nn.structures import Dense, FactorSum, KroneckerSum, LowRank, Structure, computed

DENSE, RANK = EXECUTIONS = ("dense", "rank")

# Device and dtype -> smallest dimension and largest R/n² at which `rank` was measured as faster (docs/performance.md).
_RANK_PAYS = {("cpu", torch.float32): (512, 0.4)}


class StructuredWeight(nn.Module):
    """A module with a weight H, which a structure computes from the module's parameters.

    H has the shape (rows, columns), or (rows, columns, *kernel) in a convolution.
    """

    variance: float  # initial variance of the entries of H

    def __init__(
        self,
        structure: Structure,
        rows: int,
        columns: int,
        *,
        kernel: tuple[int, ...] = (),
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Allocate the parameters. Subclasses call :meth:`draw`."""
        if dtype is not None:
            check_dtype(dtype)
        super().__init__()
        self.structure = structure
        self.rows, self.columns, self.kernel = rows, columns, kernel
        self.fan_in = columns * math.prod(kernel)  # inputs of each output
        shapes = structure.shapes(rows, columns, *kernel)
        self.tensor_names = tuple(shapes)
        for name, shape in shapes.items():
            self.register_parameter(name, nn.Parameter(torch.empty(shape, device=device, dtype=dtype)))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of the structure by name, for the methods of the structure."""
        return {name: self._tensor(name) for name in self.tensor_names}

    @property
    def weight(self) -> Tensor:
        """H, (rows, columns, *kernel): computed at every use, unless it is a parameter itself (n = 1)."""
        H = self.structure.dense(self.tensors())
        return H if "weight" in self.tensor_names else computed(H)

    @weight.setter  # pruning and sharding replace a parameter by a plain attribute of the same name
    def weight(self, value: Tensor) -> None:
        self._check_stored("weight")
        self.__dict__["weight"] = value

    @weight.deleter
    def weight(self) -> None:
        del self.__dict__["weight"]

    def draw(self, scheme: str, fan_in: int, fan_out: int) -> None:
        """Draw the parameters, so that H has the variance of the dense scheme."""
        self.variance = dense_variance(scheme, fan_in, fan_out)
        if not next(self.parameters()).is_meta:  # torch would import its compiler to draw nothing
            self.structure.initialise_(self.tensors(), scheme, fan_in, fan_out)

    @torch.no_grad()
    def draw_bias(self, bias: Tensor | None) -> None:
        """Draw a bias as torch's layers do, uniformly within 1/√fan_in."""
        if bias is not None and not bias.is_meta:
            bound = 1 / math.sqrt(self.fan_in)
            bias.uniform_(-bound, bound)

    def register_parameter(self, name: str, param: nn.Parameter | None) -> None:
        """Register a parameter. Torch would refuse the names of properties, ``weight`` and ``A``."""
        if name in ("weight", "A"):
            self._check_stored(name)
            self._parameters.setdefault(name, None)
        super().register_parameter(name, param)

    def _tensor(self, name: str) -> Tensor:
        """Return a parameter, or the replacement: a plain attribute, or the property of a parametrization."""
        tensor = self._parameters.get(name)
        if tensor is None:
            tensor = self.__dict__.get(name)
        if tensor is None and name in ("weight", "A") and not parametrize.is_parametrized(self, name):
            raise AttributeError(name)  # between a parameter and the parametrization, when torch asks for the name
        return getattr(self, name) if tensor is None else tensor

    def _check_stored(self, name: str) -> None:
        """Raise UserError if the structure computes the tensor of this name."""
        if name not in self.tensor_names:
            raise UserError(f"{name} is computed from {', '.join(self.tensor_names)}; set these instead")


class KroneckerWeight(StructuredWeight):
    """The weight ``H = Σᵢ kron(A[i], S[i])`` of a linear map or a table. With n = 1 it is dense.

    Checkpoints do not store a fixed rule.
    """

    S: Tensor

    def __init__(
        self,
        rows: int,
        columns: int,
        n: int,
        algebra: str,
        rank: int | None = None,
        *,
        kernel: tuple[int, ...] = (),
        groups: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        check_algebra(algebra, n)
        if rank is not None and (algebra != LEARNED or n == 1):
            raise UserError(f"rank = {rank}: only algebra 'phm' with n > 1 takes a rank, not {algebra!r} with n = {n}")
        structure: Structure = Dense()
        if n > 1:
            structure = KroneckerSum(n, algebra, groups=groups)
        if rank is not None:
            structure = FactorSum(n, algebra, check_count("rank", rank), groups=groups)
        super().__init__(structure, rows, columns, kernel=kernel, device=device, dtype=dtype)
        self.n, self.algebra, self.groups = n, algebra, groups
        self.owns_rule = True

    @property
    def A(self) -> Tensor:
        """The rule, (n, n, n): a parameter, a constant, or computed from factors. Absent with n = 1."""
        if not isinstance(self.structure, KroneckerSum):
            raise AttributeError("n = 1: the weight is dense, without a rule A")
        rule = self.structure.rule(self.tensors())
        return rule if "A" in self.tensor_names else computed(rule.clone())  # all layers share the constant

    @A.setter
    def A(self, value: Tensor) -> None:
        self._check_stored("A")
        self.__dict__["A"] = value

    @A.deleter
    def A(self) -> None:
        del self.__dict__["A"]

    def share_rule(self, source: "KroneckerWeight") -> None:
        """Use the learned rule of `source`, which stays the owner. A, or W, U and V, become parameters of both.

        Raises UserError if the structures differ.
        """
        if source.structure != self.structure:
            raise UserError(f"a layer of {self.structure} cannot use the rule of {source.structure}")
        for name in self.structure.rule_names:
            setattr(self, name, getattr(source, name))
        self.owns_rule = False


class PHMLinear(KroneckerWeight):
    """``y = Hx + b`` with ``H = Σᵢ kron(A[i], S[i])``: kd/n + n³ parameters (and k with bias) instead of kd.

    Train it with :func:`phmctl.parameter_groups`: at the one rate that suits dense layers, A and S move too little. In
    a language model (``examples/rates.py``, n = 4, three seeds) the loss is 2.25 at the dense model's best rate, and
    2.19 with parameter groups, as with dense layers.

    Attributes:
        A: (n, n, n), the rule: a parameter for ``phm``, a constant of a fixed algebra. Absent with n = 1.
        S: (n, k/n, d/n), the components. Absent with n = 1.
        weight: H, (k, d), computed at every use. With n = 1 it is a parameter.
        bias: (k,) or None.
        W, U, V: (n, R), (n, R), (R, n), the factors of the rule, which are parameters instead of A with a rank R.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        n: int,
        algebra: str = LEARNED,
        initialization: str = "default",
        splits: int = 1,
        execution: str | None = None,
        rank: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer.

        Args:
            in_features: d.
            out_features: k.
            bias: add a learned b.
            n: the PHM hyperparameter. 1 is ``nn.Linear``.
            algebra: ``phm`` for a learned rule, or ``real`` (n = 1), ``complex`` (2), ``quaternion`` (4),
                ``octonion`` (8), ``sedenion`` (16).
            initialization: one of :data:`~phmctl.algebra.initialisation.SCHEMES`. H and, for ``default``, the bias are
                distributed as in ``nn.Linear``. With every other scheme the bias begins at zero.
            splits: number of maps stacked in this layer (3 for fused Q, K, V): the fan-out is k/splits.
            execution: ``dense`` or ``rank``. See :attr:`execution`.
            rank: R. A learned rule is held as the factors W, U and V of rank R instead of A.
            device: device of the parameters.
            dtype: dtype of the parameters.

        Raises:
            DimensionError: n does not divide k and d, or is not the algebra's dimension.
            UserError: unknown algebra, initialization or execution, a rank of a rule that is not learned, or execution
                ``rank`` without a rank.
        """
        n = check_divides(n, in_features=in_features, out_features=out_features)
        super().__init__(out_features, in_features, n, algebra, rank, device=device, dtype=dtype)
        self.in_features = in_features
        self.out_features = out_features
        self.initialization = initialization
        self.splits = check_count("splits", splits)
        self.execution = execution
        values = nn.Parameter(torch.empty(out_features, device=device, dtype=dtype)) if bias else None
        self.register_parameter("bias", values)
        self.reset_parameters()

    @property
    def execution(self) -> str:
        """How the map is applied: ``dense`` builds H and multiplies by it, ``rank`` multiplies by R blocks.

        Set it at any time. ``phmctl bench layer`` measures both. None returns to the default: ``rank`` if the layer
        holds factors and `rank` is known to be faster for the shape, device and dtype. Raises UserError for ``rank``
        without factors.
        """
        if self._execution is not None:
            return self._execution
        structure, S = self.structure, self._parameters.get("S")
        if not isinstance(structure, FactorSum) or S is None:
            return DENSE
        min_dimension, max_rank_share = _RANK_PAYS.get((S.device.type, compute_dtype(S)), (math.inf, 0.0))
        wide = min(self.in_features, self.out_features) >= min_dimension
        low_rank = structure.rank <= max_rank_share * structure.n**2
        return RANK if wide and low_rank else DENSE

    @execution.setter
    def execution(self, execution: str | None) -> None:
        if execution is not None:
            check_known("execution", execution, EXECUTIONS)
        if execution == RANK and not isinstance(self.structure, FactorSum):
            raise UserError("execution 'rank' needs the factors of a learned rule: pass rank=R")
        self._execution = execution

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the parameters."""
        self.draw(self.initialization, self.in_features, self.out_features // self.splits)
        if self.initialization == "default":
            self.draw_bias(self.bias)
        elif self.bias is not None:
            self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis. (..., d) -> (..., k)."""
        if self.execution == RANK:
            return self.structure.apply(x, self.tensors(), self.bias)
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, n={self.n}, "
            f"bias={self.bias is not None}, algebra={self.algebra!r}"
            + (f", rank={self.structure.rank}" if isinstance(self.structure, FactorSum) else "")
        )


class LowRankLinear(StructuredWeight):
    """``y = L R x + b`` (:class:`~phmctl.nn.structures.LowRank`): m (d + k) parameters, and k with bias.

    Args:
        in_features: d.
        out_features: k.
        rank: m, the width between the factors.
        bias: add a learned b, which begins at zero.
        splits: number of maps stacked in this layer (3 for fused Q, K, V): the fan-out is k/splits.
        device: device of the parameters.

    Raises:
        DimensionError: a dimension is below 1.
    """

    R: Tensor
    L: Tensor
    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        rank: int,
        bias: bool = True,
        splits: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        structure = LowRank(check_count("rank", rank))
        self.in_features = check_count("in_features", in_features)
        self.out_features = check_count("out_features", out_features)
        super().__init__(structure, self.out_features, self.in_features, device=device)
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features, device=device)) if bias else None)
        self.draw("xavier_uniform", in_features, out_features // check_count("splits", splits))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis. (..., d) -> (..., k)."""
        return self.structure.apply(x, self.tensors(), self.bias)
