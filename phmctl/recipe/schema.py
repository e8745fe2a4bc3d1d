"""The recipe: everything that defines an experiment, as strict pydantic models.

Each field's comment says its unit. Unknown keys are refused; the loader (:mod:`phmctl.recipe.loading`) turns what
pydantic reports into messages with a YAML line and the nearest known key.
"""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from phmctl.dimension import FIXED_DIMENSION, check_divides

Algebra = Literal["real", "complex", "quaternion", "octonion", "sedenion", "phm"]

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
NonNegative = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    """A part of a recipe: immutable, strictly typed, with no unknown keys and no infinite numbers or NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DataSection(Section):
    """Which corpus, and how its text becomes tokens."""

    card: str  # the dataset card's id, or a name of the user's own corpus
    tokenizer: Literal["bpe", "word"] = "bpe"
    vocabulary: Annotated[int, Field(ge=8)] = 8000  # token types, special tokens included; a side, if not joint
    joint: bool = True  # one vocabulary for both sides
    max_tokens: PositiveInt = 256  # longest side kept in train, in tokens with the end of sentence


class ModelSection(Section):
    """The encoder-decoder Transformer. `algebra` and `n` choose every linear map's parametrization."""

    kind: Literal["transformer"] = "transformer"
    algebra: Algebra = "real"
    n: PositiveInt = 1  # a fixed algebra sets its own in place of 1; phm wants 2 or more
    rules: Literal["separate", "sublayer", "model"] = "separate"  # how far one learned rule A is shared
    # how H is applied: by a cost model, built, never built, or by as many block products as the rule's rank
    execution: Literal["auto", "dense", "factored", "rank"] = "auto"
    parametrization: Literal["rule", "factors"] = "rule"  # a learned rule is held as A, or as its factors W, U and V
    rank: PositiveInt | None = None  # R of the factors; by default that of a random rule
    width: PositiveInt = 512  # d, the residual width
    feed_forward: PositiveInt = 2048  # inner width of the feed-forward, before `upsize`
    heads: PositiveInt = 8
    encoder_layers: NonNegativeInt = 6
    decoder_layers: PositiveInt = 6
    upsize: PositiveInt = 1  # 2 doubles the inner widths (attention, feed-forward): the † rows of Table 2
    # fused: QKV one map, cross-attention Q and fused KV (§4.2); separate: one map each of Q, K, V;
    # packed: one in-projection of 3d rows in cross-attention too (CENG501)
    projections: Literal["fused", "separate", "packed"] = "fused"
    embeddings: Literal["dense", "phm"] = "dense"
    generator: Literal["dense", "phm", "tied"] = "tied"  # tied: the target embedding's weight
    generator_bias: bool = False
    share_embeddings: bool = True  # source and target share one table; wants a joint vocabulary
    bias: bool = True  # biases of the linear maps
    norm: Literal["pre", "post"] = "pre"
    final_norm: bool = True  # a layer norm behind each stack
    dropout: Probability = 0.1  # residual and embedding
    attention_dropout: Probability = 0.0
    activation_dropout: Probability = 0.0

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        implied = self.dimension
        if self.n not in (1, implied):
            raise ValueError(f"algebra {self.algebra!r} has n = {implied}, not {self.n}; leave n out or use 'phm'")
        object.__setattr__(self, "n", implied)  # frozen; a recipe that leaves n out equals one that gives it
        if self.algebra == "phm" and self.n < 2:
            raise ValueError("algebra 'phm' wants n of at least 2: set n, or take algebra 'real', which is n = 1")
        check_divides(self.dimension, width=self.width, feed_forward=self.feed_forward * self.upsize)
        if self.width % self.heads:
            raise ValueError(f"heads = {self.heads} must divide width = {self.width}")
        if self.width % 2:
            raise ValueError(f"width = {self.width} must be even (sinusoidal positions)")
        if self.parametrization == "factors" and self.algebra != "phm":
            raise ValueError(f"parametrization 'factors' wants algebra 'phm'; {self.algebra!r} has no learned rule")
        if self.rank is not None and self.parametrization != "factors":
            raise ValueError("rank wants parametrization: factors")
        if self.execution == "rank" and self.algebra == "phm" and self.parametrization != "factors":
            raise ValueError("execution 'rank' wants parametrization: factors to train a learned rule")
        if self.generator == "tied" and self.generator_bias:
            raise ValueError("generator_bias wants generator: dense or phm")
        return self

    @property
    def dimension(self) -> int:
        """n as the layers use it: implied by a fixed algebra."""
        return FIXED_DIMENSION.get(self.algebra, self.n)


class TrainingSection(Section):
    """The optimisation."""

    steps: PositiveInt  # optimiser steps
    batch_tokens: PositiveInt = 4096  # sentences × longest side of a micro-batch, padding included
    accumulate: PositiveInt = 1  # micro-batches an optimiser step
    optimizer: Literal["adam", "adamw"] = "adam"
    beta1: Probability = 0.9
    beta2: Probability = 0.98
    epsilon: Annotated[float, Field(gt=0)] = 1e-9
    weight_decay: NonNegative = 0.0
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3  # the peak
    schedule: Literal["inverse_sqrt", "constant", "linear"] = "inverse_sqrt"
    warmup: NonNegativeInt = 4000  # steps
    clip: NonNegative = 0.0  # global gradient norm; 0 is off
    label_smoothing: Probability = 0.1
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: autocast, float32 master weights
    seed: NonNegativeInt = 1
    log_every: PositiveInt = 50  # steps
    validate_every: PositiveInt = 500  # steps
    validate_bleu: bool = False  # greedy BLEU on the validation set; `best` then follows it
    save_every: PositiveInt = 500  # steps
    keep: PositiveInt = 1  # newest checkpoints kept beside `best`
    average: NonNegativeInt = 0  # average the last so many checkpoints at the end; 0 is off
    patience: NonNegativeInt = 0  # validations without improvement before the run stops; 0 is off
    device: str = "auto"  # auto, cpu, cuda, cuda:1
    threads: NonNegativeInt = 0  # CPU threads; 0 leaves torch's own choice
    tensorboard: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.average > self.keep:
            raise ValueError(f"average = {self.average} wants keep >= {self.average}, not {self.keep}")
        return self


class DecodingSection(Section):
    """Beam search."""

    beam: PositiveInt = 5
    alpha: NonNegative = 0.6  # GNMT length penalty exponent: ((5 + |Y|) / 6)^alpha
    max_ratio: Annotated[float, Field(gt=0)] = 2.0  # longest output = max_ratio * source tokens + max_extra
    max_extra: NonNegativeInt = 20
    batch_tokens: PositiveInt = 2048  # source tokens a batch, padding included


class Recipe(Section):
    """One experiment."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    task: Literal["translation"] = "translation"
    description: str = ""
    data: DataSection
    model: ModelSection
    training: TrainingSection
    decoding: DecodingSection = DecodingSection()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.model.share_embeddings and not self.data.joint:
            raise ValueError("model.share_embeddings wants data.joint: true")
        if self.data.max_tokens + 1 > self.training.batch_tokens:
            raise ValueError(
                f"training.batch_tokens = {self.training.batch_tokens} holds no sentence of data.max_tokens = "
                f"{self.data.max_tokens} and its two boundary tokens; raise the one or lower the other"
            )
        return self

    @property
    def variant(self) -> str:
        """The run folder's second part: ``real``, ``phm-n4``; upsize 2: ``phm-n4-x2``; factors: ``phm-n4-factors``."""
        model = self.model
        name = f"phm-n{model.n}" if model.algebra == "phm" else model.algebra
        if model.parametrization == "factors":
            name += f"-r{model.rank}" if model.rank else "-factors"
        return f"{name}-x{model.upsize}" if model.upsize > 1 else name
