"""Several processes give the same model as one; if one dies or hangs, the others stop in time."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import Run
from phmctl.storage import read_checkpoint, saved_steps
from tests.training import jobs
from tests.training.jobs import curve, weights

# Half of a micro-batch for each of two processes, and maps by block products.
HALF: dict[str, Any] = {"accumulate": 1, "dropout": 0.0, "rank": 4}


@pytest.fixture(scope="module")
def classifiers(small: Callable[..., ClassificationRecipe]) -> dict[str, ClassificationRecipe]:
    """Recipes of classifiers with dropout and whole micro-batches for each process."""
    common = ["training.accumulate=2", "model.dropout=0.1", "training.log_every=1"]
    return {kind: small(kind, *common) for kind in ("encoder", "lstm-pair")}


@pytest.fixture(scope="module")
def alone(
    classifiers: dict[str, ClassificationRecipe],
    labelled_data: Path,
    copying_data: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, Path]:
    """The runs of one process."""
    root = tmp_path_factory.mktemp("alone")
    with torch.random.fork_rng():
        return {
            "whole": jobs.translate(copying_data, root / "whole")[0],
            "divided": jobs.translate(copying_data, root / "divided", **HALF)[0],
            "begun": jobs.translate(copying_data, root / "begun", steps=10)[0],
            **{kind: jobs.classify(labelled_data, root, recipe) for kind, recipe in classifiers.items()},
        }


@pytest.fixture(scope="module")
def two(
    alone: dict[str, Path],
    classifiers: dict[str, ClassificationRecipe],
    labelled_data: Path,
    copying_data: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[Any]]:
    """The results of two processes for each job, by rank."""
    root = tmp_path_factory.mktemp("two")

    def translation(name: str, **changes: Any) -> jobs.Job:
        return jobs.translate, {"data": copying_data, "root": root / name, **changes}

    def fake(name: str, **changes: Any) -> jobs.Job:
        return jobs.fake, {"root": root / name, **changes}

    wanted_jobs = {
        "whole": translation("whole"),
        "divided": translation("divided", **HALF),
        "begun": translation("begun", steps=10),
        "bytes": (jobs.exchanged, {"data": copying_data, "root": root / "bytes", "n": 4}),
        "dense bytes": (jobs.exchanged, {"data": copying_data, "root": root / "bytes", "n": 1}),
        "resumed": translation("resumed", old=alone["begun"]),
        "begun on": translation("begun on", old=root / "begun/copying/phm-n4/v001", steps=15),
        "wrapped": (jobs.wrapped, {}),
        "wrapped with a static graph": (jobs.wrapped, {"static_graph": True}),
        "asked": fake("asked", stopped=1, accumulate=2),
        "poisoned": fake("poisoned", poison=(0, 3), accumulate=2),
        "refused": fake("refused", refusing=1),
        "unwritable": fake("whole/copying/phm-n4/v001/recipe.yaml"),
    }
    for kind, recipe in classifiers.items():
        wanted_jobs[kind] = jobs.classify, {"data": labelled_data, "root": root, "recipe": recipe}
    return dict(zip(wanted_jobs, jobs.run(root, list(wanted_jobs.values()), 2), strict=True))


def test_weights_and_figures_are_those_of_one_process(alone: dict[str, Path], two: dict[str, Any]) -> None:
    run = two["whole"][0][0]
    for name in ("last", "average"):
        torch.testing.assert_close(weights(run, name), weights(alone["whole"], name), rtol=0, atol=1e-10)
    for event, *keys in (
        ("train", "step", "epoch", "loss", "gradient_norm", "target_tokens"),
        ("validation", "step", "loss", "bleu"),
        ("average", "loss", "bleu"),
    ):
        actual, expected = curve(run, event, *keys), curve(alone["whole"], event, *keys)
        assert len(actual) == len(expected) > 0
        for row, expected_row in zip(actual, expected, strict=True):
            assert row == pytest.approx(expected_row, rel=1e-6)
    assert Run.open(run).environment()["processes"] == 2


@pytest.mark.parametrize("kind", ["encoder", "lstm-pair"])
def test_a_classifier_is_that_of_one_process(alone: dict[str, Path], two: dict[str, Any], kind: str) -> None:
    run = two[kind][0]
    torch.testing.assert_close(weights(run), weights(alone[kind]), rtol=0, atol=1e-10)
    for event, figure in (("train", "loss"), ("validation", "loss"), ("validation", "accuracy")):
        expected, found = (torch.tensor(curve(each, event, "step", figure)) for each in (alone[kind], run))
        assert len(found)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)  # sums for the log are in float32


def test_a_process_builds_only_what_it_trains_on(two: dict[str, Any]) -> None:
    (_, first), (_, second) = two["whole"]
    assert abs(len(first) - len(second)) < 0.3 * len(first)
    assert not set(first[:200]) & set(second[:200])  # of the first epoch


def test_a_step_exchanges_each_gradient_once(two: dict[str, Any]) -> None:
    """Of A and S, which are 1/n of H; the tables and biases of the two models are equal."""
    (sent, parameters), other = two["bytes"]
    dense_sent, dense_parameters = two["dense bytes"][0]
    assert (sent, dense_sent) == (parameters, dense_parameters)
    assert other == (sent, parameters)
    assert sent < 0.6 * dense_sent


def test_a_step_of_a_wrapped_model_has_the_mean_of_the_gradients(two: dict[str, Any]) -> None:
    for gradients, expected in two["wrapped"]:
        torch.testing.assert_close(gradients, expected)
    assert all(result.startswith("UserError: phmctl.step: ") for result in two["wrapped with a static graph"])


def test_too_few_micro_batches_are_divided(alone: dict[str, Path], two: dict[str, Any]) -> None:
    run = two["divided"][0][0]
    torch.testing.assert_close(weights(run), weights(alone["divided"]), rtol=0, atol=1e-10)
    (_, first), (_, second) = two["divided"]
    assert abs(len(first) - len(second)) <= 20  # a row a micro-batch


def test_another_number_of_processes_goes_on_with_the_same_batches(
    alone: dict[str, Path], two: dict[str, Any], copying_data: Path, tmp_path: Path
) -> None:
    """From one to two (in the fixture), and from two to one."""
    assert two["resumed"][0][0] == two["resumed"][1][0] == alone["begun"]
    torch.testing.assert_close(weights(alone["begun"]), weights(alone["whole"]), rtol=0, atol=1e-10)
    begun = two["begun"][0][0]
    assert two["begun on"][0][0] == begun
    assert Run.open(begun).checkpoint("last").name == "step-000015"
    with torch.random.fork_rng():
        jobs.translate(copying_data, tmp_path, old=begun)
    torch.testing.assert_close(weights(begun), weights(alone["whole"]), rtol=0, atol=1e-10)


def test_one_processs_wish_to_stop_is_everybodys(two: dict[str, Any]) -> None:
    (run, *first), (_, *second) = two["asked"]
    assert first == second == [3, 143]
    assert Run.open(run).checkpoint_names() == ["last", "step-000003"]


def test_a_bad_value_of_one_process_ends_all(two: dict[str, Any]) -> None:
    """Micro-batch 3 of the epoch, counted from 0, is the second of step 2: rank 1's."""
    first, second = two["poisoned"]
    assert first.startswith("NonFiniteError")
    assert "at step 2;" in first
    assert second == "SystemExit: 1"


def test_what_one_process_refuses_stops_all_before_a_run_is_made(two: dict[str, Any], tmp_path: Path) -> None:
    assert two["refused"] == ["DataError: rank 1: no data here", "SystemExit: 2"]


def test_what_the_first_process_cannot_write_stops_all(two: dict[str, Any]) -> None:
    first, second = two["unwritable"]
    assert first.startswith("OutputError")
    assert "recipe.yaml" in first
    assert second == "SystemExit: 2"


@pytest.mark.slow
def test_four_processes(alone: dict[str, Path], copying_data: Path, tmp_path: Path) -> None:
    """Four micro-batches for four; and one that is divided."""
    changes: dict[str, dict[str, Any]] = {"whole": {}, "divided": HALF}
    wanted_jobs = [
        (jobs.translate, {"data": copying_data, "root": tmp_path / name, **changes[name]}) for name in changes
    ]
    for name, actual in zip(changes, jobs.run(tmp_path, wanted_jobs, 4), strict=True):
        torch.testing.assert_close(weights(actual[0][0]), weights(alone[name]), rtol=0, atol=1e-10)


# ------------------------------------------------------------- a process is lost; nothing is saved half

LONG = {"accumulate": 4, "steps": 5000, "save_every": 7, "validate_every": 5000, "log_every": 5, "keep": 2}


def _lose(folder: Path, number: signal.Signals) -> Path:
    """Train, send rank 1 a signal after some time, and return the run once rank 0 has ended."""
    processes = jobs.start(folder, [(jobs.fake, {"root": folder, "slow": True, **LONG})], 2, timeout=4)
    try:
        until = time.monotonic() + 300  # a busy machine needs a minute to import torch
        while len(list(folder.glob("reached-*"))) < 2 and time.monotonic() < until:
            time.sleep(0.05)
        time.sleep(0.5)
        processes[1].send_signal(number)
        assert processes[0].wait(timeout=60) == 1
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert "PeerError: rank 0: another process" in (folder / "stderr-0").read_text()
    return Run.open(folder / "fake").folder


def _goes_on(run: Path, tmp_path: Path) -> None:
    """Check that all checkpoints are complete and that a resumed training equals an undisturbed one."""
    steps = saved_steps(Run.open(run).checkpoints_folder)
    for step in steps:
        read_checkpoint(Run.open(run).checkpoint(str(step)), ["model", "optimizer"])
    end = (steps[-1] if steps else 0) + 5
    for folder, old in ((tmp_path / "whole", None), (tmp_path, run)):
        task, recipe = jobs.FakeTask(), jobs.make_recipe(**(LONG | {"steps": end}))
        result = jobs.train_task(task, recipe, folder, old=old and Run.open(old))
        assert result.steps == end
    torch.testing.assert_close(weights(run), weights(tmp_path / "whole/fake/phm-n4/v001"), rtol=1e-5, atol=1e-6)
    logged = [int(step) for (step,) in curve(run, "train", "step")]
    assert logged == sorted(set(logged))


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_process_that_dies_or_hangs_ends_the_others_and_the_training_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    _goes_on(_lose(tmp_path / "cut", number), tmp_path)
