"""``bench layer``: a PHM layer against ``nn.Linear`` of the same shape, in the same run."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.benchmarks.timing import Spread, compare
from phmctl.errors import UserError, nearest
from phmctl.nn.linear import PHMLinear

MODES = ("forward", "forward+backward", "eval")
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LayerRow:
    """One shape, number of tokens and mode."""

    in_features: int
    out_features: int
    n: int
    algebra: str
    dtype: str
    device: str
    threads: int
    tokens: int
    mode: str  # forward (training mode), forward+backward, eval (no gradients, H kept)
    dense: Spread  # seconds of one call of nn.Linear
    phm: Spread  # seconds of one call of PHMLinear
    ratio: Spread  # phm to dense, within a round
    dense_parameters: int
    phm_parameters: int

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        return asdict(self)


def bench_layer(
    d: int,
    k: int,
    n: int,
    tokens: Sequence[int] = (16, 512, 4096),
    *,
    algebra: str = "phm",
    dtype: str = "float32",
    device: str = "cpu",
    rounds: int = 20,
    modes: Sequence[str] = MODES,
) -> list[LayerRow]:
    """Measure a PHM layer beside the dense layer that it stands for.

    Args:
        d: in-features.
        k: out-features.
        n: the PHM hyperparameter.
        tokens: rows of the input; one measurement each.
        algebra: ``phm`` or a fixed algebra of dimension n.
        dtype: of parameters and input: ``float32``, ``float64``, ``bfloat16``, ``float16``.
        device: torch's name of it.
        rounds: samples a measurement.
        modes: which of :data:`MODES`.

    Returns:
        a row for each number of tokens and mode.

    Raises:
        DimensionError: n does not divide a dimension.
        UserError: no such algebra or dtype, or a number of tokens below one.
    """
    if dtype not in _DTYPES:
        raise UserError(f"no dtype {dtype!r}{nearest(dtype, _DTYPES)}; there are {', '.join(_DTYPES)}")
    if min(tokens, default=0) < 1:
        raise UserError(f"tokens = {', '.join(map(str, tokens)) or 'nothing'}: a number must be at least 1")
    factory: dict[str, Any] = {"device": device, "dtype": _DTYPES[dtype]}
    phm = PHMLinear(d, k, n, algebra=algebra, **factory)
    dense = nn.Linear(d, k, **factory)
    rows = []
    for count in tokens:
        x = torch.randn(count, d, **factory)
        for mode in modes:
            timings = compare(
                {"dense": _call(dense, x, mode), "phm": _call(phm, x, mode)}, rounds=rounds, device=device
            )
            seconds, ratio = (timings["dense"].seconds, timings["phm"].seconds), timings["phm"].ratio
            rows.append(
                LayerRow(
                    d, k, n, algebra, dtype, device, torch.get_num_threads(), count, mode, *seconds, ratio,
                    _parameters(dense), _parameters(phm),
                )
            )  # fmt: skip
    return rows


def _parameters(layer: nn.Module) -> int:
    return sum(parameter.numel() for parameter in layer.parameters())


def _call(layer: nn.Module, x: Tensor, mode: str) -> Callable[[], object]:
    """Return the call that a mode measures. Sets the layer's mode each time: candidates of two modes may alternate."""
    if mode == "eval":
        return _eval_call(layer, x)
    layer.train()
    if mode == "forward":
        return lambda: layer(x)
    leaf = x.clone().requires_grad_()  # as in the middle of a model: the input wants a gradient too
    gradient = torch.randn_like(layer(x))

    def step() -> None:
        layer.zero_grad(set_to_none=True)
        leaf.grad = None
        layer(leaf).backward(gradient)

    return step


def _eval_call(layer: nn.Module, x: Tensor) -> Callable[[], object]:
    layer.eval()

    def call() -> Tensor:
        with torch.no_grad():
            result: Tensor = layer(x)
        return result

    return call
