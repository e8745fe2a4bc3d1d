"""The transformers library gives the ids, the text and, if an architecture fits, the logits of the run."""

import shutil
from pathlib import Path

import pytest
import torch

from phmctl import exports
from phmctl.assembly import build_transformer
from phmctl.checkpoints import model_tensors, write_checkpoint
from phmctl.data.tokenizer import train_tokenizer
from phmctl.decoding.loading import load_translator
from phmctl.errors import RunError
from phmctl.export.huggingface import write_tokenizer
from phmctl.export.verb import export
from phmctl.export.verify import IDS, LOGITS
from phmctl.files import read_sealed, write_sealed
from phmctl.runs import Run
from phmctl.runs.copies import load_tokenizers, read_text
from tests.decoding.conftest import TEXT
from tests.export.test_dense import scattered
from tests.tasks.classification.conftest import NOUNS, labelled_data, runs, small
from tests.tasks.translation.runs import make_run

__all__ = ["labelled_data", "runs", "small"]

transformers = pytest.importorskip("transformers")

FITTING = {
    "phm": {"algebra": "phm", "n": 4},
    "dense-generator": {"generator": "dense", "generator_bias": True},
    "no-bias": {"bias": False},
}
# Marian is post-norm without a final norm, but it does not save its positions and has other frequencies.
POST = {"norm": "post", "final_norm": False}
MISFITS = [{"upsize": 2}, {"norm": "post"}, {"final_norm": False}, {"share_embeddings": False}, POST]


def run_of(root: Path, settings: dict[str, object]) -> Run:
    run, size = make_run(root / "runs", maps=settings), train_tokenizer(TEXT, "bpe", 320).size
    torch.manual_seed(1)
    model = scattered(build_transformer(run.recipe.model, size, size))
    section = run.recipe.model.model_dump(mode="json")
    write_checkpoint(run.checkpoints_folder / "step-000003", {"model": model_tensors(model)}, {"step": 3}, section)
    run.set_pointer("best", 3)
    return run


@pytest.mark.parametrize("name", FITTING)
@torch.no_grad()
def test_logits_are_equal_also_after_the_library_has_saved_the_model(tmp_path: Path, name: str) -> None:
    run = run_of(tmp_path, FITTING[name])
    transformers.logging.enable_progress_bar()
    before = transformers.logging.get_verbosity()
    verification = export(run, exports.HUGGINGFACE, tmp_path / "out").verification
    assert (transformers.logging.is_progress_bar_enabled(), transformers.logging.get_verbosity()) == (True, before)
    assert verification.equal == verification.texts == 7
    assert verification.compared == LOGITS
    transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "again")
    theirs = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "again").eval()
    assert theirs.config.model_type == "pegasus"
    ours = load_translator(run, device="cpu").engine.model
    source, target = torch.tensor([[9, 8, 7, 3], [30, 3, 0, 0]]), torch.tensor([[2, 5, 6], [2, 40, 41]])
    logits = theirs(input_ids=source, attention_mask=(source != 0).long(), decoder_input_ids=target).logits
    torch.testing.assert_close(logits, ours.logits(ours(source, target)), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("settings", MISFITS)
def test_other_architectures_export_the_tokenizer_only(
    tmp_path: Path, settings: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    verification = export(run_of(tmp_path, settings), exports.HUGGINGFACE, tmp_path / "out").verification
    assert "tokenizer" in capsys.readouterr().err
    assert not (tmp_path / "out" / "model.safetensors").exists()
    assert (tmp_path / "out" / "tokenizer.json").is_file()
    assert (verification.compared, verification.equal) == (IDS, 7)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"verified: {verification}" in card
    assert "AutoModel" not in card


@torch.no_grad()
def test_long_texts_with_the_librarys_own_defaults(tmp_path: Path) -> None:
    """The tokenizer truncates them as decode does."""
    run = run_of(tmp_path, FITTING["phm"])
    export(run, exports.HUGGINGFACE, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
    line = " ".join(TEXT * 20)
    ids = theirs(line, truncation=True, return_tensors="pt")["input_ids"]
    assert ids.tolist() == load_translator(run, device="cpu").token_ids([line])[0]
    assert len(model.generate(ids)[0]) > 1
    assert model(theirs(line, return_tensors="pt")["input_ids"][:, :1024], decoder_input_ids=ids) is not None


def test_a_classifiers_tokenizer_truncates_at_its_side(tmp_path: Path, runs: dict[str, Run]) -> None:
    folder = shutil.copytree(runs["encoder"].folder, tmp_path / "run")
    data = read_sealed(folder / "data.json", RunError, "")
    data["settings"]["cleaning"]["keep"] = "end"
    write_sealed(folder / "data.json", data)
    run = Run.open(folder)
    export(run, exports.HUGGINGFACE, tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    text = " ".join(f"the {noun}" for noun in NOUNS * 100)
    ids = load_tokenizers(run).source.encode([text])[0][-run.recipe.data.max_tokens :]
    assert theirs(text, truncation=True)["input_ids"] == ids  # as in training, without EOS


def test_the_tokenizer_gives_the_ids_of_the_validation_text(tiny_run: Run, tmp_path: Path) -> None:
    folder = export(tiny_run, exports.HUGGINGFACE, tmp_path / "out", texts=4).export.folder
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    assert isinstance(theirs, transformers.PreTrainedTokenizerFast)
    lines = read_text(tiny_run, "valid", "source")
    ours = load_tokenizers(tiny_run).source
    assert theirs(lines)["input_ids"] == [[*ids, 3] for ids in ours.encode(lines)]
    assert theirs.batch_decode(theirs(lines[:50])["input_ids"], skip_special_tokens=True) == lines[:50]
    assert (theirs.pad_token_id, theirs.eos_token_id, theirs.bos_token_id, theirs.unk_token_id) == (0, 3, 2, 1)


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_a_special_token_in_a_text_is_text(tmp_path: Path, kind: str) -> None:
    tokenizer = train_tokenizer(TEXT, kind, 320, lowercase=kind == "word")
    write_tokenizer(tokenizer, tmp_path, {}, ends=True)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path)
    for line in ("Der </s> Hund <pad> schläft", " zwei  Leerzeichen ", "Ein Mann liest."):
        assert theirs(line)["input_ids"] == [*tokenizer.encode([line])[0], 3]
