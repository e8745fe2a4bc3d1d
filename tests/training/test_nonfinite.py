"""NaN and infinity stop a run, and the message says where they began."""

import pytest
import torch
from torch import nn

from phmctl.checkpoints import read_checkpoint
from phmctl.errors import NonFiniteError
from phmctl.runs import Run
from phmctl.training.optimiser import build_optimiser, skip_updates_when
from phmctl.training.trainer import Guard, trace
from tests.training.conftest import Fit
from tests.training.fake import FakeTask, make_recipe


def test_the_step_and_the_first_module_are_named(fit: Fit) -> None:
    with pytest.raises(NonFiniteError, match=r"step 9: the output of first is NaN or infinite \(epoch 1, batch 1\)"):
        fit(FakeTask(poison=(1, 1)), steps=20)


def test_the_newest_checkpoint_is_sound(fit: Fit, tmp_path) -> None:
    with pytest.raises(NonFiniteError):
        fit(FakeTask(poison=(1, 1)), steps=20, save_every=1)
    run = Run.open(tmp_path / "fake/phm-n4")
    checkpoint = read_checkpoint(run.checkpoint("last"), ["model", "optimizer"])
    assert checkpoint.state["step"] == 8
    for tensors in checkpoint.tensors.values():
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())


def test_the_message_says_whether_there_are_checkpoints(fit: Fit) -> None:
    with pytest.raises(NonFiniteError, match=r"there is no checkpoint yet\n"):
        fit(FakeTask(poison=(0, 1)), steps=20)
    with pytest.raises(NonFiniteError, match=r"the checkpoints in .*checkpoints are sound\n"):
        fit(FakeTask(poison=(1, 1)), steps=20)


def test_the_weights_are_those_from_before_the_bad_step(fit: Fit) -> None:
    """Steps 1 to 3 are sound; in step 4 the loss alone is bad. No log line or checkpoint falls in between."""
    seen: list[torch.Tensor] = []

    class Diverging(FakeTask):
        def loss(self, model, batch):
            seen.append(model.first.weight.detach().clone())
            loss, tokens = super().loss(model, batch)
            return loss * (float("inf") if len(seen) >= 4 else 1.0), tokens

    with pytest.raises(NonFiniteError, match="step 4: the loss; every module's output is finite is NaN"):
        fit(Diverging(), steps=20, log_every=20, save_every=20, validate_every=20)
    assert len(seen) == 5  # four steps, and the fourth once more
    assert torch.equal(seen[3], seen[4])
    assert not torch.equal(seen[2], seen[3])


def test_a_poisoned_micro_batch_is_found(fit: Fit) -> None:
    with pytest.raises(NonFiniteError, match=r"step 4: the output of first .* \(epoch 1, batch 2\)"):
        fit(FakeTask(poison=(1, 3)), steps=20, accumulate=3)


def _guarded(values: list[float]) -> Guard:
    guard = Guard(torch.device("cpu"))
    for step, value in enumerate(values, start=1):
        guard.note(step, torch.tensor(value), torch.tensor(1.0))
    return guard


def test_the_guard_remembers_the_first_bad_step() -> None:
    assert _guarded([1.0, 2.0]).first_bad_step() is None
    guard = _guarded([1.0, float("inf"), 1.0, float("nan")])
    assert guard.first_bad_step() == 2
    assert guard.found.item() == 1.0


def test_a_bad_norm_is_enough() -> None:
    guard = Guard(torch.device("cpu"))
    guard.note(1, torch.tensor(0.0), torch.tensor(float("nan")))
    assert guard.first_bad_step() == 1


def test_the_flag_makes_the_fused_optimiser_skip() -> None:
    """On CUDA the host learns of a bad step only later: until then the weights must not move."""
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    optimiser = build_optimiser(layer, make_recipe().training)
    flag = torch.zeros(())
    skip_updates_when(optimiser, flag)
    for bad, moves in ((1.0, False), (0.0, True)):
        flag.fill_(bad)
        layer(torch.ones(1, 2)).sum().backward()
        optimiser.step()
        assert torch.equal(layer.weight, before) is not moves


class _Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 2)
        self.b = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        self.c = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.c(self.b(self.a(x)))


def test_trace_names_the_innermost_first_module() -> None:
    model = _Deep()
    model.b[0].weight.data[0, 0] = float("inf")
    assert trace(model, lambda: model(torch.ones(1, 2)).sum()) == "the output of b.0"


def test_trace_names_the_loss() -> None:
    model = _Deep()
    assert trace(model, lambda: model(torch.ones(1, 2)).sum() * float("nan")).startswith("the loss")


def test_trace_names_the_gradient() -> None:
    model = _Deep()
    model.b[0].bias.data.fill_(9.0)  # the rectifier lets everything through

    def replay() -> torch.Tensor:
        hidden = model.b(model.a(torch.ones(1, 2)))
        hidden.register_hook(lambda gradient: gradient * float("inf"))
        loss = model.c(hidden).sum()
        loss.backward()
        return loss

    assert trace(model, replay) == "the gradient of b.0.weight"


def test_trace_leaves_no_hooks_and_says_when_it_finds_nothing() -> None:
    model = _Deep()
    assert "finite when the step was run again" in trace(model, lambda: model(torch.ones(1, 2)).sum())
    assert not any(module._forward_hooks for module in model.modules())
