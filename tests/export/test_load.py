"""An export behind the door for programs: it answers as its run does, wherever it lies, and says what it cannot."""

import shutil
from pathlib import Path

import pytest
import torch

import phmctl
from phmctl import exports
from phmctl.decoding.translator import load_translator
from phmctl.errors import UserError
from phmctl.export.verb import export
from phmctl.runs import Run
from tests.export.conftest import needs
from tests.tasks.classification.conftest import labelled_data, runs, small

__all__ = ["labelled_data", "runs", "small"]

TEXTS = ["Sophie wandert zum kleinen Hafen.", "", "Am Donnerstag."]


def exported_to(run: Run, to: str, folder: Path) -> Path:
    """Export a run, and move the export elsewhere."""
    needs(to)
    found = export(run, to, folder / "made", texts=16).verification
    assert (found.split, found.equal + found.ties) == ("valid", 16)
    assert found.scores["torch"] == pytest.approx(found.scores["export"], abs=0.5)
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


def test_one_for_transformers_is_refused_by_all_that_answers(tiny_run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    made = export(tiny_run, exports.HUGGINGFACE, tmp_path / "out", texts=2).export
    for ask in (phmctl.load, phmctl.evaluate):
        with pytest.raises(UserError, match="is for the transformers library, which reads it itself; phmctl answers"):
            ask(made.folder)
    with pytest.raises(UserError, match="is for the transformers library"):
        load_translator(made)
