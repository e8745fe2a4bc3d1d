"""A trained model as tensors and a config for :mod:`phmctl.plain`.

Every format is written from one of two forms.

The dense form has one dense weight for each map, separate queries, keys and values, and tables without the rows that
make n divide them, for any algebra, n, rank, sharing of rules and arrangement of the projections. H of each
map is built from A and S in float64 and rounded once.

The compact form has A and S of each PHM map, from which :mod:`phmctl.plain` computes the tensors of the dense form.
`rows` names, for each computed tensor, the matrices whose rows are stacked: a part of a fused map, a table without the
last rows, or the gates of an LSTM. A matrix has A and S, R and L, or a table and a map, each by name.
"""

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from phmctl import plain
from phmctl.algebra.quantise import SCALE, quantise
from phmctl.errors import UserError
from phmctl.nn.convert import to_dense
from phmctl.nn.embedding import NarrowEmbedding
from phmctl.nn.linear import KroneckerWeight, LowRankLinear
from phmctl.nn.lstm import GATES, PHMLSTM, TORCH_GATES
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection, StackSection

# Table -> key of the number of token types, and fused map -> the projections in it.
_TABLES = {"source_embedding": "source", "target_embedding": "target", "generator": "target", "embedding": "vocabulary"}
_FUSED = {"query_key_value": ("query", "key", "value"), "key_value": ("key", "value")}
_WEIGHTS = (".weight", ".weight_ih_l0", ".weight_hh_l0")

Rows = tuple[str, int, int]  # a matrix, the first row, and the row after the last one
Modules = Mapping[str, nn.Module]  # modules of a model, by name


@dataclass(frozen=True)
class Form:
    config: plain.Config  # arguments of :mod:`phmctl.plain`; `shared` maps a shared table's name to the first
    tensors: dict[str, Tensor]  # float32 on the CPU, by name, a shared tensor once
    rows: dict[str, list[Rows]] = field(default_factory=dict)  # rows of each computed tensor, empty in a dense form

    def all_tensors(self) -> dict[str, Tensor]:
        """Return the tensors of a dense form, shared tensors under each name."""
        return self.tensors | {name: self.tensors[source] for name, source in self.config["shared"].items()}

    def rounded(self, number_type: str) -> tuple[plain.Config, dict[str, Tensor]]:
        """Return config and tensors with all matrices but the rules rounded by :mod:`phmctl.algebra.quantise`."""
        stored: dict[str, Tensor] = {}
        columns = {}
        for name, tensor in self.tensors.items():
            is_matrix = tensor.dim() > 1 and not name.endswith(".A")
            stored[name], scale = quantise(tensor, number_type if is_matrix else "float32", name)
            if scale is not None:
                stored[name + SCALE] = scale
                columns[name] = tensor.shape[-1]
        added = {"rows": self.rows, "columns": columns}
        return self.config | {key: entries for key, entries in added.items() if entries}, stored


@torch.no_grad()
def dense_form(model: nn.Module, section: Any, sizes: Mapping[str, int]) -> Form:
    """Return the dense twin of a model. Raises UserError if the model has compositions."""
    if isinstance(section, StackSection) and {section.compose_layers, section.compose_heads} != {"none"}:
        raise UserError(
            f"a model with compositions (compose_layers: {section.compose_layers}, compose_heads: "
            f"{section.compose_heads}) cannot be exported; decode and eval the run"
        )
    exact: Any = to_dense(copy.deepcopy(model).double().cpu().eval(), inplace=True)
    pairs = isinstance(section, PairClassifierSection)
    if pairs:
        exact.lstm = exact.lstm.to_dense()
    classes = {} if hasattr(exact, "decoder") else {"classes": len(exact.output.weight)}
    config = _config(section, {**sizes, **classes})
    tensors: dict[str, Tensor] = {}
    for name, tensor in exact.state_dict().items():
        layer, fused, parameter = ("", "", *name.rsplit(".", 2))[-3:]
        projections = _FUSED.get(fused, (fused,))
        for projection, rows in zip(projections, tensor.chunk(len(projections)), strict=True):
            tensors[".".join(filter(None, (layer, projection, parameter)))] = rows
    if pairs and not section.bias:
        tensors |= {f"lstm.{name}_l0": torch.zeros(4 * section.width) for name in ("bias_ih", "bias_hh")}
    unshared = {name: tensor for name, tensor in tensors.items() if name not in config["shared"]}
    for name, tensor in unshared.items():
        token_types = sizes.get(_TABLES.get(name.rsplit(".", 1)[0], ""))
        unshared[name] = tensor[:token_types].float().contiguous().clone()
    return Form(config, unshared)


def _config(section: Any, sizes: Mapping[str, int]) -> plain.Config:
    """Return the arguments from which :mod:`phmctl.plain` builds the model."""
    config: plain.Config = {"kind": section.kind, "width": section.width, "shared": {}}
    if isinstance(section, PairClassifierSection):
        keys = ("embedding_width", "hidden", "combination")
        return config | {key: getattr(section, key) for key in keys} | dict(sizes)
    config |= {
        "inner": section.upsize * section.width,
        "feed_forward": section.upsize * section.feed_forward,
        "heads": section.heads,
        "bias": section.bias,
        "pre_norm": section.norm == "pre",
        "final_norm": section.final_norm,
    }
    if isinstance(section, EncoderClassifierSection):
        return config | {"layers": section.layers, "pooling": section.pooling} | dict(sizes)
    tied = section.generator == "tied"
    table = "source_embedding.weight" if section.share_embeddings else "target_embedding.weight"
    shared = {}
    if section.share_embeddings:
        shared["target_embedding.weight"] = table
    if tied:
        shared["generator.weight"] = table
    for key in ("encoder_layers", "decoder_layers", "share_embeddings", "generator_bias"):
        config[key] = getattr(section, key)
    for side in ("source", "target"):
        config[f"{side}_vocabulary"] = sizes[side]
    return config | {"tied": tied, "shared": shared}


def compact_form(model: nn.Module, dense: Form) -> Form:
    """Return the compact form of a trained model with this dense form."""
    rows: dict[str, list[Rows]] = {}
    tensors: dict[str, Tensor] = {}
    modules = dict(model.named_modules())
    for name, tensor in dense.tensors.items():
        places = _rows(modules, name, len(tensor)) if name.endswith(_WEIGHTS) else ()
        parts = [(path, first, last) for path, first, last in places if _has_structure(modules[path])]
        if parts:
            rows[name] = parts
            for path, _, _ in parts:
                tensors |= _factors(modules, path)
        else:
            tensors[name] = tensor
    return Form(dense.config, tensors, rows)


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
        for fused, projections in _FUSED.items():
            if projection in projections and f"{parent}.{fused}" in modules:
                first = projections.index(projection) * count
                yield f"{parent}.{fused}", first, first + count


def _has_structure(module: nn.Module) -> bool:
    if isinstance(module, KroneckerWeight):
        return module.n > 1
    return isinstance(module, (LowRankLinear, NarrowEmbedding))


def _factors(modules: Modules, path: str) -> dict[str, Tensor]:
    """Return the tensors that a matrix is computed from, by name. Without a structure this is the weight."""
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
