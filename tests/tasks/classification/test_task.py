import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import phmctl
from phmctl.data import PAD
from phmctl.data.batches import collate
from phmctl.data.prepared import PreparedData
from phmctl.errors import DataError, DimensionError, RunError
from phmctl.processes import Processes
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import Run
from phmctl.storage import read_checkpoint, write_json
from phmctl.tasks.classification_training import ClassificationTask
from phmctl.training.train import train, train_task
from tests.data.helpers import prepare_tables

from .conftest import pairs, write_tables

Small = Callable[..., ClassificationRecipe]


def opened(recipe: ClassificationRecipe, data: Path) -> ClassificationTask:
    return ClassificationTask(recipe, PreparedData.find(recipe.data, data))


@pytest.mark.parametrize("kind", ["encoder", "lstm-pair"])
def test_it_learns(small: Small, labelled_data: Path, tmp_path: Path, kind: str) -> None:
    rate = ["training.learning_rate=3e-3", "training.warmup=20", "training.validate_every=50", "model.dropout=0.0"]
    result = train(small(kind, "training.steps=200", *rate), data=labelled_data, runs=tmp_path)
    assert (result.best_score or 0.0) > 0.97


def test_the_loss_is_the_cross_entropy_of_each_example_alone(small: Small, labelled_data: Path) -> None:
    task = opened(small("encoder", "training.label_smoothing=0.1", "model.dropout=0.0"), labelled_data)
    model = task.build_model("cpu").eval()
    rows = task.plan(0)[0]
    batch = task.collate(rows)
    loss, count = task.loss(model, batch)
    split = task.prepared.split("train")
    alone = [collate(split, [row]) for row in rows.tolist()]
    logits = torch.cat([model(one.source) for one in alone])
    wanted = F.cross_entropy(logits, batch.labels, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(loss, wanted.sum(), rtol=1e-5, atol=1e-5)
    assert count == 32


def test_validation_is_over_all_examples_without_smoothing(small: Small, labelled_data: Path) -> None:
    task = opened(small("lstm-pair", "training.label_smoothing=0.3", "training.batch_size=7"), labelled_data)
    model = task.build_model("cpu").eval()
    batch = collate(task.prepared.split("valid"), range(60))
    with torch.no_grad():
        logits = model(*batch.sides)
    metrics = task.validate(model, nullcontext, Processes())
    assert metrics["loss"] == pytest.approx(F.cross_entropy(logits, batch.labels).item(), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx((logits.argmax(1) == batch.labels).float().mean().item())
    assert task.score(metrics) == metrics["accuracy"]


@pytest.mark.parametrize("kind", ["encoder", "lstm-pair"])
def test_an_epoch_has_every_example_once_and_a_batch_costs_its_tokens(small, labelled_data, kind) -> None:
    task = opened(small(kind), labelled_data)
    plan = task.plan(2)
    assert [rows.tolist() for rows in plan] == [rows.tolist() for rows in task.plan(2)]
    assert sorted(row for rows in plan for row in rows.tolist()) == list(range(len(task.prepared.split("train"))))
    for rows in plan:
        batch, cost = task.collate(rows), task.cost(rows)
        assert cost.items == batch.target_tokens == len(rows)
        assert cost.tokens == sum(int((side != PAD).sum()) for side in batch.sides)


def test_a_model_of_another_number_of_texts_is_refused(small: Small, labelled_data: Path) -> None:
    recipe = small("encoder")
    with pytest.raises(DataError, match=r"'encoder'"):
        opened(recipe.model_copy(update={"data": small("lstm-pair").data}), labelled_data)


# ----------------------------------------------------------------------------------------------------- vectors


@pytest.fixture(scope="module")
def with_vectors(tmp_path_factory: pytest.TempPathFactory, small: Small) -> Path:
    """The pairs with vectors for half of the nouns."""
    folder = tmp_path_factory.mktemp("glove")
    words = ["cat", "dog", "key", "tree", "the"]
    lines = [
        f"{word} {' '.join(str((row + 1) * (column + 1) / 99) for column in range(16))}"
        for row, word in enumerate(words)
    ]
    (folder / "vectors.txt").write_text("".join(f"{line}\n" for line in lines))
    tables = write_tables(folder, "label\tone\ttwo", {"train": pairs(80, 1), "valid": pairs(20, 2)})
    root = folder / "data"
    prepare_tables(
        small("lstm-pair").data, root=root, tables=tables, text=["one", "two"], vectors=folder / "vectors.txt"
    )
    return root


def test_vectors_are_the_embedding_and_are_not_trained(small, with_vectors, tmp_path, capsys) -> None:
    task = opened(small("lstm-pair"), with_vectors)
    run = train_task(task, task.recipe, tmp_path).run
    assert "16-dimensional vectors of vectors.txt" in capsys.readouterr().err
    weights = read_checkpoint(run.checkpoint("last"), ("model",)).tensors["model"]
    assert task.prepared.vectors is not None
    assert torch.equal(weights["embedding.weight"], task.prepared.vectors)
    more = small("lstm-pair", "training.steps=9")
    train(more, data=with_vectors, run=run)
    after = read_checkpoint(run.checkpoint("last"), ("model",)).tensors["model"]
    assert torch.equal(after["embedding.weight"], task.prepared.vectors)
    assert not torch.equal(after["output.weight"], weights["output.weight"])


def test_vectors_may_be_left_alone_and_must_be_there_where_they_are_wanted(
    small: Small, with_vectors: Path, labelled_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = opened(small("lstm-pair", "model.embeddings=trained"), with_vectors)
    task.check_data()
    assert "embeddings: trained" in capsys.readouterr().err
    assert task.build_model("cpu").embedding.weight.requires_grad
    task = opened(small("lstm-pair", "model.embeddings=vectors"), labelled_data)
    with pytest.raises(DataError, match=r"model.embeddings"):
        task.check_data()
    with pytest.raises(DimensionError, match=r"\(\d+, 16\).* 20"):
        train(small("lstm-pair", "model.embedding_width=20"), data=with_vectors, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


# -------------------------------------------------------------------------------------------------------- runs


def test_a_classifier_begins_with_another(small, labelled_data, runs, tmp_path, capsys) -> None:
    """Fine-tuning: everything fits the same model; another kind of model is refused, and so are other texts' tokens."""
    source = runs["encoder"]
    recipe = small("encoder", f"training.initialise_from={source.folder}")
    run = train(recipe, data=labelled_data, runs=tmp_path).run
    noted = run.environment()["initialised_from"]
    assert (noted["new"], noted["left"]) == ([], [])
    assert "embedding.weight" in noted["taken"]
    assert "labels" not in capsys.readouterr().err  # they are the same
    copy = shutil.copytree(source.folder, tmp_path / "copy")
    data = source.data()
    write_json(copy / "data.json", data | {"labels": ["nein", "ja"]})
    opened(small("encoder"), labelled_data).check_vocabulary(Run.open(copy))  # a map to as many classes is taken
    assert f"{copy} has the labels ['nein', 'ja'], and the data {data['labels']}" in capsys.readouterr().err
    other = small("lstm-pair", f"training.initialise_from={source.folder}")
    with pytest.raises(RunError, match=r"model\.kind = encoder"):
        train(other, data=labelled_data, runs=tmp_path)


def test_a_classifier_teaches_its_probabilities(small: Small, labelled_data: Path, tmp_path: Path) -> None:
    settings = ["training.steps=100", "training.validate_every=50", "training.learning_rate=1e-3"]
    recipe = small("encoder", "model.algebra=real", "model.n=1", *settings)
    teacher = phmctl.train(recipe, data=labelled_data, runs=tmp_path).run
    alone = ["training.teacher_weight=1.0", "training.validate_every=50", "training.learning_rate=3e-3"]
    result = phmctl.distil(teacher.folder, n=4, steps=100, settings=alone, data=labelled_data, runs=tmp_path)
    texts = [
        f"w{number} the {noun} near the dog" for number, noun in enumerate(["cat", "dogs", "key", "trees", "birds"])
    ]
    theirs, ours = (phmctl.load(run.folder).classify(texts) for run in (teacher, result.run))
    assert [each.label for each in theirs] == [each.label for each in ours]  # it never saw a label
    phmctl.train(teacher.folder, resume=True, steps=150)
    with pytest.raises(RunError, match="other weights"):
        phmctl.train(result.run.folder, resume=True, steps=150)
    named = small("encoder", f"training.teacher={teacher.name}", "training.steps=1")  # a name below `runs`
    assert "teacher_sha256" in phmctl.train(named, data=labelled_data, runs=tmp_path).run.environment()
    pairs = small("lstm-pair", f"training.teacher={teacher.folder}")
    with pytest.raises(RunError):
        phmctl.train(pairs, data=labelled_data, runs=tmp_path / "none")
    assert not (tmp_path / "none").exists()
