"""The stored form of a trained model: A and S of each PHM map, and rounded numbers.

A compact form has the tensors from which :mod:`phmctl.plain` computes the tensors of the dense form. `rows` in
its config names, for each computed tensor, the matrices whose rows it stacks: a part of a fused map, a table without
its last rows, or the gates of an LSTM. A matrix has A and S, R and L, or a table and a map, each of these by its name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from phmctl.algebra.quantise import SCALE, quantise
from phmctl.export.dense import FUSED, DenseForm
from phmctl.nn.embedding import NarrowEmbedding
from phmctl.nn.linear import KroneckerWeight, LowRankLinear
from phmctl.nn.lstm import GATES, PHMLSTM, TORCH_GATES

Rows = tuple[str, int, int]  # a matrix, its first row, and the row after its last one
Modules = Mapping[str, nn.Module]  # of a model, by name
RULE = ".A"  # the end of the name of a rule, which is never rounded
_WEIGHTS = (".weight", ".weight_ih_l0", ".weight_hh_l0")


@dataclass(frozen=True)
class CompactForm:
    config: dict[str, Any]  # of the dense form
    rows: dict[str, list[Rows]]  # of each computed tensor
    tensors: dict[str, Tensor]  # float32 on the CPU, by name

    def rounded(self, form: str) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Return config and tensors with all matrices but the rules in a form of :mod:`phmctl.algebra.quantise`."""
        stored: dict[str, Tensor] = {}
        columns = {}
        for name, tensor in self.tensors.items():
            is_matrix = tensor.dim() > 1 and not name.endswith(RULE)
            stored[name], scale = quantise(tensor, form if is_matrix else "float32", name)
            if scale is not None:
                stored[name + SCALE] = scale
                columns[name] = tensor.shape[-1]
        added = {"rows": self.rows, "columns": columns}
        return self.config | {key: entries for key, entries in added.items() if entries}, stored


def compact_form(model: nn.Module, dense: DenseForm, *, structured: bool) -> CompactForm:
    """Return the compact form of a trained model with this dense form; without `structured`, its dense matrices."""
    rows: dict[str, list[Rows]] = {}
    tensors: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    for name, tensor in dense.tensors.items():
        places = _rows(modules, name, len(tensor)) if structured and name.endswith(_WEIGHTS) else ()
        parts = [(path, first, last) for path, first, last in places if _has_structure(modules[path])]
        if parts:
            rows[name] = parts
            for path, _, _ in parts:
                tensors |= _factors(modules, path)
        else:
            tensors[name] = tensor
    return CompactForm(dense.config, rows, tensors)


def _rows(modules: Modules, name: str, count: int) -> Iterator[Rows]:
    """Yield the rows of the matrices that make a dense weight of `count` rows."""
    path, _, parameter = name.rpartition(".")
    if isinstance(modules.get(path), PHMLSTM):
        part = {"weight_ih_l0": "from_input", "weight_hh_l0": "from_hidden"}[parameter]
        path, height = f"{path}.layers.0.{part}", count // len(GATES)
        for gate in TORCH_GATES:
            if f"{path}.gates" in modules:
                first = GATES.index(gate) * height
                yield f"{path}.gates", first, first + height
            else:
                yield f"{path}.{gate}", 0, height
    elif path in modules:
        yield path, 0, count
    else:
        parent, _, projection = path.rpartition(".")
        for fused, projections in FUSED.items():
            if projection in projections and f"{parent}.{fused}" in modules:
                first = projections.index(projection) * count
                yield f"{parent}.{fused}", first, first + count


def _has_structure(module: nn.Module) -> bool:
    if isinstance(module, KroneckerWeight):
        return module.n > 1
    return isinstance(module, (LowRankLinear, NarrowEmbedding))


def _factors(modules: Modules, path: str) -> dict[str, Tensor]:
    """Return the tensors that a matrix is computed from, by name; a matrix without a structure is its weight."""
    module: Any = modules[path]
    if isinstance(module, NarrowEmbedding):
        return _factors(modules, f"{path}.table") | _factors(modules, f"{path}.map")
    names = ["weight"]
    if isinstance(module, LowRankLinear):
        names = ["R", "L"]
    elif module.n > 1:
        names = ["A", "S"]
    tensors = {f"{path}.{name}": getattr(module, name) for name in names}
    return {name: tensor.detach().cpu().float().contiguous().clone() for name, tensor in tensors.items()}
