"""A training settles how its maps are applied before its first step, and a resumed one goes by what the run says."""

import itertools
import json
from pathlib import Path

import pytest
import torch

from phmctl.backends import choices, machine
from phmctl.backends.choices import RANK, from_text
from phmctl.checkpoints import read_checkpoint
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.metrics import read_metrics
from phmctl.training import choosing
from phmctl.training.choosing import KEY, settle_choices
from phmctl.training.processes import Processes
from phmctl.training.train import train
from phmctl.training.trainer import Trainer
from tests.conftest import TINY

FACTORS = ("model.algebra=phm", "model.n=4", "model.parametrization=factors")


def recipe(steps: int = 6) -> TranslationRecipe:
    return load_recipe("miniature", [*FACTORS, *TINY, f"training.steps={steps}", "training.keep=9"])


@pytest.fixture
def capricious(measuring: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every measurement finds another candidate the fastest; how many were made."""
    turns, made = itertools.count(), [0]

    def measured(calls, clock):
        made[0] += 1
        names = sorted(calls)
        fastest = names[next(turns) % len(names)]
        return {name: 1.0 if name == fastest else 2.0 for name in names}

    monkeypatch.setattr(choices, "lowest_seconds", measured)
    return made


def settled(run: Run) -> dict[str, str]:
    return json.loads((run.folder / "environment.json").read_text())[KEY]


def weights(run: Run, step: int) -> dict[str, torch.Tensor]:
    return read_checkpoint(run.checkpoint(f"step-{step:06d}"), ["model"]).tensors["model"]


def validated(run: Run) -> float:
    return [entry["loss"] for entry in read_metrics(run.metrics_path) if entry["event"] == "validation"][-1]


def another_machine() -> None:
    """Nothing is known any more of what was measured."""
    choices.cache_clear()
    machine.path().unlink()


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def test_a_training_computes_what_its_run_says_wherever_it_is_resumed(
    capricious: list[int], miniature_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train(recipe(), data=miniature_data, runs=tmp_path / "whole", quiet=True).run
    table = from_text(settled(whole))
    assert {choice.execution for choice in table.values()} >= {"dense", "factored", RANK}
    again = train(recipe(), data=miniature_data, runs=tmp_path / "again", quiet=True).run
    assert settled(again) == settled(whole)  # from the machine's file
    assert same(weights(again, 6), weights(whole, 6))
    another_machine()
    other = train(recipe(), data=miniature_data, runs=tmp_path / "other", quiet=True).run
    assert settled(other) != settled(whole)
    assert not same(weights(other, 6), weights(whole, 6))

    parts = train(recipe(3), data=miniature_data, runs=tmp_path / "parts", quiet=True).run
    another_machine()
    made = capricious[0]
    monkeypatch.setattr(Trainer, "rehearse", lambda *_: pytest.fail("it is settled"))
    train(recipe(), data=miniature_data, run=parts, runs=tmp_path / "parts", quiet=True)
    assert capricious[0] == made
    assert settled(parts) == settled(other)
    assert same(weights(parts, 6), weights(other, 6))
    assert validated(parts) == validated(other)


def test_without_measuring_nothing_is_settled(miniature_data: Path, tmp_path: Path) -> None:
    run = train(recipe(3), data=miniature_data, runs=tmp_path, quiet=True).run
    assert KEY not in json.loads((run.folder / "environment.json").read_text())


def test_real_measurements(measuring: Path, miniature_data: Path, tmp_path: Path) -> None:
    run = train(recipe(3), data=miniature_data, runs=tmp_path, quiet=True).run
    table = from_text(settled(run))
    assert {use.mode for use in table} >= {"train"}
    assert from_text(machine.read()) == table


@pytest.mark.parametrize(("here", "settled"), [("mkl", True), ("mkl+onednn", False)])
def test_with_other_libraries_at_hand_it_is_measured_anew(
    here: str, settled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = f"512 512 4 7 256 train learned auto float32 cpu {torch.get_num_threads()} mkl"
    monkeypatch.setattr(choosing, "libraries", lambda *_, **__: tuple(here.split("+")))
    assert choosing._is_settled(from_text({entry: "rank mkl"}), torch.device("cpu")) == settled


class Follower(Processes):
    """One of several processes, not the first: what it is told is the first one's."""

    leads = False

    def __init__(self, told: object) -> None:
        super().__init__()
        self.told = told

    def tell(self, value):
        return self.told


def test_other_processes_take_what_the_first_one_tells(capricious: list[int]) -> None:
    use = "512 512 4 7 256 train learned auto float32 cpu 2 mkl+onednn"
    told = settle_choices(None, Follower({use: "rank onednn"}))
    assert [(use.d, str(choice)) for use, choice in told.items()] == [(512, "rank onednn")]
    assert capricious[0] == 0
