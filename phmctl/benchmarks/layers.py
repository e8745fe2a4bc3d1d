"""``bench layer`` and ``bench lstm``: compare PHM layers with torch's layers of the same shape."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.benchmarks.ratios import Bench, Timing, compare, machine, parameters_of, training_call
from phmctl.devices import pick_device
from phmctl.errors import UserError, check_known
from phmctl.nn.convert import to_dense
from phmctl.nn.linear import FACTORS, RULE, PHMLinear
from phmctl.nn.lstm import PHMLSTM, Gates

_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


def bench_layer(
    d: int,
    k: int,
    orders: Sequence[int],
    tokens: Sequence[int] = (16, 512, 4096),
    *,
    algebra: str = "phm",
    parametrization: str = RULE,
    rank: int | None = None,
    executions: Sequence[str] = (),
    dtype: str = "float32",
    device: str = "cpu",
    rounds: int = 20,
    compiled: bool = False,
) -> Bench:
    """Time ``PHMLinear`` and ``nn.Linear``: forward and backward together, and the forward pass in training mode.

    The rows have each n, number of tokens, mode and execution; `ratio` divides PHM's seconds by ``nn.Linear``'s.
    `compiled` applies ``torch.compile`` to all layers. Raises UserError if an argument is invalid.
    """
    check_known("dtype", dtype, tuple(_DTYPES))
    if min(tokens, default=0) < 1:
        raise UserError(f"--tokens {','.join(map(str, tokens))}: each number of tokens must be at least 1")
    parametrization = parametrization if rank is None else FACTORS
    executions = executions or (("dense", "rank") if parametrization == FACTORS else ("dense",))
    factory: dict[str, Any] = {"device": pick_device(device), "dtype": _DTYPES[dtype]}
    options: dict[str, Any] = {"algebra": algebra, "parametrization": parametrization, "rank": rank}
    rows = []
    for n in orders:
        dense = nn.Linear(d, k, **factory)
        layers: dict[str, nn.Module] = {"nn.Linear": dense}
        for execution in executions:
            layers[execution] = PHMLinear(d, k, n=n, execution=execution, **options, **factory)
        forwards = {name: torch.compile(layer) if compiled else layer for name, layer in layers.items()}
        for count, mode in itertools.product(tokens, ("forward+backward", "forward")):
            x = torch.randn(count, d, **factory)
            calls: dict[str, Callable[[], object]] = {}
            for name, forward in forwards.items():
                calls[name] = partial(forward, x) if mode == "forward" else training_call(layers[name], forward, x)
            timings = compare(f"{d} → {k}, n = {n}", calls, rounds=rounds, device=factory["device"])
            for execution in executions:
                row = {"n": n, "tokens": count, "mode": mode, "execution": execution}
                rows.append(row | _figures(timings["nn.Linear"], timings[execution], dense, layers[execution]))
    about = {"in_features": d, "out_features": k, **options, "dtype": dtype, "compiled": compiled}
    title = f"{d} → {k} against nn.Linear, {algebra}, {dtype}"
    return Bench(title, {**about, **machine(factory["device"])}, rows)


def bench_lstm(
    d: int = 300,
    h: int = 300,
    orders: Sequence[int] = (5,),
    *,
    batch: int = 256,
    steps: int = 40,
    algebra: str = "phm",
    gates: Gates = "separate",
    device: str = "cpu",
    rounds: int = 20,
) -> Bench:
    """Time ``PHMLSTM`` and ``nn.LSTM`` on sequences of equal length in float32.

    Each n has two rows: forward and backward, and `eval`, which is the dense copy without gradients. `ratio` divides
    PHM's seconds by ``nn.LSTM``'s. Raises UserError if an argument is invalid.
    """
    target = pick_device(device)
    dense = nn.LSTM(d, h, batch_first=True, device=target)
    x = torch.randn(batch, steps, d, device=target)
    rows = []
    for n in orders:
        phm = PHMLSTM(d, h, n=n, algebra=algebra, gates=gates, device=target)
        training = {
            "nn.LSTM": training_call(dense, partial(_states, dense), x),
            "phm": training_call(phm, partial(_states, phm), x),
        }
        evaluation = {"nn.LSTM": partial(_evaluate, dense, x), "phm": partial(_evaluate, to_dense(phm), x)}
        modes: dict[str, Mapping[str, Callable[[], object]]] = {"forward+backward": training, "eval": evaluation}
        for mode, calls in modes.items():
            timings = compare(f"LSTM {d} → {h}, n = {n}", calls, rounds=rounds, device=target)
            rows.append({"n": n, "mode": mode} | _figures(timings["nn.LSTM"], timings["phm"], dense, phm))
    about = {"in_features": d, "out_features": h, "algebra": algebra, "gates": gates, "batch": batch, "steps": steps}
    title = f"LSTM {d} → {h} against nn.LSTM, {algebra}, {gates} gates, {batch} sequences of {steps} steps"
    return Bench(title, {**about, **machine(target)}, rows)


def _figures(torch_timing: Timing, phm_timing: Timing, dense: nn.Module, phm: nn.Module) -> dict[str, Any]:
    return {
        "torch_seconds": torch_timing.seconds,
        "phm_seconds": phm_timing.seconds,
        "ratio": phm_timing.ratio,
        "torch_parameters": parameters_of(dense),
        "phm_parameters": parameters_of(phm),
    }


def _states(lstm: nn.Module, x: Tensor) -> Tensor:
    states: Tensor = lstm(x)[0]  # (B, T, h)
    return states


@torch.no_grad()
def _evaluate(lstm: nn.Module, x: Tensor) -> Tensor:
    return _states(lstm, x)
