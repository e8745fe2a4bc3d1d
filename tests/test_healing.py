"""Healing: a converted model learns the dense model's answers; a killed healing continues bit for bit."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import phmctl
from phmctl.errors import NonFiniteError, RunError, UserError
from phmctl.healing import TARGETS, cosine_loss, probability_loss


def teacher_of(width: int = 16) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Dropout(0.1), nn.Linear(64, width))


def batches_of(count: int = 20) -> list[torch.Tensor]:
    return list(torch.randn(count, 32, 32, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("target", ["cosine", "probabilities", lambda y, t: (y - t).square().mean()])
def test_a_student_learns_the_answers_and_the_teacher_stays(target: Any) -> None:
    teacher = teacher_of()
    student, _ = phmctl.convert(teacher, share=0.4)
    state = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    seen: list[tuple[int, float]] = []
    losses = phmctl.heal(
        student, teacher, batches_of(), steps=150, lr=0.01, target=target, report=lambda *pair: seen.append(pair)
    )
    assert len(losses) == 150
    assert seen == list(enumerate(losses, 1))
    assert sum(losses[-20:]) < sum(losses[:20])
    x = batches_of(1)[0]
    student.eval(), teacher.eval()
    fresh = phmctl.convert(teacher, share=0.4)[0]
    loss = TARGETS.get(target, target)
    assert loss(student(x), teacher(x)) < loss(fresh(x), teacher(x))
    assert all(torch.equal(state[name], tensor) for name, tensor in teacher.state_dict().items())
    assert all(parameter.grad is None for parameter in teacher.parameters())


def test_the_last_of_few_steps_is_rounded() -> None:
    teacher, seen = teacher_of(), list[int]()
    student, _ = phmctl.convert(teacher, share=0.4)

    def output(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        matrix = next(parameter for parameter in model.parameters() if parameter.dim() > 1)
        seen.append(len(matrix[0].unique()))
        return model(batch)

    phmctl.heal(student, teacher, batches_of(1), steps=4, output=output, quantize="int4")
    assert min(seen[1:-2:2]) > 15 >= seen[-1]  # the student is the second of each step


def test_a_scope_of_autocast_around_all_steps_learns_too() -> None:
    teacher, losses = teacher_of(), []
    for inside in (True, False):

        def output(model: nn.Module, batch: torch.Tensor, inside: bool = inside) -> torch.Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=inside or torch.is_autocast_enabled("cpu")):
                return model(batch)

        student, _ = phmctl.convert(teacher, share=0.4)
        torch.manual_seed(0)
        with torch.autocast("cpu", torch.bfloat16, enabled=not inside):
            losses.append(phmctl.heal(student, teacher, batches_of(1), steps=60, lr=0.05, output=output))
    assert losses[0][-1] < 0.5 * losses[0][0]
    assert losses[1] == pytest.approx(losses[0], rel=0.05)


def test_the_modes_of_both_models_stay() -> None:
    teacher = teacher_of()
    student = phmctl.convert(teacher, share=0.4)[0].eval()
    phmctl.heal(student, teacher, batches_of(), steps=2, lr=0.01)
    assert teacher.training
    assert not any(module.training for module in student.modules())


def test_the_losses_are_what_the_documentation_says() -> None:
    torch.manual_seed(0)
    y, t = torch.randn(5, 3).double(), torch.randn(5, 3).double()
    cosines = torch.nn.functional.cosine_similarity
    squares = sum(
        (cosines(y[i], y[j], dim=0) - cosines(t[i], t[j], dim=0)).square() for i in range(5) for j in range(5)
    )
    torch.testing.assert_close(cosine_loss(y, t), (1 - cosines(y, t)).mean() + 5 * squares / 25)
    expected = -(t.softmax(1) * y.log_softmax(1)).sum(1).mean()
    torch.testing.assert_close(probability_loss(y, t), expected)
    torch.testing.assert_close(probability_loss(y[None], t[None]), expected)


class KilledError(Exception):
    """The killed process."""


def test_a_killed_healing_continues_bit_for_bit(tmp_path: Path) -> None:
    teacher = teacher_of()

    def fresh() -> nn.Module:
        return phmctl.convert(teacher, share=0.4)[0]

    def stop(step: int, _: float) -> None:
        if step == 17:
            raise KilledError

    options: dict[str, Any] = {"steps": 30, "lr": 0.01, "target": "probabilities", "every": 5}
    whole, killed, resumed = fresh(), torch.compile(fresh(), backend="eager"), fresh()
    torch.manual_seed(3)
    losses = phmctl.heal(whole, teacher, batches_of(7), **options)
    torch.manual_seed(3)
    with pytest.raises(KilledError):
        phmctl.heal(killed, teacher, batches_of(7), folder=tmp_path / "healing", report=stop, **options)
    torch.manual_seed(4)
    assert phmctl.heal(resumed, teacher, batches_of(7), folder=tmp_path / "healing", **options) == losses
    for expected, tensor in zip(whole.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(expected, tensor)
        assert tensor.grad is None
    finished = fresh()
    assert phmctl.heal(finished, teacher, batches_of(7), folder=tmp_path / "healing", **options) == losses
    with pytest.raises(RunError, match="steps = 30"):
        phmctl.heal(fresh(), teacher, batches_of(7), folder=tmp_path / "healing", **options | {"steps": 40})
    with pytest.raises(RunError, match="target = probability_loss"):
        phmctl.heal(fresh(), teacher, batches_of(7), folder=tmp_path / "healing", **options | {"target": "cosine"})
    stranger = copy.deepcopy(teacher)
    stranger[0].weight.data += 1
    with pytest.raises(RunError, match="teacher"):
        phmctl.heal(fresh(), stranger, batches_of(7), folder=tmp_path / "healing", **options)
    stranger = copy.deepcopy(teacher)
    stranger.register_buffer("scale", torch.ones(1))
    with pytest.raises(RunError, match="teacher"):
        phmctl.heal(fresh(), stranger, batches_of(7), folder=tmp_path / "healing", **options)
    other = phmctl.convert(teacher, share=0.2)[0]
    with pytest.raises(RunError, match="does not fit"):
        phmctl.heal(other, teacher, batches_of(7), folder=tmp_path / "healing", **options)


def test_a_damaged_state_is_refused_with_its_place(tmp_path: Path) -> None:
    teacher, options = teacher_of(), {"steps": 2, "folder": tmp_path / "healing"}
    phmctl.heal(phmctl.convert(teacher, share=0.4)[0], teacher, batches_of(7), **options)
    state = next((tmp_path / "healing").rglob("model.safetensors"))
    state.write_bytes(state.read_bytes()[:-1])
    with pytest.raises(RunError, match="remove it"):
        phmctl.heal(phmctl.convert(teacher, share=0.4)[0], teacher, batches_of(7), **options)


def test_batches_are_arguments_of_the_model() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.map = nn.Linear(32, 16)

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
            return SimpleNamespace(logits=self.map(x) * scale)

    teacher = Model()
    student, _ = phmctl.convert(teacher, share=0.4)
    x = batches_of(1)[0]
    for batch in ((x, 2.0), {"x": x, "scale": 2.0}, x):
        assert phmctl.heal(student, teacher, [batch], steps=1, lr=0.01)

    def pooled(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return model(batch).logits.mean(0, keepdim=True)

    assert phmctl.heal(student, teacher, [x], steps=1, lr=0.01, output=pooled)


def generator() -> Iterator[torch.Tensor]:
    yield from batches_of(2)


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"batches": []}, "empty"),
        ({"batches": generator()}, "exhausted"),
        ({"batches": [torch.zeros(0, 32)]}, "step 1 is empty"),
        ({"student": teacher_of()}, "convert"),
        ({"teacher": teacher_of(8)}, r"\(32, 16\), the teacher \(32, 8\)"),
        ({"batches": [torch.zeros(2, 3, 32)]}, "width"),
        ({"target": "cosin"}, "cosine"),
        ({"student": phmctl.convert(teacher_of(), share=0.4)[0].half()}, "float16"),
        ({"steps": 0}, "steps"),
        ({"lr": -1.0}, "lr"),
        ({"lr": "0.01"}, "lr"),
        ({"target": 3}, "target 3"),
        ({"weight_decay": -1.0}, "weight_decay"),
        ({"batches": 3}, "batches"),
        ({"batches": [torch.zeros(2, 31)]}, "the teacher cannot read the batch of step 1"),
        ({"teacher": nn.Linear(32, 16, device="meta")}, "meta"),
        ({"student": phmctl.convert(teacher_of(), share=0.4)[0].requires_grad_(False)}, "gradient"),
        ({"output": lambda model, batch: None}, "NoneType"),
        ({"teacher": nn.LSTM(32, 16)}, "output="),
        ({"output": lambda model, batch: model(batch).sum()}, "cosine"),
        ({"output": lambda model, batch: model(batch).sum(), "target": "probabilities"}, "probabilities"),
        ({"output": lambda model, batch: model(batch)[:, :1], "target": "probabilities"}, "two classes"),
        ({"target": lambda y, t: 0.5}, "target="),
        ({"target": lambda y, t: (y - t).square().mean(1)}, "target="),
        ({"target": lambda y, t: (y - t).detach().square().mean()}, "gradient"),
    ],
)
def test_impossible_healings_are_refused(change: dict[str, Any], place: str) -> None:
    teacher = teacher_of()
    options = {"student": phmctl.convert(teacher, share=0.4)[0], "teacher": teacher, "batches": batches_of()}
    with pytest.raises(UserError, match=place):
        phmctl.heal(**({**options, "steps": 5, "lr": 0.01} | change))


def test_shared_parameters_are_refused() -> None:
    student, _ = phmctl.convert(teacher_of(), share=0.5)
    with pytest.raises(UserError, match="shares"):
        phmctl.heal(student, student, batches_of(), steps=1)


@pytest.mark.parametrize("spoil", [lambda y: y * float("nan"), lambda y: (y - y).sqrt() + y])
def test_a_loss_or_gradient_that_is_not_finite_leaves_the_weights(
    spoil: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    teacher = teacher_of()
    student, _ = phmctl.convert(teacher, share=0.4)
    before = [parameter.clone() for parameter in student.parameters()]
    with pytest.raises(NonFiniteError, match="step 1"):
        phmctl.heal(
            student, teacher, batches_of(), steps=5, lr=0.01, target=lambda y, t: (spoil(y) - t).square().mean()
        )
    assert all(map(torch.equal, before, student.parameters()))


@pytest.mark.parametrize("form", ["int4", "int8", "float16"])
def test_the_last_steps_compute_with_the_rounded_weights(form: str, tmp_path: Path) -> None:
    teacher, x = teacher_of(), batches_of(1)[0]
    student, _ = phmctl.convert(teacher, share=0.4)
    found: list[torch.Tensor] = []

    def output(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        if model is student:
            weights = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
            found.append(weights["0.parametrizations.weight.original1"])
        return model(batch)

    phmctl.heal(student, teacher, [x], steps=10, lr=0.01, output=output, quantize=form)
    assert len(found) == 10
    exact = student[0].parametrizations.weight.original1
    assert len(found[7].unique()) > len(found[8].unique()) or form == "float16"
    phmctl.save(student, tmp_path / "small", quantize=form)
    loaded = phmctl.load_into(teacher_of(), tmp_path / "small")
    stored = loaded[0].parametrizations.weight.original1
    assert not torch.equal(exact, stored)
    phmctl.heal(student, teacher, [x], steps=5, lr=1e-12, output=output, quantize=form)
    torch.testing.assert_close(found[-1], stored, rtol=1e-6, atol=1e-7)
