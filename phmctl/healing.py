"""Train a converted model to answer as the dense model does (:func:`heal`)."""

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phmctl.algebra.dimension import check_count
from phmctl.console import progress
from phmctl.errors import NonFiniteError, RunError, UserError, check_known
from phmctl.nn.linear import StructuredWeight
from phmctl.nn.moments import call, reading
from phmctl.nn.parametrization import conversions
from phmctl.nn.structures import rms
from phmctl.saving import copy_tensors, model_tensors, optimiser_tensors, prepare_moments, rounded_weights
from phmctl.storage import MODEL, MOMENTS, QUANTIZATIONS, read_checkpoint, sole_writer, write_checkpoint

Loss = Callable[[Tensor, Tensor], Tensor]

_WARMUP = 50  # steps until the full rate, at most a tenth of all
_CLIP = 1.0  # largest norm of the gradients
_VECTORS = 0.025  # rate of norms and biases, and of a matrix of zeros, as a multiple of lr
_SIMILARITIES = 5.0  # weight of the similarities of a batch in the cosine loss


def cosine_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return 1 − cosine, and five times the squared difference of the similarities within the batch (B, d)."""
    student, teacher = F.normalize(student, dim=-1), F.normalize(teacher, dim=-1)
    similarities = student @ student.mT - teacher @ teacher.mT
    return (1 - (student * teacher).sum(-1)).mean() + _SIMILARITIES * similarities.square().mean()


def probability_loss(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the cross-entropy of the student's logits (..., C) to the teacher's probabilities."""
    classes = student.shape[-1]
    return F.cross_entropy(student.reshape(-1, classes), teacher.reshape(-1, classes).softmax(-1))


TARGETS: Mapping[str, Loss] = {"cosine": cosine_loss, "probabilities": probability_loss}


def answer(model: nn.Module, batch: Any) -> Tensor:
    """Return the output of a model for a tensor, a tuple of arguments or a dict of them. Logits come from `logits`."""
    output = call(model, batch)
    output = getattr(output, "logits", output)
    if not isinstance(output, Tensor):
        raise UserError(f"the model returns a {type(output).__name__}; pass output=, which returns a tensor of it")
    return output


def _answer(output: Callable[[nn.Module, Any], Tensor], model: nn.Module, role: str, batch: Any, step: int) -> Tensor:
    """Return the output of the student or the teacher in at least float32. Raises UserError if there is none."""
    with reading(f"the {role} cannot read the batch of step {step + 1}"):
        tensor = output(model, batch)
    if not isinstance(tensor, Tensor):
        raise UserError(f"output= must return a tensor, not a {type(tensor).__name__}")
    if not tensor.numel():
        raise UserError(f"the batch of step {step + 1} is empty")
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def _check_shapes(found: Tensor, expected: Tensor, target: Loss) -> None:
    """Raise UserError if the outputs differ in shape, or have one that the loss cannot read."""
    shape = tuple(found.shape)
    if shape != tuple(expected.shape):
        raise UserError(f"the student returns {shape}, the teacher {tuple(expected.shape)}")
    if target is cosine_loss and len(shape) != 2:
        raise UserError(f"the models return {shape}; target 'cosine' needs (batch, width)")
    if target is probability_loss and (not shape or shape[-1] < 2):
        raise UserError(f"the models return {shape}; target 'probabilities' needs logits of at least two classes")


def _checked_loss(loss: Any) -> Tensor:
    """Return the loss of a step. Raises UserError if it is not a number with a gradient."""
    if not isinstance(loss, Tensor) or loss.dim() or not loss.requires_grad:
        raise UserError("target= must return a tensor with one number, no axes, and a gradient to the student's output")
    return loss


def heal(
    student: nn.Module,
    teacher: nn.Module,
    batches: Iterable[Any],
    *,
    steps: int,
    lr: float = 0.0125,
    target: str | Loss = "cosine",
    output: Callable[[nn.Module, Any], Tensor] = answer,
    weight_decay: float = 0.0,
    quantize: str = "float32",
    folder: Path | str | None = None,
    every: int = 100,
    report: Callable[[int, float], object] | None = None,
) -> list[float]:
    """Train a converted model to answer as the dense model does. Labels are not needed.

    ::

        small, _ = phmctl.convert(model, share=0.25)
        phmctl.heal(small, model, batches, steps=3000, target="probabilities")

    The optimiser is AdamW with a warm-up of 50 steps, a linear decay to zero, and gradients of norm 1 at most. The
    rules of :func:`phmctl.parameter_groups` are for training from scratch. The teacher is in evaluation mode.

    Args:
        student: a converted model, or one with PHM layers. It is changed in place.
        teacher: the dense model.
        batches: the inputs of each step: a tensor, a tuple of arguments or a dict of keyword arguments. A list or a
            ``DataLoader`` begins again when it ends.
        steps: number of steps.
        lr: how far a step moves a matrix, as a fraction of the root mean square that it has at the start. Norms and
            biases have the rate lr / 40.
        target: ``cosine`` for embeddings (B, d), ``probabilities`` for logits, or a function that returns the loss from
            the student's output and the teacher's.
        output: returns the tensor to learn from a model and a batch. By default it is what the model returns, or the
            `logits` of it.
        weight_decay: weight decay of the matrices.
        quantize: ``int4``, ``int8`` or ``float16`` if :func:`phmctl.save` will round the weights: the last fifth of the
            steps then computes with rounded weights, and the gradients change the exact ones.
        folder: a folder for the state of the training, from which a later call continues. The batches must come in the
            same order again.
        every: steps between two writes of the state.
        report: is called with the number of each step and the loss.

    Returns:
        the loss of each step.

    Raises:
        UserError: the student is not converted or has no gradients, the batches end too early, a model cannot read a
            batch, an output is no tensor or differs in shape from the teacher's, `target` returns no number with a
            gradient, or an argument is invalid.
        RunError: the state in `folder` is damaged, or of another teacher or with other arguments.
        NonFiniteError: a loss or a gradient is NaN or infinite. The parameters are those before the step.
    """
    steps, every = check_count("steps", steps), check_count("every", every)
    compare = _checked_target(target)
    check_known("quantisation", quantize, QUANTIZATIONS)
    _check_models(student, teacher)
    optimiser = _optimiser(student, lr, weight_decay)
    rates = [group["lr"] for group in optimiser.param_groups]  # a later call reads them from the state
    losses: list[float] = []
    stream = _repeated(batches)
    warmup, rounds_from = min(_WARMUP, math.ceil(steps / 10)), steps - math.ceil(steps / 5)
    settings = {"steps": steps, "lr": lr, "weight_decay": weight_decay, "quantize": quantize}
    settings["target"] = getattr(compare, "__name__", type(compare).__name__)
    with ExitStack() as stack:
        stack.enter_context(torch.enable_grad())
        checkpoint = None if folder is None else Path(folder) / "state"
        if checkpoint is not None:
            settings["teacher"] = _fingerprint(teacher)
            stack.enter_context(sole_writer(checkpoint))
            if checkpoint.exists():
                rates, losses = _restore(checkpoint, student, optimiser, settings, stream)
        for module in (*student.modules(), *teacher.modules()):
            stack.callback(setattr, module, "training", module.training)
        student.train(), teacher.eval()
        advance = stack.enter_context(progress("healing", steps - len(losses)))
        for step in range(len(losses), steps):
            batch = next(stream)
            with torch.no_grad():
                expected = _answer(output, teacher, "teacher", batch, step)
            optimiser.zero_grad()
            torch.clear_autocast_cache()  # a scope around all steps would keep the weights of the first
            with _rounded(student, quantize if step >= rounds_from else "float32"):
                found = _answer(output, student, "student", batch, step)
                _check_shapes(found, expected, compare)
                loss = _checked_loss(compare(found, expected))
                loss.backward()  # type: ignore[no-untyped-call]
            norm = nn.utils.clip_grad_norm_(student.parameters(), _CLIP)
            if not (loss.isfinite() and norm.isfinite()):
                raise NonFiniteError(f"healing became NaN or infinite in step {step + 1}; use a smaller lr than {lr:g}")
            factor = min((step + 1) / warmup, (steps - step) / steps)
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * factor
            optimiser.step()
            losses.append(loss.item())
            if report is not None:
                report(step + 1, losses[-1])
            advance(1)
            if checkpoint is not None and ((step + 1) % every == 0 or step + 1 == steps):
                _store(checkpoint, student, optimiser, settings | {"rates": rates, "losses": losses})
    optimiser.zero_grad()
    return losses


def _checked_target(target: str | Loss) -> Loss:
    """Return the loss. Raises UserError if it is neither a name nor a function."""
    if callable(target):
        return target
    check_known("target", target, TARGETS)
    return TARGETS[target]


def _check_models(student: nn.Module, teacher: nn.Module) -> None:
    """Raise UserError if the student is not converted, shares a parameter with the teacher, or is in float16."""
    if not conversions(student) and not any(isinstance(module, StructuredWeight) for module in student.modules()):
        raise UserError("the student has no converted weight; make it with phmctl.convert(model, share=0.25)")
    trained = {parameter for parameter in student.parameters() if parameter.requires_grad}
    if not trained.isdisjoint(teacher.parameters()):
        raise UserError("the student shares a parameter with the teacher, which healing would change; pass a copy")
    if any(parameter.dtype == torch.float16 for parameter in trained):
        raise UserError(
            "the student is in float16, which AdamW's steps make infinite; heal in float32 and save float16"
        )


def _fingerprint(model: nn.Module) -> str:
    """Return a hash of a model's parameters and buffers."""
    found = hashlib.sha256()
    for tensor in (*model.parameters(), *model.buffers()):
        if not tensor.is_meta:
            found.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _optimiser(student: nn.Module, lr: float, weight_decay: float) -> torch.optim.Optimizer:
    """Return AdamW with a group for each parameter that has a gradient. Raises UserError if none has one."""
    numbers = isinstance(lr, int | float) and isinstance(weight_decay, int | float)
    if not (numbers and 0 < lr < math.inf and 0 <= weight_decay < math.inf):
        raise UserError(f"lr={lr!r}, weight_decay={weight_decay!r}: expected an lr above 0 and a decay of at least 0")
    groups = []
    for parameter in student.parameters():
        if parameter.requires_grad:
            scale = rms(parameter) if parameter.dim() > 1 else 0.0
            decay = weight_decay if scale else 0.0
            groups.append({"params": [parameter], "lr": lr * (scale or _VECTORS), "weight_decay": decay})
    if not groups:
        raise UserError("no parameter of the student has a gradient; call student.requires_grad_()")
    optimiser = torch.optim.AdamW(groups)
    prepare_moments(optimiser, student)
    return optimiser


@contextmanager
def _rounded(model: nn.Module, quantize: str) -> Iterator[None]:
    """Let a model compute with the weights that :func:`phmctl.save` would write."""
    exact = {}
    for parameter, values in rounded_weights(model, quantize).items():
        exact[parameter], parameter.data = parameter.data, values
    try:
        yield
    finally:
        for parameter, values in exact.items():
            parameter.data = values


def _repeated(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the batches again and again. Raises UserError if there are none, or an iterator is exhausted."""
    if not isinstance(batches, Iterable):
        raise UserError(f"batches: expected a list, a DataLoader or an iterator, not a {type(batches).__name__}")
    while True:
        count = 0
        for batch in batches:
            count += 1
            yield batch
        if not count:
            raise UserError("the batches are empty or exhausted; pass a list, a DataLoader, or an iterator with enough")


def _store(folder: Path, student: nn.Module, optimiser: torch.optim.Optimizer, state: Mapping[str, object]) -> None:
    """Write the weights, the optimiser's state and that of the random numbers. Raises OutputError."""
    moments = optimiser_tensors(optimiser, student) | {"random": torch.get_rng_state()}
    write_checkpoint(folder, {MODEL: model_tensors(student), MOMENTS: moments}, state)


@torch.no_grad()
def _restore(
    folder: Path,
    student: nn.Module,
    optimiser: torch.optim.Optimizer,
    expected: Mapping[str, object],
    stream: Iterator[Any],
) -> tuple[list[float], list[float]]:
    """Continue from a state, past the batches that it has seen. Return the initial rates and the losses."""
    try:
        stored = read_checkpoint(folder, (MODEL, MOMENTS))
    except RunError as error:
        raise RunError(f"the state of the healing in {folder} is damaged; remove it to begin again") from error
    for name, value in expected.items():
        if stored.state.get(name) != value:
            raise RunError(f"{folder} was made with {name} = {stored.state.get(name)}, not {value}; use another folder")
    moments = dict(stored.tensors[MOMENTS])
    random = moments.pop("random")
    copy_tensors(model_tensors(student), stored.tensors[MODEL], folder)
    copy_tensors(optimiser_tensors(optimiser, student), moments, folder)
    losses = list(stored.state["losses"])
    for _ in islice(stream, len(losses)):
        pass
    torch.set_rng_state(random)
    return list(stored.state["rates"]), losses
