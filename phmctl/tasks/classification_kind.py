"""Classification, as the commands know it: so far its data can be prepared and its models counted."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from phmctl.data.labelled import LabelledData
from phmctl.data.labelled_asked import LabelledOptions, prepare_labelled_named, show_labelled
from phmctl.errors import DataError
from phmctl.models.classifiers import Classifier, ClassifierSection, build_classifier
from phmctl.recipe.schema import ClassificationRecipe, PairClassifierSection
from phmctl.tasks.base import Preparation, Sizes, TaskKind, option_name

_CLASSES = 2  # counted where the data is not there to tell


class ClassificationKind(TaskKind[ClassificationRecipe]):
    """A label for a text or a pair of texts."""

    recipe = ClassificationRecipe
    commands = ("prepare-data", "count-params")
    corpus_options = ("table",)

    def prepare(self, asked: Preparation) -> LabelledData:
        """Clean and tokenize labelled text."""
        if asked.files:
            files = ", ".join(map(option_name, asked.files))
            raise DataError(f"{files} is for parallel text; {asked.name} is labelled text: give --table SPLIT=FILE")
        common = {"root": asked.root, "source": asked.source, "workers": asked.workers, "force": asked.force}
        options = LabelledOptions(**asked.options)
        return prepare_labelled_named(asked.name, asked.recipe, asked.settings, options, **common)

    def show_prepared(self, manifest: Mapping[str, Any]) -> None:
        """Print what was read, kept and dropped, and how much of it has a word vector."""
        show_labelled(manifest)

    def sizes(self, recipe: ClassificationRecipe, data: Path | None = None) -> Sizes:
        """Return ``vocabulary`` and ``classes``."""
        asked = recipe.data.vocabulary
        note = f"vocabulary: {asked:,}, as the recipe asks; a trained tokenizer may be smaller"
        return Sizes({"vocabulary": asked, "classes": _CLASSES}, note)

    def build(
        self, settings: ClassifierSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> Classifier:
        """Build the classifier, with a table that is trained."""
        return build_classifier(settings, sizes["vocabulary"], sizes["classes"], device=device)

    def notes(self, settings: ClassifierSection, sizes: Mapping[str, int]) -> Iterator[str]:
        """Yield what the numbers hang on."""
        yield f"the map to the classes is counted for {sizes['classes']} of them"
        if isinstance(settings, PairClassifierSection) and settings.embeddings != "trained":
            yield "the embedding is trained where the data has no vectors, and ready and fixed where it has"


KIND = ClassificationKind()
