"""Classifiers that answer: by decode, to a program, over HTTP, and as exports."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import phmctl
from phmctl.answering import opening as exports
from phmctl.answering.classifier import Classifier, load_classifier
from phmctl.answering.opening import find, load_translator
from phmctl.data.batches import collate, encode_texts
from phmctl.errors import DataError, RunError, UserError
from phmctl.export.verb import export
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.tasks import load_model
from phmctl.tasks.classification import read_examples
from tests.tasks.classification.conftest import evaluate

TEXTS = ["the cat", "the dogs near the key", "stones", "the house near the road near the trees", ""]
PAIRS = [("see the cat", "the cat is here"), ("see the dog", "the key is here"), ("a", "")]
KINDS = pytest.mark.parametrize("kind", ["encoder", "lstm-pair"])


@pytest.fixture(scope="module")
def classifier(runs: dict[str, Run]) -> Classifier:
    return load_classifier(runs["encoder"], device="cpu")


@pytest.fixture(scope="module")
def pairs(runs: dict[str, Run]) -> Classifier:
    return load_classifier(runs["lstm-pair"], device="cpu")


def predict(model: Classifier, lines: list[str]) -> list[Any]:
    return [found for _, found in model.answer(lines)]


def test_probabilities_are_those_of_each_text_alone(classifier: Classifier) -> None:
    together = classifier.probabilities([(text,) for text in TEXTS[:4]])
    for row, text in enumerate(TEXTS[:4]):
        encoded = encode_texts([(text,)], classifier.tokenizer, classifier.cleaning, 64)
        with torch.no_grad():
            alone = classifier.model(collate(encoded, [0]).source).softmax(1)
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-5, atol=1e-6)
    assert together.sum(1).tolist() == pytest.approx([1.0] * 4)


def test_lines_of_text_and_of_pairs(classifier: Classifier, pairs: Classifier) -> None:
    (first, empty), (second, answer), (third, _) = classifier.answer(["", "the cats", "   "])
    assert (first, third) == ("", "")
    assert second == answer["label"] in ("VBP", "VBZ")
    assert empty == {"label": None, "probability": None}
    assert predict(pairs, ["see the cat\tthe cat is here"])[0]["label"] in ("same", "other")
    for model, lines in ((pairs, ["a\tb", "a"]), (classifier, ["a", "a\tb"])):
        with pytest.raises(DataError, match="line 2: this classifier reads"):
            model.answer(lines)
    for model, examples in ((classifier, [("a", "b")]), (pairs, [("a", "b"), "a"])):
        with pytest.raises(UserError, match=f"example {len(examples)} has"):
            model.classify(examples)
    with pytest.raises(UserError, match="texts"):
        classifier.classify(None)


def test_what_cannot_answer_is_refused(runs: dict[str, Run], tiny_run: Run, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="classification"):
        load_classifier(tiny_run)
    with pytest.raises(RunError, match="translation"):
        load_translator(runs["encoder"])
    with pytest.raises(UserError, match="beam"):
        load_model(runs["encoder"], beam=4)
    with pytest.raises(UserError, match="precision"):
        phmctl.load(runs["encoder"].folder, precision="bfloat16")
    copy = shutil.copytree(runs["encoder"].folder, tmp_path / "v001")
    path = copy / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(RunError, match=r"tokenizer\.json"):
        load_classifier(Run.open(copy))


# ------------------------------------------------------------------------------------------------ to a program


@KINDS
def test_vectors_are_what_the_model_reads(runs: dict[str, Run], kind: str) -> None:
    model = load_classifier(runs[kind], device="cpu")
    found = model.encode(TEXTS)
    for row, text in enumerate(TEXTS[:-1]):
        ids = torch.tensor(model.tokenizer.encode([text]))
        with torch.no_grad():
            torch.testing.assert_close(found[row : row + 1], model.model.encode(ids), rtol=1e-4, atol=1e-5)
    assert not found[-1].any()
    assert model.encode([]).shape == (0, found.shape[1])
    assert (found * 2).requires_grad is False


def test_lengths_are_those_that_the_limit_counts(classifier: Classifier, pairs: Classifier) -> None:
    limit = classifier.max_tokens
    assert limit == 64
    assert classifier.lengths(["the cat", "", "the dogs near"]) == [2, 0, 3]
    assert pairs.lengths([("a b c", "d"), ("", "e f")]) == [3, 2]
    assert pairs.lengths([]) == []
    exact, long = " ".join(["cat"] * limit), " ".join(["cat"] * (limit + 1))
    assert [each.cut for each in classifier.classify([exact, long, "cat"])] == [False, True, False]
    with pytest.raises(DataError, match=f"text 2 has more than the {limit} tokens"):
        classifier.classify([exact, long], strict=True)


# ----------------------------------------------------------------------------------------------------- exports


@KINDS
@pytest.mark.parametrize("to", [exports.SAFETENSORS, exports.ONNX])
def test_an_export_answers_as_its_run(runs: dict[str, Run], tmp_path: Path, kind: str, to: str) -> None:
    if to == exports.ONNX:
        pytest.importorskip("onnxruntime")
    run = runs[kind]
    made = export(run, to, tmp_path / "out", with_text=True)
    assert made.verification.texts == made.verification.equal + made.verification.ties > 50
    texts = read_examples(run, "test").texts
    found = load_classifier(find(tmp_path / "out"))
    expected = load_classifier(run, device="cpu").probabilities(texts)
    torch.testing.assert_close(found.probabilities(texts), expected, rtol=1e-4, atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "- labels: " in card
    assert "accuracy" in card
    if (kind, to) == ("encoder", exports.SAFETENSORS):
        assert evaluate(made.export).accuracy == evaluate(run).accuracy
        assert len(read_results(made.export)) == 1
        with pytest.raises(UserError, match="encode"):
            found.encode(["the cat"])
