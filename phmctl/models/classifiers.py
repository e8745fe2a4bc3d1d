"""The classifier that a recipe's model section asks for."""

import torch
from torch import Tensor

from phmctl.models.encoder_classifier import EncoderClassifier
from phmctl.models.pair_classifier import PairClassifier
from phmctl.recipe.schema import EncoderClassifierSection, PairClassifierSection

ClassifierSection = EncoderClassifierSection | PairClassifierSection
Classifier = EncoderClassifier | PairClassifier


def texts_of(settings: ClassifierSection) -> int:
    """Return how many texts of an example the model reads."""
    return 2 if isinstance(settings, PairClassifierSection) else 1


def build_classifier(
    settings: ClassifierSection,
    vocabulary: int,
    classes: int,
    vectors: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Classifier:
    """Build an untrained classifier.

    Args:
        settings: the recipe's model section.
        vocabulary: token types.
        classes: how many labels.
        vectors: (vocabulary, embedding_width), ready word vectors for a model that takes them: the pair classifier.
        device: where parameters are allocated; ``meta`` allocates nothing.

    Raises:
        DimensionError: n does not divide a dimension, or the vectors have another shape than the table.
    """
    if isinstance(settings, PairClassifierSection):
        return PairClassifier(settings, vocabulary, classes, vectors, device)
    return EncoderClassifier(settings, vocabulary, classes, device)
