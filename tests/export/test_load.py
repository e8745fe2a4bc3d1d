"""An export behind the door for programs: it answers as its run does, wherever it lies, and says what it cannot."""

import shutil
from pathlib import Path

import pytest
import torch

import phmctl
from phmctl import exports
from phmctl.decoding.translator import load_translator
from phmctl.errors import RunError, UserError
from phmctl.export.verb import Exported, export
from phmctl.runs import Run
from tests.export.conftest import needs
from tests.tasks.classification.conftest import labelled_data, runs, small

__all__ = ["labelled_data", "runs", "small"]

TEXTS = ["Sophie wandert zum kleinen Hafen.", "", "Am Donnerstag."]


def exported_to(run: Run, to: str, folder: Path) -> Path:
    """Export a run, and move the export elsewhere."""
    needs(to)
    export(run, to, folder / "made", texts=4)
    return Path(shutil.move(folder / "made", folder / "moved"))


@pytest.mark.parametrize("to", exports.ANSWERING)
def test_a_translators_export(tiny_run: Run, tmp_path: Path, to: str) -> None:
    folder = exported_to(tiny_run, to, tmp_path)
    ours, model = phmctl.load(tiny_run.folder, device="cpu"), phmctl.load(folder)
    for options in ({"beam": 1}, {"beam": 2, "alpha": 0.3}):
        found = [each[0] for each in model.translate(TEXTS, **options)]
        wanted = [each[0] for each in ours.translate(TEXTS, **options)]
        assert [each.text for each in found] == [each.text for each in wanted]
        assert [each.log_prob for each in found] == pytest.approx([each.log_prob for each in wanted], abs=1e-2)
    assert model.lengths(TEXTS) == ours.lengths(TEXTS)
    about = model.about()
    assert (about["folder"], about["name"]) == (str(folder), model.name)
    by_torch = to == exports.SAFETENSORS
    assert about["engine"] == ("torch" if by_torch else to)
    assert about["methods"] == (["translate", "score", "encode"] if by_torch else ["translate"])
    if by_torch:
        assert model.score(TEXTS, TEXTS) == pytest.approx(ours.score(TEXTS, TEXTS), abs=1e-2)
        torch.testing.assert_close(model.encode(TEXTS), ours.encode(TEXTS), rtol=1e-4, atol=1e-4)
    else:
        with pytest.raises(UserError, match=r"score: .* does not have it; it has translate"):
            model.score(TEXTS, TEXTS)


@pytest.mark.parametrize("to", [exports.ONNX, exports.SAFETENSORS])
@pytest.mark.parametrize("kind", ["encoder", "lstm-pair"])
def test_a_classifiers_export(runs: dict[str, Run], tmp_path: Path, kind: str, to: str) -> None:
    folder = exported_to(runs[kind], to, tmp_path)
    texts = ["the cat sees", "the dogs"] if kind == "encoder" else [("see the cat", "the cat is here"), ("a", "b c")]
    ours, model = phmctl.load(runs[kind].folder, device="cpu"), phmctl.load(folder)
    found, wanted = model.classify(texts), ours.classify(texts)
    assert [each.label for each in found] == [each.label for each in wanted]
    for one, other in zip(found, wanted, strict=True):
        assert dict(one.probabilities) == pytest.approx(dict(other.probabilities), abs=1e-4)
    assert model.about()["methods"] == ["classify"]
    assert ours.about()["methods"] == ["classify", "encode"]
    with pytest.raises(UserError, match="encode"):
        model.encode(["the cat"])


def test_one_for_transformers_is_refused_by_all_that_answers(tiny_run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    made = export(tiny_run, exports.HUGGINGFACE, tmp_path / "out", texts=2).export
    for ask in (phmctl.load, phmctl.evaluate):
        with pytest.raises(UserError, match="is for the transformers library, which reads it itself; phmctl answers"):
            ask(made.folder)
    with pytest.raises(UserError, match="is for the transformers library"):
        load_translator(made)


@pytest.mark.parametrize(
    ("options", "failure", "words"),
    [
        ({"checkpoint": "last"}, RunError, "no checkpoint 'last'"),
        ({"device": "cuda"}, UserError, "runs on the CPU"),
    ],
)
def test_what_cannot_be_loaded(
    exported: Exported, options: dict[str, object], failure: type[Exception], words: str
) -> None:
    with pytest.raises(failure, match=words):
        phmctl.load(exported.export.folder, **options)
