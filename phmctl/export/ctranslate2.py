"""The form of CTranslate2: its own file of matrices, by name.

A Transformer's maps are dense once H is built. CTranslate2 wants queries, keys and values of self-attention in one
matrix, keys and values of cross-attention in another, and the sinusoids as a table of positions.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from phmctl.data.special import BOS, EOS, SPECIAL_TOKENS, UNK
from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import MissingExtraError, UserError, check_known, require
from phmctl.export.dense import DenseForm
from phmctl.exports import MODEL
from phmctl.nn.layers import sinusoids

QUANTIZATIONS = ("float32", "float16", "bfloat16", "int16", "int8", "int8_float32", "int8_float16", "int8_bfloat16")


def write_ctranslate2(form: DenseForm, tokenizers: TokenizerPair, quantize: str, longest: int, folder: Path) -> None:
    """Write a Transformer's dense form as a CTranslate2 model into ``folder/model``.

    UserError: CTranslate2 has no such quantisation, or this machine cannot run it.
    """
    check_known("quantisation", quantize, QUANTIZATIONS)
    able = require("ctranslate2", "ctranslate2").get_supported_compute_types("cpu")
    if quantize not in able:
        known = ", ".join(name for name in QUANTIZATIONS if name in able)
        raise UserError(f"--quantize {quantize}: this machine's processor cannot run it; it can run {known}")
    specs = require("ctranslate2.specs", "ctranslate2")
    try:
        spec = _spec(specs, form, longest)
    except TypeError as error:  # an option that only later versions have, such as the width of a head
        raise MissingExtraError(
            f"CTranslate2 is too old ({error}); get a later one with: pip install --upgrade 'phmctl[ctranslate2]'"
        ) from error
    spec.register_source_vocabulary(tokenizers.source.vocabulary)
    spec.register_target_vocabulary(tokenizers.target.vocabulary)
    spec.config.bos_token, spec.config.eos_token = SPECIAL_TOKENS[BOS], SPECIAL_TOKENS[EOS]
    spec.config.unk_token, spec.config.decoder_start_token = SPECIAL_TOKENS[UNK], SPECIAL_TOKENS[BOS]
    spec.config.add_source_bos = spec.config.add_source_eos = False  # ours are closed by EOS already
    spec.validate()
    spec.optimize(quantization=None if quantize == "float32" else quantize)
    (folder / MODEL).mkdir()
    spec.save(str(folder / MODEL))


def _spec(specs: Any, form: DenseForm, longest: int) -> Any:
    config = form.config
    options = {"pre_norm": config["pre_norm"], "no_final_norm": not config["final_norm"]}
    heads, head_width = config["heads"], config["inner"] // config["heads"]
    if config["inner"] != config["width"]:
        options["head_dim"] = head_width
    encoder = specs.TransformerEncoderSpec(config["encoder_layers"], heads, **options)
    decoder = specs.TransformerDecoderSpec(config["decoder_layers"], heads, **options)
    spec = specs.TransformerSpec(encoder, decoder)
    tensors = form.whole()
    spec.encoder.embeddings[0].weight = tensors["source_embedding.weight"].numpy()
    spec.decoder.embeddings.weight = tensors["target_embedding.weight"].numpy()
    for stack, name in ((spec.encoder, "encoder"), (spec.decoder, "decoder")):
        stack.position_encodings.encodings = sinusoids(longest, config["width"]).numpy()
        stack.scale_embeddings = True
        if config["final_norm"]:
            # The engine applies one behind post-norm layers too, where it finds it; the spec has no place for it there.
            object.__setattr__(stack, "layer_norm", specs.common_spec.LayerNormSpec())
            _norm(stack.layer_norm, tensors, f"{name}_norm")
        for index, layer in enumerate(stack.layer):
            _layer(layer, tensors, f"{name}.{index}", cross=name == "decoder")
    spec.decoder.projection.weight = tensors["generator.weight"].numpy()
    if "generator.bias" in tensors:
        spec.decoder.projection.bias = tensors["generator.bias"].numpy()
    return spec


def _layer(spec: Any, tensors: dict[str, Tensor], name: str, *, cross: bool) -> None:
    own, feed_forward = spec.self_attention, f"{name}.feed_forward"
    for linear, parts in zip(own.linear, (("query", "key", "value"), ("output",)), strict=True):
        _maps(linear, tensors, f"{name}.attention", parts)
    _norm(own.layer_norm, tensors, f"{name}.attention_residual.norm")
    if cross:
        for linear, parts in zip(spec.attention.linear, (("query",), ("key", "value"), ("output",)), strict=True):
            _maps(linear, tensors, f"{name}.cross_attention", parts)
        _norm(spec.attention.layer_norm, tensors, f"{name}.cross_residual.norm")
    _maps(spec.ffn.linear_0, tensors, feed_forward, ("expand",))
    _maps(spec.ffn.linear_1, tensors, feed_forward, ("contract",))
    _norm(spec.ffn.layer_norm, tensors, f"{name}.feed_forward_residual.norm")


def _maps(spec: Any, tensors: dict[str, Tensor], name: str, parts: Sequence[str]) -> None:
    spec.weight = np.concatenate([tensors[f"{name}.{part}.weight"].numpy() for part in parts])
    if biases := [tensors[f"{name}.{part}.bias"].numpy() for part in parts if f"{name}.{part}.bias" in tensors]:
        spec.bias = np.concatenate(biases)


def _norm(spec: Any, tensors: dict[str, Tensor], name: str) -> None:
    spec.gamma, spec.beta = tensors[f"{name}.weight"].numpy(), tensors[f"{name}.bias"].numpy()
