"""The dense twin of a trained model as plain tensors and a plain config: what every format is written from.

H of each map is built from A and S in float64 and rounded once. Whatever the run's algebra, n, parametrization, sharing
of rules and arrangement of the projections: the twin has a plain weight a map, with queries, keys and values apart, and
tables without the rows that were only there for n to divide them. :mod:`phmctl.models.plain` is the code that runs it.
"""

import copy
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.checkpoints import save_tensors
from phmctl.errors import UserError
from phmctl.files import write_json
from phmctl.models import plain
from phmctl.nn.convert import to_dense
from phmctl.nn.linear import KroneckerWeight
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection, StackSection

# Tables and the sizes that say how many of their rows have a meaning; maps and the projections that they join.
_TABLES = {"source_embedding": "source", "target_embedding": "target", "generator": "target", "embedding": "vocabulary"}
_JOINED = {"query_key_value": ("query", "key", "value"), "key_value": ("key", "value")}


@dataclass(frozen=True)
class DenseForm:
    config: dict[str, Any]  # what :mod:`phmctl.models.plain` builds it from; shared names the tables that serve twice
    tensors: dict[str, Tensor]  # float32 on the CPU, by name; a shared one once

    def whole(self) -> dict[str, Tensor]:
        """Return the tensors with a shared one under each of its names."""
        return self.tensors | {name: self.tensors[source] for name, source in self.config["shared"].items()}


@torch.no_grad()
def dense_form(model: nn.Module, section: Any, sizes: Mapping[str, int]) -> DenseForm:
    if isinstance(section, StackSection) and {section.compose_layers, section.compose_heads} != {"none"}:
        raise UserError(
            f"the model composes what plain Transformers do not (compose_layers: {section.compose_layers}, "
            f"compose_heads: {section.compose_heads}), so it has no export; decode and eval take its run as it is"
        )
    exact: Any = to_dense(copy.deepcopy(model).double().cpu().eval(), inplace=True)
    pairs = isinstance(section, PairClassifierSection)
    if pairs:
        exact.lstm = exact.lstm.to_dense()
    classes = {} if hasattr(exact, "decoder") else {"classes": len(exact.output.weight)}
    config = _config(section, {**sizes, **classes})
    tensors: dict[str, Tensor] = {}
    for name, tensor in exact.state_dict().items():  # of fused projections each one's part, whatever their arrangement
        place, joined, kind = ("", "", *name.rsplit(".", 2))[-3:]
        parts = _JOINED.get(joined, (joined,))
        for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
            tensors[".".join(filter(None, (place, part, kind)))] = rows
    if pairs and not section.bias:
        tensors |= {f"lstm.{name}_l0": torch.zeros(4 * section.width) for name in ("bias_ih", "bias_hh")}
    kept = {name: tensor for name, tensor in tensors.items() if name not in config["shared"]}
    for name, tensor in kept.items():
        size = sizes.get(_TABLES.get(name.rsplit(".", 1)[0], ""))
        kept[name] = tensor[:size].float().contiguous().clone()
    return DenseForm(config, kept)


def phm_form(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a model's own tensors with A and S of each PHM map by name, and what tells how H is made of them.

    A is written out for each map that uses it, a fixed algebra's and one held as factors too.
    """
    tensors: dict[str, Tensor] = {}
    maps: dict[str, dict[str, Any]] = {}
    inside: set[str] = set()  # names of the parameters of these maps
    for name, module in model.named_modules(remove_duplicate=True):
        if isinstance(module, KroneckerWeight) and module.n > 1:
            maps[name] = {"n": module.n, "algebra": module.algebra, "shape": [module.rows, module.columns]}
            tensors |= {f"{name}.A": module.A, f"{name}.S": module.S}
            inside.update(f"{name}.{parameter}" for parameter in module.tensor_names)
    for name, tensor in model.named_parameters():  # of a table that serves twice the first name
        if name not in inside:
            tensors[name] = tensor
    described = {"weight": "H = sum over i of kron(A[i], S[i])", "maps": maps}
    return described, {name: tensor.detach().cpu().float().contiguous().clone() for name, tensor in tensors.items()}


def _config(section: Any, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return what :mod:`phmctl.models.plain` builds the model from."""
    config: dict[str, Any] = {"kind": section.kind, "width": section.width, "shared": {}}
    if isinstance(section, PairClassifierSection):
        mine = ("embedding_width", "hidden", "combination")
        return config | {key: getattr(section, key) for key in mine} | dict(sizes)
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
    served = ["target_embedding.weight"] * section.share_embeddings + ["generator.weight"] * tied
    own = ("encoder_layers", "decoder_layers", "share_embeddings", "generator_bias")
    vocabularies = {f"{side}_vocabulary": sizes[side] for side in ("source", "target")}
    config |= {key: getattr(section, key) for key in own} | vocabularies
    return config | {"tied": tied, "shared": dict.fromkeys(served, table)}


def write_plain(form: DenseForm, model: nn.Module | None, folder: Path) -> None:
    """Write the form ``safetensors``: ``config.json``, the weights, the code that reads them.

    Of a model given the PHM form too, for other PHM code: ``phm.json`` and ``phm.safetensors``, A and S of each map.
    """
    write_json(folder / "config.json", form.config)
    shutil.copyfile(plain.__file__, folder / "plain.py")
    save_tensors(folder / "model.safetensors", form.tensors)
    if model is not None:
        described, tensors = phm_form(model)
        write_json(folder / "phm.json", described)
        save_tensors(folder / "phm.safetensors", tensors)
