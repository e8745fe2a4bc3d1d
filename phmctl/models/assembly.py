"""Build models from the `model` section of a recipe, and load trained models from checkpoints.

The models (:mod:`phmctl.models`, :mod:`phmctl.nn`) take numbers and modules, and do not depend on recipes. The order in
which parts are built is fixed, because it determines the random numbers that initialise each part.
"""

from collections import OrderedDict
from functools import partial
from typing import Literal, TypeVar

import torch
from torch import Tensor, nn

from phmctl.models.classifiers import EncoderClassifier, PairClassifier
from phmctl.models.transformer import DecoderLayer, EncoderLayer, Stack, Transformer
from phmctl.nn.composition import BilinearComposition, HierarchicalComposition, LinearComposition, begin_as_base
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.layers import FeedForward, LinearBuilder, MultiHeadAttention, Residual
from phmctl.recipe.models import (
    EncoderClassifierSection,
    LinearSection,
    PairClassifierSection,
    ProbeSection,
    StackSection,
    TransformerSection,
)
from phmctl.runs import Run
from phmctl.saving import load_model
from phmctl.storage import read_checkpoint

ClassifierSection = EncoderClassifierSection | PairClassifierSection
Classifier = EncoderClassifier | PairClassifier
Device = torch.device | str | None
Side = Literal["encoder", "decoder"]
M = TypeVar("M", bound=nn.Module)

# -------------------------------------------------------------------------------------------------- trained models


def trained(model: M, run: Run, checkpoint: str, device: torch.device) -> M:
    """Load a checkpoint into a model built on ``meta``, and return it in evaluation mode. Raises RunError."""
    folder = run.checkpoint(checkpoint)
    run.check_model(folder)
    load_model(model, read_checkpoint(folder, ("model",)).tensors["model"], folder, device)
    return model.eval()


# ------------------------------------------------------------------------------------------------------ the models


def builder_for(section: LinearSection, device: Device = None) -> LinearBuilder:
    return LinearBuilder(
        section.algebra,
        section.n,
        rules=section.rules,
        bias=section.bias,
        execution=section.execution,
        rank=section.rank,
        device=device,
    )


def build_transformer(
    section: TransformerSection, source_vocabulary: int, target_vocabulary: int, device: Device = None
) -> Transformer:
    """Build an untrained translator.

    The rows of a PHM table are rounded up to a multiple of n. Decoding never produces the added ids. A table that both
    sides share has the larger vocabulary. On the device ``meta`` no memory is allocated.

    Raises:
        DimensionError: n does not divide a dimension.
    """
    builder = builder_for(section, device)
    n = section.n
    shared = section.share_embeddings
    phm_tables = section.embeddings == "phm"
    phm_generator = section.generator == "phm"
    target_rows = max(source_vocabulary, target_vocabulary) if shared else target_vocabulary
    if phm_tables or phm_generator:
        target_rows = -(-target_rows // n) * n
    source_rows = -(-source_vocabulary // n) * n if phm_tables else source_vocabulary

    source = _table(section, builder, target_rows if shared else source_rows, hypercomplex=phm_tables)
    target = source if shared else _table(section, builder, target_rows, hypercomplex=phm_tables)
    encoder = _stack(section, builder, section.encoder_layers, "encoder")
    decoder = _stack(section, builder, section.decoder_layers, "decoder")
    generator = None  # tied: the target table
    if section.generator != "tied":
        maps = builder if phm_generator else LinearBuilder("real", 1, device=device)
        generator = maps.linear(section.width, target_rows, bias=section.generator_bias)
    return Transformer(
        source,
        target,
        encoder,
        decoder,
        encoder_norm=_final_norm(section, device),
        decoder_norm=_final_norm(section, device),
        generator=generator,
        dropout=section.dropout,
    )


def texts_of(section: ClassifierSection) -> int:
    return 2 if isinstance(section, PairClassifierSection) else 1


def build_classifier(
    section: ClassifierSection, vocabulary: int, classes: int, vectors: Tensor | None = None, device: Device = None
) -> Classifier:
    """Build an untrained classifier.

    `vectors` (vocabulary, embedding_width) are pretrained word vectors for a pair classifier whose embeddings are not
    trained.

    Raises:
        DimensionError: n does not divide a dimension, or the vectors have another shape than the table.
    """
    builder = builder_for(section, device)
    if isinstance(section, PairClassifierSection):
        return PairClassifier(
            builder,
            vocabulary,
            classes,
            vectors=None if section.embeddings == "trained" else vectors,
            embedding_width=section.embedding_width,
            width=section.width,
            hidden=section.hidden,
            gates=section.gates,
            cell=section.cell,
            combination=section.combination,
            dropout=section.dropout,
        )
    dense = LinearBuilder("real", 1, device=device)
    return EncoderClassifier(
        _table(section, builder, vocabulary, hypercomplex=False),
        _stack(section, builder, section.layers, "encoder"),
        _final_norm(section, device),
        dense.linear(section.width, classes),
        pooling=section.pooling,
        dropout=section.dropout,
    )


def build_probe(section: ProbeSection, width: int, classes: int, device: Device = None) -> nn.Module:
    """Build an untrained probe of sentence vectors (B, width): a logistic regression, unless it has a hidden layer.

    The hidden layer and the sigmoid follow SentEval (Conneau et al. 2018).

    Raises:
        DimensionError: n does not divide `width`.
    """
    parts: dict[str, nn.Module] = {}
    if section.hidden:
        parts["hidden"] = builder_for(section, device).linear(width, section.hidden)
        parts["sigmoid"] = nn.Sigmoid()
    parts["output"] = LinearBuilder("real", 1, device=device).linear(section.hidden or width, classes)
    return nn.Sequential(OrderedDict(parts))


# ---------------------------------------------------------------------------------------------- parts of the models


def _table(
    section: StackSection, builder: LinearBuilder, rows: int, *, hypercomplex: bool
) -> PHMEmbedding | NarrowEmbedding:
    if section.embedding_width is None:
        return builder.embedding(rows, section.width, hypercomplex=hypercomplex)
    table = builder.embedding(rows, section.embedding_width, hypercomplex=hypercomplex)
    return NarrowEmbedding(table, builder.map(section.embedding_width, section.width, bias=False))


def _stack(section: StackSection, builder: LinearBuilder, count: int, side: Side) -> Stack:
    width, heads, device = section.width, section.heads, builder.device
    inner, hidden = section.upsize * width, section.upsize * section.feed_forward
    residual = partial(Residual, width, section.dropout, pre_norm=section.norm == "pre", device=device)

    def attention(*, cross: bool = False) -> MultiHeadAttention:
        maps = builder.sublayer()
        return MultiHeadAttention(
            maps,
            width,
            inner,
            heads,
            cross=cross,
            projections=section.projections,
            dropout=section.attention_dropout,
            output=_composition(section, maps, section.compose_heads, heads, inner // heads, inner, joined=True),
        )

    def feed_forward() -> FeedForward:
        return FeedForward(builder.sublayer(), width, hidden, section.activation_dropout)

    def layer() -> nn.Module:
        if side == "encoder":
            return EncoderLayer(attention(), feed_forward(), residual)
        return DecoderLayer(attention(), attention(cross=True), feed_forward(), residual)

    layers = [layer() for _ in range(count)]
    composed = _composition(section, builder.sublayer(), section.compose_layers, count, width, hidden, joined=False)
    return Stack(layers, composed)


def _final_norm(section: StackSection, device: Device) -> nn.Module:
    return nn.LayerNorm(section.width, device=device) if section.final_norm else nn.Identity()


def _composition(
    section: StackSection,
    builder: LinearBuilder,
    composition_type: str,
    parts: int,
    width: int,
    hidden: int,
    *,
    joined: bool,
) -> nn.Module | None:
    """Build the module that composes parts (..., width), in a list or joined in one tensor. None for ``none``."""
    out = section.width
    maps = builder
    if section.composition_maps != "algebra":
        maps = LinearBuilder("real", 1, bias=section.bias, device=builder.device)
    if composition_type == "hierarchical":
        return HierarchicalComposition(maps, parts, width, hidden, out, joined=joined)
    widths = [parts * width] if joined else [width] * parts
    if composition_type == "linear":
        composition: LinearComposition | BilinearComposition = LinearComposition(maps, widths, out)
    elif composition_type == "bilinear":
        composition = BilinearComposition(maps, widths, out, section.pooling_rank, first_order=section.first_order)
    else:
        return None
    if section.composition_start == "base":
        begin_as_base(composition)
    return composition
