from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

import phmctl
from phmctl.errors import DataError, UserError
from phmctl.runs import Run
from phmctl.tasks.classification.predictor import load_classifier
from phmctl.tasks.model import Model

TEXTS = ["the cat", "the dogs near the key", "stones", "the house near the road near the trees", ""]
PAIRS = [("see the cat", "the cat is here"), ("see the dog", "the key is here"), ("a", "")]


@pytest.fixture(scope="module")
def classifier(runs: dict[str, Run]) -> Model:
    return phmctl.load(runs["encoder"].folder, device="cpu")


@pytest.fixture(scope="module")
def pairs(runs: dict[str, Run]) -> Model:
    return phmctl.load(runs["lstm-pair"].folder, device="cpu")


@pytest.mark.parametrize(("kind", "texts"), [("encoder", TEXTS), ("lstm-pair", PAIRS)])
def test_labels_and_probabilities_are_the_commands(runs: dict[str, Run], kind: str, texts: list[Any]) -> None:
    model, loaded = phmctl.load(runs[kind].folder, device="cpu"), load_classifier(runs[kind], device="cpu")
    texts = [each for each in texts if each]
    wanted = loaded.probabilities([(each,) if isinstance(each, str) else each for each in texts])
    found = model.classify(texts)
    assert [list(each.probabilities.values()) for each in found] == wanted.tolist()
    assert [each.label for each in found] == [loaded.labels[best] for best in wanted.argmax(1)]
    assert list(found[0].probabilities) == model.about()["labels"]
    assert model.classify([]) == []
    empty = " " if kind == "encoder" else ("", " ")
    assert [one.label for one in model.classify([empty, texts[0]])] == ["", found[0].label]


def test_a_classifier_has_no_precision_to_choose(runs: dict[str, Run]) -> None:
    with pytest.raises(UserError, match="--precision"):
        phmctl.load(runs["encoder"].folder, precision="bfloat16")


@pytest.mark.parametrize("kind", ["encoder", "lstm-pair"])
def test_vectors_are_what_the_model_reads(runs: dict[str, Run], kind: str) -> None:
    model, loaded = phmctl.load(runs[kind].folder, device="cpu"), load_classifier(runs[kind], device="cpu")
    found = model.encode(TEXTS)
    for row, text in enumerate(TEXTS[:-1]):
        ids = torch.tensor(loaded.tokenizer.encode([text]))
        with torch.no_grad():
            torch.testing.assert_close(found[row : row + 1], loaded.model.encode(ids), rtol=1e-4, atol=1e-5)
    assert not found[-1].any()
    assert model.encode([]).shape == (0, found.shape[1])
    assert (found * 2).requires_grad is False


def test_a_text_longer_than_the_model_knows(classifier: Model) -> None:
    limit = classifier.max_tokens
    exact, long = " ".join(["cat"] * limit), " ".join(["cat"] * (limit + 1))
    assert [each.cut for each in classifier.classify([exact, long, "cat"])] == [False, True, False]
    with pytest.raises(DataError, match=f"text 2 has more than the {limit} tokens"):
        classifier.classify([exact, long], strict=True)


def test_wrong_calls_are_told(classifier: Model, pairs: Model) -> None:
    with pytest.raises(UserError, match=r"translate: .*'classification', does not have it; it has classify, encode"):
        classifier.translate(["a"])
    with pytest.raises(UserError, match="score: "):
        classifier.score(["a"], ["b"])
    with pytest.raises(UserError, match=r"example 1 has 2; .* reads one text"):
        classifier.classify([("a", "b")])
    with pytest.raises(UserError, match=r"example 2 has 1; .* reads 2 texts, given as a tuple"):
        pairs.classify([("a", "b"), "a"])
    with pytest.raises(UserError, match="want a list of texts, not one string"):
        classifier.classify("the cat")
    with pytest.raises(UserError, match="text 1 is of type int"):
        pairs.classify([("a", 1)])


@pytest.mark.parametrize("kind", ["encoder", "lstm-pair"])
def test_threads_at_once_get_equal_answers(runs: dict[str, Run], kind: str) -> None:
    model = phmctl.load(runs[kind].folder, device="cpu")
    examples = TEXTS if kind == "encoder" else PAIRS
    wanted, vectors = model.classify(examples), model.encode(TEXTS)

    def ask(number: int) -> bool:
        return model.classify(examples) == wanted if number % 2 else torch.equal(model.encode(TEXTS), vectors)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(32)))


def test_lengths_are_those_that_the_limit_counts(classifier: Model, pairs: Model) -> None:
    assert classifier.max_tokens == 64
    assert classifier.lengths(["the cat", "", "the dogs near"]) == [2, 0, 3]
    assert pairs.lengths([("a b c", "d"), ("", "e f")]) == [3, 2]
    assert pairs.lengths([]) == []
