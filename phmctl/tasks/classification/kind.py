"""Classification, as the commands know it."""

from __future__ import annotations  # what a method works with is imported in it: decoding wants nothing else

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.recipe.schema import ClassificationRecipe, PairClassifierSection
from phmctl.runs import Run
from phmctl.runs.results import Result, Setting
from phmctl.tasks.answers import Answers, LabelComparer, Metric
from phmctl.tasks.base import Asked, Preparation, Sizes, TaskKind

if TYPE_CHECKING:
    import torch

    from phmctl.assembly import Classifier, ClassifierSection
    from phmctl.data.prepared.folder import PreparedData
    from phmctl.tasks.classification.evaluation import ClassifierReport
    from phmctl.tasks.classification.predictor import TextClassifier
    from phmctl.tasks.classification.task import ClassificationTask

_CLASSES = 2  # counted where the data is not there to tell


class ClassificationKind(TaskKind[ClassificationRecipe]):
    """Labels for texts or pairs of texts: accuracy, one vocabulary."""

    recipe = ClassificationRecipe
    corpus_options = ("table",)
    decode_options = ("execution",)
    eval_options = (*decode_options, "table", "text", "label")
    metrics = (Metric("accuracy", scale=100, tested=True),)
    comparer = LabelComparer()

    def prepare(self, asked: Preparation) -> PreparedData:
        from phmctl.tasks.classification.options import prepare_asked

        return prepare_asked(asked)

    def open(self, recipe: ClassificationRecipe, data: Path) -> ClassificationTask:
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
    ) -> Classifier:
        from phmctl.assembly import build_classifier

        return build_classifier(settings, sizes["vocabulary"], sizes["classes"], device=device)

    def scored(self, asked: Asked) -> ClassifierReport:
        from phmctl.tasks.classification.evaluation import evaluate, evaluate_table

        run, against, given = asked.run, asked.against, dict(asked.options)
        table: dict[str, Any] = {name: given.pop(name) for name in ("table", "text", "label") if name in given}
        if table:
            return evaluate_table(run, table, asked.checkpoint, against=against, device=asked.device, **given)
        return evaluate(run, asked.split, asked.checkpoint, against=against, device=asked.device, **given)

    def setting(self, asked: Asked) -> Setting:
        from phmctl.tasks.classification.evaluation import setting_of

        return setting_of(asked.split, asked.run.weights(asked.checkpoint), **asked.options)

    def answers(self, run: Run, result: Result) -> Answers | None:
        from phmctl.tasks.classification.evaluation import read_predictions

        return None if result.answers is None else read_predictions(result.answers)

    def answering(self, asked: Asked) -> TextClassifier:
        from phmctl.tasks.classification.predictor import load_classifier

        how = {"cleaned": asked.own_text, "threads": asked.threads, **asked.options}
        return load_classifier(asked.run, asked.checkpoint, asked.device, **how)

    def split_lines(self, run: Run, split: str) -> list[str]:
        from phmctl.tasks.classification.copies import read_examples

        return ["\t".join(" ".join(text.split()) for text in texts) for texts in read_examples(run, split).texts]

    def notes(self, settings: ClassifierSection, sizes: Mapping[str, int]) -> Iterator[str]:
        yield f"the map to the classes is counted for {sizes['classes']} of them"
        if isinstance(settings, PairClassifierSection) and settings.embeddings != "trained":
            yield "the embedding is trained where the data has no vectors, and ready and fixed where it has"

    def tables(self, settings: ClassifierSection, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"embedding": sizes["vocabulary"]}


KIND = ClassificationKind()
