import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.data.batches import collate, encode_texts
from phmctl.errors import DataError, RunError, UserError
from phmctl.runs import Run
from phmctl.tasks.classification.kind import KIND
from phmctl.tasks.classification.predictor import load_classifier

TEXTS = ["the cat", "the dogs near the key", "stones", "the house near the road near the trees", "unheard of words"]


def nothing(amount: int) -> None:
    """No progress is shown."""


def test_probabilities_are_those_of_each_text_alone(runs: dict[str, Run]) -> None:
    classifier = load_classifier(runs["encoder"], device="cpu")
    together = classifier.probabilities([(text,) for text in TEXTS])
    for row, text in enumerate(TEXTS):
        encoded = encode_texts([(text,)], classifier.tokenizer, classifier.cleaning, 64)
        with torch.no_grad():
            alone = classifier.model(collate(encoded, [0]).source).softmax(1)
        torch.testing.assert_close(together[row : row + 1], alone, rtol=1e-5, atol=1e-6)
    assert together.sum(1).tolist() == pytest.approx([1.0] * len(TEXTS))


@settings(max_examples=15, deadline=None)
@given(order=st.permutations(TEXTS), batch=st.integers(1, 4))
def test_labels_do_not_depend_on_order_and_batches(runs: dict[str, Run], order: list[str], batch: int) -> None:
    classifier = load_classifier(runs["encoder"], device="cpu")
    whole = dict(zip(TEXTS, classifier.label([(text,) for text in TEXTS]), strict=True))
    classifier.batch_size = batch
    found = list(classifier.predict(order, advance=nothing))
    for text, answer in zip(order, found, strict=True):
        assert answer is not None
        assert answer.label == whole[text].label
        assert answer.probability == pytest.approx(whole[text].probability, abs=1e-5)


def test_empty_lines_stay_empty(runs: dict[str, Run]) -> None:
    classifier = load_classifier(runs["encoder"], device="cpu")
    found = list(classifier.predict(["", "the cats", "   "], advance=nothing))
    lines = list(classifier.lines(found))
    assert (lines[0], lines[2]) == ("", "")
    assert lines[1] in ("VBP", "VBZ")
    empty, answer, _ = classifier.as_json(found)
    assert empty == {"label": None, "probability": None}
    assert answer["label"] == lines[1]


def test_a_pair_has_a_tab(runs: dict[str, Run]) -> None:
    classifier = load_classifier(runs["lstm-pair"], device="cpu")
    (answer,) = classifier.predict(["see the cat\tthe cat is here"], advance=nothing)
    assert answer is not None
    assert answer.label in ("same", "other")
    with pytest.raises(DataError, match="line 2 has 1 text; this classifier reads 2 texts with a tab between"):
        list(classifier.predict(["a\tb", "a"], advance=nothing))


def test_one_text_has_no_tab(runs: dict[str, Run]) -> None:
    classifier = load_classifier(runs["encoder"], device="cpu")
    with pytest.raises(DataError, match="line 1 has 2 texts; this classifier reads one text"):
        list(classifier.predict(["a\tb"], advance=nothing))


@pytest.mark.parametrize("kind", ["encoder", "lstm-pair"])
def test_how_the_maps_are_applied_changes_no_answer(kind: str, runs: dict[str, Run]) -> None:
    run = runs[kind]
    lines = ["w1 the cats near the dog", "w2 the tree"]
    lines = [f"{line}\t{line}" for line in lines] if kind == "lstm-pair" else lines
    answers = {
        name: list(load_classifier(run, device="cpu", execution=name).predict(lines, advance=nothing))
        for name in ("dense", "rank")
    }
    for mine, dense in zip(answers["rank"], answers["dense"], strict=True):
        assert mine is not None
        assert dense is not None
        assert mine.label == dense.label
        assert mine.probability == pytest.approx(dense.probability, rel=1e-4)
    with pytest.raises(UserError, match="did you mean 'rank'"):
        load_classifier(run, execution="rnak")


def test_a_translators_run_labels_nothing_and_a_classifiers_translates_nothing(
    runs: dict[str, Run], tiny_run: Run
) -> None:
    from phmctl.decoding.loading import load_translator

    with pytest.raises(RunError, match="classification"):
        load_classifier(tiny_run)
    with pytest.raises(RunError, match="translation"):
        load_translator(runs["encoder"])
    with pytest.raises(UserError, match="--beam: task 'classification' has no such option; it has --execution"):
        KIND.require("decode", ["beam"])


def test_a_damaged_tokenizer_is_named(runs: dict[str, Run], tmp_path: Path) -> None:
    copy = tmp_path / "v001"
    shutil.copytree(runs["encoder"].folder, copy)
    path = copy / "tokenizer" / "tokenizer.json"
    path.write_text(path.read_text().replace("cat", "cut"))
    with pytest.raises(RunError, match=r"tokenizer\.json .*; copy the run again"):
        load_classifier(Run.open(copy))
