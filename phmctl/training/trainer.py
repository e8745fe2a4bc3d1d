"""The training loop: from batches to gradients to weights; logging, validation and checkpoints at their intervals.

A step does not wait for the device: losses, norms and the NaN flag stay on it until the next log line. On the CPU the
flag is read before each update. The micro-batches of a process and its random numbers depend only on seed, epoch,
position, rank and number of processes, so that checkpoints contain no generator state.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from phmctl.data.batches import RandomNumbers
from phmctl.errors import NonFiniteError, PhmctlError, lack_of_memory
from phmctl.nn.convert import to_dense
from phmctl.nn.step import Leaves
from phmctl.runs import Run
from phmctl.runs.summary import is_done
from phmctl.saving import copy_tensors, model_tensors
from phmctl.storage import MOMENTS, Checkpoint, saved_steps, step_name, write_checkpoint
from phmctl.training.optimiser import (
    ATTENTION,
    build_autocast,
    build_optimiser,
    build_schedule,
    choose_rates,
    optimiser_tensors,
    prepare_moments,
    set_learning_rate,
)
from phmctl.training.processes import Processes, ValidationStoppedError
from phmctl.training.progress import EARLY_STOP, VALIDATION, MetricsLog, ProgressLine, Throughput
from phmctl.training.saving import TrainingState, update_pointers
from phmctl.training.signals import StopRequest

if TYPE_CHECKING:
    from phmctl.tasks.base import Rows, Task

_DROPOUT = 1  # separates dropout's random numbers from the batch order's, which use the same seed


class Guard:
    """Flags on the device that record the first step whose loss or gradient norm is not finite.

    From that step on the fused optimiser skips its updates, so that the weights stay as they were before it.
    """

    def __init__(self, device: torch.device) -> None:
        self.flag = torch.zeros((), dtype=torch.float32, device=device)  # 1 from the first bad step on
        self._first = torch.zeros((), dtype=torch.float64, device=device)

    def note(self, step: int, loss: Tensor, norm: Tensor) -> None:
        """Update the flags with a step's loss and gradient norm, both scalars on the device, without a host sync."""
        bad = (~(torch.isfinite(loss) & torch.isfinite(norm))).to(torch.float32)
        self._first += bad * (1 - self.flag) * step
        self.flag.copy_(torch.maximum(self.flag, bad))

    def first_bad_step(self) -> int | None:
        """Return the first bad step, or None. Waits for the device."""
        return int(self._first.item()) if self.flag.item() else None


@dataclass(frozen=True)
class NonFinite:
    """The first value of a step that is NaN or infinite."""

    stage: int  # 0: forward pass, 1: loss, 2: backward pass, 3: not reproduced
    subject: str  # of the error message
    remark: str = ""


def find_non_finite(model: nn.Module, replay: Callable[[], Tensor]) -> NonFinite:
    """Return the first value that is not finite while `replay` runs a step again and returns its loss."""
    outputs: list[tuple[str, bool]] = []  # name and finiteness of each module's output, in the order of return

    def record(name: str) -> Callable[[nn.Module, Any, Any], None]:
        return lambda module, inputs, output: outputs.append((name, _is_finite(output)))

    handles = []
    for name, module in model.named_modules():
        handles.append(module.register_forward_hook(record(name or type(module).__name__)))
    try:
        loss = replay()
    finally:
        for handle in handles:
            handle.remove()
    for name, finite in outputs:
        if not finite:
            return NonFinite(0, f"the output of {name}")
    if not _is_finite(loss):
        return NonFinite(1, "the loss", "; every module's output is finite")
    bad = [name for name, parameter in model.named_parameters() if not _is_finite(parameter.grad)]
    if not bad:
        return NonFinite(3, "a value", "; all values are finite when the step is run again")
    # The backward pass starts at the last module, so the gradient of the module that returned last failed first.
    position = {name: index for index, (name, _) in enumerate(outputs)}
    first_bad = max(bad, key=lambda name: position.get(name.rpartition(".")[0], -1))
    return NonFinite(2, f"the gradient of {first_bad}")


def _is_finite(value: Any) -> bool:
    if isinstance(value, (tuple, list)):
        return all(map(_is_finite, value))
    if isinstance(value, Tensor) and value.is_floating_point():
        return bool(torch.isfinite(value).all())
    return True


class BatchStream:
    """Yields the rows of micro-batches, beginning at an epoch and position; the attributes name the next batch."""

    def __init__(self, task: "Task", epoch: int = 0, position: int = 0) -> None:
        self._task = task
        self.epoch = epoch
        self.position = position
        self._plan = task.plan(epoch)

    def next(self, count: int) -> list["Rows"]:
        """Return the rows of the next `count` micro-batches, which may belong to two epochs."""
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
    """The rows of one forward and backward pass of a process."""

    micro_batch: int  # of the step, from 0
    piece: int  # of the micro-batch, from 0
    rows: "Rows"  # of the split
    counts: bool = True  # False for a process without rows, which only takes part in the exchange of gradients


def parts_of(plan: Sequence["Rows"], rank: int, processes: int) -> list[Part]:
    """Return the parts of a step that process `rank` computes, from the rows of the step's micro-batches.

    Process r of W gets parts r, r + W, … A part is a micro-batch; only if there are fewer micro-batches than processes,
    each is divided into k pieces, so that all processes get equally many parts. (Dividing changes dropout.) The rows of
    a micro-batch are sorted by length: a piece takes every k-th row, so that all pieces cost the same.
    """
    pieces = 1 if len(plan) >= processes else processes // math.gcd(len(plan), processes)
    parts = []
    for micro_batch, rows in enumerate(plan):
        parts += [Part(micro_batch, piece, rows[piece::pieces]) for piece in range(pieces)]
    process_parts = [part for part in parts[rank::processes] if len(part.rows)]
    return process_parts or [Part(0, 0, plan[0][:1], counts=False)]


def seed_dropout(device: torch.device, seed: int, step: int, part: Part) -> None:
    """Seed torch's generators for the forward pass of a part by seed, step, micro-batch and piece, without waiting.

    A resumed step, a repeated step and the same step on another number of processes draw the same numbers.
    """
    numbers = RandomNumbers(seed, step, part.micro_batch, part.piece, _DROPOUT)
    part_seed = int(numbers.words(1)[0])
    torch.default_generator.manual_seed(part_seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(part_seed)


class Trainer:
    """Trains a task's model into a run, as the training section of the run's recipe says.

    The model starts from a `checkpoint`, or else at random, except for the tensors `initial`. Each of several processes
    has a trainer; only rank 0 reads the checkpoint's tensors and writes files. Call :meth:`join_processes` before the
    first step. `rates` are multiples of the recipe's learning rate, by parameter; by default those that the run stores.
    Raises RunError if the checkpoint or the stored rates do not fit the model.
    """

    def __init__(
        self,
        task: "Task",
        run: Run,
        device: torch.device,
        processes: Processes | None = None,
        *,
        rates: Mapping[str, float] | None = None,
        initial: Mapping[str, Tensor] | None = None,
        checkpoint: Checkpoint | None = None,
        quiet: bool = False,
    ) -> None:
        self.task = task
        self.run = run
        self.device = device
        self.settings = run.recipe.training
        self.processes = processes or Processes()
        self.state = TrainingState() if checkpoint is None else TrainingState(**checkpoint.state)
        leads = self.processes.leads
        step = self.state.step
        board = run.folder / "tensorboard" if leads and self.settings.tensorboard else None
        self.log = MetricsLog(run.metrics_path if leads else None, step, self.state.validated, board)
        self.progress = ProgressLine(self.settings.steps, step, quiet=quiet or not leads)
        torch.manual_seed(self.settings.seed)
        self.model: nn.Module = task.build_model(device)
        tensors = model_tensors(self.model)
        for name, tensor in (initial or {}).items():
            tensors[name].copy_(tensor)
        self.rates = choose_rates(self.model, run) if rates is None else rates
        self.optimiser = build_optimiser(self.model, self.settings, self.rates)
        self._unsaved = checkpoint is None
        if checkpoint is not None:
            moments = prepare_moments(self.optimiser, self.model)
            if leads:
                copy_tensors(tensors, checkpoint.tensors["model"], run.checkpoints_folder)
                copy_tensors(moments, checkpoint.tensors[MOMENTS], run.checkpoints_folder)
        self._compiled: Any = self.model.train()  # compiled by `join_processes` if the recipe says so
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._schedule = build_schedule(self.settings)
        self._autocast = build_autocast(device, self.settings.precision)
        self._leaves = Leaves(self.model)
        self._stream = BatchStream(task, self.state.epoch, self.state.position)
        self._guard = Guard(device)
        if device.type != "cpu":  # the fused kernels read this attribute of gradient scaling and skip bad steps
            self.optimiser.found_inf = self._guard.flag  # type: ignore[attr-defined]
        self._loss = torch.tensor(self.state.window_loss, dtype=torch.float64, device=device)
        self._norm = torch.zeros((), device=device)
        self._step_starts: dict[int, tuple[int, int]] = {}  # epoch and position of the steps since the last check
        self._throughput = Throughput(self.log.seconds)

    def join_processes(self) -> None:
        """Give all processes the model and optimiser state of rank 0, and compile the model if the recipe says so."""
        self.processes.broadcast_tensors(model_tensors(self.model).values())
        self.processes.broadcast_tensors(optimiser_tensors(self.optimiser, self.model).values())
        if self.settings.compile:
            self._compiled = torch.compile(self.model)

    # ------------------------------------------------------------------------------------------------ the loop

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or patience has run out."""
        return is_done(self.state.step, self.state.stale, self.settings.steps, self.settings.patience)

    @property
    def out_of_patience(self) -> bool:
        return 0 < self.settings.patience <= self.state.stale

    @sdpa_kernel(ATTENTION)
    def fit(self, stop: StopRequest) -> bool:
        """Train until finished or asked to stop, save, and return whether the training was asked to stop.

        Raises NonFiniteError, OutputError, and PhmctlError if the device's memory is too small.
        """
        self.processes.stop = stop
        try:
            with suppress(ValidationStoppedError):
                if self.state.step:
                    self._conclude_step()  # the interruption of a resumed training may have skipped it
                while not self.finished and not self.processes.stopping():
                    self._step()
                    self.progress.step(self.state.step)
                    if self._due(self.settings.log_every):
                        self._log()
                    if not self.processes.stopping():
                        self._conclude_step()
        except (RuntimeError, MemoryError) as error:
            reason = lack_of_memory(error)
            if reason is None:
                raise
            key = self.settings.batch_key
            raise PhmctlError(
                f"after step {self.state.step}: the memory of {self.device} is too small ({reason})\n"
                f"lower training.{key} ({getattr(self.settings, key)} now) and raise training.accumulate "
                f"({self.settings.accumulate} now) by the same factor: a step then processes as much as before"
            ) from error
        self.save()
        stopped = self.processes.stopping()
        self.processes.stop = None
        return stopped

    def _due(self, interval: int) -> bool:
        return self.state.step % interval == 0 or self.state.step == self.settings.steps

    def _conclude_step(self) -> None:
        """Validate if due, then save if due or if this is the best model. Raises ValidationStoppedError."""
        validating = self._due(self.settings.validate_every) and self.state.validated < self.state.step
        improved = validating and self._validate()
        if improved or self._due(self.settings.save_every):
            self.save()

    def _step(self) -> None:
        state, stream = self.state, self._stream
        step = state.step + 1
        self._step_starts[step] = stream.epoch, stream.position
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

    def _gradients(self, step: int, plan: Sequence["Rows"], items: int, *, repeated: bool = False) -> Tensor:
        """Add up the gradient of the mean loss over all items of the step; return the summed loss.

        Processes exchange gradients afterwards; if the step is `repeated`, not at all.
        """
        total = torch.zeros((), device=self.device)
        parts = parts_of(plan, self.processes.rank, self.processes.count)
        with self._leaves.active(self._autocast if self.settings.compile else None, passes=len(parts)):
            for part in parts:
                seed_dropout(self.device, self.settings.seed, step, part)
                batch = self.task.collate(part.rows).to(self.device)
                with self._autocast():
                    loss, _ = self.task.loss(self.model if repeated else self._compiled, batch)
                scaled = loss / items if part.counts else loss * 0
                scaled.backward()  # type: ignore[no-untyped-call]
                total += loss.detach() * part.counts
        if not repeated:
            self.processes.sum_gradients(self._parameters)
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
        seconds_left = values["seconds_per_step"] * (self.settings.steps - state.step)
        time_left = timedelta(seconds=round(seconds_left))
        speed = f"{values['target_tokens_per_second']:,.0f} {self.task.unit}/s"
        rate = values["learning_rate"]
        self.progress.log(state.step, f"loss {loss:.4f}  lr {rate:.2e}  {speed}  {time_left} left")
        if state.step == self.settings.log_every < self.settings.steps:
            total = timedelta(seconds=round(values["seconds_per_step"] * self.settings.steps))
            self.progress.say(f"about {total} on this machine for all steps, without validations")
        self._loss.zero_()
        state.window_target_tokens = 0

    def _validate(self) -> bool:
        """Validate and return whether this is the best score so far. Raises ValidationStoppedError."""
        self._check()
        state = self.state
        with self._throughput.paused():
            metrics = self.evaluate()
        self._unsaved = True
        improved = state.note_score(self.task.score(metrics), metrics["loss"], self.task.least_score)
        self.log.add(VALIDATION, state.step, {**metrics, "seconds": self._throughput.elapsed})
        scores = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.progress.say(f"step {state.step}: validation {scores}{'  (best)' if improved else ''}")
        if self.out_of_patience and state.step < self.settings.steps:
            self._note_early_stop()
        return improved

    def _note_early_stop(self) -> None:
        state = self.state
        values: dict[str, Any] = {"validations": state.stale}
        since = "at all: no score was a number"
        if state.best_step is not None:
            values |= {"best_step": state.best_step, "best_score": state.best_score}
            since = f"since step {state.best_step}"
        values["seconds"] = self._throughput.elapsed
        self.log.add(EARLY_STOP, state.step, values)
        self.progress.say(
            f"stopped early at step {state.step}: no better validation {since} "
            f"(training.patience = {self.settings.patience})"
        )

    def evaluate(self) -> dict[str, float]:
        """Return the validation metrics of the current model, by its dense copy. Raises ValidationStoppedError."""
        return self.task.validate(to_dense(self.model).eval(), self._autocast, self.processes)

    def save(self) -> None:
        """Write the checkpoint of this step unless it is written, update ``last`` and ``best``, and prune old ones."""
        self._check()
        if not self._unsaved:
            return
        with self._throughput.paused():
            self.state.window_loss = self._loss.item()
            self.processes.from_leader(self._write_checkpoint)
        self._unsaved = False

    def _write_checkpoint(self) -> None:
        self.log.flush()
        if self.state.step:
            moments = optimiser_tensors(self.optimiser, self.model)
        else:
            moments = prepare_moments(self.optimiser, self.model)  # Adam creates them in step 1
        tensors = {"model": model_tensors(self.model), MOMENTS: moments}
        run = self.run
        folder = run.checkpoints_folder / step_name(self.state.step)
        write_checkpoint(folder, tensors, self.state.model_dump(), run.recipe.model.model_dump(mode="json"))
        update_pointers(run, self.settings)

    def _check(self) -> None:
        """Raise NonFiniteError if a step since the last check was not finite; run it again to name the first bad value.

        Waits for the device. Rank 0 raises for all processes; the others exit.
        """
        bad = self._guard.first_bad_step()
        if bad is None:
            self._step_starts.clear()
            return
        epoch, position = self._step_starts[bad]
        self.optimiser.zero_grad(set_to_none=True)
        plan = BatchStream(self.task, epoch, position).next(self.settings.accumulate)
        items = sum(self.task.cost(rows).items for rows in plan)
        non_finite = find_non_finite(self.model, lambda: self._gradients(bad, plan, items, repeated=True))
        values = self.processes.gather(non_finite)
        if not self.processes.leads:
            raise SystemExit(NonFiniteError.exit_code)
        rank, value = min(enumerate(values), key=lambda item: item[1].stage)
        place = f"epoch {epoch}, batch {position}"
        if self.processes.many:
            place = f"rank {rank}, {place}"
        advice = "no checkpoint is saved yet"
        if saved_steps(self.run.checkpoints_folder):
            advice = f"the checkpoints in {self.run.checkpoints_folder} are not affected"
        raise NonFiniteError(
            f"{value.subject} is NaN or infinite at step {bad} ({place}){value.remark}; {advice}\n"
            "lower training.learning_rate, lengthen training.warmup or set training.clip, then train again"
        )
