"""A classifier's exports answer as its run does."""

from pathlib import Path

import pytest
import torch

from phmctl import exports
from phmctl.errors import UserError
from phmctl.export.verb import export, with_engine
from phmctl.exports import open_model
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.tasks.classification.evaluation import evaluate, read_examples
from phmctl.tasks.classification.predictor import load_classifier


@pytest.mark.parametrize("kind", ["encoder", "lstm-pair"])
@pytest.mark.parametrize("to", [exports.SAFETENSORS, exports.ONNX])
def test_an_export_answers_as_its_run(runs: dict[str, Run], tmp_path: Path, kind: str, to: str) -> None:
    if to == exports.ONNX:
        pytest.importorskip("onnxruntime")
    run = runs[kind]
    made = export(run, to, tmp_path / "out")
    assert made.verification.texts == made.verification.equal + made.verification.ties > 50
    texts = read_examples(run, "test").texts
    found = load_classifier(open_model(tmp_path / "out")).probabilities(texts)
    torch.testing.assert_close(found, load_classifier(run, device="cpu").probabilities(texts), rtol=1e-4, atol=1e-5)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "- labels: " in card
    assert "accuracy" in card


def test_eval_scores_an_export(runs: dict[str, Run], tmp_path: Path) -> None:
    made = export(runs["encoder"], exports.SAFETENSORS, tmp_path / "out").export
    report = evaluate(made, device="cpu", against=runs["real"])
    assert report.splits[0].accuracy == evaluate(runs["encoder"], device="cpu").splits[0].accuracy
    assert {one.against for one in read_results(made)} == {None, runs["real"].name}


def test_ctranslate2_is_refused_with_what_can(runs: dict[str, Run], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="export it --to onnx or safetensors"):
        export(runs["lstm-pair"], exports.CTRANSLATE2, tmp_path / "out")
    with pytest.raises(UserError, match="export it --to onnx or safetensors"):
        with_engine(runs["encoder"], exports.CTRANSLATE2)


def test_an_export_has_no_vectors_and_no_execution(runs: dict[str, Run], tmp_path: Path) -> None:
    made = export(runs["encoder"], exports.SAFETENSORS, tmp_path / "out", texts=8).export
    with pytest.raises(UserError, match="encode"):
        load_classifier(made).encode(["the cat"])
    with pytest.raises(UserError, match="--execution"):
        load_classifier(made, execution="rank")
