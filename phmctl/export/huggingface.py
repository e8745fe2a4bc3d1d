"""Write the tokenizer for the transformers library, and the model if a class there computes exactly the same.

Pegasus does, with our sinusoids in its position tables: pre-norm with final norms and one embedding table for both
sides. Marian has post-norm without a final norm, but it does not save its positions: a model that is saved again would
get other frequencies. BART and mBART also normalise the embeddings; M2M100 starts positions at the padding id + 1.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from phmctl.checkpoints import save_tensors
from phmctl.console import note, progress, silence
from phmctl.data import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from phmctl.data.tokenizer import Tokenizer
from phmctl.decoding.beam import pad
from phmctl.decoding.search import plan
from phmctl.decoding.translator import Translator
from phmctl.errors import PhmctlError, require
from phmctl.export.dense import DenseForm
from phmctl.export.verify import (
    IDS,
    LOGITS,
    TIE,
    ExportSource,
    Verification,
    longest_output,
    longest_source,
    max_positions,
)
from phmctl.files import temporary_folder, write_atomic, write_json
from phmctl.nn.layers import sinusoids
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs.copies import load_cleaning

TARGET = "target"  # folder of the target side's tokenizer, if the sides have separate ones
_TOKEN_IDS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_LAYER = {  # our names of a layer's modules, and the library's; "cross…" exists in decoder layers only
    **{f"attention.{ours}": f"self_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
    **{f"cross_attention.{ours}": f"encoder_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
    "feed_forward.expand": "fc1",
    "feed_forward.contract": "fc2",
    "attention_residual.norm": "self_attn_layer_norm",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward_residual.norm": "final_layer_norm",
}


def is_pegasus(source: ExportSource) -> bool:
    """Return whether the library's Pegasus computes exactly the same."""
    section = source.section
    if not source.translates or section.upsize > 1:
        return False
    return bool(section.norm == "pre" and section.final_norm and section.share_embeddings)


def write_huggingface(source: ExportSource, folder: Path) -> None:
    """Write the tokenizer and, if there is an architecture for it, the model for ``from_pretrained``."""
    require("transformers", "huggingface")
    tokenizers = source.tokenizers
    keep = "start" if source.translates else load_cleaning(source.run).keep
    limits: dict[str, int | str] = {
        "model_max_length": longest_source(source.run),
        "truncation_side": {"start": "right", "end": "left"}[keep],
    }
    write_tokenizer(tokenizers.source, folder, limits, ends=source.translates)
    if not tokenizers.joint:
        write_tokenizer(tokenizers.target, folder / TARGET, limits, ends=source.translates)
    if not is_pegasus(source):
        note(
            "only the tokenizer is exported: transformers has the same model only for pre-norm with final_norm and "
            "shared embeddings, without upsize (Pegasus). Marian, for post-norm, does not save the positions of a model"
        )
        return
    form, length = source.form, max_positions(source.run)
    write_json(folder / "config.json", _config(form, length))
    decoding = source.run.recipe_of(TranslationRecipe).decoding
    generation = {
        "num_beams": decoding.beam,
        "length_penalty": decoding.alpha,  # the library divides by length ** alpha, so its scores differ from ours
        "max_length": longest_output(source.run),
        **_TOKEN_IDS,
        "bad_words_ids": [[PAD], [UNK], [BOS]],
    }
    write_json(folder / "generation_config.json", generation)
    save_tensors(folder / "model.safetensors", dict(_tensors(form, length)), {"format": "pt"})


def write_tokenizer(tokenizer: Tokenizer, folder: Path, limits: Mapping[str, int | str], *, ends: bool) -> None:
    """Write a tokenizer for ``PreTrainedTokenizerFast``: equal ids, then EOS if the text `ends`; equal decoded text.

    `limits` are the library's settings for ``truncation=True``.
    """
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, processors

    folder.mkdir(exist_ok=True)
    engine = Engine.from_str(tokenizer.engine_json())
    eos = SPECIAL_TOKENS[EOS]
    if ends:
        engine.post_processor = processors.TemplateProcessing(single=f"$A {eos}", special_tokens=[(eos, EOS)])
    engine.decoder = decoders.Sequence([engine.decoder, decoders.Strip(" ", 1, 0)])  # the space before the first word
    write_atomic(folder / "tokenizer.json", engine.to_str(pretty=True))
    special = {"pad_token": PAD, "unk_token": UNK, "bos_token": BOS, "eos_token": EOS}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: SPECIAL_TOKENS[index] for name, index in special.items()},
        "split_special_tokens": True,  # "</s>" in a text is ordinary text
        "clean_up_tokenization_spaces": False,
        **limits,
    }
    write_json(folder / "tokenizer_config.json", config)


def _config(form: DenseForm, length: int) -> dict[str, Any]:
    ours = form.config
    config = {
        "architectures": ["PegasusForConditionalGeneration"],
        "model_type": "pegasus",
        "vocab_size": ours["source_vocabulary"],
        "d_model": ours["width"],
        "activation_function": "relu",
        "scale_embedding": True,
        "max_position_embeddings": length,
        "tie_word_embeddings": ours["tied"],
        **_TOKEN_IDS,
        "forced_eos_token_id": None,
        "dropout": 0.0,
        "is_encoder_decoder": True,
        "torch_dtype": "float32",
    }
    for side in ("encoder", "decoder"):
        config[f"{side}_layers"] = ours[f"{side}_layers"]
        config[f"{side}_attention_heads"] = ours["heads"]
        config[f"{side}_ffn_dim"] = ours["feed_forward"]
    return config


def _tensors(form: DenseForm, length: int) -> Iterator[tuple[str, Tensor]]:
    """Yield the library's names of the tensors, and the tensors."""
    config, tensors = form.config, form.all_tensors()
    yield "model.shared.weight", tensors["source_embedding.weight"]
    if not config["tied"]:  # the library unties the tables if the generator is untied
        yield "model.encoder.embed_tokens.weight", tensors["source_embedding.weight"].clone()
        yield "model.decoder.embed_tokens.weight", tensors["target_embedding.weight"].clone()
        yield "lm_head.weight", tensors["generator.weight"]
    bias = tensors.get("generator.bias", torch.zeros(config["target_vocabulary"]))
    yield "final_logits_bias", bias[None].clone()
    for side in ("encoder", "decoder"):
        yield f"model.{side}.embed_positions.weight", sinusoids(0, length, config["width"])
        names = {f"{side}_norm": f"model.{side}.layer_norm"}
        for index in range(config[f"{side}_layers"]):
            for ours, theirs in _LAYER.items():
                if side == "decoder" or not ours.startswith("cross"):
                    names[f"{side}.{index}.{ours}"] = f"model.{side}.layers.{index}.{theirs}"
        for ours, theirs in names.items():
            weight = tensors[f"{ours}.weight"]
            yield f"{theirs}.weight", weight
            yield f"{theirs}.bias", tensors.get(f"{ours}.bias", torch.zeros(len(weight)))


@torch.no_grad()
def verify_huggingface(source: ExportSource, folder: Path, count: int | None = None) -> Verification:
    """Compare the library's ids and logits with ours on the run's own text. Raises PhmctlError if ids differ.

    The logits are computed after the library has saved the model and read it again.
    """
    library = require("transformers", "huggingface")
    split, texts, references = source.examples(count)
    with _quiet(library.logging):
        _verify_ids(library, source, folder, texts)  # the library warns of long texts
    translator = source.predictor
    if not is_pegasus(source) or not isinstance(translator, Translator):
        return Verification(split, len(texts), len(texts), compared=IDS)
    with silence():
        sources, _ = translator.token_ids(texts)
    targets = [[BOS, *ids][: max_positions(source.run)] for ids in source.tokenizers.target.encode(references)]
    with _quiet(library.logging), temporary_folder(folder / "again") as again:
        library.AutoModelForSeq2SeqLM.from_pretrained(str(folder), local_files_only=True).save_pretrained(str(again))
        exported = library.AutoModelForSeq2SeqLM.from_pretrained(str(again), local_files_only=True).eval()
    model = cast("Any", source.model)
    equal, largest = sum(not ids for ids in sources), 0.0  # empty sources are not decoded
    with progress(f"comparing {len(texts):,} texts with torch", len(texts)) as advance:
        for rows in plan([len(ids) for ids in sources], translator.settings.batch_tokens):
            source_ids, target_ids = pad([sources[row] for row in rows]), pad([targets[row] for row in rows])
            ours = model.logits(model(source_ids, target_ids))[..., : source.sizes["target"]]  # (B, T, V)
            mask = (source_ids != PAD).long()
            theirs = exported(input_ids=source_ids, attention_mask=mask, decoder_input_ids=target_ids).logits
            padding = (target_ids == PAD)[..., None]
            gaps = (ours - theirs).abs().masked_fill(padding, 0.0).amax((1, 2))  # (B,)
            equal += int((gaps < TIE).sum())
            largest = max(largest, float(gaps.max()))
            advance(len(rows))
    return Verification(split, len(texts), equal, 0, largest, compared=LOGITS)


def _verify_ids(library: Any, source: ExportSource, folder: Path, texts: list[Any]) -> None:
    end = [EOS] if source.translates else []
    lines = [line for text in texts for line in ([text] if isinstance(text, str) else text)]
    tokenizers = [(source.tokenizers.source, folder)]
    if not source.tokenizers.joint:
        tokenizers.append((source.tokenizers.target, folder / TARGET))
    for tokenizer, path in tokenizers:
        exported = library.PreTrainedTokenizerFast.from_pretrained(str(path), local_files_only=True)
        for line, ours, theirs in zip(lines, tokenizer.encode(lines), exported(lines)["input_ids"], strict=True):
            if [*ours, *end] != theirs:
                raise PhmctlError(f"the export was not written: transformers gives {line!r} different token ids")


@contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Hide the library's warnings and progress bars."""
    verbosity, has_bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if has_bar:
            logging.enable_progress_bar()
