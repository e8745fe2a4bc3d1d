"""Compact exports: A and S, rounded numbers, and the ONNX graphs that compute the weights."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

import phmctl
from phmctl import plain
from phmctl.algebra.quantise import SCALE, quantise
from phmctl.answering.opening import ONNX, SAFETENSORS, Export
from phmctl.errors import NonFiniteError, RunError, UserError
from phmctl.export.forms import Form, compact_form, dense_form
from phmctl.export.onnx import write_onnx
from phmctl.export.verb import export
from phmctl.models import build
from phmctl.runs import Run
from tests.export.conftest import reseal
from tests.export.test_forms import CLASSIFIERS, TRANSFORMERS, ids, scattered, section, transformer
from tests.tasks.translation.runs import SOURCES, make_run

STRUCTURES = {
    "low-rank": {"algebra": "low-rank", "rank": 8},
    "narrow-phm-tables": {"algebra": "phm", "n": 4, "embedding_width": 16, "embeddings": "phm"},
}
NAMES = [*TRANSFORMERS, *STRUCTURES, *CLASSIFIERS]


def forms(name: str, **changes: int) -> tuple[Form, Form]:
    """Return both forms of a random model. `changes` are those of a Transformer."""
    if name in CLASSIFIERS:
        torch.manual_seed(1)
        recipe, sizes = CLASSIFIERS[name], {"vocabulary": 42}
        model = scattered(build(recipe, {"vocabulary": 42, "classes": 3}))
    else:
        settings = (TRANSFORMERS | STRUCTURES)[name] | changes
        recipe = section(settings)
        target = 42 if recipe.share_embeddings else 39
        model, sizes = transformer(settings, 42, target), {"source": 42, "target": target}
    dense = dense_form(model, recipe, sizes)
    return dense, compact_form(model, dense)


def write(compact: Form, quantize: str, folder: Path) -> Path:
    config, tensors = compact.rounded(quantize)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


@given(st.integers(1, 4), st.integers(1, 9), st.integers(0, 2**31), st.sampled_from(["int8", "int4", "float16"]))
def test_rounding_errs_by_half_a_step(rows: int, columns: int, seed: int, form: str) -> None:
    tensor = torch.randn(2, rows, columns, generator=torch.Generator().manual_seed(seed))
    stored, scale = quantise(tensor, form)
    named = {"S": stored} if scale is None else {"S": stored, "S" + SCALE: scale}
    step = 2.0**-10 * tensor.abs() if scale is None else scale
    error = (plain.numbers(named, "S", {"S": columns}) - tensor).abs()
    if form == "int4":  # the scale that stores the largest entry errs more
        whole = tensor.abs().amax(-1, keepdim=True) / 7
        assert (error.square().sum(-1) <= ((tensor / whole).round() * whole - tensor).square().sum(-1) * 1.001).all()
        error = error.where(tensor.abs() <= 7.5 * step, 0)  # without the entries that are cut off
    assert (error <= step / 2 * 1.001).all()
    assert stored.shape == (2, rows, (columns + 1) // 2 if form == "int4" else columns)


@pytest.mark.parametrize("form", ["float16", "int8", "int4"])
@pytest.mark.parametrize("entry", [float("inf"), float("nan"), 1e6])
def test_entries_that_a_form_cannot_store_are_refused(form: str, entry: float) -> None:
    tensor = torch.tensor([[1.0, entry]])
    if entry == 1e6 and form != "float16":
        stored, scale = quantise(tensor, form, "map.S")
        assert plain.numbers({"S": stored, "S" + SCALE: scale}, "S", {"S": 2})[0, 1] == pytest.approx(entry)
        return
    with pytest.raises(UserError, match=r"map\.S"):
        quantise(tensor, form, "map.S")
    assert quantise(tensor, "float32")[0] is tensor


def test_four_bits_cut_off_a_large_entry() -> None:
    tensor = torch.randn(100, 64, generator=torch.Generator().manual_seed(1))
    stored, scale = quantise(tensor, "int4")
    assert scale is not None
    error = plain.numbers({"S": stored, "S" + SCALE: scale}, "S", {"S": 64}) - tensor
    whole = tensor.abs().amax(-1, keepdim=True) / 7
    assert error.norm() < 0.93 * ((tensor / whole).round() * whole - tensor).norm()


@pytest.mark.parametrize("form", ["int8", "int4"])
def test_a_row_of_zeros_stays_zero(form: str) -> None:
    stored, scale = quantise(torch.zeros(2, 3), form)
    assert scale is not None
    assert plain.numbers({"S": stored, "S" + SCALE: scale}, "S", {"S": 3}).eq(0).all()


@pytest.mark.parametrize("name", NAMES)
def test_the_dense_form_is_computed_from_the_compact_one(name: str, tmp_path: Path) -> None:
    dense, compact = forms(name)
    has_structure = not name.startswith(("real", "no-final", "dense-gen", "own-tables", "encoder-mean", "pair-unb"))
    assert bool(compact.rows) == has_structure
    _, tensors = plain.read(write(compact, "float32", tmp_path))
    assert tensors.keys() == dense.tensors.keys()
    for key, tensor in dense.tensors.items():
        torch.testing.assert_close(tensors[key], tensor, rtol=1e-5, atol=1e-6)


LAYERS = {"encoder_layers": 1, "decoder_layers": 1}
# One of each structure of weights. The graphs are traced from the plain twins, which test_forms compares for all names.
COMPUTED = ["real", "phm", "factors", "shared-rule", "quaternion-separate", "packed", "phm-generator"]
GRAPHS = [(name, "float32") for name in (*COMPUTED, *STRUCTURES, *CLASSIFIERS)]
GRAPHS += [(name, form) for name in ("phm", "pair") for form in ("float16", "int8", "int4")] + [("real", "int4")]


@pytest.mark.parametrize(("name", "quantize"), GRAPHS)
@torch.no_grad()
def test_onnx_graphs_compute_their_weights(name: str, quantize: str, tmp_path: Path) -> None:
    """Each dense matrix is replaced, and the outputs are those of the same rounded numbers in plain torch."""
    runtime = pytest.importorskip("onnxruntime")
    _, compact = forms(name, **LAYERS)
    write_onnx(compact, quantize, tmp_path)
    _, stored = compact.rounded(quantize)
    assert (tmp_path / "weights.bin").stat().st_size <= sum(tensor.nbytes for tensor in stored.values())
    model = plain.load(write(compact, quantize, tmp_path))
    if name in CLASSIFIERS:
        texts = [ids(3, 7, 42)] if CLASSIFIERS[name].kind == "encoder" else [ids(3, 7, 42), ids(3, 5, 42, seed=2)]
        session = runtime.InferenceSession(str(tmp_path / "classifier.onnx"), providers=["CPUExecutionProvider"])
        names = [graph_input.name for graph_input in session.get_inputs()]
        (theirs,) = session.run(None, dict(zip(names, (text.numpy() for text in texts), strict=True)))
        ours = model(*texts)
    else:
        source = ids(3, 9, 42)
        session = runtime.InferenceSession(str(tmp_path / "encoder.onnx"), providers=["CPUExecutionProvider"])
        (theirs,) = session.run(None, {"source": source.numpy()})
        layer: Any = model
        states, _ = layer.encode(source)
        attention = layer.decoder[0].cross_attention
        theirs, ours = theirs[0, 1], attention.split(attention.value(states))
        runtime.InferenceSession(str(tmp_path / "decoder.onnx"), providers=["CPUExecutionProvider"])
    torch.testing.assert_close(torch.from_numpy(theirs), ours, rtol=1e-3, atol=1e-4)


def folded_operators(form: Form, quantize: str, folder: Path) -> list[Counter[str]]:
    """Return the operators of each graph when a session has opened."""
    onnx, runtime = pytest.importorskip("onnx"), pytest.importorskip("onnxruntime")
    folder.mkdir()
    write_onnx(form, quantize, folder)
    operators = []
    for path in sorted(folder.glob("*.onnx")):
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(folder / "folded")
        runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        folded = onnx.load(str(folder / "folded"), load_external_data=False)
        operators.append(Counter(node.op_type for node in folded.graph.node))
    return operators


@pytest.mark.parametrize("kind", ["narrow-phm-tables", "pair-fused"])
def test_a_session_folds_the_weights_into_constants(kind: str, tmp_path: Path) -> None:
    """When a session has opened, the graph has the operators of the dense one."""
    dense, compact = forms(kind, **LAYERS)
    expected = folded_operators(dense, "float32", tmp_path / "dense")
    for quantize in ("float32", "float16", "int8", "int4"):
        assert folded_operators(compact, quantize, tmp_path / quantize) == expected


MAPS = {"algebra": "phm", "n": 4, "embeddings": "phm"}


@pytest.fixture(scope="module")
def phm_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("runs"), maps=MAPS)


@pytest.mark.parametrize(("to", "quantize"), [(SAFETENSORS, None), (SAFETENSORS, "int4"), (ONNX, None), (ONNX, "int4")])
def test_an_export_holds_less_than_its_dense_twin(phm_run: Run, to: str, quantize: str | None, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    result = export(phm_run, to, tmp_path / "out", quantize=quantize)
    manifest = result.export.manifest
    sizes = manifest["bytes"]
    assert manifest["weights"] == "phm"
    assert (manifest.get("quantize"), result.export.quantize) == (quantize, quantize)
    stored = sum(
        path.stat().st_size for path in (tmp_path / "out").glob("*.*") if path.suffix in (".bin", ".safetensors")
    )
    assert 0 < stored <= sizes["weights"]
    assert stored < sizes["dense_float32"] / (5 if quantize else 2)
    if quantize is None:
        assert result.verification.different == 0
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"{sizes['weights'] / 1e6:.2f} MB" in card
    assert Export.open(tmp_path / "out").name.endswith(f"-{quantize}" if quantize else to)


def test_a_dense_run_has_one_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    first = export(run, SAFETENSORS, tmp_path / "phm", weights="phm").export
    assert "dense" in capsys.readouterr().err
    assert first.manifest["weights"] == "dense"
    for weights in ("dense", None):
        second = export(run, SAFETENSORS, tmp_path / f"out-{weights}", weights=weights).export
        assert "dense" not in capsys.readouterr().err
        for name in ("model.safetensors", "config.json"):
            assert (first.folder / name).read_bytes() == (second.folder / name).read_bytes()


def test_the_dense_form_of_an_export_has_nothing_else(phm_run: Run, tmp_path: Path) -> None:
    folder = export(phm_run, SAFETENSORS, tmp_path / "out", weights="dense").export.folder
    config, tensors = plain.read(folder)
    assert json.loads((folder / "config.json").read_text()) == config
    assert "rows" not in config
    stored = load_file(folder / "model.safetensors")
    assert stored.keys() == tensors.keys()


@pytest.fixture(scope="module")
def four_bits(phm_run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(phm_run, SAFETENSORS, tmp_path_factory.mktemp("exports") / "out", quantize="int4").export.folder


@pytest.mark.parametrize("damage", ["a scale that is NaN", "no scale", "too few numbers"])
def test_damaged_numbers_are_named(four_bits: Path, damage: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(four_bits, tmp_path / "out"))
    tensors = load_file(folder / "model.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.dtype == torch.uint8)
    if damage == "no scale":
        del tensors[name + SCALE]
    elif damage == "too few numbers":
        tensors[name] = tensors[name][..., 1:].clone()
    else:
        tensors[name + SCALE][0] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(RunError, match=r"model\.safetensors"):
        phmctl.load(folder)
    reseal(folder)
    with pytest.raises(RunError, match=name):
        phmctl.load(folder)


def test_damaged_numbers_of_a_graph_are_refused(phm_run: Run, tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    folder = export(phm_run, ONNX, tmp_path / "out", quantize="int8", texts=1).export.folder
    graph = onnx.load(str(folder / "decoder.onnx"), load_external_data=False).graph
    scale = next(tensor for tensor in graph.initializer if tensor.name.endswith("expand/S/scale"))
    offset = next(int(entry.value) for entry in scale.external_data if entry.key == "offset")
    content = (folder / "weights.bin").read_bytes()
    changed = content[:offset] + np.float32("nan").tobytes() + content[offset + 4 :]
    for damaged in (changed, content[:-4]):
        (folder / "weights.bin").write_bytes(damaged)
        reseal(folder)
        with pytest.raises((NonFiniteError, RunError)):
            phmctl.load(folder).translate(SOURCES, beam=1)
