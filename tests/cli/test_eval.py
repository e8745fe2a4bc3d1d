import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phmctl.cli.main import app
from phmctl.errors import RunError
from phmctl.runs import Run
from tests.tasks.translation.runs import evaluate, make_run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs"), name="other", seed=2)


def call(*arguments: object):
    result = CliRunner().invoke(app, ["eval", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def test_the_table_shows_scores_with_signatures(run: Run) -> None:
    found = call(run.folder).stdout
    scores = evaluate(run).scores
    for score in scores:
        row = next(line for line in found.split("\n") if f" {score.name} " in line)
        assert f"{score.value:.2f}" in row
        assert score.signature not in row
        assert f"\n{score.name}: {score.signature}\n" in found  # a line of its own, to be copied
    assert "checkpoint step-000002, beam 3, alpha 0.6" in found
    assert "1–10" in found


def test_json_is_the_evaluation(run: Run) -> None:
    assert json.loads(call(run.folder, "--json").stdout) == evaluate(run).as_json()


def test_against_shows_the_bootstrap(run: Run, other: Run) -> None:
    found = call(run.folder, "--against", other.folder).stdout
    assert "paired bootstrap against other/real/v001" in found
    assert "bs:1000" in found


def test_several_baselines_are_compared_in_turn(run: Run, other: Run, tmp_path: Path) -> None:
    third = make_run(tmp_path, name="third", seed=3)
    found = call(run.folder, "--against", other.folder, "--against", third.folder)
    for name in ("other/real/v001", "third/real/v001"):
        assert f"paired bootstrap against {name}" in found.stdout
    assert found.stdout.count("BLEU by source length") == 1
    told = [line for line in found.stderr.split("\n") if "answers" in line and run.name in line]
    assert len(told) == len(set(told))  # what is said of the run's own answers is said once
    told = json.loads(call(run.folder, "--against", other.folder, "--against", third.folder, "--json").stdout)
    assert [one["against"] for one in told["comparisons"]] == ["other/real/v001", "third/real/v001"]


def test_what_else_differs_from_the_baseline_is_said(run: Run, other: Run) -> None:
    found = call(run.folder, "--against", other.folder)
    assert "· name: tiny; other in other/real/v001" in found.stderr
    assert (
        "name: tiny; other in other/real/v001"
        in json.loads(call(run.folder, "--against", other.folder, "--json").stdout)["differences"]
    )


def test_options_reach_the_search(run: Run) -> None:
    found = json.loads(call(run.folder, "--checkpoint", "last", "--beam", 1, "--alpha", 0.2, "--json").stdout)
    assert found["checkpoint"] == "step-000001"
    assert (found["decoding"]["beam"], found["decoding"]["alpha"]) == (1, 0.2)
    assert len(list(run.results_folder.glob("test.step-000001.beam-1.alpha-0.2.*.hyp"))) == 1


def test_lowercase_is_in_the_signature(run: Run) -> None:
    found = json.loads(call(run.folder, "--lowercase", "--json").stdout)
    assert "case:lc" in found["scores"][0]["signature"]


def test_an_unknown_split(run: Run) -> None:
    with pytest.raises(RunError, match="it has test"):
        call(run.folder, "--split", "dev")
