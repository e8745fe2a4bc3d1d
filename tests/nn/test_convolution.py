"""PHM convolutions: against sums of ``torch.kron`` for each position of the kernel, and as torch's own layers."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import phmctl
from phmctl import PHMConv1d, PHMConv2d, PHMConv3d
from phmctl.errors import UserError
from phmctl.nn.convolution import PHMConv
from tests.references import convolution_reference

LAYERS: dict[int, tuple[type[PHMConv], type[Any]]] = {
    1: (PHMConv1d, nn.Conv1d),
    2: (PHMConv2d, nn.Conv2d),
    3: (PHMConv3d, nn.Conv3d),
}
CLOSE = {"rtol": 1e-4, "atol": 1e-5}


def with_weight(dense: nn.Module, layer: PHMConv, H: Tensor) -> nn.Module:
    """Return torch's layer with a weight of its own and the bias of ours."""
    dense.load_state_dict({"weight": H} | ({} if layer.bias is None else {"bias": layer.bias}))
    return dense.to(H.dtype)


@given(
    axes=st.sampled_from([1, 2, 3]),
    algebra=st.sampled_from([("phm", 1), ("phm", 2), ("phm", 3), ("phm", 4), ("complex", 2), ("quaternion", 4)]),
    groups=st.integers(1, 3),
    blocks=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    kernel=st.tuples(*[st.integers(1, 3)] * 3),
    options=st.fixed_dictionaries(
        {
            "stride": st.integers(1, 2),
            "padding": st.integers(0, 1),
            "dilation": st.integers(1, 2),
            "bias": st.booleans(),
            "padding_mode": st.sampled_from(["zeros", "circular", "replicate", "reflect"]),
        }
    ),
)
def test_any_convolution_against_the_definition(axes, algebra, groups, blocks, kernel, options) -> None:
    name, n = algebra
    ours, torchs = LAYERS[axes]
    arguments = (groups * n * blocks[0], groups * n * blocks[1], kernel[:axes])
    layer = ours(*arguments, groups=groups, n=n, algebra=name, dtype=torch.float64, **options)
    H = layer.weight if n == 1 else convolution_reference(layer.A, layer.S, groups)
    dense = with_weight(torchs(*arguments, groups=groups, dtype=torch.float64, **options), layer, H)
    x = torch.randn(2, arguments[0], *[6] * axes, dtype=torch.float64)
    torch.testing.assert_close(layer(x), dense(x))


@pytest.mark.parametrize("padding", ["same", "valid"])
def test_named_paddings(padding: str) -> None:
    layer, dense = PHMConv2d(4, 8, (3, 5), padding=padding, n=4), nn.Conv2d(4, 8, (3, 5), padding=padding)
    x = torch.randn(1, 4, 5, 5)
    torch.testing.assert_close(layer(x), with_weight(dense, layer, layer.weight)(x))


@pytest.mark.parametrize(("name", "n"), [("phm", 1), ("phm", 2), ("phm", 4), ("phm", 8), ("quaternion", 4)])
@pytest.mark.parametrize(("axes", "groups"), [(1, 1), (2, 1), (3, 1), (2, 2)])
def test_outputs_and_bias_begin_with_the_variance_of_torchs_layer(axes: int, groups: int, name: str, n: int) -> None:
    torch.manual_seed(1)
    ours, torchs = LAYERS[axes]
    shape = (64, 64, 3) if axes < 3 else (32, 64, 3)
    layers = ours(*shape, groups=groups, n=n, algebra=name), torchs(*shape, groups=groups)
    x = torch.randn(8, shape[0], *{1: (200,), 2: (20, 20), 3: (8, 8, 8)}[axes])
    variance, expected = (layer(x).var().item() for layer in layers)
    assert variance == pytest.approx(expected, rel=0.1)
    assert layers[0].bias.abs().max() <= layers[1].bias.abs().max() * 1.1


def test_gradients() -> None:
    layer = PHMConv2d(4, 4, 2, groups=1, n=2, dtype=torch.float64)
    names, values = zip(*layer.named_parameters(), strict=True)

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    x = torch.randn(1, 4, 3, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(call, (x, *values))


def quaternion() -> nn.Module:
    return PHMConv2d(8, 8, 3, padding=1, groups=2, n=4, algebra="quaternion")


def converted() -> nn.Module:
    return phmctl.convert(nn.Conv2d(8, 8, 3, padding=1), 4)[0]


@pytest.mark.parametrize("maker", [quaternion, converted])
def test_compilers_and_exporters(maker: Callable[[], nn.Module]) -> None:
    torch._dynamo.reset()
    layer, x = maker(), torch.randn(3, 8, 5, 5)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x), **CLOSE)
    compiled(x).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())
    dynamic = ({0: torch.export.Dim.DYNAMIC},)
    exported = torch.export.export(layer.eval(), (x[:2],), dynamic_shapes=dynamic).module()
    torch.testing.assert_close(exported(x), layer(x), **CLOSE)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"in_channels": 6}, "in_channels = 6; use n = 3 or 6"),
        ({"groups": 4}, "out_channels / 4 groups = 3"),
        ({"groups": 3}, "groups"),
        ({"n": 4, "algebra": "octonion"}, "n = 8"),
        ({"padding_mode": "zero"}, "zero"),
        ({"padding": "same", "stride": 2}, "same"),
        ({"kernel_size": (3, 0)}, "kernel_size = 0"),
        ({"kernel_size": "3"}, "size"),
        ({"dtype": torch.complex64}, "complex64"),
        ({"dtype": torch.float8_e5m2}, "float8"),
    ],
)
@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_impossible_convolutions_are_refused(options: dict[str, Any], place: str) -> None:
    with pytest.raises(UserError, match=place):
        PHMConv2d(**({"in_channels": 8, "out_channels": 12, "kernel_size": 3, "n": 4} | options))
