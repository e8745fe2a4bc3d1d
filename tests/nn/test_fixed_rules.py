"""A fixed rule is right in modules that a loader makes without memory and fills from outside."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from phmctl import PHMLSTM, PHMEmbedding, PHMLinear


def assign(module: nn.Module, state: dict[str, Tensor]) -> None:
    """As ``load_state_dict(assign=True)``."""
    module.load_state_dict(state, assign=True)


def allocate_and_copy(module: nn.Module, state: dict[str, Tensor]) -> None:
    """As sharded training does: memory without values, then the saved values."""
    module.to_empty(device="cpu")
    for tensor in module.state_dict().values():
        tensor.fill_(torch.nan)
    module.load_state_dict(state)


def set_parameters(module: nn.Module, state: dict[str, Tensor]) -> None:
    """As transformers and accelerate do: each parameter is replaced in its module."""
    for name, tensor in state.items():
        parent, _, parameter = name.rpartition(".")
        owner = module.get_submodule(parent)
        owner._parameters[parameter] = nn.Parameter(tensor.clone())


@pytest.mark.parametrize("fill", [assign, allocate_and_copy, set_parameters])
@pytest.mark.parametrize(("algebra", "n"), [("complex", 2), ("quaternion", 4), ("octonion", 8)])
@pytest.mark.parametrize("layer", ["linear", "embedding", "lstm"])
def test_the_rule_of_a_filled_module(
    fill: Callable[[nn.Module, dict[str, Tensor]], None], algebra: str, n: int, layer: str
) -> None:
    def make(device: str) -> nn.Module:
        if layer == "embedding":
            return PHMEmbedding(16, 8, n=n, algebra=algebra, device=device)
        if layer == "lstm":
            return PHMLSTM(8, 16, n=n, algebra=algebra, device=device)
        maps = (PHMLinear(8, 8, n=n, algebra=algebra, device=device) for _ in range(2))
        return nn.Sequential(next(maps), nn.ReLU(), next(maps))

    source, filled = make("cpu"), make("meta")
    inputs = torch.arange(16) if layer == "embedding" else torch.randn(3, 5, 8)
    if fill is assign and layer == "linear":  # the rule follows the dtype
        source, inputs = source.double(), inputs.double()
    fill(filled, {name: tensor.clone() for name, tensor in source.state_dict().items()})
    expected, outputs = source(inputs), filled(inputs)
    if layer == "lstm":
        expected, outputs = expected[0], outputs[0]
    assert torch.equal(outputs, expected)
    assert not list(filled.buffers())  # nothing that a loader would have to fill


@pytest.mark.filterwarnings("ignore")  # of transformers
def test_from_pretrained_of_a_model_with_a_fixed_algebra(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")

    class Model(transformers.PreTrainedModel):
        config_class = transformers.PretrainedConfig

        def __init__(self, config: object) -> None:
            super().__init__(config)
            self.embedding = PHMEmbedding(16, 8, n=4, algebra="quaternion")
            self.linear = PHMLinear(8, 16, n=4, algebra="quaternion")
            self.lstm = PHMLSTM(16, 16, n=8, algebra="octonion")
            self.post_init()

        def forward(self, ids: Tensor) -> Tensor:
            outputs: Tensor = self.lstm(self.linear(self.embedding(ids)))[0]
            return outputs

    source, ids = Model(transformers.PretrainedConfig()).eval(), torch.arange(6)[None]
    source.save_pretrained(tmp_path)
    assert torch.equal(Model.from_pretrained(tmp_path).eval()(ids), source(ids))
