"""CTranslate2 gives torch's log-probabilities for every kind of Transformer."""

from pathlib import Path

import pytest

from phmctl.answering.beam import forced_scores
from phmctl.answering.opening import CTRANSLATE2, MODEL
from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import MissingExtraError
from phmctl.export.ctranslate2 import write_ctranslate2
from phmctl.export.forms import dense_form
from phmctl.export.verb import export
from phmctl.runs import Run
from phmctl.runs.copies import load_tokenizers
from tests.export.test_forms import TRANSFORMERS, ids, section, transformer

ctranslate2 = pytest.importorskip("ctranslate2")

OUTPUTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]


class Words:
    def __init__(self, size: int) -> None:
        self.vocabulary = ["<pad>", "<unk>", "<s>", "</s>", *(f"w{index}" for index in range(4, size))]


def scored(model, form, sizes, quantize, folder):
    """Return the log-probabilities of three outputs by CTranslate2 and by torch."""
    source_words, target_words = (Words(size).vocabulary for size in sizes)
    write_ctranslate2(form, TokenizerPair(Words(sizes[0]), Words(sizes[1])), quantize, 40, folder)
    translator = ctranslate2.Translator(str(folder / MODEL), compute_type=quantize, intra_threads=1)
    source = ids(3, 9, sizes[0])
    rows = [[source_words[index] for index in row if index] for row in source.tolist()]
    outputs = [[target_words[index] for index in row] for row in OUTPUTS]
    theirs = [sum(result.log_probs) for result in translator.score_batch(rows, outputs)]
    return theirs, forced_scores(model, source, OUTPUTS)


# Tables may have rows that only make n divide their number; the export drops them.
@pytest.mark.parametrize("name", TRANSFORMERS)
def test_log_probabilities_are_torchs(tmp_path: Path, name: str) -> None:
    settings = TRANSFORMERS[name]
    sizes = (44, 44) if settings.get("share_embeddings", True) else (44, 40)
    model = transformer(settings, *sizes)
    form = dense_form(model, section(settings), {"source": sizes[0], "target": sizes[1]})
    theirs, ours = scored(model, form, sizes, "float32", tmp_path)
    assert theirs == pytest.approx(ours, abs=1e-3)


def test_int8_is_near_and_smaller(tmp_path: Path) -> None:
    if "int8" not in ctranslate2.get_supported_compute_types("cpu"):
        pytest.skip("this processor has no int8")
    model = transformer(TRANSFORMERS["phm"])
    form = dense_form(model, section(TRANSFORMERS["phm"]), {"source": 42, "target": 42})
    sizes = {}
    for quantize in ("float32", "int8"):
        (tmp_path / quantize).mkdir()
        theirs, ours = scored(model, form, (42, 42), quantize, tmp_path / quantize)
        assert theirs == pytest.approx(ours, abs=1e-3 if quantize == "float32" else 1.0)
        sizes[quantize] = (tmp_path / quantize / MODEL / "model.bin").stat().st_size
    assert sizes["int8"] < 0.6 * sizes["float32"]


def test_long_texts_with_the_engines_own_defaults(small_run: Run, tmp_path: Path) -> None:
    folder = export(small_run, CTRANSLATE2, tmp_path / "out").export.folder
    translator = ctranslate2.Translator(str(folder / MODEL))
    words = load_tokenizers(small_run).source.vocabulary[4:]
    result = translator.translate_batch([words * 10, words[:9]], min_decoding_length=256)
    assert [len(each.hypotheses[0]) for each in result] == [256, 256]


def test_a_version_without_head_dim_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def old(layers, heads, pre_norm=True, no_final_norm=False):
        raise AssertionError("called although it lacks head_dim")

    monkeypatch.setattr(ctranslate2.specs, "TransformerEncoderSpec", old)
    form = dense_form(
        transformer(TRANSFORMERS["upsized"]), section(TRANSFORMERS["upsized"]), {"source": 42, "target": 42}
    )
    with pytest.raises(MissingExtraError, match=r"head_dim"):
        write_ctranslate2(form, TokenizerPair(Words(42), Words(42)), "float32", 40, tmp_path)
