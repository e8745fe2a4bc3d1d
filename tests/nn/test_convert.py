"""Any model: to the nearest PHM maps, and back."""

import copy
import functools
import operator
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

import phmctl
from phmctl import Kronecker, PHMEmbedding, PHMLinear
from phmctl.algebra.kronecker import fixed_rule, kronecker_sum
from phmctl.errors import DimensionError, UserError
from phmctl.nn import structures
from tests.references import convolution_reference

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


class Net(nn.Module):
    """As in torchvision: convolutions, a norm, a head; and attention, an LSTM and tied words."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 10))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.reader = nn.LSTM(8, 4, batch_first=True)
        self.words = nn.Embedding(12, 8)
        self.out = nn.Linear(8, 12, bias=False)
        self.out.weight = self.words.weight

    def forward(self, image: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        words = self.words(ids)
        mixed, _ = self.attention(words, words, words)
        states, (h, _) = self.reader(mixed)
        return self.classifier(self.features(image)), states, h, self.out(mixed)


def inputs_of(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    return torch.randn(2, 3, 8, 8, dtype=torch.float64), torch.tensor([[4, 5, 1], [7, 2, 3]])


@pytest.mark.parametrize("algebra", ["phm", "quaternion", "complex"])
def test_there_and_back(algebra: str) -> None:
    net = Net().double().eval()
    converted, report = phmctl.convert(net, 2 if algebra != "quaternion" else 4, algebra=algebra)
    skipped = {row.name: row.skipped for row in report.rows if row.skipped}
    assert set(skipped) == ({"features.0", "classifier.3"} if algebra == "quaternion" else {"features.0"})
    assert not parametrize.is_parametrized(net.words)  # a copy was changed
    for part, architecture in (
        (converted.words, nn.Embedding),
        (converted.reader, nn.LSTM),
        (converted.out, nn.Linear),
    ):
        assert isinstance(part, architecture)
        assert parametrize.is_parametrized(part)
    assert converted.out.parametrizations["weight"] is converted.words.parametrizations["weight"]
    expected = converted(*inputs_of(0))
    dense = phmctl.to_dense(converted)
    assert not any(parametrize.is_parametrized(part) for part in dense.modules())
    assert dense.out.weight is dense.words.weight
    for _ in range(2):  # the second time: what was made dense was a copy
        torch.testing.assert_close(dense(*inputs_of(0)), expected, **CLOSE)
        expected = converted(*inputs_of(0))


def test_a_converted_lstm_builds_each_weight_once_in_a_forward_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    built = []
    reader, _ = phmctl.convert(nn.LSTM(8, 4, 2, batch_first=True, bidirectional=True), 4)
    monkeypatch.setattr(structures, "kronecker_sum", lambda A, S, groups: built.append(1) or kronecker_sum(A, S))
    reader(torch.randn(2, 3, 8))
    assert len(built) == 4 * 8  # a rule for each gate
    with pytest.raises(DimensionError):
        reader(torch.randn(2, 3, 7))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
def test_a_converted_lstm_is_copied_moved_and_trained() -> None:
    net, _ = phmctl.convert(nn.LSTM(8, 8, 2, dropout=0.1, proj_size=4), 4)
    for _ in range(2):
        net(torch.randn(3, 2, 8))[0].sum().backward()
        learnt = [name for name, part in net.named_parameters() if part.grad is not None and part.grad.any()]
        assert sum("weight_hr_l1" in name for name in learnt) == 2
        net = copy.deepcopy(net).double().float()


def test_the_parametrization_by_torchs_own_means() -> None:
    layer = nn.Linear(8, 12, dtype=torch.float64)
    parametrize.register_parametrization(layer, "weight", Kronecker(4))
    A, S = layer.parametrizations.weight.original0, layer.parametrizations.weight.original1
    torch.testing.assert_close(layer.weight, kronecker_sum(A, S))
    with torch.no_grad():
        layer.weight = kronecker_sum(2 * A, S)
    torch.testing.assert_close(layer.weight, kronecker_sum(A, S))
    with pytest.raises(UserError):
        parametrize.register_parametrization(nn.Linear(8, 6), "weight", Kronecker(4))


def test_the_report() -> None:
    _, report = phmctl.convert(Net(), 4, select="classifier.*")
    assert [(row.name, row.shape) for row in report.rows] == [("classifier.1", (16, 8)), ("classifier.3", (10, 16))]
    kinds = {row.name: (row.kind, row.skipped) for row in report.others}
    assert kinds["features.0"] == ("Conv2d", "not selected")
    assert kinds["features.1"] == ("BatchNorm2d", "its weight is a vector")
    assert kinds.keys() == {"features.0", "features.1", "attention", "reader", "words", "out"}
    first, second = report.rows
    assert (first.before, first.after) == (128, 96)
    assert 0 < first.error < 1
    assert "n = 4 does not divide" in second.skipped
    assert report.before - report.after == 32
    assert "classifier.3" in str(report)
    assert "1 Conv2d" in str(report).splitlines()[-2]


@pytest.mark.parametrize(
    ("select", "names"),
    [
        ("*.3", ["classifier.3"]),
        (re.compile(r"^attention$"), ["attention"]),
        (lambda name, module: isinstance(module, nn.LSTM), ["reader"]),
        (["*.1", "reader"], ["classifier.1", "reader"]),
    ],
)
def test_selection(select: Any, names: list[str]) -> None:
    _, report = phmctl.convert(Net(), 2, select=select)
    assert [row.name for row in report.rows] == names


# --- convolutions and recurrent layers


@pytest.mark.parametrize("algebra", ["phm", "quaternion"])
@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize(
    "architecture",
    [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d],
)
def test_convolutions_become_sums_of_kron_at_each_position(architecture: Any, groups: int, algebra: str) -> None:
    layer = architecture(8 * groups, 12 * groups, 2, groups=groups, dtype=torch.float64)
    converted, report = phmctl.convert(layer, 4, algebra=algebra)
    *learned, S = converted.parametrizations.weight.parameters()
    assert S.shape[:3] == (4, 3 * groups, 2)
    assert report.rows[0].after == sum(part.numel() for part in (*learned, S))
    A = learned[0] if learned else fixed_rule("quaternion", dtype=torch.float64)
    H = convolution_reference(A, S, groups)  # (outputs, inputs of a group, ...)
    if layer.transposed:
        H = torch.cat([group.transpose(0, 1) for group in H.chunk(groups)])
    torch.testing.assert_close(converted.weight, H)
    torch.testing.assert_close(
        (H - layer.weight).norm() / layer.weight.norm(), torch.tensor(report.rows[0].error).to(H)
    )
    again, _ = phmctl.convert(phmctl.to_dense(converted), 4, algebra=algebra)  # H is its own nearest sum
    torch.testing.assert_close(again.weight, H)
    x = torch.randn(2, 8 * groups, *[3] * (H.dim() - 2), dtype=torch.float64)
    dense = phmctl.to_dense(converted)
    assert type(dense) is architecture
    torch.testing.assert_close(dense(x), converted(x))


@pytest.mark.parametrize(
    ("layer", "gates"),
    [
        (nn.GRU(8, 4, 2, batch_first=True, bidirectional=True), 3),
        (nn.RNN(8, 4, nonlinearity="relu"), 1),
        (nn.LSTMCell(8, 4), 4),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_gate_of_a_recurrent_layer_has_a_rule(layer: Any, gates: int) -> None:
    layer.double()
    converted, _ = phmctl.convert(layer, 4)
    dense = phmctl.to_dense(converted)
    assert type(dense) is type(layer)
    x = torch.randn(3, 2, 8, dtype=torch.float64) if isinstance(layer, nn.RNNBase) else torch.randn(3, 8).double()
    for ours, theirs in zip(converted(x), dense(x), strict=True):
        torch.testing.assert_close(ours, theirs)
    for key, part in converted.parametrizations.items():
        nearest = [phmctl.convert(linear_of(gate), 4)[0].weight for gate in getattr(layer, key).chunk(gates)]
        torch.testing.assert_close(getattr(converted, key), torch.cat(nearest))
        assert part.original0.numel() == gates * 64
    converted(x)[0].sum().backward()
    assert all(parameter.grad is not None for name, parameter in converted.named_parameters() if "l1" not in name)


def linear_of(weight: torch.Tensor) -> nn.Linear:
    linear = nn.Linear(*weight.shape[::-1], dtype=weight.dtype)
    linear.weight = nn.Parameter(weight.detach().clone())
    return linear


@pytest.mark.parametrize(
    "layer",
    [
        nn.Embedding(8, 8, max_norm=1.0),
        parametrizations.weight_norm(nn.Linear(8, 8)),
        nn.utils.spectral_norm(nn.Linear(8, 8)),
        parametrizations.weight_norm(nn.LSTM(8, 8), "weight_hh_l0"),
        nn.Linear(8, 8).to(torch.float8_e4m3fn),
        nn.Embedding.from_pretrained(torch.ones(8, 8, dtype=torch.int8)),
        nn.LSTM(8, 8, device="meta"),
        nn.Linear(8, 8).apply(lambda layer: nn.init.constant_(layer.weight[3], float("nan"))),
        nn.Linear(8, 8, dtype=torch.complex64),
        nn.LazyConv2d(8, 3),
        nn.ConvTranspose2d(8, 8, 3, groups=4),
        phmctl.convert(nn.Sequential(nn.Linear(8, 8)), 4)[0],
    ],
)
def test_modules_that_cannot_be_converted_stay_unchanged(layer: nn.Module) -> None:
    before = [name for name, _ in layer.named_parameters()]
    _, report = phmctl.convert(nn.Sequential(layer, nn.Linear(8, 8)), 4)
    assert [row.name for row in (*report.rows, *report.others) if row.skipped] in (["0"], ["0.0"])
    with pytest.raises(UserError, match="no module can be converted; "):
        phmctl.convert(layer, 4, inplace=True)
    assert [name for name, _ in layer.named_parameters()] == before


def old_spectral_norm() -> nn.Module:
    layer = nn.utils.spectral_norm(nn.Linear(8, 8))
    layer(torch.ones(1, 8))
    return layer


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.utils.weight_norm(nn.Linear(8, 8)),
        lambda: prune.random_unstructured(nn.Linear(8, 8), "weight", 0.5),
        old_spectral_norm,
    ],
)
def test_models_with_weights_that_hooks_compute_are_copied(make: Callable[[], nn.Module]) -> None:
    net = nn.Sequential(nn.Linear(8, 8), make()).eval()
    x = torch.randn(3, 8)
    expected = net(x)
    converted, report = phmctl.convert(net, 4)
    assert [row.skipped is None for row in report.rows] == [True, False]
    torch.testing.assert_close(phmctl.to_dense(converted)(x), converted(x))
    torch.testing.assert_close(converted[1](x), net[1](x))
    converted(x).sum().backward()
    assert all(parameter.grad is not None for parameter in converted.parameters())
    assert torch.equal(net(x), expected)
    assert all(parameter.grad is None for parameter in net.parameters())


def test_models_that_cannot_be_copied_are_converted_in_place() -> None:
    layer = nn.Linear(8, 8)
    layer.outputs = [layer(torch.ones(8))]
    for change in (functools.partial(phmctl.convert, n=4), phmctl.to_dense):
        with pytest.raises(UserError, match="inplace=True"):
            change(layer)
        change(layer, inplace=True)


def test_what_is_not_supported_is_named_with_its_reason() -> None:
    others = [
        nn.Bilinear(8, 8, 8),
        nn.LayerNorm(8),
        PHMLinear(8, 8, n=4),
        parametrizations.orthogonal(nn.Bilinear(2, 2, 4)),
    ]
    _, report = phmctl.convert(nn.Sequential(nn.Linear(8, 8), *others, nn.ReLU()), 4)
    assert [(row.name, row.kind) for row in report.others][:3] == [
        ("1", "Bilinear"),
        ("2", "LayerNorm"),
        ("3", "PHMLinear"),
    ]
    assert "two input axes" in str(report)
    assert "1 LayerNorm" in str(report)
    with pytest.raises(UserError, match=r"1 Bilinear, 1 LayerNorm; .*two input axes"):
        phmctl.convert(nn.Sequential(*others[:2]), 4)


def test_a_tied_weight_is_converted_in_all_its_modules_or_in_none() -> None:
    converted, report = phmctl.convert(Net(), 4, select=["words", "reader"])
    assert " out," in {row.name: row.skipped for row in report.rows}["words"]
    assert converted.out.weight is converted.words.weight


@pytest.mark.parametrize("options", [{"sparse": True}, {"max_norm": 1.0}, {"padding_idx": 0}])
def test_a_table_and_the_map_that_is_tied_to_it_stay_one(options: dict[str, Any]) -> None:
    net = nn.ModuleDict({"out": nn.Linear(8, 16, bias=False), "words": nn.Embedding(16, 8, **options)})
    net["other"] = nn.Linear(8, 8)
    net["out"].weight = net["words"].weight
    with torch.no_grad():
        net["words"].weight[0] = 0
    converted, report = phmctl.convert(net, 4)
    assert torch.equal(converted["out"].weight, converted["words"].weight)
    assert bool(report.rows[0].skipped) == ("padding_idx" not in options)
    assert not converted["words"](torch.tensor(0)).any()


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"n": 4, "select": "encoder.*"}, "0: not selected"),
        ({}, "n = None"),
        ({"algebra": "quaternoin"}, "quaternoin"),
        ({"n": 8, "algebra": "quaternion"}, "quaternion.* 8"),
        ({"n": 1}, "n = 1"),
        ({"n": "4"}, "n = '4' must be an integer"),
        ({"n": 4, "model": 3}, "int"),
        ({"n": 4, "select": [nn.Linear]}, "select"),
        ({"n": 4, "model": phmctl.convert(nn.Sequential(nn.Linear(8, 8)), 4)[0]}, "0: .*to_dense"),
        ({"n": 4, "model": nn.Sequential(PHMLinear(8, 8, n=4))}, "layer of phmctl"),
    ],
)
def test_impossible_conversions_are_refused(options: dict[str, Any], place: str) -> None:
    net = nn.Sequential(nn.Linear(8, 8))
    with pytest.raises(UserError, match=place):
        phmctl.convert(**({"model": net} | options), inplace=True)
    assert type(net[0]) is nn.Linear
    with pytest.raises(UserError):
        phmctl.to_dense(3)


class Scaled(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


class Counting(nn.LSTM):
    calls = 0

    def forward(self, *args: Any) -> Any:
        self.calls += 1
        return super().forward(*args)


def test_subclasses_keep_their_forward_and_their_hooks() -> None:
    layer, seen, x = nn.Linear(8, 8), [], torch.randn(2, 8)
    layer.register_forward_hook(lambda *_: seen.append(1))
    net = nn.Sequential(Scaled(8, 8), layer)
    converted, report = phmctl.convert(net, 4)
    assert isinstance(converted[0], Scaled)
    assert not any(row.skipped for row in report.rows)
    expected = 2 * F.linear(x, converted[0].weight, converted[0].bias)
    torch.testing.assert_close(converted(x), converted[1](expected))
    assert seen
    torch.testing.assert_close(phmctl.to_dense(converted)(x), converted(x))
    reader, _ = phmctl.convert(Counting(8, 8, batch_first=True), 4)
    for _ in range(2):
        reader(x[None])
    assert reader.calls == 2
    pruned = prune.random_unstructured(phmctl.PHMLinear(8, 8, n=4), "bias", 0.5)
    torch.testing.assert_close(phmctl.to_dense(pruned, inplace=True)(x), pruned(x))


@pytest.mark.parametrize(
    ("layer", "frozen"),
    [
        (nn.MultiheadAttention(8, 2), ["in_proj_weight", "out_proj.bias"]),
        (nn.MultiheadAttention(8, 2), ["in_proj_bias", "out_proj.weight"]),
        (nn.LSTM(8, 8, 2, batch_first=True), ["weight_ih_l0", "weight_hh_l1"]),
        (nn.LSTM(8, 8, batch_first=True), ["bias_ih_l0", "bias_hh_l0"]),
        (nn.Linear(8, 8), ["weight"]),
        (nn.Embedding(8, 8), ["weight"]),
    ],
)
def test_frozen_parameters_stay_frozen_there_and_back(layer: nn.Module, frozen: list[str]) -> None:
    for name in frozen:
        layer.get_parameter(name).requires_grad_(False)
    converted, _ = phmctl.convert(layer, 4, select="*")
    assert not all(part.requires_grad for part in converted.parameters())
    dense = phmctl.to_dense(converted)
    assert type(dense) is type(layer)
    assert [name for name, part in dense.named_parameters() if not part.requires_grad] == frozen


@pytest.mark.filterwarnings("ignore")  # of transformers' own
def test_constants_are_left_unless_select_names_them(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {f"{side}_{part}": 2 for side in ("encoder", "decoder") for part in ("layers", "attention_heads")}
    sizes |= {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 16}
    config = transformers.MarianConfig(vocab_size=41, pad_token_id=40, decoder_start_token_id=40, **sizes)
    model, ids = transformers.MarianMTModel(config).eval(), torch.tensor([[4, 5, 6, 7]])
    converted, report = phmctl.convert(model, 4)
    reasons = {row.name: row.skipped for row in report.rows if row.skipped}
    assert reasons.keys() == {"model.encoder.embed_positions", "model.decoder.embed_positions"}
    positions = converted.model.encoder.embed_positions.weight
    assert torch.equal(positions, model.model.encoder.embed_positions.weight)
    dense = phmctl.to_dense(converted)
    dense.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path).eval()
    torch.testing.assert_close(loaded(ids, decoder_input_ids=ids).logits, dense(ids, decoder_input_ids=ids).logits)
    named, _ = phmctl.convert(model, 4, select="model.encoder.embed_positions")
    assert named.model.encoder.embed_positions.weight.grad_fn is None
    assert not torch.equal(named.model.encoder.embed_positions.weight, positions)
    with pytest.raises(UserError, match="no gradient"):
        phmctl.convert(nn.Linear(8, 8).requires_grad_(False), 4)


@pytest.mark.parametrize("n", [4, 8])
@pytest.mark.parametrize("rows", [41, 43, 5])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_n_need_not_divide_the_rows_of_a_table(kind: type[nn.Embedding], rows: int, n: int) -> None:
    net = nn.Sequential(kind(rows, 16, padding_idx=3), nn.Linear(16, rows))
    net[1].weight = net[0].weight
    converted, report = phmctl.convert(net, n)
    assert not any(row.skipped for row in report.rows)
    assert converted[0].num_embeddings == converted[1].out_features == len(converted[0].weight) == rows
    assert converted[1].weight is not None
    assert torch.equal(converted[0].weight, converted[1].weight)
    ids = torch.arange(rows)[None]
    dense = phmctl.to_dense(converted)
    assert [part.shape for part in dense.parameters()] == [part.shape for part in net.parameters()]
    assert dense[0].weight is dense[1].weight
    torch.testing.assert_close(dense(ids), converted(ids))
    assert not converted[0].weight[3].any()
    before = converted(ids).detach()
    with phmctl.step(converted):
        converted(ids).square().sum().backward()
    torch.optim.SGD(phmctl.parameter_groups(converted, 1e-3)).step()
    assert not torch.equal(converted(ids), before)
    assert len(list(converted.parameters())) == 3  # A, S and the bias


def test_a_whole_row_of_zeros_costs_little() -> None:
    """The nearest sum of a padded table is about as near as that of a table whose rows n divides."""
    torch.manual_seed(0)
    table = nn.Embedding(240, 32)
    errors = [phmctl.convert(nn.Embedding.from_pretrained(table.weight[:rows], False), 4)[1] for rows in (237, 240)]
    assert errors[0].rows[0].error == pytest.approx(errors[1].rows[0].error, rel=0.02)


@pytest.mark.parametrize("algebra", ["phm", "quaternion"])
def test_no_random_number_is_drawn(algebra: str) -> None:
    parts = (nn.MultiheadAttention(8, 2), nn.LSTM(8, 8, batch_first=True), nn.Linear(8, 8), nn.Embedding(8, 8))
    net, layer, lstm = nn.Sequential(*parts), PHMLinear(8, 8, n=4), phmctl.PHMLSTM(4, 4, n=2)
    state = torch.get_rng_state()
    converted, report = phmctl.convert(net, 4, algebra=algebra)
    phmctl.to_dense(converted), phmctl.to_dense(layer), lstm.to_dense()
    assert not any(row.skipped for row in report.rows)
    assert torch.equal(torch.get_rng_state(), state)


def tiny(architecture: str) -> tuple[nn.Module, torch.Tensor]:
    transformers = pytest.importorskip("transformers")
    if architecture == "bert":
        sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
        model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=41, **sizes))
    elif architecture == "bart":
        layers = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
        sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 16, **layers}
        model = transformers.BartForConditionalGeneration(transformers.BartConfig(vocab_size=41, **sizes))
    else:
        model = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=41, n_embd=16, n_layer=1, n_head=2))
    return model.eval(), torch.tensor([[4, 5, 6, 7]])


@pytest.mark.parametrize("architecture", [nn.GRU, nn.LSTMCell])
def test_replicas_as_of_data_parallel(architecture: Any) -> None:
    layer, _ = phmctl.convert(architecture(8, 8), 4)
    replica = layer._replicate_for_data_parallel()
    for name, parameter in layer.named_parameters(recurse=False):
        setattr(replica, name, parameter)
    x = torch.randn(3, 8)
    torch.testing.assert_close(replica(x), layer(x))


@pytest.mark.parametrize("architecture", [nn.LSTM, nn.MultiheadAttention])
def test_threads_may_call_one_converted_module_while_another_learns(architecture: type[nn.Module]) -> None:
    shared, _ = phmctl.convert(architecture(16, 16, batch_first=True).eval(), 4)
    learner, _ = phmctl.convert(nn.Linear(16, 16), 4)
    x = torch.randn(2, 5, 16)
    inputs = (x,) if architecture is nn.LSTM else (x, x, x)
    expected = shared(*inputs)[0]

    def call(_: int) -> bool:
        return torch.equal(shared(*inputs)[0], expected)

    with ThreadPoolExecutor(3) as pool:
        answers = [pool.submit(call, number) for number in range(60)]
        for _ in range(60):
            with torch.no_grad():
                learner.parametrizations.weight.original1.mul_(1.01)
            A, S = learner.parametrizations.weight.original0, learner.parametrizations.weight.original1
            torch.testing.assert_close(learner(x), x @ kronecker_sum(A, S).T + learner.bias)
        assert all(answer.result() for answer in answers)


def test_a_converted_table_and_a_dense_copy_are_of_full_precision_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        table, _ = phmctl.convert(nn.Embedding(8, 8), 4)
        assert table(torch.arange(8)).dtype == torch.float32
        for layer in (PHMLinear(8, 8, n=4), PHMEmbedding(8, 8, n=4), phmctl.PHMLSTM(8, 8, n=4), table):
            assert {weight.dtype for weight in phmctl.to_dense(layer).parameters()} == {torch.float32}


@pytest.mark.filterwarnings("ignore")  # torch.ao is deprecated
@pytest.mark.parametrize("layer", [nn.Linear(8, 8), nn.LSTM(8, 8)])
def test_dynamic_quantisation_is_refused_for_converted_weights_and_works_for_dense_ones(layer: nn.Module) -> None:
    quantize_dynamic: Any = torch.ao.quantization.quantize_dynamic
    converted, _ = phmctl.convert(nn.Sequential(layer, nn.Embedding(8, 8)), 4)
    with pytest.raises(UserError, match="to_dense"):
        quantize_dynamic(converted)
    x, dense = torch.randn(2, 3, 8), phmctl.to_dense(converted)
    output, expected = quantize_dynamic(dense)[0](x), dense[0](x)
    torch.testing.assert_close(output, expected, rtol=0.1, atol=0.1)


# --- computed weights


class LoRA(nn.Module):
    """The adapter of a map as in peft, which is merged by a write into the data of the map's weight."""

    def __init__(self, base: nn.Module, *, safe: bool) -> None:
        super().__init__()
        self.base, self.safe = base.requires_grad_(False), safe
        rows, columns = base.weight.shape
        self.A, self.B = nn.Parameter(torch.randn(2, columns)), nn.Parameter(torch.randn(rows, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(x) + x @ self.A.T @ self.B.T

    def merge(self) -> nn.Module:
        delta = self.B @ self.A
        if self.safe:
            merged = self.base.weight.data.clone()
            merged += delta
            self.base.weight.data = merged
        else:
            self.base.weight.data += delta
        return self.base


@pytest.mark.parametrize("safe", [True, False])
@pytest.mark.parametrize("base", [PHMLinear(8, 8, n=4), phmctl.convert(nn.Linear(8, 8), 4)[0]])
def test_lora_is_merged_into_the_dense_model_only(base: nn.Module, safe: bool) -> None:
    x, adapter = torch.randn(2, 8), LoRA(base, safe=safe)
    expected = adapter(x)
    with pytest.raises(UserError, match="to_dense"):
        adapter.merge()
    torch.testing.assert_close(adapter(x), expected)
    adapter.base = phmctl.to_dense(adapter.base)
    torch.testing.assert_close(adapter.merge()(x), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "write",
    [
        nn.init.xavier_uniform_,
        lambda H: H.mul_(2),
        lambda H: H.data.copy_(torch.zeros(8, 8)),
        lambda H: operator.setitem(H, 0, 1.0),
        lambda H: operator.iadd(H, 1),
        lambda H: nn.init.zeros_(H[0]),
        lambda H: H.data[:, 1:].zero_(),
    ],
)
@pytest.mark.parametrize("layer", [PHMEmbedding(8, 8, n=4), phmctl.convert(nn.LSTMCell(8, 8), 4)[0]])
def test_writes_into_a_computed_weight_are_refused(layer: nn.Module, write: Any) -> None:
    with torch.no_grad(), pytest.raises(UserError, match="to_dense"):
        write(layer.weight if isinstance(layer, PHMEmbedding) else layer.weight_ih)


def test_a_computed_weight_is_read_as_a_plain_tensor(tmp_path: Path) -> None:
    layer = phmctl.convert(nn.Linear(8, 8), 4)[0]
    H = layer.weight.detach()
    for plain in (layer.weight @ H, layer.weight.clone(), layer.weight.T, layer.weight[[0, 1]], H, copy.deepcopy(H)):
        assert type(plain) is torch.Tensor
    with torch.no_grad():
        torch.save({"H": layer.weight, "copy": copy.deepcopy(layer.weight)}, tmp_path / "H.pt")
    assert torch.equal(torch.load(tmp_path / "H.pt")["H"], H)
    for source in (layer.weight, layer.weight.data):
        other = nn.Linear(8, 8)
        other.weight = nn.Parameter(source)
        optimiser = torch.optim.SGD(other.parameters(), 0.1)
        other(torch.ones(1, 8)).sum().backward()
        optimiser.step()
        torch.testing.assert_close(other.weight, H - 0.1)
        assert not phmctl.convert(copy.deepcopy(other), 4)[1].rows[0].skipped
    parametrize.remove_parametrizations(layer, "weight")
    assert torch.equal(layer.weight, H)


@pytest.mark.filterwarnings("ignore")  # of torch's own
@pytest.mark.parametrize(
    "layer", [nn.LSTM(8, 8, batch_first=True), nn.GRU(8, 8), nn.MultiheadAttention(8, 2), nn.Linear(8, 8)]
)
def test_sharded_models_answer_learn_and_become_dense(layer: nn.Module) -> None:
    converted, _ = phmctl.convert(layer, 4)
    other = copy.deepcopy(converted)
    x = [torch.randn(2, 3, 8)] * (3 if isinstance(layer, nn.MultiheadAttention) else 1)
    expected = converted(*x)[0]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = torch.distributed.device_mesh.init_device_mesh("cpu", (1,))
        torch.distributed.fsdp.fully_shard(converted, mesh=mesh)
        torch.testing.assert_close(converted(*x)[0], expected)
        converted(*x)[0].sum().backward()
        assert any(parameter.grad is not None for parameter in converted.parameters())
        converted.unshard()
        dense = phmctl.to_dense(converted, inplace=True)
        assert isinstance(dense, type(layer))
        assert not any(parametrize.is_parametrized(part) for part in dense.modules())
        torch.testing.assert_close(dense(*x)[0], expected)
        torch.testing.assert_close(other(*x)[0], expected)  # a copy, which shared the class
    finally:
        torch.distributed.destroy_process_group()


def partly_frozen() -> nn.LSTM:
    """An LSTM of which one weight has no gradient, so that it stays dense."""
    reader = nn.LSTM(8, 8)
    reader.weight_hh_l0.requires_grad_(False)
    return reader


@pytest.mark.parametrize("first", [lambda: nn.LSTM(8, 8, proj_size=6), partly_frozen])
@pytest.mark.parametrize("order", [1, -1])
def test_weights_stay_shared_if_one_module_stays_dense(first: Callable[[], nn.LSTM], order: int) -> None:
    stays, other, linear = first(), nn.LSTM(8, 8), nn.Linear(8, 32)
    other.weight_ih_l0 = linear.weight = stays.weight_ih_l0
    model = nn.ModuleList([stays, other, linear][::order])
    converted: Any = phmctl.convert(model.append(nn.Linear(64, 64)), n=4)[0]
    with torch.no_grad():
        *modules, _ = converted
        stays, other, linear = modules[::order]
        assert torch.equal(stays.weight_ih_l0, other.weight_ih_l0)
        assert torch.equal(stays.weight_ih_l0, linear.weight)
    count = sum(parameter.numel() for parameter in {*converted.parameters()})
    assert count <= sum(parameter.numel() for parameter in {*model.parameters()})
    assert stays(torch.randn(3, 8))[0].isfinite().all()
