"""Counters of a training."""

import json
import math

import pytest

from phmctl.errors import RunError
from phmctl.training.saving import TrainingState


def test_json_keeps_everything() -> None:
    state = TrainingState(step=3, epoch=1, position=2, best_score=-0.1 - 0.2, best_step=2, window_loss=1 / 3)
    assert TrainingState.from_json(json.loads(json.dumps(state.model_dump()))) == state


def test_keys_of_later_versions_are_ignored() -> None:
    assert TrainingState.from_json({"step": 4, "order": 1, "novelty": 1}) == TrainingState(step=4)


def test_scores_are_counted() -> None:
    state = TrainingState()
    found = []
    for state.step, score in enumerate([1.0, 2.0, 2.0, math.nan, 3.0], start=1):
        found.append((state.note_score(score, 0.5), state.best_step, state.stale))
    assert found == [(True, 1, 0), (True, 2, 0), (False, 2, 1), (False, 2, 2), (True, 5, 0)]


def test_of_equal_scores_the_less_loss_is_best() -> None:
    """BLEU is 0 for long at the start, and a classifier's accuracy comes in steps of one example."""
    state = TrainingState()
    found = []
    pairs = [(0.0, 5.0), (0.0, 4.0), (0.0, 4.5), (0.0, math.nan), (1.5, 9.0), (1.5, 8.0), (0.0, 1.0)]
    for state.step, (score, loss) in enumerate(pairs, start=1):
        found.append((state.note_score(score, loss), state.best_step, state.stale))
    assert found == [
        *((True, 1, 0), (True, 2, 0), (False, 2, 1), (False, 2, 2)),
        *((True, 5, 0), (True, 6, 0), (False, 6, 1)),
    ]
    assert (state.best_score, state.best_loss) == (1.5, 8.0)


def test_scores_below_the_floor_count_as_equal_and_are_kept_as_they_are() -> None:
    """BLEU below 1 says nothing of which model is better; what is stored and shown is the true figure."""
    state = TrainingState()
    found = []
    for state.step, (score, loss) in enumerate([(0.9, 5.0), (0.02, 4.0), (0.95, 4.5), (1.2, 6.0)], start=1):
        found.append((state.note_score(score, loss, 1.0), state.best_score))
    assert found == [(True, 0.9), (True, 0.02), (False, 0.02), (True, 1.2)]


def test_a_state_may_know_no_loss() -> None:
    state = TrainingState.from_json({"step": 4, "order": 1, "best_score": 2.0, "best_step": 3})
    assert state.note_score(2.0, 7.0)
    assert not state.note_score(2.0, 7.0)


def test_a_nan_at_first_is_not_the_best() -> None:
    state = TrainingState(step=1)
    assert not state.note_score(math.nan, 1.0)
    assert state.best_step is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "it has no step"),
        ({"step": None}, "its step is None"),
        ({"step": 3.5}, "its step is 3.5"),
        ({"step": True}, "its step is True"),
        ({"step": -1}, "its step is -1"),
        ({"step": 3, "position": -2}, "its position is -2"),
        ({"step": 3, "best_score": "x"}, "its best_score is 'x'"),
        ({"step": 3}, "is of a version before 0.1.0"),
    ],
)
def test_a_state_that_cannot_be_is_refused(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(RunError, match=said):
        TrainingState.from_json(wrong)


@pytest.mark.parametrize(("step", "stale", "finished"), [(9, 1, False), (10, 0, True), (4, 3, True), (4, 2, False)])
def test_finished(step: int, stale: int, finished: bool) -> None:
    assert TrainingState(step=step, stale=stale).finished(steps=10, patience=3) is finished
    assert TrainingState(step=step, stale=stale).finished(steps=10, patience=0) is (step == 10)
