"""A classifier learns another one's probabilities."""

from collections.abc import Callable
from pathlib import Path

import pytest

import phmctl
from phmctl.errors import RunError
from phmctl.recipe.schema import ClassificationRecipe


def test_a_classifier_teaches_its_probabilities(
    small: Callable[..., ClassificationRecipe],
    labelled_data: Path,
    tmp_path: Path,
) -> None:
    settings = ["training.steps=200", "training.validate_every=100", "training.learning_rate=1e-3"]
    recipe = small("encoder", "model.algebra=real", "model.n=1", *settings)
    teacher = phmctl.train(recipe, data=labelled_data, runs=tmp_path).run
    alone = ["training.teacher_weight=1.0", "training.validate_every=100", "training.learning_rate=3e-3"]
    result = phmctl.distil(teacher.folder, n=4, steps=200, settings=alone, data=labelled_data, runs=tmp_path)
    texts = [line.split("\t")[1] for line in LINES]
    theirs, ours = (phmctl.load(run.folder).classify(texts) for run in (teacher, result.run))
    assert [each.label for each in theirs] == [each.label for each in ours]  # it never saw a label
    pairs = small("lstm-pair", f"training.teacher={teacher.folder}")
    with pytest.raises(RunError):
        phmctl.train(pairs, data=labelled_data, runs=tmp_path)


LINES = [
    f"x\tw{number} the {noun} near the dog" for number, noun in enumerate(["cat", "dogs", "key", "trees", "birds"])
]
