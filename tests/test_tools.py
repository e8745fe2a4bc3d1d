"""``tools/bench.py``, and ``make gpu-check`` without a GPU."""

import json
import sys
import time
from pathlib import Path

import pytest
import torch

from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from tests.conftest import TINY
from tools import bench

TOOLS = Path(__file__).resolve().parents[1] / "tools"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_gpu_check_without_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--output", str(tmp_path / "figures.json")])
    assert gpu_check.main() == 2
    assert not list(tmp_path.iterdir())


def test_gpu_check_measures_the_whole_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    path = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--smoke", "--output", str(path)])
    assert gpu_check.main() == 0
    document = json.loads(path.read_text())
    assert gpu_check.MEASURES.keys() - document.keys() == {"tests"}
    assert [row["stored as"] for row in document["layers"]] == ["nn.Linear", "A", "rank 4"] * 2
    assert all(row["error"] < 0.02 for name in ("layers", "lstm") for row in document[name])
    assert {row["model"] for row in document["training"]} == {"dense", "phm-n4"}
    speeds = ("training", "fast_training", "compiled_training", "compiled_fast_training", "iwslt_sized")
    assert all(row["speed"]["median"] > 0 for name in speeds for row in document[name])


def test_gpu_check_stops_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    def quick(*_: object) -> int:
        return 1

    def slow(*_: object) -> None:
        time.sleep(60)

    path = tmp_path / "figures.json"
    monkeypatch.setattr(gpu_check, "MEASURES", {"quick": quick, "slow": slow, "tests": gpu_check.tests})
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--smoke", "--minutes", "0.002", "--output", str(path)])
    gpu_check.main()
    document = json.loads(path.read_text())
    assert [document[name] == 1 for name in ("quick", "slow", "tests")] == [True, False, False]


def test_lstms_are_timed_in_training_and_evaluation() -> None:
    rows = bench.bench_lstm(2, d=8, h=8, batch=2, steps=3, rounds=1).rows
    names = [(mode, name) for mode in ("forward+backward", "eval") for name in ("nn.LSTM", "phm")]
    assert [(row["mode"], row["candidate"]) for row in rows] == names


def test_torchs_transformer_has_the_size_of_the_dense_twin(miniature_data: Path) -> None:
    settings = ["model.algebra=phm", "model.n=4", "model.embeddings=dense", "model.generator=tied"]
    recipe = expect(load_recipe("miniature", [*TINY, *settings]), TranslationRecipe)
    rows = bench.bench_transformer(recipe, str(miniature_data), batches=1, rounds=1).rows
    counts = {row["candidate"]: row["parameters"] for row in rows}
    assert list(counts) == ["dense", "phm-n4", "nn.Transformer"]
    assert abs(counts["nn.Transformer"] - counts["dense"]) <= 4 * 32  # but for the last norms


def test_torchs_transformer_accepts_long_texts() -> None:
    model = bench.TorchTransformer(TransformerSection(width=16, heads=2, feed_forward=16), 50)
    assert model(torch.ones(1, 1100, dtype=torch.long), torch.ones(1, 9, dtype=torch.long)).isfinite()


def test_engines_translate_the_same_lines(tiny_run: Run) -> None:
    folder = str(tiny_run.folder)
    rows = bench.bench_engines(["Der Hund schläft.", "Guten Tag."], [folder], rounds=1).rows
    assert [(row["folder"], row["same"], row["speed"].median) for row in rows] == [(folder, 2, 1.0)]
