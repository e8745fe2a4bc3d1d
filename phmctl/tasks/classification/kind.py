"""The task ``classification``: labelled texts or pairs of texts, and a classifier's scores."""

from __future__ import annotations  # torch is imported by the methods that need it

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import progress, warn
from phmctl.decoding.model import Classified
from phmctl.errors import DataError, UserError
from phmctl.metrics.text import remarks
from phmctl.recipe.models import PairClassifierSection
from phmctl.recipe.schema import ClassificationRecipe, LabelledSection
from phmctl.runs import Run, Weights
from phmctl.runs.results import Result, ScoringKey, write_result
from phmctl.tasks.answers import Answers, LabelComparer, Metric
from phmctl.tasks.base import LoadRequest, Task
from phmctl.tasks.classification.evaluation import ClassifierReport, ClassifierScoreRequest, report_of
from phmctl.tasks.classification.examples import (
    labelled_format,
    labels_of,
    read_examples,
    read_predicted,
    read_table,
    write_predictions,
)
from phmctl.tasks.text import TABLE_OPTIONS, TEXT_OPTIONS, OwnFiles, TextKind

if TYPE_CHECKING:
    import torch
    from torch import nn

    from phmctl.assembly import ClassifierSection
    from phmctl.tasks.classification.classifier import TextClassifier


class ClassificationKind(TextKind[ClassificationRecipe]):
    """Labels for texts or pairs of texts."""

    recipe, section = ClassificationRecipe, LabelledSection
    score_request = ClassifierScoreRequest
    sides, size_note, default_classes = ("vocabulary", "classes"), "{:,} token types and {:,} classes", 2
    labelled = True
    prepare_options = (*TEXT_OPTIONS, "table", "text", "label", *TABLE_OPTIONS, "vectors")
    file_options = "--table SPLIT=FILE --text COLUMN --label COLUMN"
    corpus_options = ("table",)
    metrics = (Metric("accuracy", scale=100, tested=True),)
    comparer = LabelComparer()

    def own_files(self, files: Mapping[str, Any], options: Mapping[str, Any]) -> OwnFiles:
        tables: dict[str, Any] = {}
        for value in options.get("table") or ():
            split, _, path = value.partition("=")
            if not split or not path:
                raise DataError(f"--table {value}: expected SPLIT=FILE")
            if split in tables:
                raise DataError(f"--table {value}: {split} is given twice")
            tables[split] = [[Path(path)]]
        return OwnFiles(tables, labelled_format(options) if tables else None)

    def open(self, recipe: ClassificationRecipe, data: Path) -> Task:
        from phmctl.tasks.classification.task import ClassificationTask

        return ClassificationTask.open(recipe, data)

    def build(
        self, settings: ClassifierSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> nn.Module:
        from phmctl.assembly import build_classifier

        return build_classifier(settings, sizes["vocabulary"], sizes["classes"], device=device)

    def load(self, request: LoadRequest) -> TextClassifier:
        from phmctl.tasks.classification.classifier import load_classifier

        return load_classifier(
            request.run, request.checkpoint, request.device, cleaned=request.cleaned, threads=request.threads
        )

    def split_lines(self, run: Run, split: str) -> list[str]:
        return ["\t".join(text.replace("\t", " ") for text in texts) for texts in read_examples(run, split).texts]

    def evaluate(self, request: ClassifierScoreRequest) -> ClassifierReport:
        """Score a classifier; write scores and predictions into the run unless a table is scored."""
        run = request.run
        labels = labels_of(run)
        table_options = request.table_options()
        if request.table is None:
            examples, name = read_examples(run, request.split), request.split
        else:
            examples = read_table(run, Path(request.table), labelled_format(table_options))
            name = Path(request.table).name
        weights, predictions = self._predictions(request, examples.texts)
        predicted = [prediction.label for prediction in predictions]
        report = report_of(run.name, name, weights.name, labels, examples, predicted)
        key = ScoringKey(request.split, weights, {})
        if request.table is None:
            if len(set(examples.labels)) > 1:
                for remark in remarks([" ".join(texts) for texts in examples.texts], predicted):
                    warn(f"{run.name}, {weights.name}, {name}: {remark}")
            path = key.path(run, "predictions.tsv")
            write_predictions(path, examples, predictions)
            write_result(run, key, report.as_json(), path)
        return report

    def _predictions(
        self, request: ClassifierScoreRequest, texts: Sequence[tuple[str, ...]]
    ) -> tuple[Weights, list[Classified]]:
        run = request.run

        def load(checkpoint: str) -> tuple[Weights, TextClassifier]:
            cleaned = request.table is None
            model = self.load(LoadRequest(run=run, checkpoint=checkpoint, device=request.device, cleaned=cleaned))
            return run.weights(checkpoint), model

        weights, classifier = run.load_checkpoint(request.checkpoint, load)
        if len(texts[0]) != classifier.texts:
            raise UserError(f"{run.name} reads {classifier.texts} texts an example, not {len(texts[0])}; see --text")
        with progress(f"labelling with {run.name}", len(texts)) as advance:
            return weights, classifier.label(texts, advance)

    def answers(self, run: Run, result: Result) -> Answers | None:
        if result.answers is None:
            return None
        examples = read_examples(run, result.split)
        predicted = read_predicted(result.answers)
        return Answers([" ⇒ ".join(texts) for texts in examples.texts], examples.labels, predicted, examples.extras)

    def notes(self, settings: ClassifierSection, sizes: Mapping[str, int]) -> Iterator[str]:
        yield f"the map to the classes is counted for {sizes['classes']} of them"
        if isinstance(settings, PairClassifierSection) and settings.embeddings != "trained":
            yield "the embedding is trained if the data has no vectors, otherwise it is fixed"

    def tables(self, settings: ClassifierSection, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"embedding": sizes["vocabulary"]}
