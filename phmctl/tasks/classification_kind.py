"""Classification, as the commands know it: so far its models can be counted."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from phmctl.models.classifiers import Classifier, ClassifierSection, build_classifier
from phmctl.recipe.schema import ClassificationRecipe, PairClassifierSection
from phmctl.tasks.base import Sizes, TaskKind

_CLASSES = 2  # counted where the data is not there to tell


class ClassificationKind(TaskKind[ClassificationRecipe]):
    """A label for a text or a pair of texts."""

    recipe = ClassificationRecipe
    commands = ("count-params",)

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
