"""The optimiser: Adam or AdamW, and its state as named tensors.

Weight decay falls on every parameter, as in the AdamW paper and by torch's default, but not on rules: H is a product of
A and S, and would decay twice as fast as the dense weight that it stands for if both did. With S alone it decays as
that does.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer

from phmctl.errors import RunError
from phmctl.nn.linear import KroneckerWeight
from phmctl.recipe.schema import TrainingSection

_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def build_optimiser(model: nn.Module, settings: TrainingSection) -> Adam | AdamW:
    """Return the recipe's optimiser over all trainable parameters (a shared one once).

    The fused kernels are used: one pass over the memory instead of eight, on the CPU and on CUDA alike.
    """
    kind = AdamW if settings.optimizer == "adamw" else Adam
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    rules = _rules(model) if settings.weight_decay or settings.rule_rate != 1.0 else set()
    groups: list[dict[str, Any]] = [{"params": [parameter for parameter in parameters if parameter not in rules]}]
    if rules:
        kept = [parameter for parameter in parameters if parameter in rules]
        groups.append({"params": kept, "weight_decay": 0.0, "relative": settings.rule_rate})
    return kind(
        groups,
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=fused,
    )


def _rules(model: nn.Module) -> set[Tensor]:
    """Return the learned rules of a model, or the factors of rules."""
    maps = (module for module in model.modules() if isinstance(module, KroneckerWeight))
    found = (layer._parameters.get(name) for layer in maps for name in "AWUV")
    return {rule for rule in found if rule is not None and rule.requires_grad}


def set_learning_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of every group: that of rules is `training.rule_rate` times the others'."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group.get("relative", 1.0)


def skip_updates_when(optimiser: Optimizer, flag: Tensor) -> None:
    """Let the fused kernels leave parameters and moments alone while `flag`, a scalar on their device, is 1.

    This is the hook by which torch's gradient scaler skips bad steps; the host waits for nothing.
    """
    optimiser.found_inf = flag  # type: ignore[attr-defined]


def optimiser_tensors(optimiser: Optimizer, model: nn.Module) -> dict[str, Tensor]:
    """Return the optimiser's state as ``<moment>.<parameter's name>`` -> tensor."""
    tensors: dict[str, Tensor] = {}
    for name, parameter in model.named_parameters():
        state = optimiser.state.get(parameter, {})
        tensors.update({f"{moment}.{name}": state[moment] for moment in _MOMENTS if moment in state})
    return tensors


def prepare_moments(optimiser: Optimizer, model: nn.Module) -> list[Tensor]:
    """Give every trainable parameter the state that it has after a step, empty, and return it, in a fixed order."""
    tensors = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            device = parameter.device if optimiser.defaults.get("fused") else torch.device("cpu")
            state = {"step": torch.zeros((), device=device)}
            state |= {moment: torch.zeros_like(parameter, requires_grad=False) for moment in _MOMENTS[1:]}
            optimiser.state[parameter] = state
            tensors += state.values()
    return tensors


def load_moments(optimiser: Optimizer, model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy what :func:`optimiser_tensors` gave into the state that :func:`prepare_moments` made.

    Raises:
        RunError: the tensors are not those of this model's parameters: one is missing, unknown or of another shape.
    """
    wanted = optimiser_tensors(optimiser, model)
    for name in sorted(tensors.keys() - wanted.keys()):
        raise RunError(f"the checkpoint's optimiser state has {name}, which the model has not")
    for name, tensor in wanted.items():
        if name not in tensors:
            raise RunError(f"the checkpoint's optimiser state lacks {name}; resume from another one")
        if tensors[name].shape != tensor.shape:
            raise RunError(
                f"the checkpoint's optimiser state does not fit the model: {name} is {tuple(tensors[name].shape)} "
                f"there, {tuple(tensor.shape)} here; resume from another one"
            )
        tensor.copy_(tensors[name])
