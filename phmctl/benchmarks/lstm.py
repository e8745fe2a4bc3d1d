"""``bench lstm``: a PHM-LSTM against the same time loop with dense maps, and against ``nn.LSTM``, in the same run."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.benchmarks.timing import Spread, compare, watched
from phmctl.devices import pick_device
from phmctl.errors import UserError, nearest
from phmctl.nn.lstm import PHMLSTM, Gates

MODES = ("forward+backward", "eval")


@dataclass(frozen=True)
class LSTMRow:
    """One mode. A ratio is taken within a round: ``phm_to_dense`` is what PHM costs, the others what the loop costs."""

    input_size: int
    hidden_size: int
    n: int
    algebra: str
    gates: str
    batch: int
    steps: int
    device: str
    threads: int
    rounds: int
    mode: str  # forward+backward, eval (no gradients, H kept)
    dense: Spread  # seconds of one call of PHMLSTM with n = 1
    phm: Spread  # seconds of one call of PHMLSTM
    torch: Spread  # seconds of one call of nn.LSTM
    phm_to_dense: Spread
    torch_to_dense: Spread
    phm_to_torch: float  # of the medians
    best_phm_to_dense: float  # of the shortest samples
    best_torch_to_dense: float
    dense_parameters: int
    phm_parameters: int

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        return asdict(self)


def bench_lstm(
    d: int = 300,
    h: int = 300,
    n: int = 5,
    *,
    batch: int = 256,
    steps: int = 40,
    algebra: str = "phm",
    gates: Gates = "separate",
    device: str = "cpu",
    rounds: int = 20,
    modes: Sequence[str] = MODES,
) -> list[LSTMRow]:
    """Measure a PHM-LSTM beside the dense LSTM that it stands for, on sequences of one length, in float32.

    Args:
        d: features of the input.
        h: features of the state.
        n: the PHM hyperparameter.
        batch: sequences.
        steps: of each sequence.
        algebra: ``phm`` or a fixed algebra of dimension n.
        gates: ``separate`` or ``fused``, of the PHM-LSTM.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        rounds: samples a measurement.
        modes: which of :data:`MODES`.

    Returns:
        a row for each mode.

    Raises:
        DimensionError: n does not divide a dimension.
        UserError: no such algebra, gates, device or mode, or a batch, steps or rounds below one.
    """
    _check(modes, batch=batch, steps=steps, rounds=rounds)
    device = str(pick_device(device))
    models: dict[str, nn.Module] = {
        "dense": PHMLSTM(d, h, 1, device=device),  # first: the ratios are to it
        "phm": PHMLSTM(d, h, n, algebra=algebra, gates=gates, device=device),
        "torch": nn.LSTM(d, h, batch_first=True, device=device),
    }
    x = torch.randn(batch, steps, d, device=device)
    rows = []
    with watched(f"LSTM {d} → {h}, n = {n}", len(models), rounds, len(modes)) as advance:
        for mode in modes:
            calls = {name: _call(model, x, mode) for name, model in models.items()}
            timings = compare(calls, rounds=rounds, device=device, advance=advance)
            dense, phm, torch_lstm = (timings[name] for name in models)
            rows.append(
                LSTMRow(
                    input_size=d,
                    hidden_size=h,
                    n=n,
                    algebra=algebra,
                    gates=gates,
                    batch=batch,
                    steps=steps,
                    device=device,
                    threads=torch.get_num_threads(),
                    rounds=rounds,
                    mode=mode,
                    dense=dense.seconds,
                    phm=phm.seconds,
                    torch=torch_lstm.seconds,
                    phm_to_dense=phm.ratio,
                    torch_to_dense=torch_lstm.ratio,
                    phm_to_torch=phm.seconds.median / torch_lstm.seconds.median,
                    best_phm_to_dense=phm.best_ratio,
                    best_torch_to_dense=torch_lstm.best_ratio,
                    dense_parameters=_parameters(models["dense"]),
                    phm_parameters=_parameters(models["phm"]),
                )
            )
    return rows


def _check(modes: Sequence[str], **counts: int) -> None:
    for mode in modes:
        if mode not in MODES:
            raise UserError(f"no mode {mode!r}{nearest(mode, MODES)}; there are {', '.join(MODES)}")
    for name, value in counts.items():
        if value < 1:
            raise UserError(f"{name} = {value} must be at least 1")


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def _call(model: nn.Module, x: Tensor, mode: str) -> Callable[[], object]:
    """Return the call that a mode measures; it puts the model in the state of the mode."""
    return _eval_call(model, x) if mode == "eval" else _training_call(model, x)


def _training_call(model: nn.Module, x: Tensor) -> Callable[[], object]:
    """Forward and backward, the input's gradient too, as behind trained embeddings or in a stack."""
    model.train()
    leaf = x.clone().requires_grad_()
    gradient = torch.randn_like(model(x)[0])

    def step() -> None:
        model.zero_grad(set_to_none=True)
        leaf.grad = None
        model(leaf)[0].backward(gradient)

    return step


def _eval_call(model: nn.Module, x: Tensor) -> Callable[[], object]:
    model.eval()

    def call() -> Tensor:
        with torch.no_grad():
            output: Tensor = model(x)[0]
        return output

    return call
