"""Training by rank where it could go wrong: gradients, lower precision, copies, several processes, memory."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel

from phmctl import PHMLinear
from phmctl.algebra.bilinear import Factors
from phmctl.algebra.execution import apply_rank
from phmctl.assembly import build_transformer
from phmctl.nn.build import LinearBuilder
from phmctl.nn.kept_factors import set_execution
from phmctl.nn.lstm import PHMLSTM
from phmctl.recipe.schema import TransformerSection


def by_rank(d: int = 24, k: int = 16, n: int = 4, **options: object) -> PHMLinear:
    torch.manual_seed(0)
    return PHMLinear(d, k, n=n, **({"parametrization": "factors", "execution": "rank"} | options))


@pytest.mark.parametrize("keep", [True, False])
def test_gradients_of_all_that_goes_in(keep: bool) -> None:
    torch.manual_seed(0)
    sizes = [(5, 12), (4, 2, 3), (4, 6), (4, 6), (6, 4), (8,)]  # x, S, W, U, V, bias
    inputs = [torch.randn(*size, dtype=torch.float64, requires_grad=True) for size in sizes]

    def apply(x: Tensor, S: Tensor, W: Tensor, U: Tensor, V: Tensor, bias: Tensor) -> Tensor:
        return apply_rank(x, Factors(W, U, V), S, bias, keep=keep)

    assert torch.autograd.gradcheck(apply, inputs)


@pytest.mark.parametrize("leading", [(130,), (3, 130), (0,)])  # more tokens than a tile, and none
def test_gradients_over_tiles_are_those_of_dense(leading: tuple[int, ...]) -> None:
    layer = by_rank(dtype=torch.float64)
    dense = copy.deepcopy(layer)
    dense.execution = "dense"
    x = torch.randn(*leading, 24, dtype=torch.float64)
    gradients = []
    for each in (layer, dense):
        leaf = x.clone().requires_grad_()
        each(leaf).square().sum().backward()
        gradients.append([leaf.grad, *(parameter.grad for parameter in each.parameters())])
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_bfloat16_autocast_stays_near_float32() -> None:
    layer = by_rank(256, 128)
    x = torch.randn(300, 256, requires_grad=True)
    exact = layer(x)
    wanted = torch.autograd.grad(exact.square().sum(), [x, *layer.parameters()])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.float(), exact, rtol=0.05, atol=0.05)
    found = torch.autograd.grad(y.float().square().sum(), [x, *layer.parameters()])
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float32
        assert (one - other).norm() <= 0.03 * other.norm()


def test_without_gradients_nothing_is_kept_for_them() -> None:
    layer = by_rank()
    x = torch.randn(7, 24)
    expected = layer(x)
    assert bytes_saved(lambda: layer(x)) > 0
    with torch.no_grad():
        assert not layer(x).requires_grad
        assert bytes_saved(lambda: layer(x)) == 0
        torch.testing.assert_close(layer(x), expected)


def test_a_copy_goes_its_own_way() -> None:
    layer = by_rank()
    x = torch.randn(7, 24)
    before = layer(x).detach()
    other = copy.deepcopy(layer)
    assert other.execution == "rank"
    other(x).sum().backward()
    assert layer.W.grad is None
    with torch.no_grad():
        other.U.mul_(2)
    torch.testing.assert_close(layer(x), before)
    torch.testing.assert_close(other(x) - other.bias, 2 * (before - layer.bias))


def test_used_twice_in_a_graph_the_gradients_add_up() -> None:
    layer = by_rank(16, 16, dtype=torch.float64)
    dense = copy.deepcopy(layer)
    dense.execution = "dense"
    x = torch.randn(9, 16, dtype=torch.float64)
    for each in (layer, dense):
        (each(each(x)).tanh() + each(x)).sum().backward()
    for one, other in zip(layer.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_rule_goes_to_factors_and_back_without_loss() -> None:
    rule = PHMLinear(24, 16, n=4, dtype=torch.float64)
    factors = by_rank(dtype=torch.float64)
    factors.load_state_dict(rule.state_dict())
    back = PHMLinear(24, 16, n=4, dtype=torch.float64)
    back.load_state_dict(factors.state_dict())
    torch.testing.assert_close(back.A, rule.A, rtol=1e-9, atol=1e-9)
    assert torch.equal(back.S, rule.S)
    x = torch.randn(5, 24, dtype=torch.float64)
    torch.testing.assert_close(factors(x), rule(x), rtol=1e-9, atol=1e-9)


def bytes_saved(forward: Callable[[], object]) -> int:
    """Return the bytes of what a forward pass keeps for the backward pass, each storage once."""
    sizes: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        sizes[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        forward()
    return sum(sizes.values())


@pytest.mark.parametrize(("n", "share"), [(4, 1.3), (8, 1.3)])
def test_what_is_kept_for_the_backward_pass(n: int, share: float) -> None:
    x = torch.randn(2048, 512, requires_grad=True)
    dense, layer = nn.Linear(512, 512), by_rank(512, 512, n)
    layer.keep_products = False
    assert bytes_saved(lambda: layer(x)) <= share * bytes_saved(lambda: dense(x))
    layer.keep_products = True
    rank, products = len(layer.V), 4 * 2048 * len(layer.V) * 512 // n
    assert rank * 512 // n > 512  # it trades memory for time
    assert bytes_saved(lambda: layer(x)) >= products


def one_of_two(rank: int, folder: str) -> None:
    """Train a step on this process's half of a batch; the first process writes the gradients down."""
    torch.set_num_threads(1)
    init_process_group("gloo", init_method=f"file://{folder}/group", rank=rank, world_size=2)
    try:
        layer = by_rank()
        parallel = DistributedDataParallel(layer)
        parallel(a_batch()[rank::2]).square().mean().backward()
        if rank == 0:
            torch.save([parameter.grad for parameter in layer.parameters()], f"{folder}/gradients")
    finally:
        destroy_process_group()


def a_batch() -> Tensor:
    return torch.randn(8, 24, generator=torch.Generator().manual_seed(1))


@pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="no gloo")
def test_distributed_data_parallel(tmp_path: object) -> None:
    torch.multiprocessing.spawn(one_of_two, (str(tmp_path),), nprocs=2)
    layer = by_rank()
    layer(a_batch()).square().mean().backward()
    for mean, parameter in zip(torch.load(f"{tmp_path}/gradients"), layer.parameters(), strict=True):
        torch.testing.assert_close(mean, parameter.grad)


def test_order_sixteen_begins_with_the_dense_variance_too() -> None:
    torch.manual_seed(0)
    weights = [PHMLinear(256, 256, n=16, parametrization="factors").weight for _ in range(4)]
    assert weights[0].shape == (256, 256)
    assert torch.stack(weights).var().item() == pytest.approx(1 / (3 * 256), rel=0.15)


@pytest.mark.parametrize("gates", ["separate", "fused"])
def test_an_lstm_by_rank_is_the_lstm(gates: str) -> None:
    torch.manual_seed(0)
    builder = LinearBuilder("phm", 4, parametrization="factors", execution="rank")
    lstm = PHMLSTM(8, 12, builder=builder, gates=gates, num_layers=2).double()
    dense = copy.deepcopy(lstm)
    for module in dense.modules():
        if isinstance(module, PHMLinear):
            module.execution = "dense"
    x, lengths = torch.randn(3, 5, 8, dtype=torch.float64), torch.tensor([5, 2, 4])
    found = []
    for each in (lstm, dense):
        leaf = x.clone().requires_grad_()
        y, (h, c) = each(leaf, lengths)
        (y.square().sum() + h.sum() + c.sum()).backward()
        found.append([y, h, c, leaf.grad, *(parameter.grad for parameter in each.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("generator", ["phm", "tied"])
def test_a_transformer_by_rank_is_the_transformer(generator: str) -> None:
    torch.manual_seed(0)
    sizes = {"width": 32, "feed_forward": 64, "heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    choices = {"algebra": "phm", "n": 4, "parametrization": "factors", "execution": "rank", "dropout": 0.0}
    settings = TransformerSection(**sizes, **choices, embeddings="phm", generator=generator)
    model = build_transformer(settings, 40, 40)
    dense = copy.deepcopy(model)
    set_execution(dense, "dense")
    source, target = torch.randint(4, 40, (3, 7)), torch.randint(4, 40, (3, 5))
    logits = [each.logits(each(source, target)) for each in (model, dense)]
    torch.testing.assert_close(logits[0], logits[1], rtol=1e-4, atol=1e-5)
    for each in logits:
        each.logsumexp(-1).sum().backward()
    for one, other in zip(model.parameters(), dense.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
