"""The dense twin of a trained model as plain tensors and a plain config: what every format is written from.

H of each map is built from A and S in float64 and rounded once. Whatever the run's algebra, n, parametrization, sharing
of rules and arrangement of the projections: the twin has a plain weight a map, with queries, keys and values apart, and
tables without the rows that were only there for n to divide them. :mod:`phmctl.models.plain` is the code that runs it.
"""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.errors import UserError
from phmctl.models.encoder_classifier import EncoderClassifier
from phmctl.models.pair_classifier import PairClassifier
from phmctl.models.transformer import Transformer
from phmctl.nn.attention import MultiHeadAttention
from phmctl.nn.feedforward import FeedForward
from phmctl.nn.kronecker_weight import KroneckerWeight
from phmctl.nn.linear import PHMLinear
from phmctl.nn.lstm import GATES, LSTMLayer
from phmctl.nn.two_factors import TwoFactorLinear
from phmctl.recipe.schema import EncoderClassifierSection, PairClassifierSection, StackSection, TransformerSection

Form = tuple[dict[str, Any], dict[str, Tensor]]

_TORCH_GATES = ("input", "forget", "candidate", "output")  # nn.LSTM's order of the gates


@dataclass(frozen=True)
class DenseForm:
    """A model without phmctl.

    Attributes:
        config: what :mod:`phmctl.models.plain` builds it from; ``shared`` names the tables that serve twice.
        tensors: float32 on the CPU, by name; a shared one once.
    """

    config: dict[str, Any]
    tensors: dict[str, Tensor]

    def whole(self) -> dict[str, Tensor]:
        """Return the tensors with a shared one under each of its names."""
        return self.tensors | {name: self.tensors[source] for name, source in self.config["shared"].items()}


@torch.no_grad()
def dense_form(model: nn.Module, section: Any, sizes: Mapping[str, int]) -> DenseForm:
    """Return the dense twin of a trained model.

    Args:
        model: a Transformer or a classifier of this package; it is left as it is.
        section: the ``model`` section of its recipe.
        sizes: the tokenizers': ``source`` and ``target``, or ``vocabulary``. Rows from there on are cut off.

    Raises:
        TypeError: it is another kind of model.
        UserError: it composes layers or heads, which no format here has a place for.
    """
    if isinstance(section, StackSection) and {section.compose_layers, section.compose_heads} != {"none"}:
        raise UserError(
            f"the model composes what plain Transformers do not (compose_layers: {section.compose_layers}, "
            f"compose_heads: {section.compose_heads}), so it has no export; decode and eval take its run as it is"
        )
    exact = copy.deepcopy(model).double().cpu().eval()
    for kind, write in _WRITERS.items():
        if isinstance(exact, kind):
            config, tensors = write(exact, section, sizes)
            return DenseForm(config, {name: tensor.float().contiguous().clone() for name, tensor in tensors.items()})
    raise TypeError(f"{type(model).__name__} has no dense form")


def phm_form(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return a model's own tensors with A and S of each PHM map by name, and what tells how H is made of them.

    A is written out for each map that uses it, a fixed algebra's and one held as factors too.
    """
    tensors: dict[str, Tensor] = {}
    maps: dict[str, dict[str, Any]] = {}
    for name, module in model.named_modules(remove_duplicate=True):
        if isinstance(module, KroneckerWeight) and module.n > 1:
            maps[name] = {"n": module.n, "algebra": module.algebra, "shape": list(module.weight.shape)}
            tensors |= {f"{name}.A": module.A, f"{name}.S": module.S}
    inside = {f"{name}.{part}" for name in maps for part in "AWUVS"}
    seen: set[int] = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in inside and id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[name] = tensor
    described = {"weight": "H = sum over i of kron(A[i], S[i])", "maps": maps}
    return described, {name: tensor.detach().cpu().float().contiguous().clone() for name, tensor in tensors.items()}


# ------------------------------------------------------------------------------------------------------ each model


def _transformer(model: Transformer, settings: TransformerSection, sizes: Mapping[str, int]) -> Form:
    source, target = sizes["source"], sizes["target"]
    shared = _shared(settings)
    config = _stack_config("transformer", settings) | {
        "encoder_layers": settings.encoder_layers,
        "decoder_layers": settings.decoder_layers,
        "source_vocabulary": source,
        "target_vocabulary": target,
        "share_embeddings": settings.share_embeddings,
        "tied": settings.generator == "tied",
        "generator_bias": settings.generator_bias,
        "shared": shared,
    }
    tensors = {"source_embedding.weight": model.source_embedding.weight[:source]}
    if not settings.share_embeddings:
        tensors["target_embedding.weight"] = model.target_embedding.weight[:target]
    for stack in ("encoder", "decoder"):
        tensors |= _stack(model, stack)
    if model.generator is not None:
        tensors["generator.weight"] = model.generator.weight[:target]
        if model.generator.bias is not None:
            tensors["generator.bias"] = model.generator.bias[:target]
    return config, tensors


def _shared(settings: TransformerSection) -> dict[str, str]:
    target = "source_embedding.weight" if settings.share_embeddings else "target_embedding.weight"
    shared = {"target_embedding.weight": target} if settings.share_embeddings else {}
    return shared | ({"generator.weight": target} if settings.generator == "tied" else {})


def _encoder_classifier(model: EncoderClassifier, settings: EncoderClassifierSection, sizes: Mapping[str, int]) -> Form:
    config = _stack_config("encoder", settings) | {
        "layers": settings.layers,
        "pooling": settings.pooling,
        "vocabulary": sizes["vocabulary"],
        "classes": len(model.output.weight),
        "shared": {},
    }
    tensors = {"embedding.weight": model.embedding.weight[: sizes["vocabulary"]]}
    tensors |= _stack(model, "encoder") | _map("output", model.output)
    return config, tensors


def _pair_classifier(model: PairClassifier, settings: PairClassifierSection, sizes: Mapping[str, int]) -> Form:
    config = {
        "kind": "lstm-pair",
        "width": settings.width,
        "embedding_width": settings.embedding_width,
        "hidden": settings.hidden,
        "combination": settings.combination,
        "cell": settings.cell,
        "vocabulary": sizes["vocabulary"],
        "classes": len(model.output.weight),
        "shared": {},
    }
    layer = model.lstm.layers[0]
    tensors = {"embedding.weight": model.embedding.weight[: sizes["vocabulary"]]}
    tensors |= {f"lstm.{name}": tensor for name, tensor in _lstm(layer).items()}  # type: ignore[arg-type]
    for index, linear in enumerate(model.mlp):
        tensors |= _map(f"mlp.{index}", linear)
    return config, tensors | _map("output", model.output)


def _stack_config(kind: str, settings: StackSection) -> dict[str, Any]:
    return {
        "kind": kind,
        "width": settings.width,
        "inner": settings.upsize * settings.width,
        "feed_forward": settings.upsize * settings.feed_forward,
        "heads": settings.heads,
        "bias": settings.bias,
        "pre_norm": settings.norm == "pre",
        "final_norm": settings.final_norm,
    }


def _stack(model: nn.Module, stack: str) -> dict[str, Tensor]:
    """Return the tensors of all layers of a stack and of its final norm."""
    tensors = {
        f"{stack}_norm.{name}": tensor for name, tensor in model.get_submodule(f"{stack}_norm").state_dict().items()
    }
    for prefix, module in model.get_submodule(stack).named_modules(prefix=stack):
        if isinstance(module, MultiHeadAttention):
            tensors |= _attention(prefix, module)
        elif isinstance(module, FeedForward):
            tensors |= _map(f"{prefix}.expand", module.expand) | _map(f"{prefix}.contract", module.contract)
        elif isinstance(module, nn.LayerNorm):
            tensors |= {f"{prefix}.{name}": tensor for name, tensor in module.state_dict().items()}
    return tensors


def _attention(prefix: str, attention: MultiHeadAttention) -> dict[str, Tensor]:
    """Return queries, keys, values and output of any arrangement of the projections."""
    tensors = _map(f"{prefix}.output", attention.output)
    parts = ("query", "key", "value")
    if attention.projections == "separate":
        named = {part: (attention.get_submodule(part), 0) for part in parts}
    elif attention.projections == "fused" and attention.cross:
        named = {"query": (attention.query, 0), "key": (attention.key_value, 0), "value": (attention.key_value, 1)}
    else:
        named = {part: (attention.query_key_value, index) for index, part in enumerate(parts)}
    for part, (module, index) in named.items():
        rows = slice(index * attention.inner, (index + 1) * attention.inner)
        whole = _map(part, module)
        tensors |= {f"{prefix}.{name}": tensor[rows] for name, tensor in whole.items()}
    return tensors


def _map(name: str, module: nn.Module) -> dict[str, Tensor]:
    if not isinstance(module, PHMLinear | TwoFactorLinear):
        raise TypeError(f"{name} is a {type(module).__name__}, not a linear map")
    tensors = {f"{name}.weight": module.weight}
    return tensors if module.bias is None else tensors | {f"{name}.bias": module.bias}


def _lstm(layer: LSTMLayer) -> dict[str, Tensor]:
    """Return an LSTM's tensors under the names, and with the gates in the order, of ``nn.LSTM``."""

    def ordered(maps: nn.ModuleDict, read: Callable[[PHMLinear], Tensor | None]) -> Tensor | None:
        found = [read(module) for module in maps.values() if isinstance(module, PHMLinear)]
        parts = [part for part in found if part is not None]
        if not parts:
            return None
        gates = dict(zip(GATES, torch.cat(parts).chunk(len(GATES)), strict=True))
        return torch.cat([gates[name] for name in _TORCH_GATES])

    zeros = torch.zeros(4 * layer.hidden_size, dtype=torch.float64)
    bias = ordered(layer.from_input, lambda module: module.bias)
    inputs, hidden = (ordered(maps, lambda module: module.weight) for maps in (layer.from_input, layer.from_hidden))
    if inputs is None or hidden is None:
        raise TypeError("an LSTM layer without maps")
    return {
        "weight_ih_l0": inputs,
        "weight_hh_l0": hidden,
        "bias_ih_l0": zeros if bias is None else bias,
        "bias_hh_l0": zeros,  # one bias is enough; nn.LSTM has two that are only ever added
    }


_WRITERS: dict[type[nn.Module], Callable[[Any, Any, Mapping[str, int]], Form]] = {
    Transformer: _transformer,
    EncoderClassifier: _encoder_classifier,
    PairClassifier: _pair_classifier,
}
