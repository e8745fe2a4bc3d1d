"""``phmctl.step``: the gradients are those of a step without it, and mistakes are refused."""

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import phmctl
from phmctl import PHMLSTM, PHMConv2d, PHMEmbedding, PHMLinear
from phmctl.errors import UserError
from phmctl.models.transformer import Transformer
from phmctl.nn import step as implementation
from phmctl.nn.structures import LEAF
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.models import TransformerSection
from phmctl.training.optimiser import build_optimiser
from tests.references import operations

Loss = Callable[[nn.Module, int], Tensor]


@pytest.fixture(params=[False, True], ids=["each map", "groups"])
def grouped(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether maps are built in groups, as on CUDA."""
    monkeypatch.setattr(implementation, "GROUPED", {"cpu"} if request.param else set())
    return request.param


def transformer(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    sizes = {"width": 32, "feed_forward": 64, "heads": 2, "encoder_layers": 2, "decoder_layers": 1, "dropout": 0.0}
    return Transformer(TransformerSection(**({"algebra": "phm", "n": 4} | sizes | options)), 48, 48)


def text_loss(model: nn.Module, batch: int) -> Tensor:
    ids = torch.randint(4, 48, (batch, 9), generator=torch.Generator().manual_seed(batch))
    return model(ids[:, 2:], ids[:, :-1], ids[:, 1:], 0.1)[0]


def chain(**options: Any) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(PHMLinear(16, 16, n=4, **options) for _ in range(3)))


def converted() -> nn.Module:
    torch.manual_seed(0)
    return phmctl.convert(nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 16)), 4)[0]


def convolutions() -> nn.Module:
    """Images of 1 × 6 × 8: a convolution, one with groups, and a converted transposed one."""
    torch.manual_seed(0)
    last, _ = phmctl.convert(nn.ConvTranspose2d(8, 4, 3, groups=1), 4)
    return nn.Sequential(PHMConv2d(4, 8, 3, n=4), nn.Tanh(), PHMConv2d(8, 8, 1, n=4, groups=2), nn.Tanh(), last)


def image_loss(model: nn.Module, batch: int) -> Tensor:
    return model(torch.randn(batch, 4, 6, 8, generator=torch.Generator().manual_seed(batch))).square().sum()


def gru() -> nn.Module:
    torch.manual_seed(0)
    return phmctl.convert(nn.GRU(16, 16, batch_first=True), 4)[0]


def lstm() -> nn.Module:
    torch.manual_seed(0)
    return PHMLSTM(16, 16, n=4, num_layers=2)


def table() -> nn.Module:
    torch.manual_seed(0)
    return PHMEmbedding(48, 16, n=4)


def lookup_loss(model: nn.Module, batch: int) -> Tensor:
    return model(torch.randint(0, 48, (batch, 9), generator=torch.Generator().manual_seed(batch))).square().sum()


def vector_loss(model: nn.Module, batch: int) -> Tensor:
    x = torch.randn(batch, 3, 16, generator=torch.Generator().manual_seed(batch))
    y = model(x)
    return (y[0] if isinstance(y, tuple) else y).square().sum()


def gradients(
    model: nn.Module, loss: Loss, batches: Sequence[int] = (3,), *, held: bool = True, dtype: Any = None
) -> Tensor:
    """Return the gradients of all parameters as one vector; `dtype` is autocast's."""
    model.zero_grad()
    with phmctl.step(model) if held else nullcontext():
        for batch in batches:
            with torch.autocast("cpu", dtype, enabled=dtype is not None):
                value = loss(model, batch)
            value.backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])


MODELS: list[tuple[Callable[..., nn.Module], dict[str, Any], Loss]] = [
    (transformer, {}, text_loss),
    (transformer, {"rules": "model"}, text_loss),
    (transformer, {"algebra": "quaternion"}, text_loss),
    (transformer, {"rank": 4}, text_loss),
    (transformer, {"projections": "packed"}, text_loss),
    (transformer, {"embeddings": "phm"}, text_loss),
    (table, {}, lookup_loss),
    (lstm, {}, vector_loss),
    (converted, {}, vector_loss),
    (gru, {}, vector_loss),
    (convolutions, {}, image_loss),
]


@pytest.mark.parametrize(("build", "options", "loss"), MODELS)
def test_gradients_are_those_of_a_step_without_it(
    build: Callable[..., nn.Module], options: dict[str, Any], loss: Loss, grouped: bool
) -> None:
    model = build(**options)
    for batches in ([3], [3, 5, 2, 4]):
        expected, actual = gradients(model, loss, batches, held=False), gradients(model, loss, batches)
        assert (actual - expected).norm() <= (1e-6 if grouped else 3e-7) * expected.norm()
        if len(batches) == 1 and not grouped and "embeddings" not in options:
            assert torch.equal(actual, expected)


@pytest.mark.parametrize(("build", "options", "loss"), MODELS[-5:])
def test_every_map_is_built_once_and_used(
    build: Callable[..., nn.Module], options: dict[str, Any], loss: Loss, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA: also for lookups, the gates of an LSTM, converted modules and convolutions."""
    monkeypatch.setattr(implementation, "GROUPED", {"cpu"})
    model, builds = build(**options), []
    init = implementation._Sums.__init__

    def watched(sums: Any, group: Any, dtype: Any) -> None:
        builds.append((sums, group))
        init(sums, group, dtype)

    monkeypatch.setattr(implementation._Sums, "__init__", watched)
    gradients(model, loss, [3, 2])
    maps = sum(name.split(".")[-1] in ("S", "original1") for name, _ in model.named_parameters())
    assert [len(sums.used) for sums, _ in builds] == [len(group) for _, group in builds]
    assert sum(len(group) for _, group in builds) == maps > 0


def test_gradients_add_up_in_float32_and_h_in_bfloat16_is_rounded_once(grouped: bool) -> None:
    model, batches = transformer(), [3, 5, 2, 4, 6, 7]
    exact = gradients(model, text_loss, batches, held=False)
    today = (gradients(model, text_loss, batches, held=False, dtype=torch.bfloat16) - exact).norm()
    assert (gradients(model, text_loss, batches, dtype=torch.bfloat16) - exact).norm() < 1.1 * today


def test_small_gradients_are_not_lost_beside_a_large_one(grouped: bool) -> None:
    layer = PHMLinear(8, 8, n=2, bias=False)
    expected = 258 * torch.autograd.grad(layer.weight.sum(), [layer.S])[0]
    with phmctl.step(layer):
        for scale in (256.0, 1.0, 1.0):  # 256 + 1 is 256 in bfloat16
            with torch.autocast("cpu", torch.bfloat16):
                y = layer(torch.eye(8))
            (scale * y.float().sum()).backward()
    torch.testing.assert_close(layer.S.grad, expected, rtol=1e-5 if grouped else 1e-2, atol=1e-3)


def test_a_layer_that_is_used_twice(grouped: bool) -> None:
    model = chain()
    twice = nn.Sequential(model[0], model[1], model[0])
    expected, actual = (gradients(twice, vector_loss, [2, 3], held=held) for held in (False, True))
    torch.testing.assert_close(actual, expected)


def test_maps_without_a_gradient_keep_none_and_frozen_ones_stay_frozen(grouped: bool) -> None:
    model = chain()
    model[0].A.requires_grad_(False)
    model[1].S.requires_grad_(False)
    with phmctl.step(model):
        vector_loss(model[:2], 3).backward()
    assert [model[i].A.grad is None for i in range(3)] == [True, False, True]
    assert [model[i].S.grad is None for i in range(3)] == [False, True, True]


@pytest.mark.parametrize("reentrant", [False, True])
def test_gradient_checkpointing(reentrant: bool, grouped: bool) -> None:
    model = chain()

    def loss(model: nn.Module, batch: int) -> Tensor:
        x = torch.randn(batch, 16, generator=torch.Generator().manual_seed(batch)).requires_grad_()
        return checkpoint(model, x, use_reentrant=reentrant).square().sum()

    expected, actual = (gradients(model, loss, [2, 3], held=held) for held in (False, True))
    torch.testing.assert_close(actual, expected)


def test_a_block_that_fails_leaves_no_leaf_and_no_gradient(grouped: bool) -> None:
    model = chain()

    def fail(model: nn.Module, batch: int) -> Tensor:
        vector_loss(model, batch).backward()
        raise ValueError("half-way")

    with pytest.raises(ValueError, match="half-way"):
        gradients(model, fail)
    assert not any(hasattr(parameter, LEAF) for parameter in model.parameters())
    assert all(layer.A.grad is layer.S.grad is None for layer in model)
    assert gradients(model, vector_loss).any()


CHANGES: list[Callable[[Tensor], object]] = [
    lambda S: S.detach().mul_(2),
    lambda S: S.data.mul_(2),
    lambda S: setattr(S, "data", S.data * 2),  # as an average of weights that takes their place for a while
]


@pytest.mark.parametrize("change", CHANGES)
def test_validation_within_a_block_sees_the_present_parameters(
    change: Callable[[Tensor], object], grouped: bool
) -> None:
    model = chain(bias=False)
    with torch.no_grad(), phmctl.step(model):
        first = vector_loss(model, 3)
        for layer in model:
            change(layer.S)
        assert not any(hasattr(parameter, LEAF) for parameter in copy.deepcopy(model).parameters())
        for seen in (vector_loss(model, 3), vector_loss(phmctl.to_dense(model), 3)):
            torch.testing.assert_close(seen, 64 * first)
        with torch.inference_mode():
            torch.testing.assert_close(vector_loss(model, 3), 64 * first)
    with phmctl.step(model):
        first = vector_loss(model, 3)
        model[0].S.data = model[0].S.data * 2
        torch.testing.assert_close(vector_loss(model, 3), 4 * first)


def test_gradients_are_those_of_the_parameters_before_a_change(grouped: bool) -> None:
    model = chain()

    expected, changed = gradients(model, vector_loss, held=False), {k: v / 2 for k, v in model.state_dict().items()}
    model.zero_grad()
    with phmctl.step(model):
        vector_loss(model, 3).backward()
        model.load_state_dict(changed)
    actual = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
    torch.testing.assert_close(actual, expected)


def test_maps_that_are_frozen_for_one_of_two_losses(grouped: bool) -> None:
    """As a discriminator is while the generator learns from it."""

    def train(held: bool, first: bool) -> Tensor:
        model = chain()
        with phmctl.step(model) if held else nullcontext():
            for trains in (first, not first, True):
                model[1].requires_grad_(trains)
                vector_loss(model, 3).backward()
        return torch.cat([parameter.grad.flatten() for parameter in model.parameters()])

    for first in (False, True):
        torch.testing.assert_close(train(True, first), train(False, first))


@pytest.mark.parametrize("options", [{"algebra": "quaternion"}, {"rank": 4, "execution": "dense"}])
def test_maps_of_different_rules_share_components(options: dict[str, Any], grouped: bool) -> None:
    for reverse in (False, True):
        torch.manual_seed(0)
        layers = [PHMLinear(16, 16, n=4), PHMLinear(16, 16, n=4, **options)]
        layers[0].S = layers[1].S
        model = nn.Sequential(*reversed(layers) if reverse else layers)
        expected, actual = (gradients(model, vector_loss, [2, 3], held=held) for held in (False, True))
        torch.testing.assert_close(actual, expected)


def test_a_compiled_model_uses_the_leaves_without_compiling_again(grouped: bool) -> None:
    torch._dynamo.reset()
    model, graphs = chain(), []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(model, backend=backend, fullgraph=True)
    expected = gradients(model, vector_loss, [3, 3], held=False)
    for _ in range(3):
        model.zero_grad()
        with implementation.Leaves(model).active(nullcontext):
            for _ in range(2):
                vector_loss(compiled, 3).backward()
        actual = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        torch.testing.assert_close(actual, expected)
        with torch.no_grad():
            model[0].S.mul_(1)
    ((*targets,),) = graphs
    assert targets == [torch._C._nn.linear] * 3


def test_mistakes_are_refused(grouped: bool) -> None:
    model = chain()
    optimiser = torch.optim.SGD(model.parameters())
    with pytest.raises(UserError, match="optimiser"), phmctl.step(model):
        optimiser.step()
    with pytest.raises(UserError, match="another"), phmctl.step(model), phmctl.step(model):
        pass
    with phmctl.step(model):
        loss = vector_loss(model, 3)
    with pytest.raises(UserError, match="backward"):
        loss.backward()
    with pytest.raises(UserError, match="create_graph"), phmctl.step(model):
        vector_loss(model, 3).backward(create_graph=True)
    optimiser.step()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"rank": 4, "execution": "dense"}, {"algebra": "quaternion"}])
def test_parameters_of_16_bits(options: dict[str, Any], dtype: torch.dtype, grouped: bool) -> None:
    exact, model = (chain(**options).to(kind) for kind in (torch.float32, dtype))
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    with phmctl.step(model):
        model(x.to(dtype)).float().square().sum().backward()
    exact(x).square().sum().backward()
    for parameter, expected in zip(model.parameters(), exact.parameters(), strict=True):
        assert parameter.grad.dtype == dtype
        assert (parameter.grad.float() - expected.grad).norm() < 0.05 * expected.grad.norm()


@pytest.mark.parametrize("rules", ["separate", "model"])
def test_an_optimiser_that_steps_in_the_backward_pass(rules: str, grouped: bool) -> None:
    """Each parameter has an optimiser, which steps once, as soon as the gradient is there."""

    def build() -> nn.Module:
        model = chain()
        if rules == "model":
            model[1].share_rule(model[0])
        return model

    expected, model, x, steps = build(), build(), torch.ones(5, 16), []
    optimiser = torch.optim.SGD(expected.parameters(), lr=0.1)
    expected(x).square().sum().backward()
    optimiser.step()
    optimisers = {parameter: torch.optim.SGD([parameter], lr=0.1) for parameter in model.parameters()}

    def update(parameter: Tensor) -> None:
        optimisers[parameter].step()
        steps.append(parameter)

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(update)
    with phmctl.step(model):
        model(x).square().sum().backward()
    assert len(steps) == len(optimisers)
    for parameter, other in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(parameter, other)


@pytest.mark.parametrize(("micro_batches", "most"), [(1, 1.08), (4, 1.03)])
def test_operations_of_a_step_that_reach_the_device(
    micro_batches: int, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of ``multi30k-de-en`` in bfloat16, the optimiser's included (docs/performance.md)."""
    monkeypatch.setattr(implementation, "GROUPED", {"cpu"})
    dense, phm = (
        _operations_of_a_step(settings, micro_batches) for settings in ([], ["model.algebra=phm", "model.n=4"])
    )
    assert phm <= most * dense, (phm, dense)


def _operations_of_a_step(settings: list[str], micro_batches: int) -> int:
    torch.manual_seed(0)  # rates follow from the initial weights, and the optimiser's operations from the rates
    recipe = load_recipe("multi30k-de-en", settings)
    model = Transformer(recipe.model, 48, 48)
    optimiser = build_optimiser(model, recipe.training)

    def one() -> None:
        gradients(model, text_loss, [3] * micro_batches, dtype=torch.bfloat16)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()

    one()
    return operations(one)
