"""Recipes as pydantic models, one for each task.

The comments of the fields are the reference of the recipe's keys.
"""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from phmctl.algebra.dimension import check_divides
from phmctl.recipe.models import (
    CHOICE,
    NOTHING,
    EncoderClassifierSection,
    LinearSection,
    NonNegative,
    NonNegativeInt,
    PairClassifierSection,
    Positive,
    PositiveInt,
    Probability,
    ProbeSection,
    RuleModelSection,
    Section,
    Seed,
    TransformerSection,
    Vocabulary,
    Width,
)


class ParallelSection(Section):
    """A corpus of sentence pairs and the tokenization."""

    card: str  # a dataset card or your own corpus
    tokenizer: Literal["bpe", "word"] = "bpe"  # byte-pair encoding, or words
    vocabulary: Vocabulary = 8000  # token types including special tokens
    joint: bool = True  # both sides share a vocabulary (false: one of this size each)
    direction: Literal["forward", "reverse"] = "forward"  # reverse: from target to source
    copies: bool = False  # each target is also a source in train, for style transfer
    max_tokens: PositiveInt = 256  # maximum length of a text in train, in tokens


class LabelledSection(Section):
    """A corpus of labelled texts or pairs of texts and the tokenization."""

    card: str  # a dataset card or your own corpus
    tokenizer: Literal["bpe", "word"] = "word"  # byte-pair encoding, or words
    vocabulary: Vocabulary = 20_000  # token types including special tokens
    max_tokens: PositiveInt = 128  # maximum length of a text in train, in tokens


class ProbingSection(LabelledSection):
    """A corpus of labelled sentences. The tokenizer only locates the prepared data, because each encoder has one."""

    language: str | None = None  # language of the sentences


class RuleDataSection(Section):
    """Random products from which a layer learns a multiplication rule (Figure 2)."""

    product: Literal["rotation-3d", "hamilton", "octonion"]  # the rule to learn
    samples: PositiveInt = 1000  # training examples
    dims: Width = 1  # hypercomplex features of input and output
    seed: Seed = 1  # seed of the true map and the samples

    @property
    def components(self) -> int:
        """Number of components of a hypercomplex feature."""
        return {"rotation-3d": 3, "hamilton": 4, "octonion": 8}[self.product]


class TrainingSection(Section):
    """The optimisation. Subclasses define the batch size."""

    batch_key: ClassVar[str] = ""  # name of the field with the size of a micro-batch

    steps: PositiveInt  # optimiser steps, for probes iterations of L-BFGS
    accumulate: PositiveInt = 1  # micro-batches per optimiser step
    optimizer: Literal["adam", "adamw"] = "adam"  # adamw decouples the weight decay
    beta1: Probability = 0.9  # Adam: decay of the first moment
    beta2: Probability = 0.98  # Adam: decay of the second moment
    epsilon: Positive = 1e-9  # Adam: term added to the denominator
    weight_decay: NonNegative = 0.0  # applies to one factor of a PHM weight
    learning_rate: Positive = 1e-3  # peak rate of embeddings, norms, biases
    # structured: a rate for each factor of a map, one: learning_rate for all
    rates: Literal["structured", "one"] = "structured"
    schedule: Literal["inverse_sqrt", "constant", "linear"] = "inverse_sqrt"  # learning rate after warm-up
    warmup: NonNegativeInt = 4000  # steps in which the learning rate rises
    clip: NonNegative = 0.0  # maximum global gradient norm (0: off)
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: autocast, float32 master weights
    seed: Seed = 1  # seed of initialisation, dropout and batch order
    log_every: Annotated[PositiveInt, NOTHING] = 50  # steps between lines of metrics.jsonl
    validate_every: Annotated[PositiveInt, CHOICE] = 500  # steps between validations
    save_every: Annotated[PositiveInt, CHOICE] = 500  # steps between checkpoints
    keep: Annotated[PositiveInt, NOTHING] = 1  # newest checkpoints to keep, in addition to `best`
    # last checkpoints to average at the end
    average: Annotated[NonNegativeInt, CHOICE] = 0
    # validations without improvement before training stops (0: never)
    patience: Annotated[NonNegativeInt, CHOICE] = 0
    device: Annotated[str, NOTHING] = "auto"  # auto, cpu, cuda, cuda:1
    initialise_from: str | None = None  # run whose tensors initialise the model
    threads: Annotated[NonNegativeInt, NOTHING] = 0  # CPU threads (0: as many as cores)
    tensorboard: Annotated[bool, NOTHING] = False  # also write TensorBoard files
    compile: bool = False  # use torch.compile (on a CPU with a C++ compiler)
    timeout: Annotated[PositiveInt, NOTHING] = 600  # seconds that a process waits for the others


class TranslationTraining(TrainingSection):
    """Training with batches of a number of tokens."""

    batch_key = "batch_tokens"

    batch_tokens: PositiveInt = 4096  # tokens of a micro-batch with padding: sentences × longest side
    label_smoothing: Probability = 0.1  # probability spread over all classes
    validate_bleu: bool = False  # compute greedy BLEU on valid, which `best` then follows
    # sacrebleu tokenizer (default: the language's)
    bleu_tokenizer: Annotated[str | None, CHOICE] = None


class CountedTraining(TrainingSection):
    """Training with batches of a number of examples."""

    batch_key = "batch_size"

    batch_size: PositiveInt = 64  # texts, pairs or samples of a micro-batch


class ClassificationTraining(CountedTraining):
    """Training of classifiers."""

    label_smoothing: Probability = 0.0  # probability spread over all classes
    teacher: str | None = None  # run whose probabilities are learned
    # weight of the teacher's probabilities in the loss
    teacher_weight: Annotated[float, Field(ge=0, le=1)] = 0.5


class ProbeTraining(TrainingSection):
    """L-BFGS on all vectors at once. `steps` counts the iterations."""

    USED: ClassVar = frozenset({"steps", "weight_decay", "validate_every", "patience", "seed", "device", "threads"})

    weight_decay: NonNegative = 1e-3

    @model_validator(mode="after")
    def _only_lbfgs_keys(self) -> Self:
        if unused := [key for key in self.changed_keys() if key not in self.USED]:
            raise ValueError(f"training.{unused[0]} does nothing for probes, which L-BFGS fits: leave it out")
        return self


class DecodingSection(Section):
    """Beam search."""

    beam: Annotated[int, Field(ge=1, le=1000)] = 5  # beam size (1: greedy)
    alpha: Annotated[float, Field(ge=0, le=10)] = 0.6  # exponent of the length penalty ((5 + |Y|) / 6)^alpha
    max_ratio: Annotated[float, Field(gt=0, le=1000)] = 2.0  # maximum output: max_ratio × source tokens + max_extra
    max_extra: Annotated[int, Field(ge=0, le=100_000)] = 20  # see max_ratio
    batch_tokens: Annotated[PositiveInt, NOTHING] = 2048  # source tokens of a batch, with padding
    # bfloat16: on a device that has it (null: float32)
    precision: Literal["float32", "bfloat16"] | None = None


class Recipe(Section):
    """An experiment of any task."""

    model_config = ConfigDict(title="recipe")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
    task: str
    description: Annotated[str, NOTHING] = ""  # a sentence about the recipe
    data: Section
    model: LinearSection
    training: TrainingSection

    @property
    def variant(self) -> str:
        """The variant in a run's path: ``real``, ``quaternion``, ``phm-n4``, with upsize 2 ``phm-n4-x2``."""
        return self.model.variant


class TranslationRecipe(Recipe):
    """Translation and style transfer."""

    task: Literal["translation"] = "translation"
    data: ParallelSection
    model: TransformerSection
    training: TranslationTraining
    decoding: Annotated[DecodingSection, CHOICE] = DecodingSection()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.model.share_embeddings and not self.data.joint:
            raise ValueError("model.share_embeddings needs data.joint: true")
        if self.data.max_tokens + 2 > self.training.batch_tokens:
            raise ValueError(
                f"training.batch_tokens = {self.training.batch_tokens} is too small for a sentence of data.max_tokens "
                f"= {self.data.max_tokens} and 2 boundary tokens: raise batch_tokens or lower max_tokens"
            )
        return self


class ClassificationRecipe(Recipe):
    """Classification of texts or pairs of texts."""

    task: Literal["classification"] = "classification"
    data: LabelledSection
    model: Annotated[EncoderClassifierSection | PairClassifierSection, Field(discriminator="kind")]
    training: ClassificationTraining


class ProbingRecipe(Recipe):
    """Properties of a sentence read from an encoder's vectors (Conneau et al. 2018, Table 3 of Li et al. 2020)."""

    task: Literal["probing"] = "probing"
    data: ProbingSection
    model: ProbeSection
    training: ProbeTraining


class RuleRecipe(Recipe):
    """Learning a multiplication rule from examples."""

    task: Literal["rule"] = "rule"
    data: RuleDataSection
    model: RuleModelSection
    training: CountedTraining

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        check_divides(self.model.n, features=self.data.dims * self.data.components)
        return self


# The recipe class of each value of the key `task`.
RECIPES: dict[str, type[Recipe]] = {
    "translation": TranslationRecipe,
    "classification": ClassificationRecipe,
    "probing": ProbingRecipe,
    "rule": RuleRecipe,
}


# ------------------------------------------------------------------------------------------ comparisons by keys


def flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of nested mappings, with keys as ``--set`` takes them: ``training.steps``."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def differences(
    first: Section | Mapping[str, object], second: Section | Mapping[str, object]
) -> dict[str, tuple[object, object]]:
    """Return both values of the keys in which two recipes or settings differ. A missing key has the value None."""
    contents = [content if isinstance(content, Mapping) else content.model_dump() for content in (first, second)]
    old_values, new_values = (dict(flatten(content)) for content in contents)
    values = {key: (old_values.get(key), new_values.get(key)) for key in old_values | new_values}
    return {key: (old, new) for key, (old, new) in values.items() if old != new}


def keys_changing(section: Section, *effects: str, prefix: str = "", inherited: str = "") -> set[str]:
    """Return the keys, as ``--set`` takes them, with one of these marks. A key inherits the mark of the section."""
    keys = set()
    for name, field in type(section).model_fields.items():
        effect = next((mark for mark in (CHOICE, NOTHING) if mark in field.metadata), inherited)
        value = getattr(section, name)
        if isinstance(value, Section):
            keys |= keys_changing(value, *effects, prefix=f"{prefix}{name}.", inherited=effect)
        elif effect in effects:
            keys.add(prefix + name)
    return keys


def training_changes(old: Recipe, new: Recipe) -> dict[str, tuple[object, object]]:
    """Return the differences of two recipes that change a training step. A linear schedule ends at the last step."""
    free = keys_changing(new, CHOICE, NOTHING)
    if new.training.schedule != "linear":
        free.add("training.steps")
    return {key: values for key, values in differences(old, new).items() if key not in free}


def result_changes(old: Recipe, new: Recipe) -> dict[str, tuple[object, object]]:
    """Return the differences of two recipes that change what a training writes. The decoding is chosen afterwards."""
    free = keys_changing(new, NOTHING)
    changes = differences(old, new).items()
    return {key: values for key, values in changes if key not in free and not key.startswith("decoding.")}
