"""The recipe: everything that defines an experiment, as strict pydantic models. Each task has its own class.

Each field's comment says its unit. Unknown keys are refused; the loader (:mod:`phmctl.recipe.loading`) turns what
pydantic reports into messages with a YAML line and the nearest known key.
"""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from phmctl.dimension import check_divides
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

# --------------------------------------------------------------------------------------------------------- data


class ParallelSection(Section):
    """Which corpus of sentence pairs in two languages, and how its text becomes tokens."""

    card: str  # the name of a dataset card or of your own corpus
    tokenizer: Literal["bpe", "word"] = "bpe"  # byte-pair encoding, or words
    vocabulary: Vocabulary = 8000  # token types, special tokens included; of each side if not joint
    joint: bool = True  # one vocabulary for both sides
    direction: Literal["forward", "reverse"] = "forward"  # reverse: from the corpus' target language to its source
    copies: bool = False  # train has each target as its own source too, for style transfer
    max_tokens: PositiveInt = 256  # longest side kept in train, in tokens of the text


class LabelledSection(Section):
    """Which corpus of labelled texts or pairs of texts, and how its text becomes tokens."""

    card: str  # the name of a dataset card or of your own corpus
    tokenizer: Literal["bpe", "word"] = "word"  # byte-pair encoding, or words
    vocabulary: Vocabulary = 20_000  # token types, special tokens included
    max_tokens: PositiveInt = 128  # longest text kept in train, in tokens of the text


class ProbingSection(LabelledSection):
    """Which corpus of labelled sentences; the keys of its tokens say where it lies, for encoders have their own."""

    language: str | None = None  # language of the sentences; training warns if the encoder reads another


class RuleDataSection(Section):
    """Products of random numbers, made on the fly: what a PHM layer is to learn a rule from (Figure 2)."""

    product: Literal["rotation-3d", "hamilton", "octonion"]  # the rule to learn
    samples: PositiveInt = 1000  # number of training examples
    dims: Width = 1  # number of hypercomplex features of input and output
    seed: Seed = 1  # draws the true map and the samples

    @property
    def components(self) -> int:
        """Real numbers in one hypercomplex feature."""
        return {"rotation-3d": 3, "hamilton": 4, "octonion": 8}[self.product]


# ----------------------------------------------------------------------------------------------------- training


class TrainingSection(Section):
    """The optimisation: what all tasks share. How a batch is measured is the task's own."""

    batch_key: ClassVar[str] = ""  # the task's field that says how large a micro-batch is

    steps: NonNegativeInt = 0  # number of optimiser steps; required unless `minutes` is set
    minutes: NonNegative = 0.0  # in place of `steps`: as many steps as fit into these minutes, timed before step 1
    accumulate: PositiveInt = 1  # number of micro-batches of an optimiser step
    optimizer: Literal["adam", "adamw"] = "adam"  # adamw decouples the weight decay
    beta1: Probability = 0.9  # Adam: decay of the first moment
    beta2: Probability = 0.98  # Adam: decay of the second moment
    epsilon: Positive = 1e-9  # Adam: term added to the denominator
    weight_decay: NonNegative = 0.0  # of a PHM weight one factor decays
    learning_rate: Positive = 1e-3  # peak learning rate of embeddings, norms and biases; of maps with rates: one
    # structured: each factor of a map has the rate that fits its width and scale
    rates: Literal["structured", "one"] = "structured"
    schedule: Literal["inverse_sqrt", "constant", "linear"] = "inverse_sqrt"  # learning rate after warm-up
    warmup: NonNegativeInt = 4000  # number of steps in which the learning rate rises
    clip: NonNegative = 0.0  # largest global gradient norm; 0 is off
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: autocast, float32 master weights
    seed: Seed = 1  # draws initialisation, dropout and batch order
    log_every: Annotated[PositiveInt, NOTHING] = 50  # steps between lines of metrics.jsonl
    validate_every: Annotated[PositiveInt, CHOICE] = 500  # steps between validations
    save_every: Annotated[PositiveInt, CHOICE] = 500  # steps between checkpoints
    keep: Annotated[PositiveInt, NOTHING] = 1  # number of newest checkpoints to keep beside `best`
    # number of last checkpoints whose weights are averaged at the end; 0 is off
    average: Annotated[NonNegativeInt, CHOICE] = 0
    # number of validations without improvement after which training stops; 0 is off
    patience: Annotated[NonNegativeInt, CHOICE] = 0
    device: Annotated[str, NOTHING] = "auto"  # auto, cpu, cuda, cuda:1
    initialise_from: str | None = None  # a run: the model begins with its tensors of the same name and shape
    threads: Annotated[NonNegativeInt, NOTHING] = 0  # number of CPU threads; 0 leaves torch's own choice
    tensorboard: Annotated[bool, NOTHING] = False  # write TensorBoard files too; needs the extra tensorboard
    compile: bool = False  # torch.compile of the model; needs a C++ compiler on a CPU
    timeout: Annotated[PositiveInt, NOTHING] = 600  # seconds that one process waits for another

    @model_validator(mode="after")
    def _one_length(self) -> Self:
        if not self.steps and not self.minutes:
            raise ValueError("steps (or minutes) is missing or 0")
        if self.steps and self.minutes:
            raise ValueError("steps and minutes both say how long a training is; set one to 0: training.steps=0")
        return self


class TranslationTraining(TrainingSection):
    """Batches are measured in tokens."""

    batch_key = "batch_tokens"

    batch_tokens: PositiveInt = 4096  # tokens of a micro-batch: sentences × longest side, padding included
    label_smoothing: Probability = 0.1  # share of the probability spread over all classes
    validate_bleu: bool = False  # compute greedy BLEU on valid; `best` then follows BLEU
    # sacrebleu tokenizer of BLEU (13a, zh, ja-mecab, char, …); by default that of the card's language
    bleu_tokenizer: Annotated[str | None, CHOICE] = None


class CountedTraining(TrainingSection):
    """Batches are counted."""

    batch_key = "batch_size"

    batch_size: PositiveInt = 64  # number of texts, pairs or samples of a micro-batch


class ClassificationTraining(CountedTraining):
    """Batches of texts or pairs."""

    label_smoothing: Probability = 0.0  # share of the probability spread over all classes
    teacher: str | None = None  # run whose probabilities are learned; same labels and vocabulary
    # weight of the teacher's probabilities in the loss; the labels have the rest
    teacher_weight: Annotated[float, Field(ge=0, le=1)] = 0.5


class ProbeTraining(TrainingSection):
    """L-BFGS on all vectors at once; `steps` counts its iterations."""

    weight_decay: NonNegative = 1e-5

    @model_validator(mode="after")
    def _only_lbfgs_keys(self) -> Self:
        used = {"steps", "weight_decay", "validate_every", "patience", "seed", "device", "threads"}
        if unused := sorted(self.model_fields_set - used):
            raise ValueError(f"training.{unused[0]} has no effect on probes, which L-BFGS fits; leave it out")
        return self


# ----------------------------------------------------------------------------------------------------- decoding


class DecodingSection(Section):
    """Beam search."""

    beam: Annotated[int, Field(ge=1, le=1000)] = 5  # beam size; 1 is greedy
    alpha: Annotated[float, Field(ge=0, le=10)] = 0.6  # exponent of the length penalty ((5 + |Y|) / 6)^alpha
    max_ratio: Annotated[float, Field(gt=0, le=1000)] = 2.0  # longest output = max_ratio × source tokens + max_extra
    max_extra: Annotated[int, Field(ge=0, le=100_000)] = 20  # see max_ratio
    batch_tokens: Annotated[PositiveInt, NOTHING] = 2048  # source tokens of a batch, padding included
    # bfloat16: compute in it on a device that has it; null is float32
    precision: Literal["float32", "bfloat16"] | None = None


# ------------------------------------------------------------------------------------------------------ recipes


class Recipe(Section):
    """One experiment, of any task."""

    model_config = ConfigDict(title="recipe")

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    task: str
    description: Annotated[str, NOTHING] = ""  # one sentence about the recipe
    data: Section
    model: LinearSection
    training: TrainingSection

    @property
    def variant(self) -> str:
        """The run folder's second part: ``real``, ``quaternion``, ``phm-n4``; with upsize 2 ``phm-n4-x2``."""
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
                f"training.batch_tokens = {self.training.batch_tokens} holds no sentence of data.max_tokens = "
                f"{self.data.max_tokens} and its two boundary tokens; raise the one or lower the other"
            )
        return self


class ClassificationRecipe(Recipe):
    """A label for a text or a pair of texts."""

    task: Literal["classification"] = "classification"
    data: LabelledSection
    model: Annotated[EncoderClassifierSection | PairClassifierSection, Field(discriminator="kind")]
    training: ClassificationTraining


class ProbingRecipe(Recipe):
    """Properties of a sentence read from an encoder's vectors (Conneau et al. 2018; Table 3 of Li et al. 2020)."""

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
        check_divides(self.model.dimension, features=self.data.dims * self.data.components)
        return self


# What the key `task` may say, and which recipe it means.
RECIPES: dict[str, type[Recipe]] = {
    "translation": TranslationRecipe,
    "classification": ClassificationRecipe,
    "probing": ProbingRecipe,
    "rule": RuleRecipe,
}
