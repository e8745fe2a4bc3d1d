"""How translations are printed by ``decode``."""

import json
from pathlib import Path

import pytest

from phmctl.decoding.loading import load_translator
from phmctl.decoding.translator import EMPTY, Translation
from phmctl.tasks.translation.kind import TranslationModel
from tests.tasks.translation.runs import make_run

FOUND = [[Translation("a", -1.0, -2.0), Translation("b c", -1.5, -3.0)], [EMPTY]]


@pytest.mark.parametrize(
    ("n_best", "first", "lines"),
    [
        (None, 1, ["a", ""]),
        (2, 1, ["1\t1\t-1.000000\ta", "1\t2\t-1.500000\tb c", "2\t1\t0.000000\t"]),
        (1, 8, ["8\t1\t-1.000000\ta", "8\t2\t-1.500000\tb c", "9\t1\t0.000000\t"]),
    ],
)
def test_lines_and_json(tmp_path: Path, n_best: int | None, first: int, lines: list[str]) -> None:
    run = make_run(tmp_path)
    model = TranslationModel(load_translator(run, "best", "cpu"), run, "best", n_best)
    assert list(model.lines(FOUND, first_line=first)) == lines
    first_line, second = json.loads(json.dumps(list(model.as_json(FOUND))))
    assert first_line["translations"][1] == {"text": "b c", "score": -1.5, "log_prob": -3.0}
    assert second == {"translations": [{"text": "", "score": 0.0, "log_prob": 0.0}]}
