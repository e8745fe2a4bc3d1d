"""Folders of models with PHM weights: bit for bit into a fresh model, or an error that leaves it unchanged."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

import phmctl
from phmctl import PHMLinear
from phmctl.errors import OutputError, RunError, UserError
from tests.nn.test_convert import Net, inputs_of, tiny


def assert_equal_states(model: nn.Module, expected: nn.Module) -> None:
    state = model.state_dict()
    assert state.keys() == expected.state_dict().keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in expected.state_dict().items())


class ByHand(nn.Module):
    """PHM layers of every kind, a shared rule, a fixed rule, a buffer, a tied weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = PHMLinear(8, 8, n=4), PHMLinear(8, 8, n=4)
        self.second.share_rule(self.first)
        self.fixed = PHMLinear(8, 8, n=4, algebra="quaternion")
        self.factors = PHMLinear(8, 8, n=4, rank=4)
        self.reader = phmctl.PHMLSTM(8, 8, n=4)
        self.image = phmctl.PHMConv2d(8, 8, 3, n=4)
        self.words, self.out = phmctl.PHMEmbedding(8, 8, n=4), nn.Linear(8, 8)
        self.also = self.out
        self.register_buffer("count", torch.tensor(3))


MODELS: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "net": (Net, {"n": 2}),
    "fixed": (Net, {"algebra": "quaternion"}),
    "some": (Net, {"n": 4, "select": ["reader", "attention", "words", "out"]}),
    "lstm": (lambda: nn.LSTM(8, 8, 2, bidirectional=True), {"n": 4}),
    "gru and cells": (lambda: nn.ModuleList([nn.GRU(8, 8), nn.RNN(8, 8), nn.GRUCell(8, 8)]), {"n": 4}),
    "convolutions": (
        lambda: nn.ModuleList([nn.Conv2d(8, 8, 3, groups=2), nn.ConvTranspose1d(8, 16, 3), nn.EmbeddingBag(8, 8)]),
        {"n": 4},
    ),
    "layer": (lambda: nn.Linear(8, 8), {"n": 4}),
    "padding": (lambda: nn.Sequential(nn.Embedding(8, 8, padding_idx=0)), {"n": 4}),
    "double": (lambda: nn.Linear(8, 8, dtype=torch.float64), {"n": 4}),
    "by hand": (ByHand, {"n": 4, "select": "out"}),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_fresh_model_is_converted_in_the_same_way_and_filled_bit_for_bit(name: str, tmp_path: Path) -> None:
    build, options = MODELS[name]
    model, _ = phmctl.convert(build(), **options)
    with torch.no_grad():  # as after training
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    phmctl.save(model, tmp_path / "saved")
    phmctl.save(model, tmp_path / "saved")  # replaces the folder
    for fresh in (build(), phmctl.convert(build(), **options)[0]):
        loaded = phmctl.load_into(fresh, tmp_path / "saved")
        assert loaded is fresh
        assert_equal_states(loaded, model)
        assert len(list(loaded.parameters())) == len(list(model.parameters()))
    if build is Net:
        inputs = inputs_of(0)[0].float(), inputs_of(0)[1]
        model.eval(), loaded.eval()
        for output, expected in zip(loaded(*inputs), model(*inputs), strict=True):
            assert torch.equal(output, expected)
    assert_equal_states(phmctl.to_dense(loaded), phmctl.to_dense(model))


@pytest.mark.parametrize(
    ("form", "share", "distance"), [("float16", 0.55, 1e-3), ("int8", 0.35, 0.01), ("int4", 0.25, 0.2)]
)
def test_matrices_but_not_rules_are_rounded(form: str, share: float, distance: float, tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.ModuleList([nn.Conv2d(64, 64, 3), nn.Linear(128, 128), PHMLinear(128, 128, n=4)])

    model, _ = phmctl.convert(build(), 4)
    phmctl.save(model, tmp_path / "exact")
    phmctl.save(model, tmp_path / "rounded", quantize=form)
    exact, rounded = ((tmp_path / name / "model.safetensors").stat().st_size for name in ("exact", "rounded"))
    assert rounded < share * exact
    state, expected = phmctl.load_into(build(), tmp_path / "rounded").state_dict(), model.state_dict()
    for name, tensor in state.items():
        if name.endswith((".A", ".original0", "bias")):
            assert torch.equal(tensor, expected[name])
        else:
            assert 0 < (tensor - expected[name]).norm() < distance * tensor.norm()
    with pytest.raises(UserError, match="int8"):
        phmctl.save(model, tmp_path / "rounded", quantize="int9")
    with pytest.raises(UserError, match="int8"):
        phmctl.save(model, tmp_path / "rounded", quantize=8)  # type: ignore[arg-type]


class Buffers(nn.Module):
    """Buffers that no form of weights can store, and parameters with the names of factors of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.full((16, 16), -torch.inf).triu(1))
        self.register_buffer("positions", torch.arange(5000.0)[None])
        self.register_buffer("counts", torch.tensor([[1234567.0, 3.0]]))
        self.A, self.W = nn.Parameter(torch.randn(64, 64)), nn.Parameter(torch.randn(64, 64))
        self.empty, self.axes = nn.Parameter(torch.zeros(5, 0)), nn.Parameter(torch.randn(*[1] * 10))
        self.small = nn.Parameter(torch.ones(4, 4).to(torch.float8_e4m3fn), requires_grad=False)
        self.ours = PHMLinear(16, 16, n=4, rank=4)


@pytest.mark.parametrize("form", ["float16", "int8", "int4"])
def test_parameters_are_rounded_and_buffers_stay_exact(form: str, tmp_path: Path) -> None:
    model = Buffers()
    phmctl.save(model, tmp_path, quantize=form)
    loaded = phmctl.load_into(Buffers(), tmp_path)
    for name, tensor in loaded.state_dict().items():
        exact = name not in {"A", "W", "ours.S"}
        assert torch.equal(tensor.float(), model.state_dict()[name].float()) == exact, name


@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel])
@pytest.mark.parametrize("inner", [False, True])
def test_a_wrapped_model_or_layer_is_saved_as_what_it_wraps(
    wrap: Callable[[nn.Module], nn.Module], inner: bool, tmp_path: Path
) -> None:
    def build() -> nn.Sequential:
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))

    def wrapped(model: nn.Sequential) -> nn.Module:
        return nn.Sequential(wrap(model[0]), model[1]) if inner else wrap(model)

    model, other = phmctl.convert(build(), 4)[0], build()
    phmctl.save(wrapped(model), tmp_path)
    assert_equal_states(phmctl.load_into(build(), tmp_path), model)
    around = wrapped(other)
    assert phmctl.load_into(around, tmp_path) is around
    assert_equal_states(other, model)


def test_modules_and_names_that_resemble_a_wrapper(tmp_path: Path) -> None:
    model = phmctl.convert(nn.ModuleDict({name: nn.Linear(8, 8) for name in ("_orig_mod", "a_orig_mod")}), 4)[0]
    phmctl.save(model, tmp_path)
    fresh = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("_orig_mod", "a_orig_mod")})
    assert_equal_states(phmctl.load_into(fresh, tmp_path), model)


def test_rounded_models_keep_their_dtype(tmp_path: Path) -> None:
    layer, _ = phmctl.convert(nn.Linear(8, 8).bfloat16(), algebra="quaternion")
    phmctl.save(layer, tmp_path, quantize="float16")
    assert_equal_states(phmctl.load_into(nn.Linear(8, 8).bfloat16(), tmp_path), layer)  # 11 bits hold its 8


@pytest.mark.parametrize(("saved", "expected"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)])
def test_a_model_keeps_a_dtype_of_its_own_and_frozen_weights(
    saved: torch.dtype, expected: torch.dtype, tmp_path: Path
) -> None:
    model = phmctl.convert(nn.LSTM(8, 8), 4)[0].to(saved)
    phmctl.save(model, tmp_path)
    fresh = nn.LSTM(8, 8).to(expected)
    fresh.weight_ih_l0.requires_grad_(False)
    loaded = phmctl.load_into(fresh, tmp_path)
    assert {name.split(".")[1] for name, tensor in loaded.named_parameters() if not tensor.requires_grad} == {
        "weight_ih_l0"
    }
    assert_equal_states(loaded, model.to(expected))


@pytest.mark.parametrize(
    ("fresh", "error", "place"),
    [
        (lambda: nn.Sequential(nn.Linear(8, 8)), RunError, r"lacks 0.bias; .*lacks 0.weight; .*unknown attention.in"),
        (lambda: phmctl.convert(Net(), 4)[0], UserError, "already converted"),
        (lambda: Net().to("meta"), UserError, "meta"),
    ],
)
def test_a_model_that_the_folder_does_not_fit_is_unchanged(
    fresh: Callable[[], nn.Module], error: type[Exception], place: str, tmp_path: Path
) -> None:
    phmctl.save(phmctl.convert(Net(), 2)[0], tmp_path)
    model = fresh()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(error, match=place):
        phmctl.load_into(model, tmp_path)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items() if not tensor.is_meta)


def test_an_untied_weight_does_not_fit_a_tied_one(tmp_path: Path) -> None:
    net, _ = phmctl.convert(Net(), 4, select="classifier.1")
    net.out.weight = nn.Parameter(net.out.weight.detach().clone())
    phmctl.save(net, tmp_path)
    with pytest.raises(RunError, match=r"out\.weight"):
        phmctl.load_into(Net(), tmp_path)


@pytest.mark.parametrize(("file", "content"), [("phm.json", "{"), ("model.safetensors", "0" * 64)])
def test_torn_and_missing_files_are_refused(file: str, content: str, tmp_path: Path) -> None:
    phmctl.save(phmctl.convert(nn.Linear(8, 8), 4)[0], tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(RunError):
        phmctl.load_into(nn.Linear(8, 8), tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(RunError):
        phmctl.load_into(nn.Linear(8, 8), tmp_path)


MANIFESTS: list[dict[str, Any]] = [
    {"format": 2},
    {"weights": None},
    {"weights": [{"weights": ["weight"]}]},
    {"rounded": None},
    *({"rounded": {name: entry}} for name, entry in (("scale", ["float32", 8]), ("bias", 3), ("bias", ["float5", 8]))),
    *({"rounded": {"bias": ["float32", *sizes]}} for sizes in ([9], [10**30, 8], [1] * 100_000)),  # the last took hours
]
RECORDS: list[dict[str, Any]] = [
    *({"weights": value} for value in (3, ["nowhere.weight"], ["."])),
    *({"n": value} for value in (None, 10**30)),
    *({"algebra": value} for value in (["phm"], "quaternion", "unknown")),
    {"parts": 10**30},
    {"groups": 10**30},
    {"transposed": "yes"},
    {"zero_row": 10**30},
    {"surprise": 1},
]


@pytest.mark.parametrize("changes", [*MANIFESTS, *RECORDS])
def test_damaged_manifests_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    phmctl.save(phmctl.convert(nn.Linear(8, 8), 4)[0], tmp_path)
    content = json.loads((tmp_path / "phm.json").read_text())
    if changes in RECORDS:
        changes = {"weights": [content["weights"][0] | changes]}
    (tmp_path / "phm.json").write_text(json.dumps(content | changes))
    layer = nn.Linear(8, 8)
    with pytest.raises(RunError):
        phmctl.load_into(layer, tmp_path)
    assert type(layer) is nn.Linear


def test_only_the_listed_files_are_read(tmp_path: Path) -> None:
    """Another file of weights in the folder, such as an average of a training loop, changes nothing."""
    model = phmctl.convert(nn.Linear(8, 8), 4)[0]
    phmctl.save(model, tmp_path)
    other = phmctl.convert(nn.Linear(8, 8), 4)[0]
    safetensors.torch.save_file(dict(other.state_dict()), tmp_path / "model_ema.safetensors")
    assert_equal_states(phmctl.load_into(nn.Linear(8, 8), tmp_path), model)


@pytest.mark.filterwarnings("ignore")  # of transformers' own
@pytest.mark.parametrize("shard", ["10KB", "1GB"])
def test_only_the_files_of_the_index_are_read(shard: str, tmp_path: Path) -> None:
    model = phmctl.convert(tiny("gpt2")[0], 4)[0]
    model.save_pretrained(tmp_path, max_shard_size=shard)
    other = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    safetensors.torch.save_file(other, tmp_path / "model_ema.safetensors")
    assert_equal_states(phmctl.from_pretrained(type(model), tmp_path), model)
    index = tmp_path / "model.safetensors.index.json"
    if index.exists():
        for content in (
            '{"weight_map": 3}',
            '{"weight_map": {"a": "../model.safetensors"}}',
            '{"weight_map": {}}',
            "{",
        ):
            index.write_text(content)
            with pytest.raises(RunError):
                phmctl.from_pretrained(type(model), tmp_path)


CODE = {"auto_map": {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [
        CODE | {"model_type": "unknown"},
        CODE | {"model_type": "t5"},  # it has a config, but no causal model
        {"vocab_size": "many"},
        {"n_head": 0},
        {"quantization_config": ["phmctl"]},
        {"attn_implementation": "somebody/kernels"},
    ],
)
def test_a_changed_config_is_refused_or_ignored_and_code_of_the_folder_never_runs(
    change: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    model = phmctl.convert(tiny("gpt2")[0], 4)[0]
    model.save_pretrained(tmp_path)
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass Config: pass\nclass Model: pass\n")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | change))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    load = functools.partial(phmctl.from_pretrained, transformers.AutoModelForCausalLM, tmp_path)
    if "attn_implementation" in change:
        assert_equal_states(load(), model)
    else:
        with pytest.raises(RunError):
            load()
    assert not (tmp_path / "ran").exists()


@pytest.mark.filterwarnings("ignore")
def test_constants_that_transformers_does_not_save_are_those_of_a_fresh_model(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "max_position_embeddings": 16}
    config = transformers.MarianConfig(vocab_size=41, pad_token_id=40, decoder_start_token_id=40, **sizes)
    model, _ = phmctl.convert(transformers.MarianMTModel(config), 4)
    model.save_pretrained(tmp_path)
    assert_equal_states(phmctl.from_pretrained(type(model), tmp_path), model)


def test_parameters_keep_their_order_after_an_error_and_in_a_dense_copy(tmp_path: Path) -> None:
    """An optimiser's state goes by the order of the parameters."""

    def build() -> nn.ModuleList:
        return nn.ModuleList([Net(), nn.LSTM(8, 8, 2), nn.MultiheadAttention(8, 2), nn.ConvTranspose1d(8, 8, 3)])

    converted, _ = phmctl.convert(build(), 4)
    expected = [name for name, _ in build().named_parameters()]
    assert [name for name, _ in phmctl.to_dense(converted).named_parameters()] == expected
    phmctl.save(converted, tmp_path)
    other = build()
    other.append(nn.Linear(8, 8))
    with pytest.raises(RunError):
        phmctl.load_into(other, tmp_path)
    assert [name for name, _ in other.named_parameters()] == [*expected, "4.weight", "4.bias"]


def test_lazy_layers_are_refused_and_the_model_is_unchanged(tmp_path: Path) -> None:
    phmctl.save(phmctl.convert(nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)), 4)[0], tmp_path)
    lazy = nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(8))
    with pytest.raises(UserError, match="first input"):
        phmctl.load_into(lazy, tmp_path)
    assert type(lazy[0]) is nn.Linear
    for model in (lazy, nn.Linear(8, 8, device="meta")):
        with pytest.raises(UserError, match="weight"):
            phmctl.save(model, tmp_path)


def test_files_of_others_stay_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a loop that saves a model after each epoch beside the optimiser's state."""
    (tmp_path / "link").symlink_to(tmp_path / "saved")
    foreign = {"optimizer.pt": "state", "notes/day.txt": "went well", "manifest.json": "{}"}
    for name, content in foreign.items():
        (tmp_path / "saved" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "saved" / name).write_text(content)
    monkeypatch.chdir(tmp_path / "saved")
    for folder in (tmp_path / "saved", ".", tmp_path / "link"):
        model = nn.Linear(8, 8)
        phmctl.save(model, folder)
        assert torch.equal(phmctl.load_into(nn.Linear(8, 8), folder).weight, model.weight)
    assert {name: (tmp_path / "saved" / name).read_text() for name in foreign} == foreign
    files = {
        path.relative_to(tmp_path / "saved").as_posix() for path in (tmp_path / "saved").rglob("*") if path.is_file()
    }
    assert files == {*foreign, "model.safetensors", "phm.json"}


@pytest.mark.parametrize("name", ["notes.txt", "link/notes.txt", "a\0b"])
def test_a_copied_manifest_cannot_name_files_to_remove(name: str, tmp_path: Path) -> None:
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "link").symlink_to(tmp_path)
    for folder in (tmp_path, tmp_path / "saved"):
        (folder / "notes.txt").write_text("went well")
    manifest = {"rounded": {}, "files": [{"name": name, "bytes": 9, "sha256": ""}]}
    (tmp_path / "saved" / "phm.json").write_text(json.dumps(manifest))
    phmctl.save(nn.Linear(8, 8), tmp_path / "saved")
    assert [path.read_text() for path in sorted(tmp_path.rglob("notes.txt"))] == ["went well"] * 2


def test_a_file_of_another_origin_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(OutputError):
        phmctl.save(nn.Linear(8, 8), tmp_path / "loop")
    (tmp_path / "loop").unlink()
    for name in ("model.safetensors", "phm.json"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(OutputError, match=r"model\.safetensors, phm\.json"):
        phmctl.save(nn.Linear(8, 8), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "phm.json"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"{}"}


@pytest.mark.filterwarnings("ignore")  # of transformers' own
@pytest.mark.parametrize("architecture", ["bert", "gpt2", "bart"])
def test_a_converted_model_of_transformers_makes_the_round_trip(architecture: str, tmp_path: Path) -> None:
    model, ids = tiny(architecture)
    converted, report = phmctl.convert(model, 4)
    assert any(row.kind == ("Conv1D" if architecture == "gpt2" else "Linear") and row.error for row in report.rows)
    assert all("does not divide" in row.skipped for row in report.rows if row.skipped)
    converted.save_pretrained(tmp_path / "theirs")
    phmctl.save(converted, tmp_path / "ours")
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        with pytest.raises(ValueError, match="quant"):  # never random weights
            type(model).from_pretrained(folder)
        loaded = phmctl.from_pretrained(type(model), folder)
        assert_equal_states(loaded, converted)
        assert torch.equal(loaded(ids).logits, converted(ids).logits)
        assert not loaded.training
    dense = phmctl.to_dense(loaded)
    torch.testing.assert_close(dense(ids).logits, converted(ids).logits, rtol=1e-4, atol=1e-5)
    dense.save_pretrained(tmp_path / "dense")
    assert_equal_states(type(model).from_pretrained(tmp_path / "dense"), dense)
    assert_equal_states(phmctl.from_pretrained(type(model), tmp_path / "dense"), dense)


@pytest.mark.filterwarnings("ignore")
def test_automatic_classes_other_precisions_and_other_folders(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = phmctl.convert(tiny("gpt2")[0].bfloat16(), 4)[0]
    phmctl.save(nn.DataParallel(model), tmp_path / "ours")
    assert_equal_states(phmctl.from_pretrained(type(model), tmp_path / "ours"), model)
    model.generation_config.max_new_tokens = 7
    model.save_pretrained(tmp_path, max_shard_size="10KB")
    loaded = phmctl.from_pretrained(transformers.AutoModelForCausalLM, tmp_path)
    assert_equal_states(loaded, model)
    assert loaded.generation_config.max_new_tokens == 7
    assert torch.get_default_dtype() == torch.float32
    with pytest.raises(RunError, match="lacks"):
        phmctl.from_pretrained(type(tiny("bert")[0]), tmp_path)
    with pytest.raises(RunError):
        phmctl.from_pretrained(type(model), "gpt2")
    with pytest.raises(UserError, match="Linear"):
        phmctl.from_pretrained(nn.Linear, tmp_path)


@pytest.mark.filterwarnings("ignore")
def test_names_that_transformers_changes_in_a_file_and_parts_that_were_converted_alone(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.ViTConfig(**sizes, image_size=8, patch_size=4)
    dense = transformers.ViTForImageClassification(config)
    dense.save_pretrained(tmp_path)
    for model in (dense, type(dense).from_pretrained(tmp_path)):
        converted, _ = phmctl.convert(model, 4)
        converted.save_pretrained(tmp_path)
        loaded = phmctl.from_pretrained(type(dense), tmp_path)
        assert_equal_states(loaded, converted)
        phmctl.load_into(type(dense)(config), tmp_path).save_pretrained(tmp_path / "filled")
        assert_equal_states(phmctl.from_pretrained(type(dense), tmp_path / "filled"), converted)
        again = phmctl.to_dense(loaded)
        again.save_pretrained(tmp_path)
        assert_equal_states(type(dense).from_pretrained(tmp_path), again)
    dense.vit, _ = phmctl.convert(dense.vit, 4)
    phmctl.save(dense, tmp_path / "part")
    assert_equal_states(phmctl.from_pretrained(type(dense), tmp_path / "part"), dense)
    with pytest.raises(ValueError, match="quant"):
        type(dense).from_pretrained(tmp_path / "part")
