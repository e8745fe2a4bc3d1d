"""A new task works with every command once it is registered."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from phmctl.answering.base import Line
from phmctl.console import Table
from phmctl.errors import UserError
from phmctl.models import MODELS, load
from phmctl.recipe.models import LinearSection, Section
from phmctl.recipe.schema import RECIPES, CountedTraining, Recipe
from phmctl.runs import Run
from phmctl.tasks import TASKS
from phmctl.tasks.base import Answering, Sizes, TaskSpec, Trains
from tests import calls as commands
from tests.training.fake import FakeModel, FakeTask


class DigitModel(LinearSection):
    kind: Literal["digit"] = "digit"


class DigitRecipe(Recipe):
    task: Literal["digit"] = "digit"
    data: Section
    model: DigitModel
    training: CountedTraining


@dataclass(frozen=True)
class DigitReport:
    accuracy: float

    def as_json(self) -> dict[str, Any]:
        return {"accuracy": self.accuracy}

    def tables(self) -> list[Table]:
        return [Table("digits", ["accuracy"], [[f"{self.accuracy:.2f}"]])]


class DigitReader:
    verb = "reading"

    def __init__(self, run: Run, checkpoint: str, device: str = "auto", **options: object) -> None:
        path, tensors = run.read_model(checkpoint)
        self.model = load(run.recipe.model, {"digits": 4}, tensors, path, torch.device("cpu"))

    def answer(self, lines: Sequence[str], *, first: int = 1, advance: Callable[[int], None]) -> list[Line]:
        advance(len(lines))
        digits = [int(self.model(torch.eye(6)[int(line)][None]).argmax()) for line in lines]
        return [(str(digit), {"digit": digit}) for digit in digits]


def evaluate(run: Run, split: str, checkpoint: str, device: str) -> DigitReport:
    answers = DigitReader(run, checkpoint).answer("0123", advance=lambda count: None)
    return DigitReport(sum(text == digit for digit, (text, _) in zip("0123", answers, strict=True)) / 4)


def build(section: DigitModel, digits: int, device: torch.device | str | None = None) -> nn.Module:
    with torch.device(device or "cpu"):
        return FakeModel()


DIGITS = TaskSpec(
    name="digit",
    commands=("train", "eval", "decode", "count-params", "bench train"),
    sizes=lambda recipe, data: Sizes({"digits": 4}, "digits: 4, as everywhere"),
    trains=Trains(open=lambda recipe, data: FakeTask(rows=recipe.training.batch_size), evaluate=evaluate),
    answers=Answering(load=DigitReader),
)


TEXT = """\
name: digits
task: digit
data: {}
model: {}
training:
  steps: 300
  batch_size: 16
  learning_rate: 0.01
  schedule: constant
  warmup: 0
  validate_every: 150
  device: cpu
"""


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(RECIPES, "digit", DigitRecipe)
    monkeypatch.setitem(TASKS, "digit", DIGITS)
    monkeypatch.setitem(MODELS, "digit", build)
    monkeypatch.setenv("PHMCTL_RUNS", str(tmp_path / "runs"))
    path = tmp_path / "digits.yaml"
    path.write_text(TEXT, encoding="utf-8")
    return str(path)


def call(*arguments: str, text: str = "") -> str:
    result = commands.call(*arguments, stdin=text)
    assert result.exit_code == 0
    return result.stdout


def test_it_trains_and_answers_by_every_command(recipe: str) -> None:
    run = call("train", recipe).strip()
    assert Run.open(run).recipe_of(DigitRecipe).training.batch_size == 16
    assert call("decode", run, text="0\n1\n2\n3\n") == "0\n1\n2\n3\n"
    answers = [json.loads(line) for line in call("decode", run, "--json", text="0\n1\n2\n3\n").splitlines()]
    assert answers == [{"line": line, "digit": line - 1} for line in (1, 2, 3, 4)]
    assert json.loads(call("eval", run, "--json")) == {"accuracy": 1.0}
    assert "1.00" in call("eval", run)


def test_its_parameters_are_counted(recipe: str) -> None:
    parameters = sum(parameter.numel() for parameter in FakeModel().parameters())
    (ledger,) = json.loads(call("count-params", recipe, "--json"))["variants"]
    assert ledger["totals"]["parameters"] == parameters
    assert ledger["sizes"] == {"digits": 4}
    dry = json.loads(call("train", recipe, "--dry-run", "--json"))
    assert dry["parameters"]["totals"]["parameters"] == parameters


def test_its_training_is_measured_against_the_dense_twin(recipe: str) -> None:
    result = json.loads(call("bench", "train", recipe, "--rounds", "1", "--batches", "2", "--json"))
    assert [row["candidate"] for row in result["rows"]] == ["dense"]
    assert result["batch_size"] == 16


def test_commands_and_options_that_it_lacks_are_refused_by_name(recipe: str) -> None:
    run = call("train", recipe, "--steps", "1").strip()
    for arguments, name in (
        (("prepare-data", "miniature", "--recipe", recipe), "'digit'"),
        (("decode", run, "--beam", "4", "--n-best", "2"), "beam, n_best"),
        (("eval", run, "--lowercase"), "lowercase"),
    ):
        with pytest.raises(UserError, match=name):
            commands.call(*arguments)
