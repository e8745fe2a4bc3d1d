"""Cards of labelled text: what the classes are, and how the files of each publisher are read."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from phmctl.data.card import Card, CardBase, FileNames, HubPlace, TextCleaning, card_task, load_card, read_card
from phmctl.recipe.sections import NonNegativeInt, PositiveInt, Section, Seed, Vocabulary

SPLIT_NAME = r"train|(?:valid|test)(?:_[a-z0-9_]+)?"
LabelledSplitName = Annotated[str, Field(pattern=f"^(?:{SPLIT_NAME})$")]
Column = str | NonNegativeInt  # by its name in the header, or counted from 0


class Rows(Section):
    """How a row becomes an example."""

    format: Literal["tsv", "csv", "jsonl"] = "tsv"
    quoting: bool = False  # cells may stand in quotes, as CSV has it; without it a quote is a character like others
    header: bool = True  # the first line names the columns
    texts: Annotated[tuple[Column, ...], Field(min_length=1, max_length=2)]
    label: Column
    verb: Column | None = None  # the text ends before the word of this number, counted from 1
    extras: dict[str, Column] = Field(default_factory=dict)  # whole numbers that are kept beside the label
    of_file: dict[str, dict[str, int]] = Field(default_factory=dict)  # extras that a file's name tells; otherwise -1
    split: Column | None = None  # names the split of a row, where one file holds all
    names: dict[str, str] = Field(default_factory=dict)  # the files' words for the card's labels
    unlabelled: tuple[str, ...] = ()  # what stands for "no label": such rows are dropped, and counted
    odd_rows: Literal["refuse", "drop"] = "refuse"  # rows of another width than the header's; dropped, they are counted
    header_has: tuple[str, ...] = ()  # columns that tell this layout from another with the same file names

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        named = [column for column in self.columns if isinstance(column, str)]
        if self.format == "jsonl" and len(named) < len(self.columns):
            raise ValueError("columns of jsonl have names")
        if self.odd_rows == "drop" and (self.format == "jsonl" or not self.header or self.split is not None):
            raise ValueError("odd_rows: drop wants a table with a header, and files of one split each")
        if not self.header and self.format != "jsonl" and (named or self.header_has):
            raise ValueError("without a header columns are numbers, counted from 0")
        return self

    @property
    def columns(self) -> list[Column]:
        """The columns that are read."""
        others = [column for column in (self.verb, self.split) if column is not None]
        return [*self.texts, self.label, *self.extras.values(), *others]


class ByText(Section):
    """A division by the text's own digest: equal texts stay together, and the order of the files does not matter."""

    of: Annotated[int, Field(ge=2)]  # shares
    valid: PositiveInt
    test: PositiveInt


class Shuffled(Section):
    """Tensor2Tensor's division of the agreement data: Python's shuffle, the first for train, the next for valid."""

    seed: Seed
    train: Annotated[float, Field(gt=0, lt=1)]
    valid: Annotated[float, Field(gt=0, lt=1)]
    test_where_equal: tuple[str, str] | None = None  # two extras; test keeps the examples where they are the same


class LabelledLayout(Section):
    """One way in which people have a labelled corpus on disk."""

    name: str
    rows: Rows
    splits: dict[LabelledSplitName, FileNames]
    optional: dict[LabelledSplitName, FileNames] = Field(default_factory=dict)  # splits that not everybody has
    parts: dict[LabelledSplitName, str] = Field(default_factory=dict)  # what `rows.split` says of each split's rows
    by_text: ByText | None = None  # how the only split becomes train, valid and test
    shuffled: Shuffled | None = None


class LabelledHub(HubPlace):
    """Where the hub has labelled rows."""

    splits: dict[LabelledSplitName, str]
    texts: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]
    label: str
    names: dict[str, str] = Field(default_factory=dict)
    unlabelled: tuple[str, ...] = ("-1",)


class Borrowed(Section):
    """A split of another card that is of interest here."""

    card: str
    split: LabelledSplitName = "test"


class LabelledCleaning(TextCleaning):
    """What the corpus' text wants, and which examples are left out."""

    duplicates: Literal["drop", "keep"] = "drop"  # train examples whose text stands in valid or test
    keep: Literal["start", "end"] = "start"  # which tokens stay of a text of valid or test that is too long


class LabelledDefaults(Section):
    """What `prepare-data` takes for the recipe's data section where nothing else is said."""

    tokenizer: Literal["bpe", "word"] = "word"
    vocabulary: Vocabulary = 20000
    max_tokens: PositiveInt = 128


class LabelledCard(CardBase):
    """A dataset card of texts, or pairs of texts, with labels."""

    task: Literal["classification"]
    texts: Annotated[int, Field(ge=1, le=2)]
    symmetric: bool = False  # the order of a pair's texts means nothing: swapped, they are the same example
    train_text: bool = False  # train keeps its text too, for models with tokenizers of their own
    labels: tuple[str, ...] = ()  # the classes, in the order of their numbers; empty: those that train has, sorted
    sizes: dict[LabelledSplitName, int] = Field(default_factory=dict)  # published rows, those without a label included
    defaults: LabelledDefaults = LabelledDefaults()
    cleaning: LabelledCleaning = LabelledCleaning()
    local: tuple[LabelledLayout, ...] = ()
    hub: LabelledHub | None = None
    borrowed: dict[LabelledSplitName, Borrowed] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for layout in self.local:
            if len(layout.rows.texts) != self.texts:
                raise ValueError(f"layout {layout.name!r} reads another number of texts than {self.texts}")
        return self


def load_labelled_card(name_or_path: str) -> LabelledCard:
    """Load a card of labelled text by its id or by the path of a YAML file.

    Raises:
        DataError: there is no such card (with the nearest name), or it is not valid (all problems, a line each).
    """
    return read_card(name_or_path, LabelledCard)


def load_any_card(name_or_path: str) -> Card | LabelledCard:
    """Load a card, whatever its task. Raises :class:`DataError` as the loaders of each task do."""
    return load_labelled_card(name_or_path) if card_task(name_or_path) == "classification" else load_card(name_or_path)
