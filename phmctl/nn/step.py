"""Weights H as leaf tensors of autograd for one optimiser step.

The first use of a map builds H, which all uses and micro-batches share. Its gradients add up in a buffer, in float32 or
wider. At the end one pass computes the gradients of A (or W, U and V) and S. On CUDA the maps of one shape are a group:
one product builds every H of the group, slices of one tensor. On a CPU each map is a group, so that H keeps the bits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.parametrize import ParametrizationList
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from phmctl.algebra.kronecker import kronecker_gradients, kronecker_sums
from phmctl.algebra.modes import compute_dtype, fused, needs_plain_operations, without_autocast
from phmctl.errors import UserError
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import StructuredWeight
from phmctl.nn.parametrization import Kronecker
from phmctl.nn.structures import LEAF, KroneckerSum, Tensors

GROUPED = {"cuda"}  # devices that build maps of one shape together, because launches cost time


@contextmanager
def step(model: nn.Module) -> Iterator[None]:
    """Build each H of a model once for all forward and backward passes in the block.

    ::

        with phmctl.step(model):
            for batch in micro_batches:
                loss(model, batch).backward()
        optimizer.step()

    A and S get their gradients at the end of the block, unless it raises an exception. So clear gradients before the
    block and clip them after it. ``autograd.grad`` and ``backward(inputs=...)`` do not reach A and S. Passes under
    ``no_grad`` build H each time. In ``DistributedDataParallel`` all backward passes but the last need ``no_sync``.

    Raises:
        UserError: the block contains another one of the same model, a step of the optimiser or ``create_graph``, ends
            too early, or the processes' wrapper has ``static_graph`` or ``find_unused_parameters``.
    """
    with Leaves(model).active():
        yield


class Leaves:
    """The maps of a model, in groups. See :func:`step`. A training loop keeps this object to search the model once."""

    def __init__(self, model: nn.Module) -> None:
        maps: dict[Tensor, _Map] = {}  # by S
        groups: dict[Any, list[_Map]] = {}
        for module in model.modules():
            source, tensors = _weight_of(module)
            are_parameters = all(isinstance(tensor, nn.Parameter) for tensor in tensors.values())  # not pruned
            trains = any(tensor.requires_grad and not tensor.is_meta for tensor in tensors.values())
            if source is not None and are_parameters and trains and tensors["S"] not in maps:
                entry = maps[tensors["S"]] = _Map(source, tensors, isinstance(module, PHMEmbedding))
                layout = tuple((tensor.shape, tensor.dtype, tensor.device) for tensor in tensors.values())
                entry.group = groups.setdefault((entry.structure, layout) if entry.grouped else entry, [])
                entry.group.append(entry)
        self._maps = maps

    @contextmanager
    def active(self, autocast: Callable[[], Any] | None = None, *, passes: int = 2) -> Iterator[None]:
        """Use the leaves in the block, for some passes. With an `autocast` build them at once, for a compiled model."""
        if passes == 1 and not any(entry.grouped for entry in self._maps.values()):
            yield  # each map would be built once anyway
            return
        if any(hasattr(S, LEAF) for S in self._maps):
            raise UserError("phmctl.step: a block of this model contains another one; use one block for each step")
        sums: list[_Sums] = []
        hook = register_optimizer_step_pre_hook(_refuse_step)
        try:
            for S, entry in self._maps.items():
                entry.sums = sums
                setattr(S, LEAF, entry)
            if autocast is not None:
                with autocast():
                    for entry in self._maps.values():
                        if not entry.is_table:  # a compiled lookup builds the rows of the tokens only
                            entry.leaf(entry.tensors)
            yield
            hook.remove()  # from here on A and S get gradients, and hooks of A and S may step an optimiser
            _pull_back(sums)
        finally:
            hook.remove()
            for S, entry in self._maps.items():
                delattr(S, LEAF)
                entry.leaves.clear()
            while sums:
                sums.pop().roots = []


def _pull_back(sums: "Sequence[_Sums]") -> None:
    """Compute the gradients of the parameters in one pass, so that a parameter of several maps gets one gradient."""
    pairs = [pair for built in reversed(sums) if built.used for pair in built.gradients()]
    with ExitStack() as stack:
        for device_type in {root.device.type for root, _ in pairs}:
            stack.enter_context(without_autocast(device_type))
        if pairs:
            roots, gradients = zip(*pairs, strict=True)
            torch.autograd.backward(roots, gradients)


class _Map:
    """A map of the model, which S refers to within a step."""

    group: "list[_Map]"
    sums: "list[_Sums]"  # all sums of this step

    def __init__(self, source: KroneckerSum | Kronecker, tensors: Tensors, is_table: bool) -> None:
        self.source, self.tensors, self.is_table = source, tensors, is_table
        structure: Any = source.structure if isinstance(source, Kronecker) else source
        self.structure: KroneckerSum = structure
        alone = not isinstance(source, Kronecker) or source.parts == 1
        plain = alone and self.structure.groups == 1
        self.grouped = tensors["S"].device.type in GROUPED and plain
        self.leaves: dict[torch.dtype, Tensor] = {}  # H by dtype
        self.states: dict[torch.dtype, list[tuple[object, ...]]] = {}  # states of the parameters that H was built from

    def leaf(self, tensors: Tensors) -> Tensor | None:
        """Return H, or None if it must be computed: from other, changed or frozen tensors, or without gradients."""
        compiling = torch.compiler.is_compiling()
        if not compiling:
            wrapper = DistributedDataParallel._get_active_ddp_module()  # type: ignore[no-untyped-call]
            if wrapper is not None and (wrapper.static_graph or wrapper.find_unused_parameters):
                raise UserError(
                    "phmctl.step: DistributedDataParallel must not set static_graph or find_unused_parameters"
                )
        if not torch.is_grad_enabled() or tensors.keys() != self.tensors.keys():
            return None
        if any(tensor is not self.tensors[name] for name, tensor in tensors.items()):
            return None
        dtype = compute_dtype(tensors["S"])
        if compiling:
            return self.leaves.get(dtype)
        if needs_plain_operations() or not any(tensor.requires_grad for tensor in tensors.values()):
            return None
        if dtype not in self.leaves:
            self.sums.append(_Sums(self.group, dtype))
        return self.leaves[dtype] if self.states[dtype] == self.state() else None

    def state(self) -> list[tuple[object, ...]]:
        """Return what changes if a parameter is written, gets other data, is frozen or is unfrozen."""
        return [(tensor._version, tensor.data_ptr(), tensor.requires_grad) for tensor in self.tensors.values()]


class _Sums:
    """Every H of a group in one dtype, and the gradient."""

    def __init__(self, group: Sequence[_Map], dtype: torch.dtype) -> None:
        first = group[0].tensors
        self.used: set[int] = set()  # indices of the maps that have a gradient
        # Hooks of the caller, as of gradient checkpointing, do not concern what H is built from.
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
            if not group[0].grouped:
                copies = {name: tensor.clone() for name, tensor in first.items()}  # stay if a parameter changes
                self.roots = [group[0].source.compute(copies)]  # autograd continues from the roots to the parameters
                H = self.roots[0].detach()[None]
            else:
                with without_autocast(first["S"].device.type):
                    stack: Any = partial(_Stack.apply, self.used)
                    stacks = {name: stack(*(entry.tensors[name] for entry in group)) for name in first}
                    # (m, n, n, n) and (m, n, k/n, d/n · kernel) of the m maps
                    A, S = self.roots = [group[0].structure.rule(stacks), stacks["S"].flatten(3)]
                    H = fused(kronecker_sums, S.device, A.detach(), S.detach(), dtype)
                    H = H.view(*H.shape[:2], -1, *first["S"].shape[3:])  # (m, k, d, ...)
        self.gradient = H.new_empty(0)  # gradient of H, from the first backward pass on
        for index, entry in enumerate(group):
            leaf = H[index].detach().requires_grad_()
            leaf.register_post_accumulate_grad_hook(partial(self._receive, index, H.shape))  # type: ignore[no-untyped-call]
            entry.leaves[dtype] = leaf
            entry.states[dtype] = entry.state()

    def _receive(self, index: int, shape: torch.Size, leaf: Tensor) -> None:
        """Add the gradient that a backward pass gave a leaf."""
        gradient, leaf.grad = leaf.grad, None
        if not self.roots or gradient is None:
            raise UserError("phmctl.step: a backward pass came after the block of its forward pass; move it inside")
        if gradient.requires_grad:
            raise UserError("phmctl.step: backward(create_graph=True) needs the gradients of A and S; leave the block")
        if not self.used:
            self.gradient = gradient.new_empty(shape, dtype=torch.promote_types(gradient.dtype, torch.float32))
        if index in self.used:
            self.gradient[index] += gradient.detach()
        else:
            self.gradient[index] = gradient.detach()
            self.used.add(index)

    def gradients(self) -> list[tuple[Tensor, Tensor]]:
        """Return the tensors from which autograd continues to the parameters, with the gradient of each."""
        *_, last = self.roots
        gradients: Sequence[Tensor | None] = [self.gradient[0]]
        if len(self.roots) > 1:
            for index in set(range(len(self.gradient))) - self.used:
                self.gradient[index] = 0.0
            A, S = (root.detach() for root in self.roots)
            learned = self.roots[0].requires_grad
            with without_autocast(last.device.type):
                gradients = fused(kronecker_gradients, S.device, A, S, self.gradient, learned)
        pairs = zip(self.roots, gradients, strict=True)
        return [(root, value.to(root.dtype)) for root, value in pairs if root.requires_grad and value is not None]


class _Stack(torch.autograd.Function):
    """``torch.stack``, in which maps that were not used get no gradient."""

    @staticmethod
    def forward(ctx: Any, used: set[int], *tensors: Tensor) -> Tensor:
        ctx.used = used
        return torch.stack(tensors)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, *(part if index in ctx.used else None for index, part in enumerate(gradient))


def _weight_of(module: nn.Module) -> tuple[KroneckerSum | Kronecker | None, Tensors]:
    """Return the structure or parametrization of a module's H, None without a Kronecker sum, and the tensors."""
    if isinstance(module, StructuredWeight) and isinstance(module.structure, KroneckerSum):
        return module.structure, module.tensors()
    kronecker = module[0] if isinstance(module, ParametrizationList) else None
    if isinstance(kronecker, Kronecker) and isinstance(kronecker.structure, KroneckerSum):
        return kronecker, {name: getattr(module, f"original{i}") for i, name in enumerate(kronecker.names)}
    return None, {}


def _refuse_step(optimiser: Optimizer, *_: Any) -> None:
    if any(hasattr(parameter, LEAF) for group in optimiser.param_groups for parameter in group["params"]):
        raise UserError("phmctl.step: A and S have their gradients after the block; step the optimiser there")
