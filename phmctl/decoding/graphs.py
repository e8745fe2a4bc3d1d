"""Decoding steps as CUDA graphs: a step is one launch, where eager torch launches some twenty kernels a layer.

A step is recorded once for each of a few shapes (:class:`phmctl.models.static_state.Shape`) and replayed for all later
ones. The graphs belong to the scope of ``phmctl.cached()`` that holds the H they multiply by, and end with it. On a CPU
the same steps run unrecorded, which is good for tests alone.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache

import torch
from torch import Tensor

from phmctl.backends import choices
from phmctl.backends.choices import taken_from
from phmctl.console import warn
from phmctl.models.state import DecoderState, Memory
from phmctl.models.static_state import Shape, StaticState
from phmctl.models.transformer import Transformer
from phmctl.nn.caching import values_of

_KEPT = "steps"  # what the scope holds of the model
_MOST = 32  # shapes that are kept, each with a past of its own
_WARM = 2  # steps before one is recorded: libraries allocate, choices are made, H is built


class _Step:
    """A model's step for one shape: its state, what goes in, and what comes out."""

    def __init__(self, model: Transformer, like: DecoderState | StaticState, shape: Shape) -> None:
        self._model, self.state = model, StaticState(like, shape, model.positions)
        self._tokens = torch.zeros(shape.sentences, shape.beams, dtype=torch.long, device=self.state.place.device)
        self._run: Callable[[], Tensor] = self._compute
        if self._tokens.is_cuda:
            with torch.cuda.device(self._tokens.device):
                self._run = self._recorded()

    def __call__(self, tokens: Tensor) -> Tensor:
        """Take one step: tokens (B, K) to logits (B, K, V), which the next step overwrites."""
        count = self.state.count
        self._tokens[:count] = tokens
        logits = self._run()
        self.state.position += 1
        return logits[:count]

    def _compute(self) -> Tensor:
        self.state.begin()
        return self._model.step(self._tokens, self.state)

    def _recorded(self) -> Callable[[], Tensor]:
        (warm, recorder), graph = _streams(self._tokens.device), torch.cuda.CUDAGraph()
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm), taken_from({}):  # no choice is put off: the graph keeps what it is recorded with
            for _ in range(_WARM):
                self._compute()
        torch.cuda.current_stream().wait_stream(warm)
        try:
            # Others may search meanwhile, but neither record nor measure. The stream is left if recording fails too.
            with (
                choices.alone,
                torch.cuda.stream(recorder),
                torch.cuda.graph(graph, stream=recorder, capture_error_mode="thread_local"),
            ):
                logits = self._compute()
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warn(f"a decoding step runs as it stands, for no CUDA graph can hold it: {error}")
            return self._compute

        def replay() -> Tensor:
            graph.replay()
            return logits

        return replay


@lru_cache
def _streams(device: torch.device) -> "tuple[torch.cuda.Stream, torch.cuda.Stream]":
    """Return where steps on a GPU are tried, and where they are recorded: torch's own choice is one GPU's, for all."""
    return torch.cuda.Stream(device), torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


class _State:
    """The state of a search: as any other before its first step, and of a fixed shape from then on."""

    def __init__(self, model: Transformer, first: DecoderState, steps: dict[Shape, list[_Step]]) -> None:
        self._model, self._steps = model, steps
        self._first = first
        self._taken: _Step | None = None

    def step(self, tokens: Tensor) -> Tensor:
        now = self._first if self._taken is None else self._taken.state
        if now.position == 0:
            return self._model.step(tokens, now)
        taken = self._taken
        if taken is None or now.position == taken.state.shape.room:
            taken = self._move(now)
        return taken(tokens)

    def _move(self, now: DecoderState | StaticState) -> "_Step":
        """Take, or make, a step with room for the next position, and put the state there."""
        shape = Shape.around(now)
        taken = self._step_for(now, shape)
        if isinstance(now, StaticState):
            now.settle()
        taken.state.load(now)
        self.release()
        self._taken = taken
        return taken

    def _step_for(self, now: DecoderState | StaticState, shape: Shape) -> _Step:
        """Return a step that nobody takes, or a new one."""
        with suppress(IndexError):  # another thread may have taken the last
            return self._steps.get(shape, []).pop()
        with torch.inference_mode(False), torch.no_grad():  # later searches may be in it or not
            return _Step(self._model, now, shape)

    def reorder(self, parents: Tensor, sentences: Tensor | None = None) -> None:
        """Let each beam continue from another of its sentence; see :class:`phmctl.decoding.beam.State`."""
        (self._first if self._taken is None else self._taken.state).reorder(parents, sentences)

    def release(self) -> None:
        """Leave the step to later searches."""
        if self._taken is not None:
            shape = self._taken.state.shape
            self._steps[shape] = [*self._steps.pop(shape, []), self._taken]  # the newest last
            self._taken = None
            with suppress(KeyError, RuntimeError):  # of another thread, that drops one too
                while len(self._steps) > _MOST:
                    self._steps.pop(next(iter(self._steps)))


class Graphed:
    """A model as beam search wants it, for one search: its steps are replayed.

    Args:
        model: in evaluation mode.
    """

    def __init__(self, model: Transformer) -> None:
        self._model = model
        self._states: list[_State] = []
        self.encode = model.encode

    def start(self, memory: Memory, beams: int, max_length: int) -> _State:
        """Return the state before the first token."""
        held = values_of(self._model)
        steps = {} if held is None else held.setdefault(_KEPT, {})
        self._states.append(_State(self._model, self._model.start(memory, beams, max_length), steps))
        return self._states[-1]

    def step(self, tokens: Tensor, state: _State) -> Tensor:
        """Return the logits (B, K, V) behind one more token (B, K) of each prefix; the next step overwrites them."""
        return state.step(tokens)

    def release(self) -> None:
        """The search is over: leave what was recorded to later ones."""
        while self._states:
            self._states.pop().release()
