"""Write CTranslate2 models.

CTranslate2 stores the queries, keys and values of self-attention in one matrix, the keys and values of cross-attention
in another, and the sinusoidal positions as a table.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from phmctl.answering.opening import MODEL
from phmctl.data import BOS, EOS, SPECIAL_TOKENS, UNK
from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import MissingExtraError, check_known, require
from phmctl.export.forms import Form
from phmctl.nn.layers import sinusoids
from phmctl.recipe.schema import TranslationRecipe

_LONGEST_INPUT = 1024  # tokens. CTranslate2 truncates longer sources by default


def position_count(recipe: TranslationRecipe) -> int:
    """Return the number of stored positions: for each text of decoding, with BOS and EOS, and for CTranslate2 alone."""
    source, decoding = recipe.data.max_tokens, recipe.decoding
    return max(source + 1, int(decoding.max_ratio * source) + decoding.max_extra + 2, _LONGEST_INPUT)


def write_ctranslate2(form: Form, tokenizers: TokenizerPair, quantize: str, positions: int, folder: Path) -> None:
    """Write a Transformer as a CTranslate2 model into ``folder/model``.

    Raises UserError if CTranslate2 cannot compute with the quantisation on this processor.
    """
    types = require("ctranslate2", "ctranslate2").get_supported_compute_types("cpu")
    check_known("quantisation of CTranslate2 on this processor:", quantize, sorted(types))
    specs = require("ctranslate2.specs", "ctranslate2")
    try:
        spec = _spec(specs, form, positions)
    except TypeError as error:  # older versions lack some arguments, such as head_dim
        raise MissingExtraError(
            f"CTranslate2 is too old ({error}); get a later one with: pip install --upgrade 'phmctl[ctranslate2]'"
        ) from error
    spec.register_source_vocabulary(tokenizers.source.vocabulary)
    spec.register_target_vocabulary(tokenizers.target.vocabulary)
    spec.config.bos_token = SPECIAL_TOKENS[BOS]
    spec.config.eos_token = SPECIAL_TOKENS[EOS]
    spec.config.unk_token = SPECIAL_TOKENS[UNK]
    spec.config.decoder_start_token = SPECIAL_TOKENS[BOS]
    spec.config.add_source_bos = False
    spec.config.add_source_eos = False  # our sources end with EOS already
    spec.validate()
    spec.optimize(quantization=None if quantize == "float32" else quantize)
    (folder / MODEL).mkdir()
    spec.save(str(folder / MODEL))


def _spec(specs: Any, form: Form, positions: int) -> Any:
    config, tensors = form.config, form.all_tensors()
    heads = config["heads"]
    options = {"pre_norm": config["pre_norm"], "no_final_norm": not config["final_norm"]}
    if config["inner"] != config["width"]:
        options["head_dim"] = config["inner"] // heads
    encoder = specs.TransformerEncoderSpec(config["encoder_layers"], heads, **options)
    decoder = specs.TransformerDecoderSpec(config["decoder_layers"], heads, **options)
    encoder.embeddings[0].weight = tensors["source_embedding.weight"].numpy()
    decoder.embeddings.weight = tensors["target_embedding.weight"].numpy()
    for stack, name in ((encoder, "encoder"), (decoder, "decoder")):
        stack.position_encodings.encodings = sinusoids(0, positions, config["width"]).numpy()
        stack.scale_embeddings = True
        if config["final_norm"]:
            # The spec of a post-norm stack lacks an attribute for the final norm. The engine applies it if stored.
            object.__setattr__(stack, "layer_norm", specs.common_spec.LayerNormSpec())
            _set_norm(stack.layer_norm, tensors, f"{name}_norm")
        for index, layer in enumerate(stack.layer):
            _set_layer(layer, tensors, f"{name}.{index}", cross=name == "decoder")
    _set_linear(decoder.projection, tensors, ["generator"])
    return specs.TransformerSpec(encoder, decoder)


def _set_layer(spec: Any, tensors: Mapping[str, Tensor], name: str, *, cross: bool) -> None:
    attentions = [(spec.self_attention, "attention", [("query", "key", "value"), ("output",)])]
    if cross:
        attentions.append((spec.attention, "cross_attention", [("query",), ("key", "value"), ("output",)]))
    for attention, part, groups in attentions:
        for linear, maps in zip(attention.linear, groups, strict=True):
            _set_linear(linear, tensors, [f"{name}.{part}.{map_}" for map_ in maps])
        _set_norm(attention.layer_norm, tensors, f"{name}.{part.removesuffix('_attention')}_residual.norm")
    _set_linear(spec.ffn.linear_0, tensors, [f"{name}.feed_forward.expand"])
    _set_linear(spec.ffn.linear_1, tensors, [f"{name}.feed_forward.contract"])
    _set_norm(spec.ffn.layer_norm, tensors, f"{name}.feed_forward_residual.norm")


def _set_linear(spec: Any, tensors: Mapping[str, Tensor], names: Sequence[str]) -> None:
    """Set a linear spec to the concatenation of these maps."""
    spec.weight = np.concatenate([tensors[f"{name}.weight"].numpy() for name in names])
    biases = [tensors[f"{name}.bias"].numpy() for name in names if f"{name}.bias" in tensors]
    if biases:
        spec.bias = np.concatenate(biases)


def _set_norm(spec: Any, tensors: Mapping[str, Tensor], name: str) -> None:
    spec.gamma = tensors[f"{name}.weight"].numpy()
    spec.beta = tensors[f"{name}.bias"].numpy()
