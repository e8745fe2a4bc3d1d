"""A probe learns, its encoder does not; what it is trained on is checked."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phmctl.checkpoints import read_checkpoint
from phmctl.cli.main import app
from phmctl.data.prepared.folder import PreparedData
from phmctl.errors import DataError, RunError, UserError
from phmctl.recipe.schema import ProbeSection, ProbingRecipe
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.tasks.probing import encoder as reading
from phmctl.tasks.probing.encoder import Encoder
from phmctl.tasks.probing.evaluation import evaluate, majority_class
from phmctl.tasks.probing.kind import KIND
from phmctl.tasks.probing.task import ProbingTask
from phmctl.training.train import train

Recipes = Callable[..., ProbingRecipe]


def opened(recipe: ProbingRecipe, data: Path) -> ProbingTask:
    return KIND.open(recipe, data)


def call(*arguments: str, text: str = "") -> str:
    result = CliRunner().invoke(app, arguments, input=text, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_no_gradient_reaches_the_encoder(
    probe_recipe: Recipes, copied_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = []
    load = reading.load_translator
    monkeypatch.setattr(
        reading,
        "load_translator",
        lambda *given: models.append(load(*given)) or models[-1],  # type: ignore[func-returns-value]
    )
    task = opened(probe_recipe(), copied_data)
    model = task.build_model()
    batch = task.collate(task.plan(0)[0])
    task.loss(model, batch)[0].backward()
    assert not batch.vectors.requires_grad
    assert all(parameter.grad is not None for parameter in model.parameters())
    [translator] = models
    weights = list(translator.engine.model.parameters())
    assert weights
    assert all(parameter.grad is None for parameter in weights)


def test_a_probe_learns_what_the_vectors_say(probe_run: Run) -> None:
    report = evaluate(probe_run)
    [result] = [each for each in read_results(probe_run) if each.split == "test" and each.against is None]
    assert result.scores == {"accuracy": report.accuracy.value}
    answers = KIND.answers(probe_run, result)
    right = sum(given == label for given, label in zip(answers.given, answers.right, strict=True))
    assert right == report.accuracy.right
    assert report.accuracy.value > 0.75
    assert report.accuracy.lower > report.majority.value
    assert report.encoder == "miniature/phm-n4/v001"
    names = read_checkpoint(probe_run.checkpoint("best"), ("model",)).tensors["model"]
    assert {name.partition(".")[0] for name in names} == {"hidden", "output"}  # no encoder among them


def test_the_majority_is_that_of_train(probe_run: Run, prepared: PreparedData) -> None:
    counts = prepared.manifest["splits"]["train"]["labels"]
    assert majority_class(probe_run) == max(counts, key=counts.__getitem__)
    report = evaluate(probe_run, "valid")
    truth = prepared.split("valid").labels == prepared.labels.index(report.majority_class)
    assert report.majority.value == truth.mean()


def test_it_goes_through_the_commands(
    probe_recipe: Recipes, probing_data: Path, tmp_path: Path, tiny_run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = ["--steps", "200", "--set", "training.validate_every=100", "--set", "data.language=null"]
    common = [f"model.encoder={tiny_run.folder}", "training.device=cpu", "training.learning_rate=0.01"]
    place = ["--data", str(probing_data), "--runs", str(tmp_path)]
    given = ["train", "probe-subj-number", *brief, *place, *(part for each in common for part in ("--set", each))]
    run = call(*given).strip()
    bag = call(*given, "--set", "model.vectors=embeddings").strip()
    assert Path(run).parts[-3:] == ("probe-subj-number", "real", "v001")
    assert Path(bag).parts[-2] == "real-embeddings"
    found = json.loads(call("eval", run, "--against", bag, "--json"))
    assert found["against"] == "probe-subj-number/real-embeddings/v001"
    assert found["vectors"] == "encoder"
    assert found["accuracy"]["total"] == found["majority"]["total"]
    assert "the majority class" in call("eval", bag)
    answers = call("decode", run, "--split", "test").splitlines()
    truth = [json.loads(line)["label"] for line in (Path(run) / "text" / "test.jsonl").read_text().splitlines()]
    right = sum(answer == label for answer, label in zip(answers, truth, strict=True))
    assert right == found["accuracy"]["right"]  # by the encoder's run, and by the vectors that are kept
    assert call("decode", run, text="\n").strip() == ""
    dry = json.loads(call(*given, "--dry-run", "--json"))
    assert dry["parameters"]["totals"]["parameters"] == 32 * 50 + 50 + 50 * 2 + 2


def test_a_moved_probe_is_scored_without_its_encoder_and_answers_lines_with_it_alone(
    probe_recipe: Recipes, probe_run: Run, tmp_path: Path, copied_run: Run
) -> None:
    moved = Run.open(shutil.copytree(probe_run.folder, tmp_path / "elsewhere" / "v001"))
    kept = json.loads((moved.folder / "data.json").read_text())
    kept["encoder"]["run"] = str(copied_run.folder)
    (moved.folder / "data.json").write_text(json.dumps(kept))
    answers = KIND.predictor(moved).predict(["Der Hund schläft."], advance=lambda count: None)
    assert answers[0].label in ("NN", "NNS")
    (copied_run.checkpoints_folder / "best").write_text("step-000003\n")
    kept["encoder"]["sha256"] = "0" * 64
    (moved.folder / "data.json").write_text(json.dumps(kept))
    with pytest.raises(RunError, match="its weights are others"):
        KIND.predictor(moved)
    shutil.rmtree(copied_run.folder)
    assert evaluate(moved).accuracy == evaluate(probe_run).accuracy
    (moved.text_folder / "test.safetensors").write_bytes(b"")
    with pytest.raises(RunError, match=r"test\.safetensors is damaged"):
        evaluate(moved)


def test_a_damaged_encoder_is_refused_though_its_vectors_are_kept(probe_run: Run, copied_run: Run) -> None:
    settings = ProbeSection(encoder=str(copied_run.folder))
    found = Encoder.of(settings)
    weights = copied_run.checkpoint(found.checkpoint) / "model.safetensors"
    assert found.sha256 == json.loads((probe_run.folder / "data.json").read_text())["encoder"]["sha256"]
    weights.write_bytes(weights.read_bytes() + b"x")
    with pytest.raises(RunError, match=r"model\.safetensors"):
        Encoder.of(settings)


def test_another_encoder_is_another_probe(
    probe_recipe: Recipes, probe_run: Run, probing_data: Path, tmp_path: Path
) -> None:
    shutil.copytree(probe_run.folder, tmp_path / "probe-subj-number" / "real" / "v001")
    other = probe_recipe("model.checkpoint=step-000003")
    with pytest.raises(RunError, match="its vectors are others"):
        opened(other, probing_data).check_run(probe_run)
    with pytest.raises(RunError, match="its vectors are others"):
        train(
            probe_recipe("model.checkpoint=step-000003", f"training.initialise_from={probe_run.folder}"),
            data=probing_data,
            runs=tmp_path,
            quiet=True,
        )
    opened(probe_recipe(), probing_data).check_run(probe_run)


def test_the_encoder_s_language_is_compared_with_the_data_s(
    probe_recipe: Recipes, probing_data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    opened(probe_recipe("data.language=en"), probing_data).check_data()
    assert "translates from 'de', and the probed sentences are 'en'" in capsys.readouterr().err
    opened(probe_recipe("data.language=de"), probing_data).check_data()
    assert "translates from" not in capsys.readouterr().err


def test_data_that_cannot_be_probed_is_refused(probe_recipe: Recipes, copied_data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"run: phmctl prepare-data probing-subj-number"):
        opened(probe_recipe(), tmp_path / "nothing")
    [manifest] = copied_data.glob("prepared/*/*/manifest.json")
    content = json.loads(manifest.read_text())
    del content["settings"]["train_text"]
    manifest.write_text(json.dumps(content))
    with pytest.raises(DataError, match="keeps no text of train"):
        opened(probe_recipe(), copied_data)
    manifest.write_text(json.dumps({**content, "texts": 2}))
    with pytest.raises(DataError, match="has pairs"):
        opened(probe_recipe(), copied_data)


def test_options_of_other_tasks_are_refused(probe_run: Run) -> None:
    with pytest.raises(UserError, match="--beam"):
        KIND.evaluate(probe_run, options={"beam": 4})


def test_a_probe_without_a_hidden_layer_is_one_map_and_with_one_may_be_phm(
    probe_recipe: Recipes, probing_data: Path
) -> None:
    plain = opened(probe_recipe("model.hidden=0"), probing_data).build_model("meta")
    assert sum(each.numel() for each in plain.parameters()) == 32 * 2 + 2
    recipe = probe_recipe("model.algebra=phm", "model.n=2", "model.pooling=max")
    assert recipe.variant == "phm-n2-max"
    model = opened(recipe, probing_data).build_model("meta")
    assert sum(each.numel() for each in model.parameters()) == 32 * 50 // 2 + 8 + 50 + 50 * 2 + 2
