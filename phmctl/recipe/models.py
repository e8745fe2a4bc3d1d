"""The ``model`` sections of recipes: one a kind of model. All choose their linear maps in the same way."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from phmctl.dimension import FIXED_DIMENSION, LOW_RANK, TWO_FACTORS, WITH_FACTORS, WITH_N, check_divides

MOST = 10**9  # steps, rows, tokens: far more than anybody trains, and far from what overflows
PositiveInt = Annotated[int, Field(ge=1, le=MOST)]
NonNegativeInt = Annotated[int, Field(ge=0, le=MOST)]
Seed = Annotated[int, Field(ge=0, lt=2**63)]
Vocabulary = Annotated[int, Field(ge=8, le=10**7)]
Width = Annotated[int, Field(ge=1, le=2**16)]  # the product of two, in bytes, is what one machine can hold
Layers = Annotated[int, Field(ge=1, le=1000)]
Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


# What a key of a recipe changes, beside its type: which checkpoints there are, which is chosen and how it answers; or
# nothing of what is found. A key without either changes what a step computes.
CHOICE, NOTHING = "choice", "nothing"


class Section(BaseModel):
    """A part of a recipe: immutable, strictly typed, with no unknown keys and no infinite numbers or NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def keys_changing(section: Section, *what: str, prefix: str = "", whole: str = "") -> set[str]:
    """Return the keys that change a ``CHOICE`` or ``NOTHING``, as ``--set`` takes them; a section's says so of all."""
    keys = set()
    for name, field in type(section).model_fields.items():
        effect = next((each for each in field.metadata if each in (CHOICE, NOTHING)), whole)
        value = getattr(section, name)
        if isinstance(value, Section):
            keys |= keys_changing(value, *what, prefix=f"{prefix}{name}.", whole=effect)
        elif effect in what:
            keys.add(prefix + name)
    return keys


Algebra = Literal["real", "complex", "quaternion", "octonion", "sedenion", "phm", "low-rank", "monarch"]


class LinearSection(Section):
    """What every model's section has: the parametrization of its linear maps, which `algebra` and `n` choose."""

    kind: str
    algebra: Algebra = "real"  # phm learns the rule; low-rank and monarch are for comparison
    # number of components of phm, of blocks of monarch: 2 or more; a fixed algebra implies its own
    n: Annotated[int, Field(ge=1, le=1024)] = 1
    # maps that share one learned rule: none, those of a sublayer, all
    rules: Literal["separate", "sublayer", "model"] = "separate"
    # how maps are applied: dense builds H, rank multiplies by R blocks of factors; by default rank where it is faster
    execution: Literal["dense", "rank"] | None = None
    parametrization: Literal["rule", "factors"] = "rule"  # a learned rule is stored as A, or as its factors W, U and V
    # number of terms R of the factors, by default that of a random rule; rank of low-rank maps
    rank: Width | None = None
    bias: bool = True  # whether linear maps have biases

    @model_validator(mode="after")
    def _settle_n(self) -> Self:
        implied = self.dimension
        if self.n not in (1, implied):
            raise ValueError(f"algebra {self.algebra!r} has n = {implied}, not {self.n}; leave n out or use 'phm'")
        object.__setattr__(self, "n", implied)  # frozen; a recipe that leaves n out equals one that gives it
        if self.algebra in WITH_N and self.n < 2:
            raise ValueError(f"algebra {self.algebra!r} needs n of at least 2; what has n = 1 is algebra 'real'")
        check_divides(implied, **self._widths())
        return self

    @model_validator(mode="after")
    def _fit_execution(self) -> Self:
        factors = self.parametrization == "factors"
        if factors and self.algebra != "phm":
            raise ValueError(f"parametrization 'factors' needs algebra 'phm'; {self.algebra!r} has no learned rule")
        if self.rank is not None and not factors and self.algebra != LOW_RANK:
            raise ValueError("rank needs parametrization: factors, or algebra: low-rank")
        if self.execution == "rank" and not factors and self.algebra not in WITH_FACTORS:
            raise ValueError("execution 'rank' needs parametrization: factors, or algebra complex or quaternion")
        return self

    @model_validator(mode="after")
    def _fit_two_factors(self) -> Self:
        if self.algebra not in TWO_FACTORS:
            return self
        if not isinstance(self, StackSection):
            raise ValueError(f"algebra {self.algebra!r} is for Transformers")
        if self.algebra == LOW_RANK and self.rank is None:
            raise ValueError("algebra 'low-rank' needs a rank: set model.rank")
        for key in ("execution", "rules"):
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} is about hypercomplex maps; leave it out with algebra {self.algebra!r}")
        return self

    @property
    def dimension(self) -> int:
        """n as the layers use it: implied by a fixed algebra."""
        return self.n if self.algebra in WITH_N else FIXED_DIMENSION.get(self.algebra, 1)

    @property
    def variant(self) -> str:
        """The run folder's second part: ``real``, ``quaternion``, ``phm-n4``; with factors ``phm-n4-factors``."""
        name = f"{self.algebra}-n{self.n}" if self.algebra in WITH_N else self.algebra
        if self.rank is not None:
            return f"{name}-r{self.rank}"
        return f"{name}-factors" if self.parametrization == "factors" else name

    @property
    def dense_twin(self) -> Self:
        """The same model with every map dense."""
        dense = {"algebra": "real", "n": 1, "execution": None, "parametrization": "rule", "rank": None}
        return self.model_copy(update=dense)

    def _widths(self) -> dict[str, int]:
        """Return the widths that n must divide, by the names that messages call them."""
        return {}


class StackSection(LinearSection):
    """What models of Transformer layers share."""

    width: Width = 512  # residual width d
    feed_forward: Width = 2048  # inner width of the feed-forward, before `upsize`
    heads: Width = 8  # number of attention heads; must divide the width
    # columns of the embeddings, which a map of the model's algebra takes to the width; null: the width
    embedding_width: Width | None = None
    upsize: Layers = 1  # factor of the inner widths (attention, feed-forward); 2: the † rows of Table 2
    # fused: QKV one map, cross-attention Q and fused KV (§4.2); separate: one map each of Q, K, V;
    # packed: one in-projection of 3d rows in cross-attention too (CENG501)
    projections: Literal["fused", "separate", "packed"] = "fused"
    norm: Literal["pre", "post"] = "pre"  # layer norm before or after each sublayer
    final_norm: bool = True  # a layer norm after each stack
    dropout: Probability = 0.1  # of residuals and embeddings
    attention_dropout: Probability = 0.0  # of attention weights
    activation_dropout: Probability = 0.0  # after the ReLU of the feed-forward
    # output of a stack: that of the top layer (none), or a composition of all layers (Li et al. 2020)
    compose_layers: Literal["none", "linear", "hierarchical", "bilinear"] = "none"
    # output of attention: heads concatenated and one map (none), or a composition of the heads
    compose_heads: Literal["none", "hierarchical", "bilinear"] = "none"
    composition_rank: Width | None = None  # r of bilinear compositions; by default the width
    first_order: bool = True  # bilinear: append a 1 to the parts, for first-order features (eq. 11)
    composition_maps: Literal["algebra", "dense"] = "algebra"  # dense: maps of compositions are dense

    # base: linear and bilinear compositions start as what they replace, to continue from the run of --init
    composition_start: Literal["random", "base"] = "random"

    @model_validator(mode="after")
    def _fit_heads_and_positions(self) -> Self:
        if self.width % self.heads:
            raise ValueError(f"heads = {self.heads} must divide width = {self.width}")
        if self.width % 2:
            raise ValueError(f"width = {self.width} must be even (sinusoidal positions)")
        return self

    @model_validator(mode="after")
    def _fit_composition(self) -> Self:
        if self.composes and self.composition_maps == "algebra" and self.algebra in TWO_FACTORS:
            raise ValueError(f"compositions of algebra {self.algebra!r} need composition_maps: dense")
        if not self.composes and self.composition_maps == "dense":
            raise ValueError("composition_maps: dense needs compose_layers or compose_heads")
        plain = "bilinear" not in (self.compose_layers, self.compose_heads)
        for key in ("composition_rank", "first_order"):
            if plain and getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} is for compose_layers or compose_heads: bilinear")
        counted = [key for key in ("encoder_layers", "decoder_layers", "layers") if key in type(self).model_fields]
        parts = [("compose_layers", str(self.compose_layers), key) for key in counted]
        for key, kind, of in [*parts, ("compose_heads", self.compose_heads, "heads")]:
            number = getattr(self, of)
            if kind != "none" and number < 2:
                raise ValueError(f"{key} = {kind!r} composes two or more, and {of} = {number}")
            if kind == "hierarchical" and number % 2:
                raise ValueError(f"{key} = {kind!r} joins two at each node: an even number, not {of} = {number}")
        if self.composition_start == "base":
            self._check_start()
        return self

    def _check_start(self) -> None:
        """Refuse to begin as the base model where a composition cannot be that."""
        kinds = {self.compose_layers, self.compose_heads} - {"none"}
        dense_heads = self.compose_heads == "bilinear" and self.composition_maps == "dense" and self.algebra != "real"
        learned = self.composition_maps == "algebra" and self.algebra == "phm" and self.n > 1
        narrow = "bilinear" in kinds and (self.pooling_rank != self.width or not self.first_order)
        shared = learned and (self.rules, self.parametrization) != ("separate", "rule")
        if not kinds or kinds - {"linear", "bilinear"} or narrow or dense_heads or shared:
            raise ValueError(
                "composition_start: base needs linear or bilinear compositions, first_order, "
                f"composition_rank = width = {self.width}, maps of the algebra, rules: separate, parametrization: rule"
            )

    @property
    def pooling_rank(self) -> int:
        """r of a bilinear composition."""
        return self.composition_rank or self.width

    @property
    def variant(self) -> str:
        """With upsize 2 ``phm-n4-x2``; with compositions ``real-layers-bilinear-heads-bilinear``."""
        name = f"{super().variant}-x{self.upsize}" if self.upsize > 1 else super().variant
        places = {"layers": self.compose_layers, "heads": self.compose_heads}
        return name + "".join(f"-{place}-{kind}" for place, kind in places.items() if kind != "none")

    @property
    def composes(self) -> bool:
        return (self.compose_layers, self.compose_heads) != ("none", "none")

    @property
    def uncomposed(self) -> Self:
        """The same model without compositions: their base."""
        keys = [name for name in type(self).model_fields if name.startswith("compos")] + ["first_order"]
        return self.model_copy(update={name: type(self).model_fields[name].default for name in keys})

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
    encoder_layers: Layers = 6  # number of encoder layers
    decoder_layers: Layers = 6  # number of decoder layers
    embeddings: Literal["dense", "phm"] = "dense"  # phm: PHM+
    # map to the vocabulary; tied: the weight of the target embedding
    generator: Literal["dense", "phm", "tied"] = "tied"
    generator_bias: bool = False  # only if the generator is not tied
    share_embeddings: bool = True  # one embedding for source and target; needs data.joint

    @model_validator(mode="after")
    def _fit_generator(self) -> Self:
        if self.algebra in TWO_FACTORS and "phm" in (self.embeddings, self.generator):
            raise ValueError(f"embeddings and generator are dense, or tied, with algebra {self.algebra!r}")
        if self.generator == "tied" and self.generator_bias:
            raise ValueError("generator_bias needs generator: dense or phm")
        return self


class EncoderClassifierSection(StackSection):
    """A Transformer encoder over one text, pooled over time (Table 5)."""

    kind: Literal["encoder"]
    width: Width = 128
    feed_forward: Width = 512
    heads: Width = 4  # number of attention heads; must divide the width
    layers: Layers = 2  # number of layers
    projections: Literal["fused", "separate"] = "fused"
    pooling: Literal["last", "mean"] = "last"  # state of the last token, or mean over all tokens


class PairClassifierSection(LinearSection):
    """One LSTM over both texts, max and mean pooling over time, a two-layer perceptron (Table 1)."""

    kind: Literal["lstm-pair"]
    width: Width = 300  # width of the LSTM state
    embedding_width: Width = 300  # width of word embeddings
    # separate: one map for each gate and input; fused: one for each input
    gates: Literal["separate", "fused"] = "separate"
    cell: Literal["standard", "as_printed"] = "standard"  # as_printed: no σ on o, no tanh on c
    combination: Literal["concat", "full"] = "concat"  # [u; v], or [u; v; |u−v|; u∗v]
    hidden: Width = 300  # hidden width of the classifier, which is always dense
    # vectors: frozen word vectors of the data; auto: if there are any
    embeddings: Literal["auto", "vectors", "trained"] = "auto"
    dropout: Probability = 0.1  # of words and before the maps of the classifier

    def _widths(self) -> dict[str, int]:
        return {"width": self.width, "embedding_width": self.embedding_width}


class ProbeSection(LinearSection):
    """A perceptron that reads a linguistic property from sentence vectors of a translator's frozen encoder."""

    kind: Literal["probe"] = "probe"
    pooling: Literal["mean", "max", "last"] = "mean"  # over the positions of the encoder, end of sentence included
    hidden: NonNegativeInt = 50  # width of the hidden layer; 0: one map from vectors to classes

    def _widths(self) -> dict[str, int]:
        return {"hidden": self.hidden} if self.hidden else {}


class RuleModelSection(LinearSection):
    """One linear map that is to find a multiplication rule (Figure 2)."""

    kind: Literal["rule"] = "rule"
    bias: bool = False  # whether the map has a bias
