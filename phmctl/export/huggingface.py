"""The form of the transformers library: the tokenizer, and the model where an architecture there is exactly ours.

Two are, once our sinusoids are written over theirs, which they hold as a table:

- **Marian**: post-norm without a final norm.
- **Pegasus**: pre-norm with final norms, one table for both sides.

BART and mBART normalise the embeddings, which no model here does; M2M100 counts positions from padding's id + 1, not
from 0. Neither fits.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from phmctl.checkpoints import save_tensors
from phmctl.console import note, silence
from phmctl.data.special import BOS, EOS, PAD, SPECIAL_TOKENS, UNK
from phmctl.data.tokenizer import Tokenizer
from phmctl.decoding.beam import pad
from phmctl.decoding.translator import Translator, plan
from phmctl.errors import PhmctlError, require
from phmctl.export.dense import DenseForm
from phmctl.export.verify import IDS, LOGITS, NEAR, Subject, Verification
from phmctl.files import write_atomic, write_json
from phmctl.nn.layers import sinusoids
from phmctl.recipe.schema import TranslationRecipe

TARGET = "target"  # the folder of the target side's tokenizer, where it has its own
_MARIAN, _PEGASUS = "marian", "pegasus"
_CLASSES = {_MARIAN: "MarianMTModel", _PEGASUS: "PegasusForConditionalGeneration"}
_ATTENTION = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}
_LAYER = {  # names of a layer's parts, here and there; what begins with "cross" is the decoder's
    **{f"attention.{ours}": f"self_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
    **{f"cross_attention.{ours}": f"encoder_attn.{theirs}" for ours, theirs in _ATTENTION.items()},
    "feed_forward.expand": "fc1",
    "feed_forward.contract": "fc2",
    "attention_residual.norm": "self_attn_layer_norm",
    "cross_residual.norm": "encoder_attn_layer_norm",
    "feed_forward_residual.norm": "final_layer_norm",
}


def architecture(subject: Subject) -> str | None:
    """Return the architecture that a model is exactly, if there is one."""
    section = subject.section
    if not subject.translates or section.upsize > 1:
        return None
    if section.norm == "post":
        return None if section.final_norm else _MARIAN
    return _PEGASUS if section.final_norm and section.share_embeddings else None


def write_huggingface(subject: Subject, folder: Path) -> None:
    """Write tokenizer and model as ``from_pretrained`` reads them; say what of the model is left out."""
    require("transformers", "huggingface")
    kind = architecture(subject)
    pair = subject.tokenizers
    write_tokenizer(pair.source, folder)
    if not pair.joint:
        write_tokenizer(pair.target, folder / TARGET)
    if kind is None:
        note(
            "its tokenizer alone is written: transformers has models of the same maps only for post-norm without "
            "final_norm (Marian), and for pre-norm with final_norm and one table (Pegasus), without upsize"
        )
        return
    config, tokens = subject.form.config, {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS}
    tokens["decoder_start_token_id"] = BOS
    described = {
        "architectures": [_CLASSES[kind]],
        "model_type": kind,
        "vocab_size": config["source_vocabulary"],
        "d_model": config["width"],
        "activation_function": "relu",
        "scale_embedding": True,
        "max_position_embeddings": subject.longest,
        "tie_word_embeddings": config["tied"],
        **tokens,
        "forced_eos_token_id": None,
        "dropout": 0.0,
        "is_encoder_decoder": True,
        "torch_dtype": "float32",
    }
    for side in ("encoder", "decoder"):
        described[f"{side}_layers"] = config[f"{side}_layers"]
        described[f"{side}_attention_heads"] = config["heads"]
        described[f"{side}_ffn_dim"] = config["feed_forward"]
    if kind == _MARIAN:
        described["decoder_vocab_size"] = config["target_vocabulary"]
        described["share_encoder_decoder_embeddings"] = config["share_embeddings"]
    write_json(folder / "config.json", described)
    decoding = subject.run.recipe_of(TranslationRecipe).decoding
    search = {
        "num_beams": decoding.beam,
        "length_penalty": decoding.alpha,  # the library's is length ** alpha, and so are not our scores
        "max_length": subject.longest,
        **tokens,
        "bad_words_ids": [[PAD], [UNK], [BOS]],
    }
    write_json(folder / "generation_config.json", search)
    save_tensors(folder / "model.safetensors", dict(_tensors(kind, subject.form, subject.longest)), {"format": "pt"})


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer as ``PreTrainedTokenizerFast`` reads it: the same ids, closed by EOS, and the text back."""
    from tokenizers import Tokenizer as Engine
    from tokenizers import decoders, processors

    folder.mkdir(exist_ok=True)
    engine = Engine.from_str(tokenizer.engine_json())
    eos = SPECIAL_TOKENS[EOS]
    engine.post_processor = processors.TemplateProcessing(single=f"$A {eos}", special_tokens=[(eos, EOS)])
    engine.decoder = decoders.Sequence([engine.decoder, decoders.Strip(" ", 1, 0)])  # the space before the first word
    write_atomic(folder / "tokenizer.json", engine.to_str(pretty=True))
    named = {"pad_token": PAD, "unk_token": UNK, "bos_token": BOS, "eos_token": EOS}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{name: SPECIAL_TOKENS[index] for name, index in named.items()},
        "split_special_tokens": True,  # "</s>" in a text is punctuation and a letter
        "clean_up_tokenization_spaces": False,
    }
    write_json(folder / "tokenizer_config.json", config)


def _tensors(kind: str, form: DenseForm, longest: int) -> Iterator[tuple[str, Tensor]]:
    config, tensors = form.config, form.tensors
    width = config["width"]
    whole = form.whole()
    if config["share_embeddings"]:
        yield "model.shared.weight", whole["source_embedding.weight"]
    if not (config["share_embeddings"] and config["tied"]):  # a generator of its own unties the tables there too
        yield "model.encoder.embed_tokens.weight", whole["source_embedding.weight"].clone()
        yield "model.decoder.embed_tokens.weight", whole["target_embedding.weight"].clone()
    if not config["tied"]:
        yield "lm_head.weight", tensors["generator.weight"]
    bias = tensors.get("generator.bias")
    yield "final_logits_bias", (torch.zeros(config["target_vocabulary"]) if bias is None else bias)[None].clone()
    for side in ("encoder", "decoder"):
        yield f"model.{side}.embed_positions.weight", sinusoids(longest, width).clone()
        parts = {f"{side}_norm": f"model.{side}.layer_norm"} if kind == _PEGASUS else {}
        for index in range(config[f"{side}_layers"]):
            ours, theirs = f"{side}.{index}", f"model.{side}.layers.{index}"
            named = {one: other for one, other in _LAYER.items() if side == "decoder" or not one.startswith("cross")}
            parts |= {f"{ours}.{one}": f"{theirs}.{other}" for one, other in named.items()}
        for one, other in parts.items():
            weight = tensors[f"{one}.weight"]
            yield f"{other}.weight", weight
            yield f"{other}.bias", tensors.get(f"{one}.bias", torch.zeros(len(weight)))


@torch.no_grad()
def verify_huggingface(subject: Subject, folder: Path, count: int | None = None) -> Verification:
    """Compare ids and logits with the library's own, on the run's own text; PhmctlError where ids are others."""
    split, texts, references = subject.examples(count)
    library, pair, ours = require("transformers", "huggingface"), subject.tokenizers, subject.answering
    lines = [text for each in texts for text in ([each] if isinstance(each, str) else each)]
    for tokenizer, place in [(pair.source, folder)] + ([] if pair.joint else [(pair.target, folder / TARGET)]):
        theirs = library.PreTrainedTokenizerFast.from_pretrained(str(place), local_files_only=True)
        found = theirs(lines)["input_ids"]
        for line, ids, other in zip(lines, tokenizer.encode(lines), found, strict=True):
            if [*ids, EOS] != other:
                raise PhmctlError(f"transformers gives other ids of {line!r}; the export was not written")
    if architecture(subject) is None or not isinstance(ours, Translator):
        return Verification(split, len(texts), len(texts), compared=IDS)
    with silence():
        sources, _ = ours.token_ids(texts)
    targets = [[BOS, *ids][: subject.longest - 1] for ids in pair.target.encode(references)]
    told, torchs = library.logging, cast("Any", subject.model)
    verbosity, bar = told.get_verbosity(), told.is_progress_bar_enabled()
    told.set_verbosity_error()
    told.disable_progress_bar()
    try:
        model = library.AutoModelForSeq2SeqLM.from_pretrained(str(folder), local_files_only=True).eval()
    finally:
        told.set_verbosity(verbosity)
        (told.enable_progress_bar if bar else told.disable_progress_bar)()
    equal, largest = sum(not source for source in sources), 0.0
    for rows in plan([len(source) for source in sources], ours.settings.batch_tokens):
        source, target = pad([sources[row] for row in rows]), pad([targets[row] for row in rows])
        wanted = torchs.logits(torchs(source, target))[..., : subject.sizes["target"]]  # (B, T, V)
        logits = model(input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=target).logits
        gaps = (wanted - logits).abs().masked_fill((target == PAD)[..., None], 0.0).amax((1, 2))  # (B,)
        equal += int((gaps < NEAR).sum())
        largest = max(largest, float(gaps.max()))
    return Verification(split, len(texts), equal, 0, largest, compared=LOGITS)
