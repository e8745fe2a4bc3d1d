"""The model as several processes train it: whole in each of them, or in shards.

``DistributedDataParallel`` keeps the weights whole and sends each bucket of gradients as soon as the backward pass has
it. ``fully_shard`` (FSDP2; Rajbhandari et al. 2020, ZeRO-3) gives each process a part of every weight, gradient and
moment, and gathers a layer when it is needed. Both average gradients over processes.
"""

import inspect
import warnings
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from phmctl.checkpoints import load_model, write_order
from phmctl.errors import RecipeError
from phmctl.models.stack import Stack
from phmctl.training.processes import Processes

_NEEDED = (2, 6)  # torch.distributed.fsdp.fully_shard


def wrap(model: nn.Module, processes: Processes, device: torch.device, sharding: str) -> nn.Module:
    """Return what is called to train a model: itself, if this process is alone.

    With ``sharding: full`` the model's own parameters become shards.

    Raises:
        RecipeError: this torch cannot shard.
    """
    if not processes.many:
        return model
    if sharding == "full":
        return _shard(model, device)
    places = [device.index] if device.type == "cuda" else None
    # Nothing changes a buffer of ours, so none is sent. Newer versions of torch have another word for it.
    words = inspect.signature(DistributedDataParallel).parameters
    word = "forward_sync_buffers" if "forward_sync_buffers" in words else "broadcast_buffers"
    rest: dict[str, Any] = {"device_ids": places, "gradient_as_bucket_view": True, word: False}
    return DistributedDataParallel(model, **rest)


def exchanging(called: nn.Module, last: bool) -> AbstractContextManager[Any]:
    """Return a context for a forward and backward pass; gradients are exchanged in a step's last one only."""
    if isinstance(called, DistributedDataParallel) and not last:
        return called.no_sync()
    if is_sharded(called):
        called.set_requires_gradient_sync(last)  # type: ignore[operator]
    return nullcontext()


def is_sharded(model: nn.Module) -> bool:
    """Return whether the model's parameters are shards."""
    return hasattr(model, "set_requires_gradient_sync")


@contextmanager
def gathered(model: nn.Module) -> Iterator[None]:
    """Have all weights whole in each process for a while, to validate: no layer asks the others for its own then."""
    if not is_sharded(model):
        yield
        return
    units: list[Any] = [module for module in model.modules() if is_sharded(module)]
    inner = [unit for unit in units if unit is not model]  # the outermost keeps its own until the backward pass anyway
    for unit in inner:
        unit.set_reshard_after_forward(False, recurse=False)
    for unit in units:
        unit.unshard()
    try:
        yield
    finally:
        for unit in units:
            unit.reshard()
        for unit in inner:
            unit.set_reshard_after_forward(True, recurse=False)


class Gathering:
    """Tensors whose shards are put together one at a time, by all processes in the same order: that of writing.

    Args:
        groups: group -> name -> tensor, some of them shards.
    """

    def __init__(self, groups: Mapping[str, Mapping[str, Tensor]]) -> None:
        self.groups = groups
        self._left = deque(group[name] for group in groups.values() for name in write_order(group))

    def take(self, tensor: Tensor) -> Tensor:
        """Return the next tensor, whole; the others have to take part, by :meth:`take_rest`."""
        following = self._left.popleft()
        if following is not tensor:
            raise ValueError("tensors are put together in the order in which they are written")
        return _whole(tensor)

    def take_rest(self) -> None:
        """Take part in what is left: all of it where another process writes, the rest where writing failed."""
        while self._left:
            _whole(self._left.popleft())


def _whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """Return a whole tensor laid out as a parameter is: on its device, as a shard if it is one. A shard stays one."""
    if hasattr(tensor, "device_mesh"):
        return tensor
    if not hasattr(parameter, "device_mesh"):
        return tensor.to(parameter.device)
    from torch.distributed.tensor import distribute_tensor

    mesh, places = parameter.device_mesh, parameter.placements  # type: ignore[attr-defined]
    return distribute_tensor(tensor.to(parameter.device), mesh, places, src_data_rank=None)


def load_whole(model: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copy tensors into a model: whole ones, or shards laid out as its own are.

    Raises:
        RunError: a name or a shape differs from the model's.
    """
    own = model.state_dict(keep_vars=True)
    load_model(model, {name: like(t, own[name]) if name in own else t for name, t in tensors.items()}, where)


def _shard(model: nn.Module, device: torch.device) -> nn.Module:
    """Shard each layer of the model's stacks by itself, then what is left."""
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < _NEEDED:
        raise RecipeError(f"training.sharding = full wants torch 2.6 or later, not {torch.__version__}")
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    # It warns that nobody may write into a layer's output that is a view, as an LSTM's is. No model here does.
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module", category=UserWarning)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for layer in _own_layers(model):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def _own_layers(model: nn.Module) -> list[nn.Module]:
    """Return the layers of the model's stacks that share no parameter, such as a rule, with another module."""
    layers = [layer for layer in _stacked(model) if any(True for _ in layer.parameters())]
    owners = Counter(parameter for layer in layers for parameter in set(layer.parameters()))
    return [layer for layer in layers if all(owners[parameter] == 1 for parameter in layer.parameters())]


def _stacked(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the layers of all stacks below a module; a stack's composition is no layer, and belongs to the module."""
    for child in module.children():
        if isinstance(child, Stack | nn.ModuleList):
            yield from child
        else:
            yield from _stacked(child)
