"""Counters of a training, and the average of checkpoints."""

import json
import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from phmctl.errors import RunError
from phmctl.storage import read_checkpoint, step_name, write_checkpoint
from phmctl.training.train import averaged_steps, update_average
from phmctl.training.trainer import TrainingState
from tests.training.conftest import Fit
from tests.training.fake import make_recipe

NAN = math.nan


def test_json_keeps_everything_and_keys_of_later_versions_are_ignored() -> None:
    state = TrainingState(step=3, epoch=1, position=2, best_score=-0.1 - 0.2, best_step=2, window_loss=1 / 3)
    assert TrainingState.from_json(json.loads(json.dumps(asdict(state) | {"novelty": 1})), Path()) == state


@pytest.mark.parametrize(
    ("floor", "pairs", "expected"),
    [
        (
            -math.inf,
            [(1.0, 0.5), (2.0, 0.5), (2.0, 0.5), (NAN, 0.5), (3.0, 0.5)],
            [(1, 0), (2, 0), (2, 1), (2, 2), (5, 0)],
        ),
        (-math.inf, [(NAN, 1.0), (NAN, 0.5), (-9.0, 2.0)], [(None, 1), (None, 2), (3, 0)]),
        # BLEU is 0 for long at the start, and a classifier's accuracy comes in steps of one example.
        (
            -math.inf,
            [(0.0, 5.0), (0.0, 4.0), (0.0, 4.5), (0.0, NAN), (1.5, 9.0), (1.5, 8.0), (0.0, 1.0)],
            [(1, 0), (2, 0), (2, 1), (2, 2), (5, 0), (6, 0), (6, 1)],
        ),
        # BLEU below 1 says nothing of which model is better; what is stored and shown is the true figure.
        (1.0, [(0.9, 5.0), (0.02, 4.0), (0.95, 4.5), (1.2, 6.0)], [(1, 0), (2, 0), (2, 1), (4, 0)]),
    ],
    ids=["scores", "NaN first", "losses of equal scores", "scores below the floor"],
)
def test_the_best_score_is_kept(
    floor: float, pairs: list[tuple[float, float]], expected: list[tuple[int | None, int]]
) -> None:
    state = TrainingState()
    for (state.step, pair), (best, stale) in zip(enumerate(pairs, start=1), expected, strict=True):
        improved = state.note_score(*pair, floor)
        assert (improved, state.best_step, state.stale) == (stale == 0, best, stale)
        assert (state.best_score, state.best_loss) == ((None, None) if best is None else pairs[best - 1])


@pytest.mark.parametrize("wrong", [{}, {"step": 3, "format": 0}], ids=str)
def test_a_state_of_another_format_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RunError, match="here"):
        TrainingState.from_json(wrong, Path("here"))


class Counting(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.zeros(2))
        self.register_buffer("count", torch.tensor(0))


def test_the_mean_is_taken_and_integers_are_the_newest(tmp_path: Path) -> None:
    assert averaged_steps(tmp_path) == []
    for step, value in ((1, 0.1), (2, 2.0), (3, 6.0)):
        tensors = {"w": torch.full((2,), value), "count": torch.tensor(10 * step)}
        write_checkpoint(tmp_path / step_name(step), {"model": tensors}, {})
    trainer: Any = SimpleNamespace(
        settings=make_recipe(save_every=1, average=2).training,
        state=TrainingState(step=3),
        run=SimpleNamespace(checkpoints_folder=tmp_path),
        log=SimpleNamespace(has=lambda *_: True),
        model=Counting(),
    )
    assert update_average(trainer) == [2, 3]
    means = read_checkpoint(tmp_path / "average", ["model"]).tensors["model"]
    assert (means["w"].tolist(), means["w"].dtype, means["count"].item()) == ([4.0, 4.0], torch.float32, 30)
    assert torch.equal(trainer.model.w, means["w"])
    assert averaged_steps(tmp_path) == [2, 3]
    assert update_average(trainer) == []
    (tmp_path / "average/model.safetensors").write_bytes(b"cut off")
    assert averaged_steps(tmp_path) == []  # so that it is made again
    assert update_average(trainer) == [2, 3]


@pytest.mark.parametrize(
    ("final", "every", "count", "expected"),
    [(20, 5, 3, [10, 15, 20]), (20, 5, 1, [20]), (18, 5, 3, [10, 15, 18]), (5, 5, 3, [5]), (3, 5, 2, [3])],
)
def test_steps_of_the_average(fit: Fit, final: int, every: int, count: int, expected: list[int]) -> None:
    run = fit(steps=final, save_every=every, average=count).run
    assert averaged_steps(run.checkpoints_folder) == expected
