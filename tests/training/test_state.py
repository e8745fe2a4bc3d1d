"""Counters of a training."""

import json
import math

from phmctl.training.state import TrainingState


def test_json_keeps_everything() -> None:
    state = TrainingState(step=3, epoch=1, position=2, best_score=-0.1 - 0.2, best_step=2, window_loss=1 / 3)
    assert TrainingState.from_json(json.loads(json.dumps(state.as_json()))) == state


def test_keys_of_later_versions_are_ignored() -> None:
    assert TrainingState.from_json({"step": 4, "order": 1, "novelty": 1}) == TrainingState(step=4)


def test_scores_are_counted() -> None:
    state = TrainingState()
    found = []
    for state.step, score in enumerate([1.0, 2.0, 2.0, math.nan, 3.0], start=1):
        found.append((state.note_score(score), state.best_step, state.stale))
    assert found == [(True, 1, 0), (True, 2, 0), (True, 3, 1), (False, 3, 2), (True, 5, 0)]


def test_a_nan_at_first_is_not_the_best() -> None:
    state = TrainingState(step=1)
    assert not state.note_score(math.nan)
    assert state.best_step is None
