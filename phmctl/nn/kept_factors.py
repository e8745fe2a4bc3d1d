"""How a trained model is applied: sets the execution of its layers, and finds the factors that ``rank`` wants, once.

A rule is decomposed once: its factors are kept in a file in the checkpoint's folder. They stand there under the SHA-256
of the rule that they belong to, and are used only if they give that rule back: a file of other weights, or a damaged
one, is as good as none.
"""

import hashlib
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn

from phmctl.algebra.bilinear import Factors, decompose, recompose
from phmctl.algebra.execution import AUTO, EXECUTIONS, RANK
from phmctl.console import progress
from phmctl.errors import OutputError, check_known
from phmctl.files import write_atomic
from phmctl.nn.linear import PHMLinear

FILE = "factors.safetensors"  # in a checkpoint's folder
QUICKEST = 5  # largest n that `auto` decomposes unasked: it takes a twentieth of a second a rule
_EXACT = 1e-9  # relative residual of factors that are read


@torch.no_grad()
def set_execution(model: nn.Module, execution: str | None, folder: Path | None = None, *, keep: bool = True) -> None:
    """Say how the maps of a trained model are applied, and find the factors of their rules where they are wanted.

    ``rank`` decomposes every rule that has no factors; ``auto`` those of n ≤ :data:`QUICKEST`, when a layer is first
    applied where that is measured to be quickest. Both use what is kept.

    Args:
        model: with its trained weights, on its device.
        execution: one of :data:`~phmctl.algebra.execution.EXECUTIONS`; None leaves each layer's own.
        folder: the checkpoint's, where factors are kept.
        keep: write what ``rank`` has found into the folder. One that cannot be written is left as it is.

    Raises:
        UserError: no such execution.
        RankError: a rule resists.
    """
    if execution is not None:
        check_known("execution", execution, EXECUTIONS)
    layers = [module for module in model.modules() if isinstance(module, PHMLinear)]
    for layer in layers:
        layer.execution = execution or layer.execution
    wanting = [layer for layer in layers if _wants_factors(layer) and layer.factors is None]
    if not wanting:
        return
    rules = {_digest(layer.A): layer.A for layer in wanting}
    known = {} if folder is None else read_factors(folder / FILE, rules)
    told = {_digest(layer.A) for layer in wanting if layer.execution == RANK} - known.keys()
    found = _decompose({name: rules[name] for name in told})
    for layer in wanting:
        factors = (known | found).get(_digest(layer.A))
        if factors is not None:
            layer.factors = factors
        layer.finds_factors = layer.n <= QUICKEST
    if keep and found and folder is not None:
        _write(folder / FILE, known | found)


def _wants_factors(layer: PHMLinear) -> bool:
    """Whether a layer may be applied by rank: if it is told to be, or where that turns out to be quickest."""
    return layer.n > 1 and layer.execution in (AUTO, RANK)


def _decompose(rules: Mapping[str, Tensor]) -> dict[str, Factors]:
    if not rules:
        return {}
    found = {}
    quick = all(len(rule) <= QUICKEST for rule in rules.values())
    with progress(f"decomposing {len(rules)} rules", len(rules), plain=not quick) as advance:
        for name, rule in rules.items():
            found[name] = decompose(rule.to("cpu", torch.float64)).factors
            advance(1)
    return found


def read_factors(path: Path, rules: Mapping[str, Tensor]) -> dict[str, Factors]:
    """Return the factors that a file has of some rules, by the rules' names, in float64.

    Args:
        path: what :func:`set_execution` wrote; there may be none.
        rules: (n, n, n) each, by the SHA-256 of their values.
    """
    try:
        tensors = load(path.read_bytes())
    except (OSError, SafetensorError):
        return {}
    found = {}
    for name, rule in rules.items():
        parts = [tensors[f"{name}.{part}"] for part in "WUV" if f"{name}.{part}" in tensors]
        if len(parts) == 3 and _give_back(Factors(*parts), rule):
            found[name] = Factors(*parts)
    return found


def _give_back(factors: Factors, rule: Tensor) -> bool:
    """Whether factors are those of a rule."""
    n, rank = len(rule), len(factors.V)
    if [tuple(part.shape) for part in factors] != [(n, rank), (n, rank), (rank, n)]:
        return False
    exact = rule.to("cpu", torch.float64)
    return bool((recompose(factors) - exact).norm() <= _EXACT * exact.norm())


def _write(path: Path, known: Mapping[str, Factors]) -> None:
    """Keep factors, where the folder lets itself be written: a run may lie on a medium that does not."""
    tensors = {f"{name}.{part}": value for name, each in known.items() for part, value in zip("WUV", each, strict=True)}
    try:
        write_atomic(path, save(tensors))
    except OutputError:
        return


def _digest(rule: Tensor) -> str:
    """Return the SHA-256 of a rule's values, in float64."""
    return hashlib.sha256(rule.detach().to("cpu", torch.float64).contiguous().numpy().tobytes()).hexdigest()
