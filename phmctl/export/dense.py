"""The dense twin of a trained model as plain tensors and a plain config, from which every format is written.

H of each map is built from A and S in float64 and rounded once. For any algebra, n, parametrization, sharing of rules
and arrangement of the projections, the twin has one dense weight for each map, separate queries, keys and values, and
tables without the rows that make n divide them. :mod:`phmctl.plain` is the code that runs it.
"""

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.errors import UserError
from phmctl.nn.convert import to_dense
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection, StackSection

# Table -> key of the number of its token types; fused map -> the projections that it stacks.
_TABLES = {"source_embedding": "source", "target_embedding": "target", "generator": "target", "embedding": "vocabulary"}
FUSED = {"query_key_value": ("query", "key", "value"), "key_value": ("key", "value")}


@dataclass(frozen=True)
class DenseForm:
    config: dict[str, Any]  # arguments of :mod:`phmctl.plain`; `shared` maps a shared table's name to its first
    tensors: dict[str, Tensor]  # float32 on the CPU, by name; a shared tensor once

    def all_tensors(self) -> dict[str, Tensor]:
        """Return the tensors, shared tensors under each of their names."""
        return self.tensors | {name: self.tensors[source] for name, source in self.config["shared"].items()}


@torch.no_grad()
def dense_form(model: nn.Module, section: Any, sizes: Mapping[str, int]) -> DenseForm:
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
        projections = FUSED.get(fused, (fused,))
        for projection, rows in zip(projections, tensor.chunk(len(projections)), strict=True):
            tensors[".".join(filter(None, (layer, projection, parameter)))] = rows
    if pairs and not section.bias:
        tensors |= {f"lstm.{name}_l0": torch.zeros(4 * section.width) for name in ("bias_ih", "bias_hh")}
    unshared = {name: tensor for name, tensor in tensors.items() if name not in config["shared"]}
    for name, tensor in unshared.items():
        token_types = sizes.get(_TABLES.get(name.rsplit(".", 1)[0], ""))
        unshared[name] = tensor[:token_types].float().contiguous().clone()
    return DenseForm(config, unshared)


def _config(section: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the arguments from which :mod:`phmctl.plain` builds the model."""
    config: dict[str, Any] = {"kind": section.kind, "width": section.width, "shared": {}}
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
