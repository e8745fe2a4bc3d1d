"""``eval --probing``: an encoder reads a task once, its probes learn what the vectors say, Table 3 shows it."""

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from phmctl import probes
from phmctl.cli.main import app
from phmctl.data.prepared.folder import PreparedData
from phmctl.data.prepared.prepare import prepare_named
from phmctl.data.special import EOS
from phmctl.errors import DataError, NonFiniteError, RecipeError, RunError, UserError
from phmctl.metrics.classification import accuracy
from phmctl.probes import TABLE_3, TASKS, Encoder, Probed, ProbingReport, Sentences, TaskScores, probe, train_probe
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import ProbingRecipe, TranslationRecipe
from phmctl.runs import Run
from phmctl.shipped import shipped_names
from phmctl.training.train import train

BRIEF = ("training.steps=60", "training.validate_every=30", "data.language=null")
LEARNED = ("training.steps=600", "training.validate_every=200", "training.patience=0", "training.learning_rate=0.01")
TEXTS = ["Der Hund schläft.", "", "Die Katzen sehen heute den alten Mann am Hafen."]
PRINTED = {  # Table 3, the rows of averages, and their relative improvements
    "surface": ("77.60", "77.81", "+0.3%"),
    "syntactic": ("65.00", "66.24", "+1.9%"),
    "semantic": ("74.61", "76.13", "+2.0%"),
}
Make = Callable[..., Sentences]


def recipe(*settings: str) -> ProbingRecipe:
    found = load_recipe("probe", ["training.device=cpu", "data.language=null", *settings])
    assert isinstance(found, ProbingRecipe)
    return found


@pytest.fixture(scope="session")
def probing_data(
    tmp_path_factory: pytest.TempPathFactory, miniature_data: Path, tiny_recipe: TranslationRecipe
) -> Path:
    """A data folder with the miniature's German sentences: NN where they are short, NNS where they are long."""
    split = PreparedData.find(tiny_recipe.data, miniature_data).split("valid")
    labelled = sorted(("NNS" if len(text.split()) >= 10 else "NN", text) for text in {*split.texts[0]})
    rows = {"tr": labelled[::2], "va": labelled[1::4], "te": labelled[3::4]}
    lines = [f"{part}\t{label}\t{text}\n" for part, own in rows.items() for label, text in own]
    folder, root = tmp_path_factory.mktemp("senteval"), tmp_path_factory.mktemp("probing")
    (folder / "subj_number.txt").write_text("".join(lines), encoding="utf-8")
    prepare_named(recipe().data, root=root, source=folder)
    return root


@pytest.fixture
def copied_data(probing_data: Path, tmp_path: Path) -> Path:
    """A copy of the prepared sentences, without vectors."""
    return shutil.copytree(probing_data, tmp_path / "data", ignore=shutil.ignore_patterns("vectors"))


@pytest.fixture
def copied_run(tiny_run: Run, tmp_path: Path) -> Run:
    """A copy of the tiny translator, to be changed."""
    return Run.open(shutil.copytree(tiny_run.folder, tmp_path / "copy" / "v001"))


@pytest.fixture
def sentences(tiny_run: Run, probing_data: Path, tmp_path: Path) -> Make:
    """Make the sentences as the tiny translator has them; settings as ``key=value``."""

    def make(*settings: str, checkpoint: str = "auto", run: Run = tiny_run) -> Sentences:
        chosen = recipe(*settings)
        prepared = PreparedData.find(chosen.data, probing_data)
        return Sentences(Encoder.of(run.folder, checkpoint, "cpu"), prepared, tmp_path, chosen)

    return make


# -------------------------------------------------------------------------------------------------------- vectors


def by_hand(run: Run, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The encoder's states (S, d) of one text alone, with no padding near it, and its words' embeddings (S - 1, d)."""
    translator = Encoder.of(run.folder, device="cpu").translator
    ids = torch.tensor([[*translator.tokenizers.source.encode([text])[0], EOS]])
    model = translator.engine.model  # type: ignore[attr-defined]
    with torch.no_grad():
        return model.encode(ids).states[0], model.source_embedding(ids[:, :-1])[0]


@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
def test_a_vector_is_the_states_pooled(tiny_run: Run, pooling: str) -> None:
    found = Encoder.of(tiny_run.folder, device="cpu").read(TEXTS, pooling)
    for row in (0, 2):
        states, words = by_hand(tiny_run, TEXTS[row])
        expected = {"mean": states.mean(0), "max": states.amax(0), "last": states[-1]}[pooling]
        torch.testing.assert_close(found["encoder"][row], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found["embeddings"][row], words.mean(0), rtol=1e-4, atol=1e-6)
    assert not found["encoder"][1].any()  # a text without tokens


@pytest.mark.parametrize(
    "settings",
    [
        ("model.algebra=real", "model.n=1"),
        ("model.parametrization=factors", "model.execution=rank"),
        ("model.encoder_layers=2", "model.compose_layers=bilinear", "model.compose_in=encoder"),
    ],
    ids=["real", "factors", "composed"],
)
def test_any_translator_is_read(
    tiny_recipe: TranslationRecipe, miniature_data: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    shape = [f"model.{key}={getattr(tiny_recipe.model, key)}" for key in ("algebra", "n", "width", "feed_forward")]
    brief = ["model.encoder_layers=1", "model.decoder_layers=1", "training.steps=1", "training.device=cpu"]
    given = {setting.partition("=")[0]: setting for setting in [*shape, *brief, *settings]}
    run = train(load_recipe("miniature", [*given.values()]), data=miniature_data, runs=tmp_path, quiet=True).run
    found = Encoder.of(run.folder, device="cpu").read(TEXTS, "mean")
    torch.testing.assert_close(found["encoder"][2], by_hand(run, TEXTS[2])[0].mean(0), rtol=1e-3, atol=1e-4)


def test_what_is_kept_is_read_and_what_is_damaged_is_computed_again(
    sentences: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = sentences(*BRIEF)
    answers, vectors = first.answers("encoder"), first.vectors("encoder")
    expected = first.encoder.read(first.prepared.split("test").texts[0], "mean")["encoder"]
    assert torch.equal(vectors["test"], expected)
    path = first.folder / "encoder.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    assert all(torch.equal(rows, vectors[name]) for name, rows in sentences(*BRIEF).vectors("encoder").items())
    [kept] = first.folder.glob("answers.encoder.*.json")
    kept.write_text('{"answers": [0, 7]}')
    assert sentences(*BRIEF).answers("encoder") == answers
    monkeypatch.setattr(Encoder, "read", None)  # nobody reads a second time
    monkeypatch.setattr(probes, "train_probe", None)
    assert sentences(*BRIEF).answers("encoder") == answers


def test_other_weights_data_pooling_and_settings_have_a_place_of_their_own(sentences: Make, tiny_run: Run) -> None:
    one, others = sentences(), [sentences("model.pooling=max"), sentences(checkpoint="step-000003")]
    entries = [{**entry, "sha256": "0" * 64} for entry in one.prepared.manifest["files"]]
    data = PreparedData(one.prepared.folder, {**one.prepared.manifest, "files": entries}, one.prepared.command)
    others.append(Sentences(one.encoder, data, one.folder.parents[2], one.recipe))
    assert len({each.folder for each in (one, *others)}) == 4
    sentences(*BRIEF).answers("encoder")
    sentences(*BRIEF, "model.hidden=0").answers("encoder")
    assert len([*one.folder.glob("answers.encoder.*.json")]) == 2


def test_of_two_writers_one_computes(sentences: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    both, train_one = threading.Barrier(2), probes.train_probe
    monkeypatch.setattr(probes, "train_probe", lambda *given: (made.append(1), train_one(*given))[1])
    found: list[list[int]] = []

    def compute() -> None:
        own = sentences(*BRIEF)
        both.wait()
        found.append(own.answers("encoder"))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert found[0] == found[1]


def test_an_encoder_is_a_whole_translator_s(tiny_run: Run, copied_run: Run, tmp_path: Path) -> None:
    assert Encoder.of(copied_run.folder).sha256 == Encoder.of(tiny_run.folder).sha256
    with pytest.raises(RunError, match="no run at"):
        Encoder.of(tmp_path / "nothing")
    with pytest.raises(RunError, match="has no checkpoint 'step-9'"):
        Encoder.of(tiny_run.folder, "step-9")
    weights = copied_run.checkpoint(Encoder.of(copied_run.folder).checkpoint) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(RunError, match=r"model\.safetensors"):  # though its vectors may be kept
        Encoder.of(copied_run.folder)
    rule = train(
        load_recipe("hamilton", ["training.steps=1", "training.device=cpu"]), runs=tmp_path / "r", quiet=True
    ).run
    with pytest.raises(RunError, match="only a translator"):
        Encoder.of(rule.folder)


def test_an_encoder_of_other_text_is_warned_of(
    tiny_run: Run, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = Encoder.of(tiny_run.folder)
    encoder.warn_of_other_text(TEXTS, "corpus", "de")
    assert "warning" not in capsys.readouterr().err
    encoder.warn_of_other_text(TEXTS, "corpus", "en")
    assert "translates from 'de'" in capsys.readouterr().err
    encoder.warn_of_other_text(["Pneumonoultramicroscopic xanthophyllous"] * 3, "corpus", None)
    assert "reads other text" in capsys.readouterr().err
    monkeypatch.setattr(Encoder, "_fertility", lambda *given: (1.0, 0.06))  # a tokenizer of words
    encoder.warn_of_other_text(TEXTS, "corpus", None)
    assert "6.0% of the tokens" in capsys.readouterr().err


# --------------------------------------------------------------------------------------------------------- probes


def test_a_probe_learns_what_the_vectors_say_and_its_encoder_does_not(sentences: Make) -> None:
    own = sentences(*LEARNED)
    weights = [each.clone() for each in own.encoder.translator.engine.model.parameters()]  # type: ignore[attr-defined]
    truth = own.prepared.split("test").labels
    assert truth is not None
    assert (own.answers("encoder") == truth).mean() > 0.75
    after = own.encoder.translator.engine.model.parameters()  # type: ignore[attr-defined]
    assert all(torch.equal(one, other) and one.grad is None for one, other in zip(after, weights, strict=True))


def separable(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    vectors = torch.randn(count, 8, generator=torch.Generator().manual_seed(seed))
    return vectors, (vectors[:, 0] > 0).long()


def test_the_best_probe_on_valid_is_kept_and_patience_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([(0.5, -1.0), (0.5, -0.5), (0.4, -0.1), (0.5, -0.6)])
    states: list[dict[str, torch.Tensor]] = []

    def validate(model: torch.nn.Module, *given: Any) -> tuple[float, float]:
        states.append({name: value.clone() for name, value in model.state_dict().items()})
        return next(scores)

    monkeypatch.setattr(probes, "_validate", validate)
    brief = recipe("training.steps=100", "training.validate_every=5", "training.patience=2")
    found = train_probe(brief, {"train": separable(64, 1), "valid": separable(32, 2)}, 2, torch.device("cpu"))
    assert len(states) == 4
    assert all(torch.equal(value, states[1][name]) for name, value in found.state_dict().items())


@pytest.mark.parametrize(
    ("settings", "parameters"),
    [
        ((), 8 * 50 + 50 + 50 * 2 + 2),
        (("model.hidden=0",), 8 * 2 + 2),
    ],
)
def test_a_probe_has_a_hidden_layer_or_none(settings: tuple[str, ...], parameters: int) -> None:
    short = recipe("training.steps=300", "training.learning_rate=0.01", *settings)
    model = train_probe(short, {"train": separable(256, 1), "valid": separable(64, 2)}, 2, torch.device("cpu"))
    assert sum(each.numel() for each in model.parameters()) == parameters
    vectors, labels = separable(200, 3)
    assert (model(vectors).argmax(1) == labels).float().mean() > 0.9


def test_a_loss_that_is_no_number_is_an_error() -> None:
    vectors, labels = separable(64, 1)
    given = {"train": (vectors * torch.nan, labels), "valid": (vectors * torch.nan, labels)}
    with pytest.raises(NonFiniteError):
        train_probe(recipe("training.steps=2"), given, 2, torch.device("cpu"))


# ---------------------------------------------------------------------------------------------------- the command


def share(right: int, of: int = 100) -> Any:
    return accuracy(["a"] * right + ["b"] * (of - right), ["a"] * of)


def test_the_published_averages_are_those_of_the_published_rows() -> None:
    scores = TaskScores(Probed(share(60), share(50)), share(40), 9)
    [table] = ProbingReport("r", "best", {"probe-subj-number": scores, "mine": scores}).tables()
    rows = {row[0].partition(",")[0]: row for row in table.rows if "average" in str(row[0])}
    assert {group: (*row[-3:],) for group, row in rows.items()} == PRINTED
    assert [*table.rows[-1]] == ["mine", "40.0", "60.0 (50.2–69.1)", "50.0", "–", "–", "–"]
    cards = {name.replace("probing", "probe") for name in shipped_names("cards") if name.startswith("probing-")}
    assert {*TASKS} == cards
    assert [len(tasks) for tasks in TABLE_3.values()] == [2, 3, 5]


def test_averages_are_of_the_tasks_that_are_there_and_say_so() -> None:
    own, other = Probed(share(60), share(50)), Probed(share(50), share(45))
    scores = {
        "probe-subj-number": TaskScores(own, share(40), 900, other),
        "probe-coord-inversion": TaskScores(Probed(share(80), share(50)), share(50), 300, Probed(share(50), share(45))),
    }
    report = ProbingReport("r", "step-000009", scores, against="b")
    expected = {"majority": 45, "run": 70, "run_bag": 50, "against": 50, "against_bag": 45}
    assert report.as_json()["averages"] == {"semantic": pytest.approx(expected)}
    [table] = report.tables()
    assert table.columns == ["", "majority", "base", "its bag", "run", "its bag", "Δ", "Base", "NI", "Δ"]
    semantic = next(row for row in table.rows if row[0] == "semantic, average of 2")
    assert semantic[1:7] == ["45.00", "50.00", "45.00", "70.00", "50.00", "+40.0%"]
    assert next(row for row in table.rows if row[0] == "WC")[1:7] == ["–"] * 6
    assert "300 to 900 sentences" in "\n".join(report.notes())


def test_one_command_probes_what_is_prepared_and_trains_nothing_twice(
    copied_run: Run, tiny_run: Run, copied_data: Path
) -> None:
    given = ("eval", str(copied_run.folder), "--probing", "--data", str(copied_data), "--json")
    given += tuple(part for each in BRIEF for part in ("--set", each))
    first = json.loads(CliRunner().invoke(app, given, catch_exceptions=False).stdout)
    assert [*first["tasks"]] == ["probe-subj-number"]
    kept = {path: path.stat().st_mtime_ns for path in copied_data.rglob("vectors/*/*/*")}
    assert {path.name.partition(".")[0] for path in kept} == {"", "answers", "encoder", "embeddings", "sha256"}
    assert json.loads((copied_run.results_folder / "probing.json").read_text()) == first
    again = (*given, "--set", "data.card=probing-subj-number")
    assert json.loads(CliRunner().invoke(app, again, catch_exceptions=False).stdout) == first
    assert {path: path.stat().st_mtime_ns for path in kept if path.name != ".lock"}.items() <= kept.items()
    report = probe(copied_run.folder, against=tiny_run.folder, data=copied_data, settings=BRIEF)
    scores = report.tasks["probe-subj-number"]
    train_size = PreparedData.find(recipe().data, copied_data).manifest["splits"]["train"]
    assert scores.train == train_size["kept"]
    assert scores.against == scores.own  # equal weights, equal vectors
    assert scores.compared is not None
    assert scores.compared.p_value == 1
    test = PreparedData.find(recipe().data, copied_data).split("test").labels
    most = sorted(train_size["labels"]).index(max(train_size["labels"], key=train_size["labels"].__getitem__))
    assert scores.majority.right == (test == most).sum()


def test_data_that_cannot_be_probed_is_refused(tiny_run: Run, copied_data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="prepare-data probing-sentence-length"):
        probe(tiny_run.folder, data=tmp_path / "nothing")
    with pytest.raises(DataError, match="prepare-data mine"):
        probe(tiny_run.folder, data=copied_data, settings=["data.card=mine"])
    [manifest] = copied_data.glob("prepared/*/*/manifest.json")
    content = json.loads(manifest.read_text())
    del content["settings"]["train_text"]
    for changed, words in ((content, "keeps no text of train"), ({**content, "texts": 2}, "has pairs")):
        manifest.write_text(json.dumps(changed))
        with pytest.raises(DataError, match=words):
            probe(tiny_run.folder, data=copied_data)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        (("--probing", "--beam", "4"), UserError),
        (("--data", "d", "--set", "a=1"), UserError),
        (("--probing", "--set", "training.average=3"), RecipeError),
        (("--probing", "--set", "model.encoder=RUN"), RecipeError),
    ],
)
def test_options_that_probing_does_not_have(
    tiny_run: Run, probing_data: Path, options: tuple[str, ...], error: type[UserError]
) -> None:
    data = () if "--data" in options else ("--data", str(probing_data))
    result = CliRunner().invoke(app, ["eval", str(tiny_run.folder), *options, *data])
    assert isinstance(result.exception, error)
    assert result.exception.exit_code == 2


def test_a_probe_is_no_run() -> None:
    result = CliRunner().invoke(app, ["train", "probe"])
    assert isinstance(result.exception, UserError)
    assert "eval RUN --probing" in str(result.exception)
    counted = CliRunner().invoke(app, ["count-params", "probe", "--json"], catch_exceptions=False)
    assert json.loads(counted.stdout)["variants"][0]["totals"]["parameters"] == 512 * 50 + 50 + 50 * 2 + 2
