import json
from pathlib import Path

import pytest
import torch

from phmctl.errors import RunError
from phmctl.runs import DATA, Run
from phmctl.tasks.rule_learning.task import RuleTask
from phmctl.tasks.rule_learning.truth import TRUTH, read_truth

from .recipes import rule_recipe


@pytest.fixture
def run(tmp_path: Path) -> Run:
    task = RuleTask(rule_recipe())
    return Run.create(tmp_path, task.recipe, fill=task.furnish)


def test_the_true_map_is_kept_to_the_last_bit(run: Run) -> None:
    truth, kept = RuleTask(rule_recipe()).truth, read_truth(run)
    assert torch.equal(kept.A, truth.A)
    assert torch.equal(kept.S, truth.S)
    assert kept.S.dtype == torch.float64
    assert run.data()["product"] == "hamilton"


def test_a_damaged_true_map_is_named(run: Run) -> None:
    path = run.folder / TRUTH
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"truth\.safetensors is damaged: its SHA-256.*; copy the run again"):
        read_truth(run)
    path.unlink()
    with pytest.raises(RunError, match=r"truth\.safetensors is missing"):
        read_truth(run)


@pytest.mark.parametrize("copies", ["truth", [{"name": "x"}]])
def test_a_list_of_copies_that_is_none_is_damage(run: Run, copies: object) -> None:
    (run.folder / DATA).write_text(json.dumps({"copies": copies}))
    with pytest.raises(RunError, match=r"data\.json is damaged"):
        read_truth(run)


def test_a_file_that_holds_no_map_is_damage(run: Run) -> None:
    (run.folder / DATA).write_text(json.dumps({"copies": []}))
    (run.folder / TRUTH).write_bytes(b"nothing")
    with pytest.raises(RunError, match=r"truth\.safetensors cannot be used"):
        read_truth(run)
