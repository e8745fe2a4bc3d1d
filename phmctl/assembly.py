"""From a recipe's model section to the model: the one place that reads sections and builds the zoo.

The models themselves (:mod:`phmctl.models`, :mod:`phmctl.nn`) take numbers and modules, and know no recipe.
Parts are built in the order in which they always were, for the order decides which random numbers each draws.
"""

from functools import partial
from typing import Literal

import torch
from torch import Tensor, nn

from phmctl.models.bare import BareTransformer
from phmctl.models.encoder_classifier import EncoderClassifier
from phmctl.models.layers import DecoderLayer, EncoderLayer
from phmctl.models.pair_classifier import PairClassifier
from phmctl.models.probe import Probe
from phmctl.models.rule import RuleModel
from phmctl.models.stack import Stack
from phmctl.models.transformer import Transformer
from phmctl.nn.attention import MultiHeadAttention
from phmctl.nn.build import LinearBuilder
from phmctl.nn.composition import (
    BilinearComposition,
    HierarchicalComposition,
    LinearComposition,
    ScalarComposition,
    begin_as_base,
)
from phmctl.nn.feedforward import FeedForward
from phmctl.nn.linear import PHMLinear
from phmctl.nn.positions import SinusoidalPositions
from phmctl.nn.residual import Residual
from phmctl.recipe.schema import (
    EncoderClassifierSection,
    LinearSection,
    PairClassifierSection,
    ProbeSection,
    RuleModelSection,
    StackSection,
    TransformerSection,
)

ClassifierSection = EncoderClassifierSection | PairClassifierSection
Classifier = EncoderClassifier | PairClassifier
Device = torch.device | str | None
Place = Literal["encoder", "decoder"]


def builder_for(section: LinearSection, device: Device = None) -> LinearBuilder:
    """Return the builder of the linear maps that a model's section asks for."""
    return LinearBuilder(
        section.algebra,
        section.dimension,
        rules=section.rules,
        bias=section.bias,
        execution=section.execution,
        parametrization=section.parametrization,
        rank=section.rank,
        keep_products=section.keep_products,
        device=device,
    )


# -------------------------------------------------------------------------------------------------- the Transformer


def build_transformer(
    section: TransformerSection, source_vocabulary: int, target_vocabulary: int, device: Device = None
) -> Transformer:
    """Build an untrained translator for tokenizers of the given sizes.

    A PHM table must have rows that n divides: its vocabulary is rounded up, and decoding never emits the ids added.

    Args:
        section: the recipe's model section.
        source_vocabulary: token types of the source.
        target_vocabulary: token types of the target; the table that both share has the larger number.
        device: where parameters are allocated; ``meta`` allocates nothing.

    Raises:
        DimensionError: n does not divide a dimension.
    """
    source_rows, target_rows = _rows(section, source_vocabulary, target_vocabulary)
    builder, hypercomplex = builder_for(section, device), section.embeddings == "phm"
    source = builder.embedding(source_rows, section.width, hypercomplex=hypercomplex)
    shared = section.share_embeddings
    target = source if shared else builder.embedding(target_rows, section.width, hypercomplex=hypercomplex)
    return Transformer(
        source,
        target,
        SinusoidalPositions(section.width, device),
        _stack(section, builder, section.encoder_layers, "encoder"),
        _stack(section, builder, section.decoder_layers, "decoder"),
        encoder_norm=_final_norm(section, device),
        decoder_norm=_final_norm(section, device),
        generator=_generator(section, builder, target_rows),
        dropout=section.dropout,
    )


def bare_transformer(section: TransformerSection, vocabulary: int) -> BareTransformer:
    """Build torch's own Transformer of a section's shape, for one vocabulary of both sides."""
    return BareTransformer(
        vocabulary,
        section.width,
        section.heads,
        section.feed_forward,
        encoder_layers=section.encoder_layers,
        decoder_layers=section.decoder_layers,
        pre_norm=section.norm == "pre",
        dropout=section.dropout,
        attention_dropout=section.attention_dropout,
        activation_dropout=section.activation_dropout,
    )


def _rows(section: TransformerSection, source: int, target: int) -> tuple[int, int]:
    """Return the rows of the source's and the target's table."""
    if section.share_embeddings:
        source = target = max(source, target)
    tables, generator = section.embeddings == "phm", section.generator == "phm"
    if tables:
        source = _round_up(source, section.dimension)
    if tables or generator:
        target = _round_up(target, section.dimension)
    return (target if section.share_embeddings else source), target  # the one table has the generator's rows


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _generator(section: TransformerSection, builder: LinearBuilder, vocabulary: int) -> PHMLinear | None:
    """Build the map to the vocabulary, or None if it is the target embedding's table."""
    if section.generator == "tied":
        return None
    hypercomplex = section.generator == "phm"
    chosen = builder if hypercomplex else LinearBuilder("real", 1, device=builder.device)
    return chosen.linear(section.width, vocabulary, bias=section.generator_bias)


# ------------------------------------------------------------------------------------------------- Transformer layers


def _stack(section: StackSection, builder: LinearBuilder, layers: int, place: Place) -> Stack:
    make = _encoder_layer if place == "encoder" else _decoder_layer
    return Stack([make(section, builder) for _ in range(layers)], _over_layers(section, builder, layers, place))


def _encoder_layer(section: StackSection, builder: LinearBuilder) -> EncoderLayer:
    attention = _attention(section, builder, "encoder")
    return EncoderLayer(attention, _feed_forward(section, builder), _residual(section, builder))


def _decoder_layer(section: StackSection, builder: LinearBuilder) -> DecoderLayer:
    attention = _attention(section, builder, "decoder")
    cross = _attention(section, builder, "decoder", cross=True)
    return DecoderLayer(attention, cross, _feed_forward(section, builder), _residual(section, builder))


def _attention(
    section: StackSection, builder: LinearBuilder, place: Place, *, cross: bool = False
) -> MultiHeadAttention:
    maps = builder.sublayer()
    return MultiHeadAttention(
        maps,
        section.width,
        section.upsize * section.width,
        section.heads,
        cross=cross,
        projections=section.projections,
        dropout=section.attention_dropout,
        output=_over_heads(section, maps, place),
    )


def _feed_forward(section: StackSection, builder: LinearBuilder) -> FeedForward:
    inner = section.upsize * section.feed_forward
    return FeedForward(builder.sublayer(), section.width, inner, section.activation_dropout)


def _residual(section: StackSection, builder: LinearBuilder) -> "partial[Residual]":
    pre_norm = section.norm == "pre"
    return partial(Residual, section.width, section.dropout, pre_norm=pre_norm, device=builder.device)


def _final_norm(section: StackSection, device: Device) -> nn.Module:
    return nn.LayerNorm(section.width, device=device) if section.final_norm else nn.Identity()


# ---------------------------------------------------------------------------------------------------- compositions


def _over_layers(section: StackSection, builder: LinearBuilder, layers: int, place: Place) -> nn.Module | None:
    """Build what composes the outputs of a stack's layers, or None where its top layer's is the stack's."""
    if not _composes(section, place):
        return None
    maps, width = _composing(section, builder.sublayer()), section.width
    match section.compose_layers:
        case "linear":
            return _begun(section, LinearComposition(maps, [width] * layers, width))
        case "scalar":
            return ScalarComposition(layers, builder.device)
        case "hierarchical":
            return HierarchicalComposition(maps, layers, width, section.upsize * section.feed_forward)
        case "bilinear":
            rank, widths = section.pooling_rank, [width] * layers
            return _begun(section, BilinearComposition(maps, widths, width, rank, first_order=section.first_order))
    return None


def _over_heads(section: StackSection, builder: LinearBuilder, place: Place) -> nn.Module | None:
    """Build what composes the heads of an attention module, or None where it has its own output map."""
    if not _composes(section, place):
        return None
    maps, inner = _composing(section, builder), section.upsize * section.width
    match section.compose_heads:
        case "hierarchical":
            width = inner // section.heads
            return HierarchicalComposition(maps, section.heads, width, inner, section.width, joined=True)
        case "bilinear":
            rank = section.pooling_rank
            return _begun(
                section, BilinearComposition(maps, [inner], section.width, rank, first_order=section.first_order)
            )
    return None


def _begun(
    section: StackSection, composition: LinearComposition | BilinearComposition
) -> LinearComposition | BilinearComposition:
    if section.composition_start == "base":
        begin_as_base(composition)
    return composition


def _composes(section: StackSection, place: Place) -> bool:
    return not isinstance(section, TransformerSection) or section.compose_in in ("both", place)


def _composing(section: StackSection, builder: LinearBuilder) -> LinearBuilder:
    """Return the builder of a composition's maps."""
    if section.composition_maps == "algebra":
        return builder
    return LinearBuilder("real", 1, bias=section.bias, execution=section.execution, device=builder.device)


# ----------------------------------------------------------------------------------------------------- classifiers


def texts_of(section: ClassifierSection) -> int:
    """Return how many texts of an example the model reads."""
    return 2 if isinstance(section, PairClassifierSection) else 1


def build_classifier(
    section: ClassifierSection, vocabulary: int, classes: int, vectors: Tensor | None = None, device: Device = None
) -> Classifier:
    """Build an untrained classifier.

    Args:
        section: the recipe's model section.
        vocabulary: token types.
        classes: how many labels.
        vectors: (vocabulary, embedding_width), ready word vectors for a model that takes them: the pair classifier,
            unless its section says that embeddings are trained.
        device: where parameters are allocated; ``meta`` allocates nothing.

    Raises:
        DimensionError: n does not divide a dimension, or the vectors have another shape than the table.
    """
    if isinstance(section, PairClassifierSection):
        return _pair_classifier(section, vocabulary, classes, vectors, device)
    return _encoder_classifier(section, vocabulary, classes, device)


def _pair_classifier(
    section: PairClassifierSection, vocabulary: int, classes: int, vectors: Tensor | None, device: Device
) -> PairClassifier:
    return PairClassifier(
        builder_for(section, device),
        vocabulary,
        classes,
        embedding_width=section.embedding_width,
        width=section.width,
        hidden=section.hidden,
        gates=section.gates,
        cell=section.cell,
        combination=section.combination,
        dropout=section.dropout,
        vectors=vectors if section.embeddings != "trained" else None,
        device=device,
    )


def _encoder_classifier(
    section: EncoderClassifierSection, vocabulary: int, classes: int, device: Device
) -> EncoderClassifier:
    builder, dense = builder_for(section, device), LinearBuilder("real", 1, device=device)
    return EncoderClassifier(
        dense.embedding(vocabulary, section.width, hypercomplex=False),
        SinusoidalPositions(section.width, device),
        _stack(section, builder, section.layers, "encoder"),
        _final_norm(section, device),
        dense.linear(section.width, classes),
        pooling=section.pooling,
        dropout=section.dropout,
    )


# ------------------------------------------------------------------------------------------------------------ probes


def build_probe(section: ProbeSection, width: int, classes: int, device: Device = None) -> Probe:
    """Build an untrained probe of sentence vectors (B, width).

    Raises:
        DimensionError: n does not divide the width.
    """
    dense = LinearBuilder("real", 1, device=device)
    if not section.hidden:
        return Probe(None, dense.linear(width, classes))
    inner = builder_for(section, device).linear(width, section.hidden)
    return Probe(inner, dense.linear(section.hidden, classes), section.dropout)


# ------------------------------------------------------------------------------------------------------------- rules


def build_rule_model(section: RuleModelSection, features: int, device: Device = None) -> RuleModel:
    """Build the untrained map of `features` numbers that is to find a rule.

    Raises:
        DimensionError: n does not divide `features`.
    """
    return RuleModel(builder_for(section, device), features)
