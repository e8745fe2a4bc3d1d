"""``bench layer``: a PHM layer, executed in one way or several, against ``nn.Linear`` of the same shape."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.algebra.execution import AUTO, RANK
from phmctl.algebra.rules import LEARNED
from phmctl.backends.choices import taken_from
from phmctl.backends.machine import processor
from phmctl.backends.products import preferred_library
from phmctl.benchmarks.calls import check_positive, eval_call, parameters_of, training_call
from phmctl.benchmarks.timing import Spread, Timing, compare, watched
from phmctl.console import Table
from phmctl.devices import pick_device
from phmctl.errors import UserError, check_known
from phmctl.nn.caching import cached
from phmctl.nn.linear import FACTORS, RULE, PHMLinear

MODES = ("forward", "forward+backward", "eval")
_DENSE = "nn.Linear"
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LayerRow:
    """One shape, number of tokens, mode and execution."""

    in_features: int
    out_features: int
    n: int
    algebra: str
    dtype: str
    device: str
    threads: int
    tokens: int
    mode: str  # forward (training mode), forward+backward, eval (no gradients, H or its blocks kept)
    execution: str  # asked for
    choice: str  # the execution taken, and the library of its products
    parametrization: str
    processor: str
    dense: Spread  # seconds of one call of nn.Linear
    dense_best: float  # seconds of nn.Linear's shortest sample
    twin: Spread  # seconds of one call of PHMLinear(n=1), by the library that the choice names
    phm: Spread  # seconds of one call of PHMLinear
    ratio: Spread  # phm to dense, within a round
    to_twin: Spread  # phm to twin, within a round
    best_ratio: float  # phm to dense, of the shortest samples
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
    executions: Sequence[str] = (AUTO,),
    parametrization: str = RULE,
    rank: int | None = None,
) -> list[LayerRow]:
    """Measure a PHM layer beside the dense layer that it stands for.

    Args:
        d: in-features.
        k: out-features.
        n: the PHM hyperparameter.
        tokens: rows of the input; one measurement each.
        algebra: ``phm`` or a fixed algebra of dimension n.
        dtype: of parameters and input: ``float32``, ``float64``, ``bfloat16``, ``float16``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``.
        rounds: samples a measurement.
        modes: which of :data:`MODES`.
        executions: which of :data:`~phmctl.algebra.execution.EXECUTIONS`, in turns.
        parametrization: of a learned rule, ``rule`` or ``factors``; execution ``rank`` wants factors.
        rank: R of the factors, by default that of a random rule.

    Returns:
        a row for each number of tokens, mode and execution.

    Raises:
        DimensionError: n does not divide a dimension.
        UserError: no such algebra, dtype, device or mode, or a number of tokens or rounds below one.
    """
    _check(tokens, dtype, rounds, modes)
    if rank is not None and parametrization != FACTORS:
        raise UserError(f"rank = {rank} is that of factors; add parametrization 'factors'")
    if RANK in executions and (algebra, parametrization) == (LEARNED, RULE):
        raise UserError("execution 'rank' wants the factors of a learned rule; add parametrization 'factors'")
    device = str(pick_device(device))
    factory: dict[str, Any] = {"device": device, "dtype": _DTYPES[dtype]}
    shape: dict[str, Any] = {"n": n, "algebra": algebra, "parametrization": parametrization}
    layers = {name: PHMLinear(d, k, **shape, execution=name, rank=rank, **factory) for name in executions}
    dense = nn.Linear(d, k, **factory)
    twins = {name: PHMLinear(d, k, n=1, **factory) for name in executions}  # each stays by its library while it is kept
    shape |= {"in_features": d, "out_features": k, "dtype": dtype, "device": device, "processor": processor()}
    shape |= {"threads": torch.get_num_threads(), "dense_parameters": parameters_of(dense)}
    candidates = 1 + 2 * len(layers)
    rows = []
    title = f"{d} → {k}, n = {n}"
    with taken_from({}), cached(), watched(title, candidates, rounds, len(tokens) * len(modes)) as advance:
        for count, mode in itertools.product(tokens, modes):
            x = torch.randn(count, d, **factory)
            calls = {_DENSE: _call(dense, x, mode)}
            choices = {}
            for name, phm in layers.items():
                calls[name] = _call(phm, x, mode)
                with torch.set_grad_enabled(mode != "eval"):
                    choices[name] = phm.choice_for(count)
                calls[_twin(name)] = _by(choices[name].library, _call(twins[name], x, mode))
            timings = compare(calls, rounds=rounds, device=device, advance=advance)
            for name, phm in layers.items():
                shape |= {"execution": name, "choice": str(choices[name]), "phm_parameters": parameters_of(phm)}
                rows.append(LayerRow(**shape, tokens=count, mode=mode, **_figures(timings, name)))
    return rows


def _figures(timings: Mapping[str, Timing], name: str) -> dict[str, Any]:
    """Return what was measured of an execution, by the names of a :class:`LayerRow`."""
    dense, twin, phm = timings[_DENSE], timings[_twin(name)], timings[name]
    return {
        "dense": dense.seconds,
        "dense_best": dense.best,
        "twin": twin.seconds,
        "phm": phm.seconds,
        "ratio": phm.ratio,
        "to_twin": phm.ratio_to(twin),
        "best_ratio": phm.best_ratio,
    }


def _twin(name: str) -> str:
    return f"PHMLinear(n=1) beside {name}"


def _by(library: str, call: Callable[[], object]) -> Callable[[], object]:
    """Return a call whose products a library takes."""

    def run() -> None:
        with preferred_library(library):
            call()

    return run


def _check(tokens: Sequence[int], dtype: str, rounds: int, modes: Sequence[str]) -> None:
    check_known("dtype", dtype, tuple(_DTYPES))
    for mode in modes:
        check_known("mode", mode, MODES)
    if min(tokens, default=0) < 1:
        raise UserError(f"tokens = {', '.join(map(str, tokens)) or 'nothing'}; give numbers of at least 1")
    check_positive(rounds=rounds)


def _call(layer: nn.Module, x: Tensor, mode: str) -> Callable[[], object]:
    """Put the layer in the state of a mode, and return the call that the mode measures."""
    if mode == "eval":
        return eval_call(layer, layer, x)
    if mode == "forward+backward":
        return training_call(layer, layer, x)
    layer.train()
    return lambda: layer(x)


def table(rows: Sequence[LayerRow]) -> Table:
    """Return the table of ``bench layer``."""
    first = rows[0]
    return Table(
        f"{first.in_features} → {first.out_features}, {first.algebra}, {first.dtype}, {first.threads} threads of "
        f"{first.processor} (median, quartiles)",
        ("n", "tokens", "mode", "execution", "taken", "nn.Linear ms", "PHM ms", "PHM / nn.Linear", "PHM / n = 1"),
        [
            (
                r.n,
                r.tokens,
                r.mode,
                r.execution,
                r.choice,
                r.dense.milliseconds,
                r.phm.milliseconds,
                r.ratio,
                r.to_twin,
            )
            for r in rows
        ],
        text=(2, 3, 4),
    )
