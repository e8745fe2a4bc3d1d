"""``probe``: the vectors of an encoder, the fitted probes, and their table."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from phmctl import probes
from phmctl.data import EOS
from phmctl.data.card import load_card
from phmctl.data.prepare import prepare
from phmctl.data.prepared import PreparedData
from phmctl.errors import DataError, NonFiniteError, RecipeError, RunError
from phmctl.metrics.classification import accuracy
from phmctl.probes import Encoder, ProbingReport, fit_probe, predict, probe
from phmctl.recipe.loading import expect, load_recipe, resolve
from phmctl.recipe.schema import ProbingRecipe, TranslationRecipe
from phmctl.runs import Run
from tests.calls import call

BRIEF = ("training.steps=60", "training.validate_every=30", "data.language=null")
LEARNED = ("training.steps=100", "training.patience=0")
TEXTS = ["Der Hund schläft.", "", "Die Katzen sehen heute den alten Mann am Hafen."]


def recipe(*settings: str) -> ProbingRecipe:
    return expect(load_recipe("probe", ["training.device=cpu", "data.language=null", *settings]), ProbingRecipe)


@pytest.fixture(scope="session")
def probing_data(
    tmp_path_factory: pytest.TempPathFactory, miniature_data: Path, tiny_recipe: TranslationRecipe
) -> Path:
    """A data folder with the miniature's German sentences: label NN if they are short, NNS if they are long."""
    split = PreparedData.find(tiny_recipe.data, miniature_data).split("valid")
    labelled = sorted(("NNS" if len(text.split()) >= 10 else "NN", text) for text in {*split.texts[0]})
    rows = {"tr": labelled[::2], "va": labelled[1::4], "te": labelled[3::4]}
    lines = [f"{part}\t{label}\t{text}\n" for part, pairs in rows.items() for label, text in pairs]
    folder, root = tmp_path_factory.mktemp("senteval"), tmp_path_factory.mktemp("probing")
    (folder / "subj_number.txt").write_text("".join(lines), encoding="utf-8")
    prepare(recipe().data, load_card(recipe().data.card), root=root, source=folder)
    return root


@pytest.fixture
def copied_data(probing_data: Path, tmp_path: Path) -> Path:
    return shutil.copytree(probing_data, tmp_path / "data")


# -------------------------------------------------------------------------------------------------------- vectors


def by_hand(run: Run, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The encoder states (S, d) of a single text without padding, and its word embeddings (S - 1, d)."""
    translator = Encoder(run.folder, device="cpu").translator
    ids = torch.tensor([[*translator.tokenizers.source.encode([text])[0], EOS]])
    model = translator.engine.model
    with torch.no_grad():
        return model.encode(ids).states[0], model.source_embedding(ids[:, :-1])[0]


@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
def test_a_vector_is_the_pooled_states(tiny_run: Run, pooling: str) -> None:
    vectors = Encoder(tiny_run.folder, device="cpu").read(TEXTS, pooling)
    for row in (0, 2):
        states, words = by_hand(tiny_run, TEXTS[row])
        expected = {"mean": states.mean(0), "max": states.amax(0), "last": states[-1]}[pooling]
        torch.testing.assert_close(vectors["encoder"][row], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(vectors["embeddings"][row], words.mean(0), rtol=1e-4, atol=1e-6)
    assert not vectors["encoder"][1].any()  # a text without tokens


def test_a_probe_learns_a_property_of_the_sentences(tiny_run: Run, copied_data: Path) -> None:
    encoder, prepared = Encoder(tiny_run.folder, "auto", "cpu"), PreparedData.find(recipe().data, copied_data)
    predictions = predict(encoder, prepared, recipe(*LEARNED))
    assert (predictions["encoder"] == prepared.split("test").labels).mean() > 0.75
    with pytest.raises(RunError, match="step-9"):
        Encoder(tiny_run.folder, "step-9")


def separable(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    vectors = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return vectors, (vectors[:, 0] > 0).long()


def test_the_best_probe_on_valid_is_kept_and_patience_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([(0.5, -1.0), (0.5, -0.5), (0.4, -0.1), (0.5, -0.6)])
    states: list[dict[str, torch.Tensor]] = []

    def validate(model: torch.nn.Module, *data: Any) -> tuple[float, float]:
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        return next(scores)

    monkeypatch.setattr(probes, "_validate", validate)
    brief = recipe("training.steps=100", "training.validate_every=1", "training.patience=2")
    model = fit_probe(brief, {"train": separable(64, 1), "valid": separable(32, 2)}, 2, torch.device("cpu"))
    assert len(states) == 4
    assert not all(torch.equal(value, states[0][name]) for name, value in states[1].items())
    assert all(torch.equal(value, states[1][name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [((), 8 * 50 + 50 + 50 * 2 + 2), (("model.hidden=0", "training.weight_decay=0.1"), 8 * 2 + 2)],
)
def test_a_probe_learns_with_at_most_one_hidden_layer(settings: tuple[str, ...], parameters: int) -> None:
    short = recipe("training.steps=60", *settings)
    model = fit_probe(short, {"train": separable(256, 1), "valid": separable(64, 2)}, 2, torch.device("cpu"))
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    vectors, labels = separable(200, 3)
    assert (model(vectors).argmax(1) == labels).float().mean() > 0.9
    if "training.weight_decay=0.1" in settings:  # weights stay small
        assert sum(parameter.square().sum().item() for parameter in model.parameters()) < 3


def test_a_loss_of_nan_is_an_error() -> None:
    vectors, labels = separable(64, 1)
    splits = {"train": (vectors * torch.nan, labels), "valid": (vectors * torch.nan, labels)}
    with pytest.raises(NonFiniteError):
        fit_probe(recipe("training.steps=2"), splits, 2, torch.device("cpu"))


# ---------------------------------------------------------------------------------------------------- the command


def share(right: int, total: int = 100) -> Any:
    return accuracy(["a"] * right + ["b"] * (total - right), ["a"] * total)


def test_the_table_shows_each_task_and_their_average() -> None:
    tasks = {
        "probing-subj-number": {"majority": share(40), "run": share(60), "bag": share(50)},
        "mine": {"majority": share(20), "run": share(80), "bag": share(60)},
    }
    [table] = ProbingReport("r", "best", tasks, {}).tables()
    assert [[*row] for row in table.rows] == [
        ["subj-number", "40.0", "60.0 (50.2–69.1)", "50.0"],
        ["mine", "20.0", "80.0 (71.1–86.7)", "60.0"],
        ["average", "30.00", "70.00", "55.00"],
    ]


def test_one_command_probes_the_prepared_tasks(copied_run: Run, copied_data: Path) -> None:
    command = ["probe", copied_run.folder, "--data", copied_data, "--json"]
    for setting in BRIEF:
        command += ["--set", setting]
    first = json.loads(call(*command).stdout)
    assert [*first["tasks"]] == ["probing-subj-number"]
    assert json.loads((copied_run.results_folder / "probing.json").read_text()) == first
    assert json.loads(call(*command, "--set", "data.card=probing-subj-number").stdout) == first
    report = probe(copied_run.folder, data=copied_data, settings=BRIEF)
    scores = report.tasks["probing-subj-number"]
    train_size = PreparedData.find(recipe().data, copied_data).manifest["splits"]["train"]
    assert report.train["probing-subj-number"] == train_size["kept"]
    test = PreparedData.find(recipe().data, copied_data).split("test").labels
    most = sorted(train_size["labels"]).index(max(train_size["labels"], key=train_size["labels"].__getitem__))
    assert scores["majority"].right == (test == most).sum()


def test_data_that_cannot_be_probed_is_refused(tiny_run: Run, copied_data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="prepare-data probing-"):
        probe(tiny_run.folder, data=tmp_path / "nothing")
    with pytest.raises(DataError, match="prepare-data mine"):
        probe(tiny_run.folder, data=copied_data, settings=["data.card=mine"])
    [manifest] = copied_data.glob("prepared/*/*/manifest.json")
    content = json.loads(manifest.read_text())
    del content["settings"]["train_text"]
    for changed in (content, {**json.loads(manifest.read_text()), "texts": 2}):
        manifest.write_text(json.dumps(changed))
        with pytest.raises(DataError, match="train_text"):
            probe(tiny_run.folder, data=copied_data)


def test_a_resolved_recipe_can_be_read_again() -> None:
    written = load_recipe("probe")
    assert resolve(written, (), ["model.hidden=0"]).model.hidden == 0
    with pytest.raises(RecipeError, match=r"training\.clip"):
        resolve(written, (), ["training.clip=0.5"])
