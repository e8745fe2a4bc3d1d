"""Rates by structure: the fraction of its scale that each factor moves, and what the optimiser does with it."""

import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

import phmctl
from phmctl import PHMLSTM, PHMConv2d, PHMEmbedding, PHMLinear, convert
from phmctl.errors import UserError
from phmctl.nn.linear import LowRankLinear
from phmctl.nn.rates import dense_rate, parameter_groups, relative_rates


@given(n=st.sampled_from([1, 2, 4, 8]), width=st.sampled_from([64, 256]), wider=st.sampled_from([1, 4]))
def test_every_factor_moves_by_the_dense_weights_fraction_of_its_scale(n: int, width: int, wider: int) -> None:
    torch.manual_seed(0)
    layer = PHMLinear(width, width * wider, n=n)
    rates = relative_rates(layer)
    dense = (1 if n == 1 else 2) * min(1.0, 64 / width) / layer.weight.square().mean().sqrt().item()
    for name, parameter in layer.named_parameters():
        if name != "bias":
            assert rates[name] / parameter.square().mean().sqrt().item() == pytest.approx(dense, rel=0.05)
    assert rates["bias"] == 1.0


def test_a_step_of_random_signs_moves_a_kronecker_sum_by_the_root_of_eight_dense_steps() -> None:
    torch.manual_seed(0)
    layer = PHMLinear(256, 256, n=4, bias=False)
    before, rates = layer.weight.detach().clone(), relative_rates(layer)
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            parameter.add_(torch.randn_like(parameter).sign(), alpha=1e-4 * rates[name])
    step = 1e-4 * dense_rate(256)
    assert (layer.weight - before).square().mean().sqrt().item() == pytest.approx(math.sqrt(8) * step, rel=0.05)


@pytest.mark.parametrize(
    ("layer", "gain"),
    [
        (PHMLinear(512, 512, n=4, rank=4), 0.5),
        (PHMLinear(512, 512, n=4, algebra="quaternion"), 2),
        (LowRankLinear(512, 512, rank=128), 0.5),
    ],
)
def test_factors_fixed_rules_and_thin_maps(layer: PHMLinear | LowRankLinear, gain: float) -> None:
    rates = relative_rates(layer)
    scale = layer.weight.square().mean().sqrt().item()
    assert rates.keys() == {name for name, _ in layer.named_parameters()}
    for name in rates.keys() - {"bias"}:
        scale_of_factor = layer.get_parameter(name).square().mean().sqrt().item()
        assert rates[name] == pytest.approx(gain * 0.125 * scale_of_factor / scale, rel=0.05)


def test_tables_take_the_models_rate_and_so_does_a_weight_that_is_tied_to_one() -> None:
    model = nn.ModuleDict({"head": nn.Linear(512, 1000, bias=False), "table": nn.Embedding(1000, 512)})
    model["head"].weight = model["table"].weight
    assert set(relative_rates(model).values()) == {1.0}
    table = PHMEmbedding(1000, 512, n=4)  # of entries N(0, 1)
    assert relative_rates(table) == pytest.approx({"S": 1.0, "A": 0.5}, rel=0.02)


@pytest.mark.parametrize(
    ("module", "rates"),
    [
        (nn.EmbeddingBag(9, 256), [1.0]),
        (nn.Conv2d(64, 8, 2), [0.25, 1.0]),  # fan-in 64 · 2 · 2
        (nn.ConvTranspose2d(256, 2, 2, groups=2), [0.125, 1.0]),  # 128 · 2 · 2
        (nn.LayerNorm([16, 128]), [1.0, 1.0]),
        (spectral_norm(nn.Embedding(9, 256)), [1.0]),
        (spectral_norm(nn.Linear(256, 8)), [1.0, 0.25]),
        (weight_norm(nn.Linear(256, 8)), [1.0, 1.0, 0.25]),  # bias, g, v
    ],
)
def test_modules_of_torch(module: nn.Module, rates: list[float]) -> None:
    assert [*relative_rates(module).values()] == rates


def test_the_transposed_weight_of_transformers() -> None:
    Conv1D = pytest.importorskip("transformers.pytorch_utils").Conv1D
    assert relative_rates(Conv1D(1024, 256)) == {"weight": 0.25, "bias": 1.0}
    rates = relative_rates(convert(nn.Sequential(Conv1D(1024, 256)), 4)[0])
    assert min(rates.values()) == pytest.approx(0.5, rel=0.02)  # S


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan, math.inf])
def test_impossible_rates_are_refused(lr: float) -> None:
    with pytest.raises(UserError):
        parameter_groups(nn.Linear(2, 2), lr)
    with pytest.raises(UserError):
        parameter_groups(nn.Linear(2, 2), 1e-3, weight_decay=lr or -0.5)
    with pytest.raises(UserError):
        parameter_groups(convert(nn.Linear(8, 8), 4)[0].to("meta"), 1e-3)


def names_and_rates(model: nn.Module) -> list[tuple[list[str], float]]:
    """Return the names of the parameters and the rate of each group."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return [([names[part] for part in group["params"]], group["lr"]) for group in parameter_groups(model, 1e-3, 0.01)]


def build(seed: int, *, converted: bool) -> nn.Module:
    """Return layers of one shape and of several kinds, with weights drawn from this seed."""
    torch.manual_seed(seed)
    if converted:
        layers = [nn.Embedding(64, 64), *(nn.Linear(64, 64) for _ in range(4)), nn.Conv1d(64, 64, 1), nn.LSTM(64, 64)]
        return convert(nn.Sequential(*layers, nn.Linear(64, 8)), 4, select="[!7]")[0]
    layers = [PHMEmbedding(64, 64, n=4), *(PHMLinear(64, 64, n=4) for _ in range(4)), PHMConv2d(64, 64, 1, n=4)]
    factors = [PHMLinear(64, 64, n=4, rank=6), LowRankLinear(64, 64, rank=8), PHMLSTM(64, 64, n=4)]
    return nn.Sequential(*layers, *factors, nn.Linear(64, 8))


@pytest.mark.parametrize("converted", [False, True])
def test_groups_follow_the_layers_and_not_the_weights(converted: bool) -> None:
    groups = [names_and_rates(build(seed, converted=converted)) for seed in range(12)]
    trained = build(0, converted=converted)
    with torch.no_grad():
        for index, parameter in enumerate(trained.parameters()):
            parameter.mul_(1 + index / 9)
    groups.append(names_and_rates(trained))
    assert all([names for names, _ in other] == [names for names, _ in groups[0]] for other in groups)
    order = [name for name, _ in trained.named_parameters()]
    for names, _ in groups[0]:
        assert names == sorted(names, key=order.index)
    assert [names[0] for names, _ in groups[0]] == sorted((names[0] for names, _ in groups[0]), key=order.index)
    if not converted:
        assert all(other == groups[0] for other in groups)  # rates of layers that were drawn come from their shapes


def test_initial_rates_are_near_the_measured_ones() -> None:
    model = build(0, converted=False)
    measured = relative_rates(model)
    for names, rate in names_and_rates(model):
        for name in names:
            assert rate / 1e-3 == pytest.approx(measured[name], rel=0.1)


@pytest.mark.filterwarnings("ignore")  # of transformers' own
def test_the_trainer_of_transformers_takes_the_groups_and_resumes_and_its_checkpoints_are_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    words = torch.randint(40, (16, 8))
    rows = [{"input_ids": ids, "labels": int(ids[0]) % 2} for ids in words]

    def trained(seed: int, checkpoint: str | None) -> nn.Module:
        torch.manual_seed(seed)
        dense = transformers.BertForSequenceClassification(transformers.BertConfig(vocab_size=40, **sizes))
        model = convert(dense, 4)[0]
        options = {"max_steps": 4, "save_steps": 2, "report_to": [], "use_cpu": True, "disable_tqdm": True}
        arguments = transformers.TrainingArguments(str(tmp_path), lr_scheduler_type="constant", **options)
        groups = parameter_groups(model, 1e-2, weight_decay=0.01)
        rates = [group["lr"] for group in groups]
        optimiser = torch.optim.AdamW(groups)
        trainer = transformers.Trainer(model, arguments, train_dataset=rows, optimizers=(optimiser, None))
        trainer.train(resume_from_checkpoint=checkpoint)
        assert checkpoint is not None or [group["lr"] for group in optimiser.param_groups] == rates
        assert len({*rates}) > 2
        return model

    model = trained(0, None)
    straight = model.state_dict()
    loaded = phmctl.from_pretrained(type(model), tmp_path / "checkpoint-4")
    assert torch.equal(loaded(words).logits, model.eval()(words).logits)
    for seed in range(2):
        resumed = trained(seed, str(tmp_path / "checkpoint-2")).state_dict()
        assert all(torch.equal(resumed[name], tensor) for name, tensor in straight.items())


def test_a_factor_that_begins_at_zero_still_learns() -> None:
    layer = PHMLinear(256, 256, n=4)
    with torch.no_grad():
        layer.A.zero_()
    assert relative_rates(layer)["A"] == 0.5


def test_groups_serve_any_optimiser() -> None:
    model = nn.Sequential(PHMLinear(256, 256, n=4), nn.LayerNorm(256), nn.Linear(256, 8))
    model[1].weight.requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimiser = torch.optim.AdamW(parameter_groups(model, 1e-3), weight_decay=0.0)
    model(torch.randn(64, 256)).square().mean().backward()
    optimiser.step()
    rates = relative_rates(model)
    assert "1.weight" not in rates
    for name, rate in rates.items():  # Adam's first step moves each number by its rate
        moved = (model.get_parameter(name) - before[name]).abs().median().item()
        assert moved == pytest.approx(1e-3 * rate, rel=0.02), name


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("tensor", ["A", "S"])
@pytest.mark.parametrize(
    "reparametrize", [weight_norm, lambda module, name: prune.random_unstructured(module, name, 0.5)]
)
def test_a_reparametrized_rule_does_not_decay_and_reparametrized_components_do(
    reparametrize: object, tensor: str, converted: bool
) -> None:
    layer = convert(nn.Linear(256, 256), 4)[0] if converted else PHMLinear(256, 256, n=4)
    expected = decays(layer)
    owner, names = layer, {"A": "A", "S": "S"}
    if converted:
        owner, names = layer.parametrizations.weight, {"A": "original0", "S": "original1"}
    reparametrize(owner, names[tensor])  # type: ignore[operator]
    assert decays(layer)[(4, 4, 4)] == expected[(4, 4, 4)] == 0
    assert decays(layer)[(4, 64, 64)] == pytest.approx(expected[(4, 64, 64)], rel=0.3)
    assert decays(layer)[(4, 64, 64)] > 0
    assert not any(decay for shape, decay in decays(layer).items() if shape == (4, 1, 1) and tensor == "A")


def decays(model: nn.Module) -> dict[tuple[int, ...], float]:
    """Return the decay of each parameter in a step, by its shape."""
    groups = parameter_groups(model, 1.0, weight_decay=0.5)
    return {tuple(part.shape): group["lr"] * group["weight_decay"] for group in groups for part in group["params"]}


def test_lazy_layers_do_not_stop_the_others() -> None:
    model = nn.Sequential(PHMLinear(256, 256, n=4), nn.LazyLinear(8))
    rates = relative_rates(model)
    assert rates["1.weight"] == 1.0
    assert rates["0.S"] == pytest.approx(0.5, rel=0.02)
    assert len(parameter_groups(model, 1e-3)) == 3
    converted, report = convert(nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(8)), 4, select="0")
    assert report.after == 8 * 2 + 64 + 8
    assert converted[1](converted[0](torch.ones(2, 8))).shape == (2, 8)


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (PHMConv2d(64, 64, 2, n=4), 256),
        (PHMConv2d(64, 64, 2, groups=2, n=4), 128),
        (convert(nn.Conv2d(64, 64, 2), 4)[0], 256),
        (convert(nn.ConvTranspose1d(128, 16, 2, groups=2), 4)[0], 128),
        (convert(nn.GRUCell(256, 256), 4)[0], 256),
        (convert(nn.LSTM(256, 256), 4)[0], 256),
        (PHMLSTM(256, 256, n=4), 256),
    ],
)
def test_convolutions_and_cells_have_the_rates_of_their_inputs(layer: nn.Module, fan_in: int) -> None:
    assert min(relative_rates(layer).values()) == pytest.approx(2 * 64 / fan_in, rel=0.1)  # S
