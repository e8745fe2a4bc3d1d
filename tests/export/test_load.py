"""``phmctl.load`` of an export gives the answers of its run, or an error for methods that the export lacks."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import phmctl
from phmctl.answering import opening as exports
from phmctl.errors import UserError
from phmctl.export.verb import export
from phmctl.runs import Run
from tests.export.conftest import needs
from tests.tasks.classification.conftest import labelled_data, runs, small

__all__ = ["labelled_data", "runs", "small"]

TEXTS = ["Sophie wandert zum kleinen Hafen.", "", "Am Donnerstag."]


def exported_to(run: Run, to: str, folder: Path) -> Path:
    """Export a run and move the export to another folder."""
    needs(to)
    verification = export(run, to, folder / "made", texts=16).verification
    assert (verification.split, verification.equal + verification.ties) == ("valid", 16)
    assert verification.scores["torch"] == pytest.approx(verification.scores["export"], abs=0.5)
    return Path(shutil.move(folder / "made", folder / "moved"))


@pytest.mark.parametrize("to", exports.FORMATS)
def test_a_translators_export(tiny_run: Run, tmp_path: Path, to: str) -> None:
    folder = exported_to(tiny_run, to, tmp_path)
    ours, model = phmctl.load(tiny_run.folder, device="cpu"), phmctl.load(folder)
    for options in ({"beam": 1}, {"beam": 2, "alpha": 0.3}):
        answers = [n_best[0] for n_best in model.translate(TEXTS, **options)]
        expected = [n_best[0] for n_best in ours.translate(TEXTS, **options)]
        assert [answer.text for answer in answers] == [answer.text for answer in expected]
        assert [answer.log_prob for answer in answers] == pytest.approx(
            [answer.log_prob for answer in expected], abs=1e-2
        )
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
        with pytest.raises(UserError, match=r"score.*translate"):
            model.score(TEXTS, TEXTS)


def test_the_lines_of_the_docs_translate_without_phmctl(tiny_run: Run, tmp_path: Path) -> None:
    folder = export(tiny_run, exports.SAFETENSORS, tmp_path / "out", texts=4).export.folder
    docs = Path(__file__).parents[2] / "docs" / "export.md"
    [code] = re.findall(r"```python\n(import plain.*?)```", docs.read_text(encoding="utf-8"), re.DOTALL)
    texts = [text for text in TEXTS if text]
    program = f"import sys; sys.modules['phmctl'] = None\n{code.replace('DIR', '.')}"
    program += f"\nfor text in {texts}:\n    print(translate(text))"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    expected = [n_best[0].text for n_best in phmctl.load(tiny_run.folder, device="cpu").translate(texts, beam=1)]
    assert done.stdout.splitlines() == expected
