"""``examples/minilm.py`` shrinks a BERT of one layer whose tokenizer is made here."""

import gzip
import random
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

import phmctl
from tests.examples.test_scripts import EXAMPLES
from tools import bench

transformers = pytest.importorskip("transformers")
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
WORDS = [f"w{index}" for index in range(60)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, "[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(tmp_path / "bert")
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    config = transformers.BertConfig(vocab_size=64, max_position_embeddings=160, **sizes)
    transformers.BertModel(config, add_pooling_layer=False).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.mark.filterwarnings("ignore")  # of the exporter's own
def test_minilm(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import minilm  # type: ignore[import-not-found]

    generator = random.Random(0)
    texts = [" ".join(generator.choices(WORDS, k=generator.randint(1, 9))) for _ in range(80)]
    (tmp_path / "a.txt").write_text("\n".join(texts[:40]))
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("\n".join(texts[40:]))
    rows = [f"main\tx\ty\t{index}\t{index % 5}\t{texts[index]}\t{texts[index + 1]}" for index in range(40)]
    (tmp_path / "sts.csv").write_text("\n".join(rows))
    folder = tmp_path / "small"
    arguments = {"model": source, "output": folder, "steps": 3, "sts": tmp_path / "sts.csv"}
    command = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    monkeypatch.setattr(
        sys, "argv", ["minilm", *command, "--text", *map(str, (tmp_path / "a.txt", tmp_path / "b.txt.gz"))]
    )
    minilm.main()

    rows = [line.split() for line in capsys.readouterr().out.splitlines() if "bytes" in line]
    assert [row[0] for row in rows] == ["dense", "converted", "healed,"]
    assert int(rows[-1][-3].replace(",", "")) == (folder / "model.safetensors").stat().st_size
    assert all(-100 <= float(row[-1]) <= 100 for row in rows)
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.json",
        "model.onnx",
        "model.safetensors",
        "phm.json",
        "tokenizer.json",
    ]
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    long = " ".join(WORDS * 3)
    batch = minilm.padded([tokenizer.encode(text).ids for text in (*texts[:3], long)])
    assert batch["input_ids"].shape == (4, 128)
    model = phmctl.load_into(transformers.BertModel.from_pretrained(source, add_pooling_layer=False), folder).eval()
    with torch.no_grad():
        expected = minilm.embed(model, batch)
    session = onnxruntime.InferenceSession(folder / "model.onnx")
    [found] = session.run(None, {name: tensor.numpy() for name, tensor in batch.items()})
    assert torch.allclose(torch.from_numpy(found), expected, atol=1e-4)
    assert torch.allclose(expected.norm(dim=-1), torch.ones(4))
    table = bench.bench_sentences(folder, str(source), length=4, rounds=1).rows
    assert [(row["texts"], row["model"]) for row in table] == [
        (texts, model) for texts in (1, 32) for model in ("dense, int8", "small")
    ]
    assert table[1]["bytes"] == (folder / "model.onnx").stat().st_size


def test_spearman_averages_the_ranks_of_equal_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    import minilm

    assert minilm.ranks(torch.tensor([3.0, 1.0, 3.0, 2.0])).diff().tolist() == [-2.5, 2.5, -1.5]
