"""An encoder reads a corpus once, and the vectors are what its states say."""

import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from phmctl.data.prepared.folder import PreparedData
from phmctl.data.special import EOS
from phmctl.decoding.loading import load_translator
from phmctl.errors import DataError, RunError
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import ProbeSection, TranslationRecipe
from phmctl.runs import Run
from phmctl.tasks.probing import vectors as module
from phmctl.tasks.probing.encoder import Encoder, Reader
from phmctl.tasks.probing.vectors import SentenceVectors, warn_of_other_text
from phmctl.training.train import train

TEXTS = ["Der Hund schläft.", "", "Die Katzen sehen heute den alten Mann am Hafen."]


def encoder(run: Run, **settings: str) -> Encoder:
    return Encoder.of(ProbeSection(encoder=str(run.folder), **settings))


def by_hand(run: Run, text: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The encoder's states (S, d) of one text alone, with no padding near it, and its words' embeddings (S - 1, d)."""
    translator = load_translator(run, encoder(run).checkpoint, "cpu")
    ids = torch.tensor([[*translator.tokenizers.source.encode([text])[0], EOS]])
    model = translator.engine.model  # type: ignore[attr-defined]
    return model.encode(ids).states[0], model.source_embedding(ids[:, :-1])[0]


@pytest.mark.parametrize("pooling", ["mean", "max", "last"])
def test_a_vector_is_the_states_pooled(tiny_run: Run, pooling: str) -> None:
    found = Reader(encoder(tiny_run, pooling=pooling), "cpu").read(TEXTS)
    for row in (0, 2):
        states, words = by_hand(tiny_run, TEXTS[row])
        expected = {"mean": states.mean(0), "max": states.amax(0), "last": states[-1]}[pooling]
        torch.testing.assert_close(found.vectors["encoder"][row], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(found.vectors["embeddings"][row], words.mean(0), rtol=1e-4, atol=1e-6)
    assert not found.vectors["encoder"][1].any()  # a text without tokens
    assert (found.unknown, found.words) == (0, 12)


COMPOSED = ("model.encoder_layers=2", "model.compose_layers=bilinear", "model.compose_heads=bilinear")


@pytest.mark.parametrize(
    "settings",
    [
        ("model.algebra=real", "model.n=1"),
        ("model.algebra=quaternion", "model.n=4", "model.execution=rank"),
        ("model.parametrization=factors", "model.execution=rank"),
        (*COMPOSED, "model.compose_in=encoder"),
    ],
    ids=["real", "quaternion by rank", "factors", "composed"],
)
def test_any_translator_is_read(
    tiny_recipe: TranslationRecipe, miniature_data: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    shape = [f"model.{key}={getattr(tiny_recipe.model, key)}" for key in ("algebra", "n", "width", "feed_forward")]
    brief = ["model.encoder_layers=1", "model.decoder_layers=1", "training.steps=1", "training.device=cpu"]
    given = {setting.partition("=")[0]: setting for setting in [*shape, *brief, *settings]}
    run = train(load_recipe("miniature", [*given.values()]), data=miniature_data, runs=tmp_path, quiet=True).run
    found = Reader(encoder(run), "cpu").read(TEXTS)
    states, _ = by_hand(run, TEXTS[2])
    torch.testing.assert_close(found.vectors["encoder"][2], states.mean(0), rtol=1e-3, atol=1e-4)


def test_vectors_that_were_kept_are_those_that_are_computed(
    tiny_run: Run, prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = SentenceVectors(encoder(tiny_run), prepared, tmp_path, "cpu")
    expected = Reader(encoder(tiny_run), "cpu").read(prepared.split("test").texts[0]).vectors
    monkeypatch.setattr(module, "Reader", None)  # nobody reads a second time
    kept = SentenceVectors(encoder(tiny_run), prepared, tmp_path, "cpu")
    assert kept.manifest == fresh.manifest
    for kind in ("encoder", "embeddings"):
        assert torch.equal(kept.split("test", kind), expected[kind])
        assert len(kept.split("train", kind)) == len(prepared.split("train"))


def test_other_weights_other_data_and_other_pooling_have_vectors_of_their_own(
    tiny_run: Run, prepared: PreparedData, tmp_path: Path
) -> None:
    one = encoder(tiny_run)
    others = [encoder(tiny_run, pooling="max"), encoder(tiny_run, checkpoint="step-000003")]
    folders = {SentenceVectors(each, prepared, tmp_path, "cpu").folder for each in (one, *others)}
    assert len(folders) == 3
    entries = [{**entry, "sha256": "0" * 64} for entry in prepared.manifest["files"]]
    other = PreparedData(prepared.folder, {**prepared.manifest, "files": entries}, prepared.command)
    assert module._decides(one, other) != module._decides(one, prepared)


def test_a_damaged_file_is_computed_again_and_what_a_killed_process_left_is_swept(
    tiny_run: Run, prepared: PreparedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = SentenceVectors(encoder(tiny_run), prepared, tmp_path, "cpu")
    path, expected = first.folder / "valid.encoder.safetensors", first.split("valid", "encoder")
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    left = first.folder.with_name(f".{first.folder.name}.0123abcd.tmp")
    left.mkdir()
    again = SentenceVectors(encoder(tiny_run), prepared, tmp_path, "cpu")
    assert torch.equal(again.split("valid", "encoder"), expected)
    assert "is damaged: its vectors are computed again" in capsys.readouterr().err
    assert not left.exists()
    assert [entry.name for entry in first.folder.parent.iterdir() if entry.is_dir()] == [first.folder.name]


def test_of_two_writers_one_computes(
    tiny_run: Run, prepared: PreparedData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    both = threading.Barrier(2)
    write = module._write
    monkeypatch.setattr(module, "_write", lambda *arguments: (made.append(1), write(*arguments))[1])
    found: list[SentenceVectors] = []

    def compute() -> None:
        both.wait()
        found.append(SentenceVectors(encoder(tiny_run), prepared, tmp_path, "cpu"))

    threads = [threading.Thread(target=compute) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [1]
    assert found[0].manifest == found[1].manifest


def test_an_encoder_must_be_named_and_be_a_whole_translator_s(
    tiny_run: Run, copied_run: Run, probe_run: Run, prepared: PreparedData, tmp_path: Path
) -> None:
    with pytest.raises(RunError, match=r"--set model\.encoder=RUN"):
        Encoder.of(ProbeSection())
    with pytest.raises(RunError, match="no run at"):
        Encoder.of(ProbeSection(encoder=str(tmp_path / "nothing")))
    with pytest.raises(RunError, match="is a run of task 'probing'; only a translator has an encoder"):
        encoder(probe_run)
    with pytest.raises(RunError, match="has no checkpoint 'step-9'"):
        encoder(tiny_run, checkpoint="step-9")
    weights = copied_run.checkpoint(encoder(copied_run).checkpoint) / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(RunError, match=r"model\.safetensors"):
        SentenceVectors(encoder(copied_run), prepared, tmp_path / "data", "cpu")
    assert not any(entry.is_dir() for entry in (tmp_path / "data" / "vectors").rglob("*") if entry.name[0] != "p")


def test_text_that_the_tokenizer_hardly_knows_is_warned_of(
    tiny_run: Run, prepared: PreparedData, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = SentenceVectors(encoder(tiny_run), prepared, tmp_path, "cpu").manifest
    warn_of_other_text(manifest, "corpus")
    assert "warning" not in capsys.readouterr().err
    unknown = {**manifest, "text": {"tokens": 100, "unknown": 6, "words": 90, "own_tokens_a_word": 1.1}}
    warn_of_other_text(unknown, "corpus")
    assert "6.0% of the tokens of corpus are unknown" in capsys.readouterr().err
    counted = Reader(encoder(tiny_run), "cpu").read(["Pneumonoultramicroscopic qwxz zxqwv"] * 3)
    pieces = {"tokens": counted.tokens, "unknown": counted.unknown, "words": counted.words}
    warn_of_other_text({**manifest, "text": {**manifest["text"], **pieces}}, "corpus")
    assert "it reads other text" in capsys.readouterr().err


def test_a_manifest_that_is_no_manifest_is_written_anew(tiny_run: Run, prepared: PreparedData, tmp_path: Path) -> None:
    first = SentenceVectors(encoder(tiny_run), prepared, tmp_path, "cpu")
    (first.folder / "manifest.json").write_text(json.dumps({"format": "another"}), encoding="utf-8")
    assert SentenceVectors(encoder(tiny_run), prepared, tmp_path, "cpu").manifest == first.manifest
    (first.folder / "test.encoder.safetensors").write_bytes(b"")
    with pytest.raises(DataError, match=r"test\.encoder\.safetensors cannot be read"):
        first.split("test", "encoder")


def test_the_run_may_lie_elsewhere(tiny_run: Run, copied_run: Run) -> None:
    assert replace(encoder(copied_run), run=tiny_run) == replace(encoder(tiny_run), run=tiny_run)
