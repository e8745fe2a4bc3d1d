"""The loop: batches to gradients to weights; logging, validation and checkpoints at their intervals.

A step runs on the device without a wait for it: losses, norms and the NaN flag stay there until the next log line. On
the CPU, where looking costs nothing, the flag is read before each update. Which micro-batches a process computes, and
its random numbers, follow from seed, epoch, position, rank and number of processes: no checkpoint holds a generator.
"""

import math
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from phmctl.checkpoints import (
    MOMENTS,
    Checkpoint,
    copy_tensors,
    model_tensors,
    saved_steps,
    step_name,
    write_checkpoint,
)
from phmctl.data.batches import RandomNumbers
from phmctl.devices import seed_generators
from phmctl.errors import NonFiniteError, PhmctlError
from phmctl.nn.convert import to_dense
from phmctl.runs import Run
from phmctl.runs.summary import is_done
from phmctl.training.optimiser import (
    build_autocast,
    build_optimiser,
    build_schedule,
    choose_rates,
    optimiser_tensors,
    prepare_moments,
    set_learning_rate,
)
from phmctl.training.processes import GivenUpError, Processes
from phmctl.training.progress import EARLY_STOP, VALIDATION, MetricsLog, ProgressLine, Throughput
from phmctl.training.saving import TrainingState, derive
from phmctl.training.signals import StopRequest

if TYPE_CHECKING:
    from phmctl.tasks.base import Rows, Task


class Guard:
    """Flags on the device: whether a step was bad, and which was the first.

    From the first bad step on the fused optimiser skips its updates, so the weights stay those from before it.
    """

    def __init__(self, device: torch.device) -> None:
        self.found = torch.zeros((), dtype=torch.float32, device=device)  # 1 from the first bad step on
        self._first = torch.zeros((), dtype=torch.float64, device=device)

    def note(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Fold one step's loss and gradient norm, both scalars on the device, into the flags. No host sync."""
        bad = (~(torch.isfinite(loss) & torch.isfinite(norm))).to(torch.float32)
        self._first += bad * (1 - self.found) * step
        self.found.copy_(torch.maximum(self.found, bad))

    def first_bad_step(self) -> int | None:
        """Return the first bad step, or None. Waits for the device."""
        return int(self._first.item()) if self.found.item() else None


def trace(model: nn.Module, replay: Callable[[], Tensor]) -> str:
    """Return, in words, where the first value that is not finite arises while `replay` runs a step again."""
    order: list[tuple[str, bool]] = []  # of modules as they return, inner before outer: name, output is finite

    def watch(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, output: order.append((name, _is_finite(output)))

    handles = [m.register_forward_hook(watch(name or type(m).__name__)) for name, m in model.named_modules()]
    try:
        loss = replay()
    finally:
        for handle in handles:
            handle.remove()
    for name, finite in order:
        if not finite:
            return f"the output of {name}"
    if not bool(torch.isfinite(loss).all()):
        return "the loss; every module's output is finite"
    last_run = {name: position for position, (name, _) in enumerate(order)}
    bad = [name for name, parameter in model.named_parameters() if not _is_finite(parameter.grad)]
    if not bad:
        return "a value that was finite when the step was run again"
    # The backward pass goes upwards: the gradient of the module that runs last went bad first.
    return f"the gradient of {max(bad, key=lambda name: last_run.get(name.rpartition('.')[0], -1))}"


def _is_finite(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_finite, value))
    return not (isinstance(value, Tensor) and value.is_floating_point()) or bool(torch.isfinite(value).all())


_DROPOUT = 1  # keeps these numbers apart from those of the order of batches, which have the seed in common


class BatchStream:
    """Gives the rows of micro-batches from an (epoch, position) on; these attributes name the next one."""

    def __init__(self, task: "Task", epoch: int = 0, position: int = 0) -> None:
        self._task = task
        self.epoch = epoch
        self.position = position
        self._plan = task.plan(epoch)

    def next(self, count: int) -> list["Rows"]:
        """Return the rows of the next `count` micro-batches; they may span two epochs."""
        rows = []
        for _ in range(count):
            if self.position >= len(self._plan):
                self.epoch, self.position = self.epoch + 1, 0
                self._plan = self._task.plan(self.epoch)
            rows.append(self._plan[self.position])
            self.position += 1
        return rows


@dataclass(frozen=True)
class Part:
    """What a process runs forward and backward in one go."""

    micro_batch: int  # of the step, counted from 0
    piece: int  # of the micro-batch, counted from 0
    rows: "Rows"  # of the split
    counts: bool = True  # if not, the process has nothing to do and only takes part in the exchange of gradients


def parts_of(plan: Sequence["Rows"], rank: int, processes: int) -> list[Part]:
    """Return the parts of a step, given as the rows of its micro-batches, of the process r of W: the r-th, r + W-th, …

    Where there are too few micro-batches each is cut into pieces, so that all processes get as many of them; where
    there are enough none is, for that would change dropout: 4 on 3 processes are 2, 1 and 1. Rows of a micro-batch are
    sorted by length, so a piece is every so many-th of them: all cost the same.
    """
    pieces = 1 if len(plan) >= processes else processes // math.gcd(len(plan), processes)
    every = [Part(number, piece, rows[piece::pieces]) for number, rows in enumerate(plan) for piece in range(pieces)]
    return [part for part in every[rank::processes] if len(part.rows)] or [Part(0, 0, plan[0][:1], counts=False)]


def seed_dropout(device: torch.device, seed: int, step: int, part: Part) -> None:
    """Seed the generators for the forward pass of one part by (seed, step, micro-batch, piece). Waits for no device.

    A resumed step, a step that is run again and the same step on another number of processes all draw the same.
    """
    numbers = RandomNumbers(seed, step, part.micro_batch, part.piece, _DROPOUT)
    seed_generators(device, int(numbers.words(1)[0]))


class Trainer:
    """Trains a task's model into a run, by the training section of the run's recipe.

    Each of `processes` has a trainer, and rank 0 writes. The model begins with the tensors `initial`, by name, and
    draws the others; or goes on from a `checkpoint` (RunError: it does not fit), whose tensors rank 0 alone needs.
    """

    def __init__(
        self,
        task: "Task",
        run: Run,
        device: torch.device,
        processes: Processes | None = None,
        *,
        initial: Mapping[str, Tensor] | None = None,
        checkpoint: Checkpoint | None = None,
        quiet: bool = False,
    ) -> None:
        self.task, self.run, self.device, self.settings = task, run, device, run.recipe.training
        self.processes = processes or Processes()
        self.state = TrainingState() if checkpoint is None else TrainingState(**checkpoint.state)
        leads, begun = self.processes.leads, self.state.step
        with self.processes.agreed():
            board = run.folder / "tensorboard" if leads and self.settings.tensorboard else None
            self.log = MetricsLog(run.metrics_path if leads else None, begun, self.state.validated, board)
        self.progress = ProgressLine(self.settings.steps, begun, quiet=quiet or not leads)
        seed_generators(device, self.settings.seed)
        self.model: nn.Module = task.build_model(device)
        tensors = model_tensors(self.model)
        for name, tensor in (initial or {}).items():
            tensors[name].copy_(tensor)
        self.optimiser = build_optimiser(self.model, self.settings, choose_rates(self.model, run, self.processes))
        self._unsaved = checkpoint is None
        if checkpoint is not None:
            self._restore(checkpoint)
        self._parallel = self.processes.data_parallel(self.model.train(), device)
        self._called: Any = torch.compile(self._parallel) if self.settings.compile else self._parallel
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._schedule = build_schedule(self.settings)
        self._autocast = build_autocast(device, self.settings.precision)
        self._stream = BatchStream(task, self.state.epoch, self.state.position)
        self._guard = Guard(device)
        if device.type != "cpu":  # by this hook of torch's gradient scaler the fused kernels skip bad steps: no wait
            self.optimiser.found_inf = self._guard.found  # type: ignore[attr-defined]
        self._loss = torch.tensor(self.state.window_loss, dtype=torch.float64, device=device)
        self._norm = torch.zeros((), device=device)
        self._begun: dict[int, tuple[int, int]] = {}  # epoch and position of steps that may have to be run again
        self._throughput = Throughput(self.log.seconds)

    def _restore(self, checkpoint: Checkpoint) -> None:
        moments = prepare_moments(self.optimiser, self.model)
        with self.processes.agreed():
            if self.processes.leads:
                folder = self.run.checkpoints_folder
                copy_tensors(model_tensors(self.model), checkpoint.tensors["model"], folder)
                copy_tensors(moments, checkpoint.tensors[MOMENTS], folder)
        self.processes.broadcast_tensors(moments.values())  # the model is sent by data_parallel()

    # ------------------------------------------------------------------------------------------------ the loop

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or patience has run out."""
        return is_done(self.state.step, self.state.stale, self.settings.steps, self.settings.patience)

    @property
    def out_of_patience(self) -> bool:
        return 0 < self.settings.patience <= self.state.stale

    def fit(self, stop: StopRequest) -> bool:
        """Train until finished or asked to stop; either way the state is saved.

        Raises:
            NonFiniteError: a loss or a gradient is NaN or infinite.
            PhmctlError: the device's memory is too small.
            OutputError: the run's folder cannot be written.
        """
        try:
            with suppress(GivenUpError):
                if self.state.step:
                    self._conclude_step(stop)  # what an interruption left out
                while not self.finished and not self._stopping(stop):
                    self._step()
                    self.progress.step(self.state.step)
                    if self._due(self.settings.log_every):
                        self._log()
                    if not self._stopping(stop):
                        self._conclude_step(stop)
        except torch.OutOfMemoryError as error:
            key, reason = self.settings.batch_key, str(error).partition(". ")[0]
            raise PhmctlError(
                f"after step {self.state.step}: the memory of {self.device} is too small ({reason})\n"
                f"lower training.{key} ({getattr(self.settings, key)} now) and raise training.accumulate "
                f"({self.settings.accumulate} now) by the same factor: a step then sees as much as before"
            ) from error
        self.save()
        return self._stopping(stop)

    def _stopping(self, stop: StopRequest) -> bool:
        """Whether any process was asked to stop; all of them have then been asked."""
        number = self.processes.largest(stop.received or 0)
        if number and stop.received is None:
            stop.received = signal.Signals(number)
        return bool(number)

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.settings.steps

    def _conclude_step(self, stop: StopRequest) -> None:
        """Validate where due, then save where due or where this is the best model. Raises GivenUpError."""
        validating = self._due(self.settings.validate_every) and self.state.validated < self.state.step
        improved = self._validate(stop) if validating else False
        if improved or self._due(self.settings.save_every):
            self.save()

    def _step(self) -> None:
        state, stream = self.state, self._stream
        step = state.step + 1
        self._begun[step] = stream.epoch, stream.position
        plan = stream.next(self.settings.accumulate)
        costs = [self.task.cost(rows) for rows in plan]
        items = sum(cost.items for cost in costs)
        loss = self._gradients(step, plan, items)
        self._norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.clip or math.inf)
        self._guard.note(step, loss, self._norm)
        if self.device.type == "cpu":
            self._check()
        set_learning_rate(self.optimiser, self._schedule(step))
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self._loss += loss
        self._unsaved = True
        state.step, state.epoch, state.position = step, stream.epoch, stream.position
        state.target_tokens += items
        state.window_target_tokens += items
        self._throughput.count(items, sum(cost.tokens for cost in costs))

    def _gradients(self, step: int, plan: Sequence["Rows"], items: int, *, again: bool = False) -> Tensor:
        """Add up the gradient of the mean loss over all items of the step; return the summed loss.

        Gradients are exchanged in a step's last backward pass only; where the step is run `again`, not at all.
        """
        total = torch.zeros((), device=self.device)
        parts = parts_of(plan, self.processes.rank, self.processes.count)
        for number, part in enumerate(parts, start=1):
            seed_dropout(self.device, self.settings.seed, step, part)
            alone = again or self._parallel is self.model or number == len(parts)
            with nullcontext() if alone else self._parallel.no_sync():  # type: ignore[operator]
                batch = self.task.collate(part.rows).to(self.device)
                with self._autocast():
                    loss, _ = self.task.loss(self.model if again else self._called, batch)
                # Data parallelism is a mean over processes where a sum is meant.
                scaled = loss / (items / self.processes.count) if part.counts else loss * 0
                scaled.backward()  # type: ignore[no-untyped-call]
                total += loss.detach() * part.counts
        return self.processes.total(total)

    # ------------------------------------------------------------------------------------- log, validate, save

    def _log(self) -> None:
        self._check()
        state = self.state
        loss = self._loss.item() / state.window_target_tokens
        values: dict[str, Any] = {
            "epoch": state.epoch,
            "loss": loss,
            "learning_rate": self._schedule(state.step),
            "gradient_norm": self._norm.item(),
            "target_tokens": state.target_tokens,
        }
        values |= self._throughput.rates()
        self.log.add("train", state.step, values)
        left = timedelta(seconds=round(values["seconds_per_step"] * (self.settings.steps - state.step)))
        rate = f"{values['target_tokens_per_second']:,.0f} {self.task.unit}/s"
        self.progress.log(state.step, f"loss {loss:.4f}  lr {values['learning_rate']:.2e}  {rate}  {left} left")
        self._loss.zero_()
        state.window_target_tokens = 0

    def _validate(self, stop: StopRequest) -> bool:
        """Measure the validation set; return whether this is the best so far. Raises GivenUpError."""
        self._check()
        state = self.state
        with self._throughput.paused():
            metrics = self.evaluate(stop)
        self._unsaved = True
        improved = state.note_score(self.task.score(metrics), metrics["loss"], self.task.least_score)
        self.log.add(VALIDATION, state.step, {**metrics, "seconds": self._throughput.elapsed})
        figures = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.progress.say(f"step {state.step}: validation {figures}{'  (best)' if improved else ''}")
        if self.out_of_patience and state.step < self.settings.steps:
            best = {} if state.best_step is None else {"best_step": state.best_step, "best_score": state.best_score}
            values = {"validations": state.stale, **best, "seconds": self._throughput.elapsed}
            self.log.add(EARLY_STOP, state.step, values)
            where = f"since step {state.best_step}" if best else "at all: no score was a number"
            self.progress.say(
                f"stopped early at step {state.step}: no better validation {where} "
                f"(training.patience = {self.settings.patience})"
            )
        return improved

    def evaluate(self, stop: StopRequest | None = None) -> dict[str, float]:
        """Return the validation metrics of the model as it is, by its dense copy. Raises GivenUpError."""
        self.processes.stop = stop
        return self.task.validate(to_dense(self.model).eval(), self._autocast, self.processes)

    def save(self) -> None:
        """Write the checkpoint of this step, move ``last`` and ``best`` to it, and prune the older ones."""
        self._check()
        if not self._unsaved:
            return
        with self._throughput.paused(), self.processes.agreed():
            self.state.window_loss = self._loss.item()
            if self.processes.leads:
                self.log.flush()
                gather = optimiser_tensors if self.state.step else prepare_moments  # before step 1 Adam has none
                tensors = {"model": model_tensors(self.model), MOMENTS: gather(self.optimiser, self.model)}
                folder = self.run.checkpoints_folder / step_name(self.state.step)
                write_checkpoint(folder, tensors, self.state.model_dump())
                derive(self.run, self.settings)
        self._unsaved = False

    # -------------------------------------------------------------------------------------------- NaN, infinity

    def _check(self) -> None:
        """Look whether a step since the last look was not finite (NonFiniteError). Waits for the device."""
        bad = self._guard.first_bad_step()
        if bad is None:
            self._begun.clear()
            return
        epoch, position = self._begun[bad]
        self.optimiser.zero_grad(set_to_none=True)
        plan = BatchStream(self.task, epoch, position).next(self.settings.accumulate)
        items = sum(self.task.cost(rows).items for rows in plan)
        places = self.processes.gather(trace(self.model, lambda: self._gradients(bad, plan, items, again=True)))
        if not self.processes.leads:
            raise SystemExit(NonFiniteError.exit_code)
        kinds = ("the output", "the loss", "the gradient")
        rank = next((rank for kind in kinds for rank, each in enumerate(places) if each.startswith(kind)), 0)
        place = f"rank {rank}: {places[rank]}" if self.processes.many else places[rank]
        folder = self.run.checkpoints_folder
        left = f"the checkpoints in {folder} are sound" if saved_steps(folder) else "there is no checkpoint yet"
        raise NonFiniteError(
            f"step {bad}: {place} is NaN or infinite (epoch {epoch}, batch {position}); {left}\n"
            "lower training.learning_rate, lengthen training.warmup or set training.clip, then train again"
        )
