"""A classifier's export answers without phmctl: by the lines of docs/export.md and what its card says."""

import re
from pathlib import Path
from typing import Any

import pytest

from phmctl.answering.classifier import load_classifier
from phmctl.export.verb import export
from phmctl.runs import Run
from tests.tasks.classification.conftest import NOUNS

DOCS = Path(__file__).parents[3] / "docs" / "export.md"
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
