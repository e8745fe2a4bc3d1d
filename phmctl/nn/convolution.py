"""PHM convolutions: the kernels of all positions share one rule (Grassucci et al. 2022, "PHNNs", §3.2)."""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from phmctl.algebra.dimension import LEARNED, check_channels, check_divides
from phmctl.errors import UserError
from phmctl.nn.linear import KroneckerWeight

Size = int | tuple[int, ...]
Dense = nn.Conv1d | nn.Conv2d | nn.Conv3d


class PHMConv(KroneckerWeight):
    """The base of the convolutions, which :class:`PHMConv2d` explains."""

    dense_type: ClassVar[type[Dense]]
    bias: nn.Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        n: int,
        algebra: str = LEARNED,
    ) -> None:
        """Make a layer. Torch's layer has the same arguments before n.

        Args:
            in_channels: d.
            out_channels: k.
            kernel_size: size of the kernel.
            stride: step of the kernel.
            padding: padding of each side, or ``valid`` or ``same``.
            dilation: distance between the kernel's positions.
            groups: number of convolutions side by side, which share the rule.
            bias: add a learned b.
            padding_mode: ``zeros``, ``reflect``, ``replicate`` or ``circular``.
            device: device of the parameters.
            dtype: dtype of the parameters.
            n: the PHM hyperparameter. 1 is torch's layer.
            algebra: ``phm`` for a learned rule, or a fixed algebra of dimension n.

        Raises:
            DimensionError: n does not divide the channels of a group, or is not the algebra's dimension.
            UserError: unknown algebra, or arguments that torch refuses.
        """
        settings = (in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode)
        try:
            dense: Any = self.dense_type(*settings, device="meta")  # type: ignore[arg-type]
        except (RuntimeError, TypeError, ValueError) as problem:
            raise UserError(f"{type(self).__name__}: {problem}") from None
        check_divides(1, kernel_size=min(dense.kernel_size))
        columns, kernel = in_channels // groups, dense.kernel_size
        n = check_channels(n, columns, out_channels // groups, kernel, groups)
        placement: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(out_channels, columns, n, algebra, kernel=kernel, groups=groups, **placement)
        self.settings = settings
        for name in (*dense.__constants__, "_reversed_padding_repeated_twice"):  # what torch's forward reads
            setattr(self, name, getattr(dense, name))
        values = nn.Parameter(torch.empty(out_channels, **placement)) if bias else None
        self.register_parameter("bias", values)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters."""
        self.draw("default", self.fan_in, self.rows)
        self.draw_bias(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Convolve (B, d, ...) to (B, k, ...)."""
        return self.dense_type._conv_forward(self, x, self.weight, self.bias)  # type: ignore[arg-type, no-any-return]

    def on_meta(self) -> Dense:
        """Return torch's layer of the same arguments on the meta device, without values."""
        return self.dense_type(*self.settings, device="meta")  # type: ignore[arg-type]

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        arguments: nn.Module = self.on_meta()
        return f"{arguments.extra_repr()}, n={self.n}, algebra={self.algebra!r}"


class PHMConv1d(PHMConv):
    """``nn.Conv1d`` whose weight is a sum of Kronecker products, as in :class:`PHMConv2d`."""

    dense_type = nn.Conv1d


class PHMConv2d(PHMConv):
    """``nn.Conv2d`` with ``H[a·k/n + s, b·d/n + t, …] = Σᵢ A[i, a, b] · S[i, s, t, …]``.

    The kernel of all positions has one rule, so that there are k·d·positions/n + n³ parameters instead of
    k·d·positions.

    Attributes:
        A: (n, n, n), the rule: a parameter for ``phm``, a constant of a fixed algebra. Absent with n = 1.
        S: (n, k/n, d/n, *kernel), the components, where d is the number of inputs of a group. Absent with n = 1.
        weight: H, (k, d, *kernel), computed at every use. With n = 1 it is a parameter.
        bias: (k,) or None.
    """

    dense_type = nn.Conv2d


class PHMConv3d(PHMConv):
    """``nn.Conv3d`` whose weight is a sum of Kronecker products, as in :class:`PHMConv2d`."""

    dense_type = nn.Conv3d
