"""The ``model`` sections of recipes, one for each kind of model."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from phmctl.algebra.dimension import FIXED_DIMENSION, LEARNED, LOW_RANK, check_divides

MOST = 10**9  # upper bound of steps, rows and tokens, far below an overflow
PositiveInt = Annotated[int, Field(ge=1, le=MOST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Vocabulary = Annotated[int, Field(ge=8, le=10**7)]
Width = Annotated[int, Field(ge=1, le=2**16)]  # a matrix of two widths fits into memory
Layers = Annotated[int, Field(ge=1, le=1000)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]

# Marks in the annotation of a recipe's key. CHOICE: the key decides which checkpoints are written, which one is used,
# or how it answers. NOTHING: the key changes no result. Keys without a mark change the training steps.
CHOICE = "choice"
NOTHING = "nothing"


class Section(BaseModel):
    """A part of a recipe: immutable, strictly typed, without unknown keys, NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)

    def changed_keys(self) -> list[str]:
        """Return the keys whose values are not the defaults."""
        fields = type(self).model_fields.items()
        return [name for name, field in fields if getattr(self, name) != field.default]


Algebra = Literal["real", "complex", "quaternion", "octonion", "sedenion", "phm", "low-rank"]


class LinearSection(Section):
    """The parametrization of a model's linear maps."""

    kind: str
    algebra: Algebra = "real"  # phm learns the rule
    n: Annotated[int, Field(ge=1, le=1024)] = 1  # components of phm, at least 2
    # maps that share a rule: none, those of a sublayer, all
    rules: Literal["separate", "sublayer", "model"] = "separate"
    # a learned rule is stored as A, or with a rank R as factors W, U, V; or the rank of low-rank maps
    rank: Width | None = None
    bias: bool = True  # whether linear maps have biases

    @model_validator(mode="after")
    def _settle_n(self) -> Self:
        if self.algebra == LEARNED:
            if self.n < 2:
                raise ValueError(f"algebra {self.algebra!r} needs n of at least 2: use algebra 'real' for n = 1")
        else:
            implied = FIXED_DIMENSION.get(self.algebra, 1)
            if self.n not in (1, implied):
                raise ValueError(f"algebra {self.algebra!r} has n = {implied}, not {self.n}: omit n or use 'phm'")
            object.__setattr__(self, "n", implied)  # frozen: recipes with and without n are equal
        check_divides(self.n, **self._widths())
        return self

    @model_validator(mode="after")
    def _fit_rank(self) -> Self:
        if self.algebra != LOW_RANK:
            if self.algebra != LEARNED:
                self._expect_default("needs algebra: phm or low-rank", "rank")
            return self
        if not isinstance(self, StackSection):
            raise ValueError("algebra 'low-rank' is implemented for Transformers only")
        if self.rank is None:
            raise ValueError("algebra 'low-rank' needs a rank: set model.rank")
        self._expect_default("has no effect with algebra 'low-rank': omit it", "rules")
        return self

    def _expect_default(self, problem: str, *keys: str) -> None:
        """Raise ValueError if one of the keys is set to another value than the default."""
        for key in self.changed_keys():
            if key in keys:
                raise ValueError(f"{key} {problem}")

    @property
    def variant(self) -> str:
        """The variant in a run's path: ``real``, ``quaternion``, ``phm-n4``, with factors ``phm-n4-r4``."""
        name = f"{self.algebra}-n{self.n}" if self.algebra == LEARNED else self.algebra
        return name if self.rank is None else f"{name}-r{self.rank}"

    @property
    def dense_twin(self) -> Self:
        """The same model with every map dense."""
        return self.model_copy(update={"algebra": "real", "n": 1, "rank": None})

    def _widths(self) -> dict[str, int]:
        """Return the widths that n must divide, by the names in error messages."""
        return {}


class StackSection(LinearSection):
    """A model of Transformer layers."""

    width: Width = 512  # residual width d
    feed_forward: Width = 2048  # inner width of the feed-forward, before `upsize`
    heads: Width = 8  # attention heads, must divide the width
    # width of the embeddings, from which a map leads to the model's width (null: that width)
    embedding_width: Width | None = None
    upsize: Layers = 1  # factor of attention and feed-forward widths (2: † of Table 2)
    # fused: one map for Q, K, V, in cross-attention two (§4.2), separate: one map for each, packed: one of 3d rows
    # in cross-attention too (CENG501)
    projections: Literal["fused", "separate", "packed"] = "fused"
    norm: Literal["pre", "post"] = "pre"  # layer norm before or after each sublayer
    final_norm: bool = True  # layer norm after each stack
    dropout: Probability = 0.1  # for residuals and embeddings
    attention_dropout: Probability = 0.0  # for attention weights
    activation_dropout: Probability = 0.0  # after the ReLU of the feed-forward
    # output of a stack: the top layer, or a composition of all (Li et al. 2020)
    compose_layers: Literal["none", "linear", "hierarchical", "bilinear"] = "none"
    # output of attention: a map of all heads, or a composition
    compose_heads: Literal["none", "hierarchical", "bilinear"] = "none"
    composition_rank: Width | None = None  # r of bilinear compositions, by default the width
    first_order: bool = True  # bilinear: append a 1 to the parts (eq. 11)
    composition_maps: Literal["algebra", "dense"] = "algebra"  # dense: maps of compositions are dense

    @model_validator(mode="after")
    def _fit_heads_and_positions(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads = {self.heads} must divide width = {self.width}")
        if self.width % 2:
            raise ValueError(f"width = {self.width} must be even (sinusoidal positions)")
        return self

    @model_validator(mode="after")
    def _fit_composition(self) -> Self:
        if self.composes and self.composition_maps == "algebra" and self.algebra == LOW_RANK:
            raise ValueError(f"compositions of algebra {self.algebra!r} need composition_maps: dense")
        if not self.composes:
            self._expect_default("needs compose_layers or compose_heads", "composition_maps")
        if "bilinear" not in (self.compose_layers, self.compose_heads):
            self._expect_default("needs compose_layers or compose_heads: bilinear", "composition_rank", "first_order")
        for key in ("encoder_layers", "decoder_layers", "layers"):
            if key in type(self).model_fields:
                _check_parts("compose_layers", self.compose_layers, key, getattr(self, key))
        _check_parts("compose_heads", self.compose_heads, "heads", self.heads)
        return self

    @property
    def pooling_rank(self) -> int:
        """The rank r of bilinear compositions."""
        return self.composition_rank or self.width

    @property
    def variant(self) -> str:
        """The variant in a run's path: ``phm-n4-x2`` with upsize 2, ``real-layers-bilinear`` with compositions."""
        parts = [super().variant]
        if self.upsize > 1:
            parts.append(f"x{self.upsize}")
        if self.compose_layers != "none":
            parts.append(f"layers-{self.compose_layers}")
        if self.compose_heads != "none":
            parts.append(f"heads-{self.compose_heads}")
        return "-".join(parts)

    @property
    def composes(self) -> bool:
        return (self.compose_layers, self.compose_heads) != ("none", "none")

    def _widths(self) -> dict[str, int]:
        widths = {"width": self.width, "feed_forward": self.feed_forward * self.upsize}
        if self.embedding_width is not None:
            widths["embedding_width"] = self.embedding_width
        if self.composition_maps == "algebra" and "bilinear" in (self.compose_layers, self.compose_heads):
            widths["composition_rank"] = self.pooling_rank
        if self.composition_maps == "algebra" and self.compose_heads == "hierarchical":
            widths["head width"] = self.upsize * self.width // self.heads
        return widths


class TransformerSection(StackSection):
    """The encoder-decoder Transformer."""

    kind: Literal["transformer"] = "transformer"
    encoder_layers: Layers = 6  # encoder layers
    decoder_layers: Layers = 6  # decoder layers
    embeddings: Literal["dense", "phm"] = "dense"  # phm: PHM+
    # map to the vocabulary (tied: to the target embedding)
    generator: Literal["dense", "phm", "tied"] = "tied"
    generator_bias: bool = False  # only if the generator is not tied
    share_embeddings: bool = True  # one embedding for both sides, needs data.joint

    @model_validator(mode="after")
    def _fit_generator(self) -> Self:
        if self.algebra == LOW_RANK and "phm" in (self.embeddings, self.generator):
            raise ValueError(f"embeddings and generator must be dense or tied with algebra {self.algebra!r}")
        if self.generator == "tied":
            self._expect_default("needs generator: dense or phm", "generator_bias")
        return self


class EncoderClassifierSection(StackSection):
    """A Transformer encoder of a text, pooled over time (Table 5)."""

    texts: ClassVar[int] = 1  # texts in an example
    kind: Literal["encoder"]
    width: Width = 128
    feed_forward: Width = 512
    heads: Width = 4  # attention heads, must divide the width
    layers: Layers = 2  # encoder layers
    projections: Literal["fused", "separate"] = "fused"
    pooling: Literal["last", "mean"] = "last"  # state of the last token, or mean


class PairClassifierSection(LinearSection):
    """An LSTM that reads both texts, max and mean pooling over time, and a two-layer perceptron (Table 1)."""

    texts: ClassVar[int] = 2  # texts in an example
    kind: Literal["lstm-pair"]
    width: Width = 300  # width of the LSTM state
    embedding_width: Width = 300  # width of word embeddings
    # maps for each gate and input, or for each input
    gates: Literal["separate", "fused"] = "separate"
    combination: Literal["concat", "full"] = "concat"  # [u; v], or [u; v; |u−v|; u∗v]
    hidden: Width = 300  # hidden width of the classifier, whose maps are dense
    # vectors: frozen vectors of the data, auto: if there are any
    embeddings: Literal["auto", "vectors", "trained"] = "auto"
    dropout: Probability = 0.1  # for words, and before the maps of the classifier

    def _widths(self) -> dict[str, int]:
        return {"width": self.width, "embedding_width": self.embedding_width}


class ProbeSection(LinearSection):
    """A perceptron that predicts a property of a sentence from the vector."""

    kind: Literal["probe"] = "probe"
    pooling: Literal["mean", "max", "last"] = "mean"  # over the encoder's positions
    hidden: NonNegativeInt = 50  # width of the hidden layer (0: a single linear map)

    def _widths(self) -> dict[str, int]:
        return {"hidden": self.hidden} if self.hidden else {}


class RuleModelSection(LinearSection):
    """A linear map that learns a multiplication rule (Figure 2)."""

    kind: Literal["rule"] = "rule"
    bias: bool = False


def _check_parts(key: str, composition: str, parts_key: str, parts: int) -> None:
    """Raise ValueError if a composition is impossible for this number of layers or heads."""
    if composition != "none" and parts < 2:
        raise ValueError(f"{key} = {composition!r} needs at least 2 parts, not {parts_key} = {parts}")
    if composition == "hierarchical" and parts % 2:
        raise ValueError(f"{key} = {composition!r} joins pairs: it needs an even number, not {parts_key} = {parts}")
