"""The optimiser: Adam or AdamW, its state as named tensors, and its learning rate at each step.

Weight decay is on every parameter, as in the AdamW paper and by torch's default, but of the factors of a weight on one:
H is a product of A and S, and would decay twice as fast as the dense weight if both did. The norm that ``clip`` bounds
is that of all gradients: Adam's steps do not depend on their scale, so A and S need no bounds of their own.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from phmctl.devices import takes_bfloat16
from phmctl.nn.tuning import grouped, relative_rates
from phmctl.recipe.schema import TrainingSection
from phmctl.tasks.base import Autocast

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def build_optimiser(
    model: nn.Module, settings: TrainingSection, rates: Mapping[str, float] | None = None
) -> Adam | AdamW:
    """Return the recipe's optimiser over all trainable parameters (a shared one once).

    `rates` has each parameter's rate as a multiple of the recipe's, by name; None: what ``training.rates`` says. The
    fused kernels are used: one pass over the memory instead of eight, on the CPU and on CUDA alike.
    """
    kind = AdamW if settings.optimizer == "adamw" else Adam
    rates = build_rates(model, settings) if rates is None else rates
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return kind(
        grouped(model, rates, settings.learning_rate, settings.weight_decay),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=all(parameter.device.type in ("cpu", "cuda") for parameter in parameters),
    )


def build_rates(model: nn.Module, settings: TrainingSection) -> dict[str, float]:
    """Return each trainable parameter's rate as a multiple of the recipe's, as ``training.rates`` says."""
    if settings.rates == "structured":
        return relative_rates(model)
    return {name: 1.0 for name, parameter in model.named_parameters() if parameter.requires_grad}


def set_learning_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of every group: its own multiple of the model's rate."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["relative"]


def skip_updates_when(optimiser: Optimizer, flag: Tensor) -> None:
    """Let the fused kernels leave parameters and moments alone while `flag`, a scalar on their device, is 1.

    torch's gradient scaler skips bad steps by this hook; the host waits for nothing.
    """
    optimiser.found_inf = flag  # type: ignore[attr-defined]


def optimiser_tensors(optimiser: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's state as ``<moment>.<parameter's name>`` -> tensor."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state = optimiser.state.get(parameter, {})
        tensors.update({f"{moment}.{name}": state[moment] for moment in _MOMENTS if moment in state})
    return tensors


def prepare_moments(optimiser: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Give every trainable parameter the state that it has after a step, empty, and return all of it."""
    for parameter in model.parameters():
        if parameter.requires_grad:
            device = parameter.device if optimiser.defaults.get("fused") else torch.device("cpu")
            state = {"step": torch.zeros((), device=device)}
            state |= {moment: torch.zeros_like(parameter, requires_grad=False) for moment in _MOMENTS[1:]}
            optimiser.state[parameter] = state
    return optimiser_tensors(optimiser, model)


def build_schedule(settings: TrainingSection) -> Callable[[int], float]:
    """Return the recipe's schedule: step (from 1, that of the first update) -> learning rate.

    All rise straight to the peak at step `warmup`. ``constant`` stays there; ``linear`` falls straight to 0 one step
    after the last; ``inverse_sqrt`` falls with ``step^-0.5``, as in "Attention Is All You Need" (§5.3), whose own form,
    ``d^-0.5 · min(step^-0.5, step · warmup^-1.5)``, has the peak ``(d · warmup)^-0.5``.
    """
    peak, warmup, end = settings.learning_rate, max(settings.warmup, 1), settings.steps + 1
    if settings.schedule == "linear":
        return lambda step: (
            peak * step / warmup if step <= settings.warmup else peak * max(0.0, (end - step) / (end - warmup))
        )
    if settings.schedule == "inverse_sqrt":
        return lambda step: peak * min(step / warmup, math.sqrt(warmup / step))
    return lambda step: peak * min(1.0, step / warmup)


def build_autocast(device: torch.device, precision: str) -> Autocast:
    """Return a function that gives the context of one forward pass.

    ``bfloat16`` is torch's autocast, with float32 weights; where the device would only emulate it, more slowly than
    float32 is computed, a warning says that float32 is used.
    """
    if precision == "float32" or not takes_bfloat16(device, "training.precision"):
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)
