"""``bench lstm``: a PHM-LSTM against the same time loop with dense maps, and against ``nn.LSTM``, in the same run."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.benchmarks.calls import check_positive, eval_call, parameters_of, training_call
from phmctl.benchmarks.timing import Spread, compare, watched
from phmctl.console import Table
from phmctl.devices import pick_device
from phmctl.errors import check_known
from phmctl.nn.caching import cached
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
    for mode in modes:
        check_known("mode", mode, MODES)
    check_positive(batch=batch, steps=steps, rounds=rounds)
    device = str(pick_device(device))
    models: dict[str, nn.Module] = {
        "dense": PHMLSTM(d, h, n=1, device=device),  # first: the ratios are to it
        "phm": PHMLSTM(d, h, n=n, algebra=algebra, gates=gates, device=device),
        "torch": nn.LSTM(d, h, batch_first=True, device=device),
    }
    x = torch.randn(batch, steps, d, device=device)
    rows = []
    with cached(), watched(f"LSTM {d} → {h}, n = {n}", len(models), rounds, len(modes)) as advance:
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
                    dense_parameters=parameters_of(models["dense"]),
                    phm_parameters=parameters_of(models["phm"]),
                )
            )
    return rows


def _call(model: nn.Module, x: Tensor, mode: str) -> Callable[[], object]:
    """Return the call that a mode measures; it puts the model in the state of the mode."""

    def outputs(x: Tensor) -> Tensor:
        states: Tensor = model(x)[0]
        return states

    return eval_call(model, outputs, x) if mode == "eval" else training_call(model, outputs, x)


def table(rows: Sequence[LSTMRow]) -> Table:
    """Return the table of ``bench lstm``."""
    r = rows[0]
    return Table(
        f"LSTM {r.input_size} → {r.hidden_size}, {r.algebra}, {r.gates} gates, batch {r.batch}, {r.steps} steps "
        "(median, quartiles)",
        ("n", "mode", "dense ms", "PHM ms", "nn.LSTM ms", "PHM / dense", "best", "PHM / nn.LSTM"),
        [
            (
                r.n,
                r.mode,
                *(spread.milliseconds for spread in (r.dense, r.phm, r.torch)),
                r.phm_to_dense,
                f"{r.best_phm_to_dense:.2f}",
                f"{r.phm_to_torch:.2f}",
            )
            for r in rows
        ],
    )
