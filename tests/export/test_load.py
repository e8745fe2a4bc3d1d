"""Exports answer as their runs: by phmctl.load, and by the lines of docs/export.md without phmctl."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import phmctl
from phmctl.answering import opening as exports
from phmctl.answering.classifier import load_classifier
from phmctl.errors import UserError
from phmctl.export.verb import export
from phmctl.runs import Run
from tests.export.conftest import needs
from tests.tasks.classification.conftest import NOUNS, labelled_data, runs, small

__all__ = ["labelled_data", "runs", "small"]

DOCS = Path(__file__).parents[2] / "docs" / "export.md"
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
    [code] = re.findall(r"```python\n(import plain.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    texts = [text for text in TEXTS if text]
    program = f"import sys; sys.modules['phmctl'] = None\n{code.replace('DIR', '.')}"
    program += f"\nfor text in {texts}:\n    print(translate(text))"
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
    expected = [n_best[0].text for n_best in phmctl.load(tiny_run.folder, device="cpu").translate(texts, beam=1)]
    assert done.stdout.splitlines() == expected


LONG = " ".join(f"the {noun}" for noun in NOUNS * 60)


@pytest.mark.parametrize(
    ("kind", "columns"),
    [
        ("encoder", [["the cat", " the dogs near the key ", "stones", LONG]]),
        ("lstm-pair", [["see the cat", "see the dog", "a"], ["the cat is here", "the key is here", ""]]),
    ],
)
def test_a_classifier_without_phmctl(kind: str, columns: list[list[str]], runs: dict[str, Run], tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    folder = export(runs[kind], "onnx", tmp_path / "out", texts=4).export.folder
    card = (folder / "README.md").read_text()
    [code] = re.findall(r"```python\n(import json\n.*?)```", DOCS.read_text(), re.DOTALL)
    most = re.search(r"the first (\d+) ids", card)
    assert most is not None
    code = code.replace("DIR", str(folder)).replace("max_tokens = 256", f"max_tokens = {most[1]}")
    names: dict[str, Any] = {}
    exec(code, names)
    model = load_classifier(runs[kind], device="cpu")
    expected = [answer.label for answer in model.label(list(zip(*columns, strict=True)))]
    assert names["classify"](*columns) == expected
    rows, logits = names["session"].get_inputs(), names["session"].get_outputs()
    assert all(f"`{value.name}`" in card for value in (*rows, *logits))
    assert ", ".join(f"{number}: {label}" for number, label in enumerate(model.labels)) in card
