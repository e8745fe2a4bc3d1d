"""Classification, as the commands know it, and how they prepare labelled text."""

from __future__ import annotations  # what a method works with is imported in it: decoding wants nothing else

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.errors import DataError
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.models import PairClassifierSection
from phmctl.recipe.schema import ClassificationRecipe, LabelledSection
from phmctl.runs import Run
from phmctl.runs.results import Result, Setting
from phmctl.tasks.answers import Answers, LabelComparer, Metric
from phmctl.tasks.base import Asked, Preparation, Report, Sizes, Task, TaskKind, option_name
from phmctl.tasks.model import Model

if TYPE_CHECKING:
    import torch
    from torch import nn

    from phmctl.assembly import ClassifierSection
    from phmctl.data.card import Rows
    from phmctl.data.prepared.folder import PreparedData

_CLASSES = 2  # counted where the data is not there to tell
_COLUMNS = ("text", "label", "quoting", "header", "extra", "skip_bad_lines")  # how a user's tables are read
_PARALLEL = {  # settings of parallel text, and what labelled text has instead
    "joint": "--joint and --separate are for translation; {} is labelled text, with one vocabulary",
    "direction": "--reverse is for translation; {} is labelled text, which has no direction",
    "copies": "--copies is for translation; {} is labelled text, which has no targets",
    "languages": "--languages is for parallel text; {} is labelled text",
    "columns": "--columns is for parallel text; {} is labelled text: --text COLUMN --label COLUMN",
}


class ClassificationKind(TaskKind[ClassificationRecipe]):
    """Labels for texts or pairs of texts: accuracy, one vocabulary."""

    recipe = ClassificationRecipe
    corpus_options = ("table",)
    decode_options = ("execution",)
    eval_options = (*decode_options, "table", "text", "label")
    metrics = (Metric("accuracy", scale=100, tested=True),)
    comparer = LabelComparer()

    def prepare(self, asked: Preparation) -> PreparedData:
        from phmctl.data.corpus import own_corpus
        from phmctl.data.prepared.prepare import choose_section, prepare_named
        from phmctl.data.prepared.provenance import Vocabulary

        name, given = asked.name, asked.options
        if asked.files:
            named = ", ".join(map(option_name, asked.files))
            raise DataError(f"{named} is for parallel text; {name} is labelled text: give --table SPLIT=FILE")
        for key, why in _PARALLEL.items():
            if key in asked.settings or key in given:
                raise DataError(why.format(name))
        vocabulary = Vocabulary.of(asked.vocabulary_of) if asked.vocabulary_of else None
        section = choose_section(name, asked.recipe, asked.settings, LabelledSection, vocabulary)
        tables, own, settings = _assigned("table", given.get("table"), "SPLIT=FILE"), None, dict[str, Any]()
        columns = [option_name(key) for key in _COLUMNS if given.get(key) not in (None, [], ())]
        if columns and not tables:
            raise DataError(f"{', '.join(columns)} is for your own tables: give those with --table SPLIT=FILE")
        if tables:
            rows, quoting, skip = rows_of(given), given.get("quoting"), bool(given.get("skip_bad_lines"))
            settings = {"rows": rows.model_dump(mode="json"), "quoting": quoting}
            settings |= {"skip_bad_lines": True} if skip else {}
            files = {split: [[path]] for split, path in tables.items()}
            own = own_corpus(name, files, rows, quoting=quoting, skip=skip)
            if asked.recipe and load_recipe(asked.recipe).task == "probing":
                own = replace(own, train_text=True)  # probes read it by the encoder's own tokenizer
        more = {"own": own, "vocabulary": vocabulary, "vectors": given.get("vectors"), **asked.common}
        extra = _assigned("extra-split", given.get("extra_split"), "SPLIT=DIR")
        return prepare_named(section, settings=settings, extra=extra, **more)

    def open(self, recipe: ClassificationRecipe, data: Path) -> Task:
        from phmctl.data.prepared.folder import PreparedData
        from phmctl.tasks.classification.task import ClassificationTask

        return ClassificationTask(recipe, PreparedData.find(recipe.data, data))

    def sizes(self, recipe: ClassificationRecipe, data: Path | None = None) -> Sizes:
        from phmctl.data.prepared.folder import trained_sizes

        trained = None if data is None else trained_sizes(recipe.data, data)
        if trained is not None:
            note = "vocabulary: {:,} token types and {:,} classes, as in the prepared data".format(*trained)
            return Sizes({"vocabulary": trained[0], "classes": trained[1]}, note, trained=True)
        asked = recipe.data.vocabulary
        note = f"vocabulary: {asked:,}, as the recipe asks; a trained tokenizer may be smaller"
        return Sizes({"vocabulary": asked, "classes": _CLASSES}, note)

    def build(
        self, settings: ClassifierSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> nn.Module:
        from phmctl.assembly import build_classifier

        return build_classifier(settings, sizes["vocabulary"], sizes["classes"], device=device)

    def evaluate(self, asked: Asked) -> Report:
        from phmctl.tasks.classification.evaluation import evaluate

        return evaluate(asked)

    def setting(self, asked: Asked) -> Setting:
        from phmctl.tasks.classification.evaluation import setting_of

        return setting_of(asked.split, asked.run.weights(asked.checkpoint), **asked.options)

    def answers(self, run: Run, result: Result) -> Answers | None:
        from phmctl.tasks.classification.evaluation import read_predictions

        return None if result.answers is None else read_predictions(result.answers)

    def load(self, asked: Asked) -> Model:
        from phmctl.tasks.classification.predictor import load_classifier

        how = {"cleaned": asked.own_text, "threads": asked.threads, **asked.options}
        return load_classifier(asked.run, asked.checkpoint, asked.device, **how)

    def split_lines(self, run: Run, split: str) -> list[str]:
        from phmctl.tasks.classification.evaluation import read_examples

        return ["\t".join(" ".join(text.split()) for text in texts) for texts in read_examples(run, split).texts]

    def notes(self, settings: ClassifierSection, sizes: Mapping[str, int]) -> Iterator[str]:
        yield f"the map to the classes is counted for {sizes['classes']} of them"
        if isinstance(settings, PairClassifierSection) and settings.embeddings != "trained":
            yield "the embedding is trained where the data has no vectors, and ready and fixed where it has"

    def tables(self, settings: ClassifierSection, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"embedding": sizes["vocabulary"]}


def rows_of(given: Mapping[str, Any]) -> Rows:
    """Return how the user's tables are read.

    Raises DataError where a column is missing or named twice, or is no number where there is no header.
    """
    from pydantic import ValidationError

    from phmctl.data.card import RESERVED, Rows

    text, label, extra = given.get("text") or (), given.get("label"), given.get("extra") or ()
    if not 1 <= len(text) <= 2 or label is None:
        raise DataError("tables want --text COLUMN (once, or twice for pairs) and --label COLUMN")
    named = [*text, label]
    twice = next((column for column in named if named.count(column) > 1), None)
    if twice is not None:
        raise DataError(f"column {twice!r} is named twice; --text and --label want a column each")
    taken = next((name for name in extra if name in (*named, *RESERVED)), None)
    if taken is not None:
        raise DataError(f"--extra {taken}: a column of whole numbers beside the texts, which is not called so")
    header = given.get("header") is not False

    def column(name: str) -> str | int:
        return name if header else int(name)

    try:
        extras, quoting = {name: column(name) for name in extra}, bool(given.get("quoting"))
        texts = tuple(map(column, text))
        return Rows(texts=texts, label=column(label), extras=extras, header=header, quoting=quoting)
    except (ValidationError, ValueError) as error:
        raise DataError(
            "with --no-header, --text and --label are numbers of columns, counted from 0; so is --extra"
        ) from error


def _assigned(option: str, values: Sequence[str] | None, form: str) -> dict[str, Path]:
    """Return what ``--option NAME=PATH`` says, by name."""
    assigned: dict[str, Path] = {}
    for value in values or ():
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            example = f"--{option} train={value}" if Path(value).is_file() else ""
            raise DataError(f"--{option} {value}: wants {form}" + (f", as in {example}" if example else ""))
        if name in assigned:
            raise DataError(f"--{option} {name} is given twice")
        assigned[name] = Path(path)
    return assigned


KIND = ClassificationKind()
