"""The loop: batches to gradients to weights; logging, validation and checkpoints at their intervals.

A step runs on the device without a wait for it: losses, norms and the NaN flag stay there until the next log line. On
the CPU, where looking costs nothing, the flag is read before each update.
"""

import math
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import InitVar, dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from phmctl.checkpoints import MOMENTS, Checkpoint, model_tensors, saved_steps
from phmctl.console import warn
from phmctl.data.order import ORDER
from phmctl.errors import NonFiniteError, PhmctlError
from phmctl.nn.caching import cached
from phmctl.recipe.schema import TrainingSection
from phmctl.runs import Run
from phmctl.training.division import Part, parts_of
from phmctl.training.initial import take
from phmctl.training.metrics_log import MetricsLog
from phmctl.training.nonfinite import Guard, trace
from phmctl.training.optimiser import (
    build_optimiser,
    load_optimiser,
    optimiser_tensors,
    set_learning_rate,
    skip_updates_when,
)
from phmctl.training.precision import build_autocast
from phmctl.training.processes import GivenUpError, Listening, Processes
from phmctl.training.progress import LogLine, ProgressLine
from phmctl.training.randomness import seed_dropout
from phmctl.training.saving import save_checkpoint, scheduled_steps
from phmctl.training.schedule import build_schedule
from phmctl.training.signals import StopRequest
from phmctl.training.state import TrainingState
from phmctl.training.stream import BatchStream
from phmctl.training.throughput import Throughput
from phmctl.training.wrapping import Gathering, exchanging, gathered, is_sharded, like, load_whole, wrap

if TYPE_CHECKING:
    from phmctl.tasks.base import Cost, Rows, Task, TrainingBatch


@dataclass
class _Step:
    """Where a step began: enough to run it again."""

    step: int
    epoch: int
    position: int


@dataclass
class Trainer:
    """Trains a task's model into a run.

    Args:
        task: data, model, loss and metric.
        settings: the recipe's training section.
        run: where checkpoints and metrics go.
        device: where it runs.
        log: the run's metrics.
        progress: what a person sees.
        processes: those that train together; each has a trainer, and the first one writes.
        initial: tensors that the model begins with, by name; the others are drawn.
    """

    task: "Task"
    settings: TrainingSection
    run: Run
    device: torch.device
    log: MetricsLog
    progress: ProgressLine
    state: TrainingState = field(default_factory=TrainingState)
    processes: Processes = field(default_factory=Processes)
    initial: InitVar[Mapping[str, Tensor] | None] = None

    def __post_init__(self, initial: Mapping[str, Tensor] | None) -> None:
        torch.manual_seed(self.settings.seed)
        # Shards leave the host layer by layer: a model that no device holds begins here.
        shards = self.processes.many and self.settings.sharding == "full"
        self.model: nn.Module = self.task.build_model(torch.device("cpu") if shards else self.device)
        take(self.model, initial or {})
        self.model.train()
        self._called = wrap(self.model, self.processes, self.device, self.settings.sharding)
        self.optimiser = build_optimiser(self.model, self.settings)
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._schedule = build_schedule(self.settings)
        self._autocast = build_autocast(self.device, self.settings.precision)
        self._resumed = False
        self._unsaved = True
        self._standing: int | None = None  # the step whose tensors stand in its checkpoint
        self._begin()

    def place(self, group: str, name: str, tensor: Tensor) -> Tensor:
        """Return a tensor of a checkpoint as this process holds it: its shard, or the whole on the host."""
        name = name if group == "model" else name.partition(".")[2]
        own = self.model.state_dict(keep_vars=True).get(name) if is_sharded(self._called) else None
        return tensor if own is None or tensor.shape != own.shape else like(tensor, own)

    def restore(self, checkpoint: Checkpoint, where: Run) -> None:
        """Continue from a checkpoint that :meth:`save` wrote: weights, moments and counters.

        Args:
            checkpoint: its tensors as :meth:`place` gives them.
            where: its run.

        Raises:
            RunError: it does not fit the model.
        """
        folder = where.checkpoints_folder
        load_whole(self.model, checkpoint.tensors["model"], folder)
        load_optimiser(self.optimiser, self.model, checkpoint.tensors["optimizer"])
        self.state = TrainingState.from_json(checkpoint.state)
        if self.state.order != ORDER:
            self.state.order = ORDER
            warn(
                f"{where.folder} was begun by another version of phmctl, whose batches came in another order; the rest "
                f"of epoch {self.state.epoch} may repeat some rows and leave others out"
            )
        self._resumed = True
        self._unsaved = False
        self._standing = self.state.step
        self._begin()

    def _begin(self) -> None:
        """Set up what follows from the state."""
        self.processes.note_step(self.state.step)
        self._stream = BatchStream(self.task, self.state.epoch, self.state.position)
        self._guard = Guard(self.device)
        if self.device.type != "cpu":
            skip_updates_when(self.optimiser, self._guard.found)
        self._loss = torch.tensor(self.state.window_loss, dtype=torch.float64, device=self.device)
        self._norm = torch.zeros((), device=self.device)
        self._replayable: list[_Step] = []
        self._throughput = Throughput(self.log.seconds)

    @property
    def is_sharded(self) -> bool:
        """Whether each process holds a part of the weights."""
        return is_sharded(self._called)

    def rehearse(self, batches: int) -> None:
        """Run some batches of the first epoch forward, in training and in evaluation, and change nothing.

        What is chosen at first use, :func:`~phmctl.backends.choices.choose` then has chosen.
        """
        plan = self.task.plan(0)
        for rows in plan[:: max(1, len(plan) // batches)][:batches]:
            batch = self.task.collate(rows).to(self.device)
            with self._autocast():
                self.task.loss(self.model, batch)
            self.model.eval()
            with torch.no_grad(), cached(), self._autocast():
                self.task.loss(self.model, batch)
            self.model.train()

    # ------------------------------------------------------------------------------------------------ the loop

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or patience has run out."""
        return self.state.finished(self.settings.steps, self.settings.patience)

    @property
    def out_of_patience(self) -> bool:
        """Whether so many validations in a row as ``training.patience`` says were no better."""
        return 0 < self.settings.patience <= self.state.stale

    def fit(self, stop: StopRequest) -> None:
        """Train until finished or asked to stop; either way the state is saved.

        Raises:
            NonFiniteError: a loss or a gradient is NaN or infinite.
            PhmctlError: the device's memory is too small.
            OutputError: the run's folder cannot be written.
        """
        try:
            with suppress(GivenUpError):
                self._loop(stop)
        except torch.OutOfMemoryError as error:
            raise PhmctlError(self._out_of_memory(error)) from error
        self._stopping(stop)
        self.save()

    def _loop(self, stop: StopRequest) -> None:
        if self._resumed:
            self._settle(stop)
        stopping = self._stopping(stop)
        while not self.finished and not stopping:
            self._step()
            self.progress.step(self.state.step)
            if self._due(self.settings.log_every):
                self._log()
            stopping = self._stopping(stop)
            if not stopping and self._settle(stop):
                stopping = self._stopping(stop)

    def _stopping(self, stop: StopRequest) -> bool:
        """Whether any process was asked to stop; all of them have then been asked."""
        number = self.processes.largest(stop.received or 0)
        if number and stop.received is None:
            stop.received = signal.Signals(number)
        return bool(number)

    def _out_of_memory(self, error: Exception) -> str:
        settings, reason = self.settings, str(error).partition(". ")[0]
        key = settings.batch_key
        return (
            f"after step {self.state.step}: the memory of {self.device} is too small ({reason})\n"
            f"lower training.{key} ({getattr(settings, key)} now) and raise training.accumulate "
            f"({settings.accumulate} now) by the same factor: a step then sees as much as before"
        )

    def _due(self, every: int) -> bool:
        return self.state.step % every == 0 or self.state.step == self.settings.steps

    def _settle(self, stop: StopRequest) -> bool:
        """Save and validate where due; return whether something was. After an interruption, do what it left out.

        What is due is saved before the validation, which may take longer than a scheduler waits, and again with its
        outcome.

        Raises:
            GivenUpError: a stop was asked for while validating; what was due is saved.
        """
        state = self.state
        if state.step == 0:
            return False
        due = self._due(self.settings.save_every)
        validating = self._due(self.settings.validate_every) and state.validated < state.step
        if due:
            self.save()
        improved = self._validate(stop) if validating else False
        if validating and (improved or due or self._resumed):
            self.save()
        self._resumed = False
        return due or validating

    def _step(self) -> None:
        """Do one optimiser step over `accumulate` batches."""
        step = self.state.step + 1
        self._replayable.append(_Step(step, self._stream.epoch, self._stream.position))
        plan = self._stream.take(self.settings.accumulate)
        costs = [self.task.cost(rows) for rows in plan]
        loss = self._gradients(step, plan, sum(cost.items for cost in costs))
        self._norm = self._clip()
        self._guard.note(step, loss, self._norm)
        if self.device.type == "cpu":
            self._check()
        set_learning_rate(self.optimiser, self._schedule(step))
        self.optimiser.step()
        self.optimiser.zero_grad(set_to_none=True)
        self._loss += loss
        self._count(step, costs)

    def _gradients(self, step: int, plan: Sequence["Rows"], items: int) -> Tensor:
        """Add up the gradient of the mean loss over all items of the step; return the summed loss."""
        parts = self._parts(plan)
        total = torch.zeros((), device=self.device)
        for number, part in enumerate(parts, start=1):
            seed_dropout(self.settings.seed, step, part.micro_batch, part.piece)
            with exchanging(self._called, last=number == len(parts)):
                total += self._backward(self.task.collate(part.rows), items, counts=part.counts)
        return self.processes.total(total)

    def _parts(self, plan: Sequence["Rows"]) -> list[Part]:
        """Return what this process runs of a step; where layers are shards, all run as much."""
        return parts_of(plan, self.processes.rank, self.processes.count, in_step=is_sharded(self._called))

    def _backward(self, batch: "TrainingBatch", items: int, *, counts: bool = True) -> Tensor:
        """Add the gradient of a micro-batch's summed loss, divided by the step's items; return the summed loss.

        Wrappers take the mean over processes where a sum is meant, so the loss is taken as many times.
        """
        with self._autocast():
            loss, _ = self.task.loss(self._called, batch.to(self.device))
        scaled = loss / (items / self.processes.count) if counts else loss * 0
        scaled.backward()  # type: ignore[no-untyped-call]
        return loss.detach() * counts

    def _clip(self) -> Tensor:
        """Scale the gradients down to the norm allowed; return the norm before, on the device."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.clip or math.inf)
        return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

    def _count(self, step: int, costs: Sequence["Cost"]) -> None:
        state = self.state
        targets = sum(cost.items for cost in costs)
        self._unsaved = True
        state.step = step
        self.processes.note_step(step)
        state.epoch, state.position = self._stream.epoch, self._stream.position
        state.target_tokens += targets
        state.window_target_tokens += targets
        self._throughput.count(targets, sum(cost.tokens for cost in costs))

    # ------------------------------------------------------------------------------------- log, validate, save

    def _log(self) -> None:
        self._check()
        state = self.state
        loss = self._loss.item() / state.window_target_tokens
        self._throughput.measure()
        values: dict[str, Any] = {
            "epoch": state.epoch,
            "loss": loss,
            "learning_rate": self._schedule(state.step),
            "gradient_norm": self._norm.item(),
            "target_tokens": state.target_tokens,
            **self._throughput.rates(),
        }
        self.log.add("train", state.step, values)
        left = self._throughput.seconds_a_step * (self.settings.steps - state.step)
        rate = values["target_tokens_per_second"]
        self.progress.log(LogLine(state.step, loss, values["learning_rate"], rate, left, self.task.unit))
        self._loss.zero_()
        state.window_target_tokens = 0
        self._throughput.restart()

    def _validate(self, stop: StopRequest) -> bool:
        """Measure the validation set; return whether this is the best so far. Raises GivenUpError."""
        self._check()
        with self._throughput.paused():
            metrics = self.evaluate(stop)
            self._unsaved = True
            improved = self.state.note_score(self.task.score(metrics), metrics["loss"], self.task.floor)
        self.log.add("validation", self.state.step, {**metrics, "seconds": self._throughput.elapsed})
        figures = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        self.progress.say(f"step {self.state.step}: validation {figures}{'  (best)' if improved else ''}")
        if self.out_of_patience and self.state.step < self.settings.steps:
            self._tell_early_stop()
        return improved

    def _tell_early_stop(self) -> None:
        state = self.state
        best = {} if state.best_step is None else {"best_step": state.best_step, "best_score": state.best_score}
        values = {"validations": state.stale, **best, "seconds": self._throughput.elapsed}
        self.log.add("early_stop", state.step, values)
        where = f"since step {state.best_step}" if best else "at all: no score was a number"
        self.progress.say(
            f"stopped early at step {state.step}: no better validation {where} "
            f"(training.patience = {self.settings.patience})"
        )

    def evaluate(self, stop: StopRequest | None = None) -> dict[str, float]:
        """Return the validation metrics of the model as it is; all processes measure them together.

        Raises:
            GivenUpError: `stop` was asked for meanwhile.
        """
        share = Listening(self.processes, lambda: (stop.received or 0) if stop else 0)
        self.model.eval()
        try:
            with gathered(self.model), cached():
                return self.task.validate(self.model, self._autocast, share)
        finally:
            self.model.train()

    def save(self) -> None:
        """Write the checkpoint of this step, move ``last`` and ``best`` to it, and prune the older ones.

        Raises:
            NonFiniteError: the weights come from a step that was not finite.
            OutputError: the folder cannot be written.
        """
        self._check()
        if not self._unsaved:
            return
        state = self.state
        with self._throughput.paused():
            state.window_loss = self._loss.item()
            standing = self._standing == state.step
            gathering = Gathering({} if standing else self._tensors())
            with self.processes.agreed():
                try:
                    state.logged = self.log.seal(state.step)
                    if self.processes.leads:
                        save_checkpoint(self.run, state, gathering, self.settings, standing=standing)
                finally:
                    gathering.take_rest()
        self._standing = state.step
        self._unsaved = False

    def _tensors(self) -> dict[str, dict[str, Tensor]]:
        return {"model": model_tensors(self.model), MOMENTS: optimiser_tensors(self.optimiser, self.model)}

    def scheduled_steps(self) -> list[int]:
        """Return the saved steps that belong to the interval (and the final one), ascending."""
        final = self.state.step if self.finished else None
        return scheduled_steps(self.run.checkpoints_folder, self.settings.save_every, final)

    # -------------------------------------------------------------------------------------------- NaN, infinity

    def _check(self) -> None:
        """Look whether a step since the last look was not finite. Waits for the device.

        Raises:
            NonFiniteError: one was; the message names the step and the first module.
        """
        bad = self._guard.first_bad_step()
        if bad is None:
            self._replayable.clear()
            return
        begun = next(step for step in self._replayable if step.step == bad)
        place = self._named(trace(self.model, lambda: self._run_again(begun)))
        if not self.processes.leads:
            raise SystemExit(NonFiniteError.exit_code)
        folder = self.run.checkpoints_folder
        left = f"the checkpoints in {folder} are sound" if saved_steps(folder) else "there is no checkpoint yet"
        raise NonFiniteError(
            f"step {bad}: {place} is NaN or infinite (epoch {begun.epoch}, batch {begun.position}); {left}\n"
            "lower training.learning_rate, lengthen training.warmup or set training.clip, then train again"
        )

    def _run_again(self, begun: _Step) -> Tensor:
        """Run a step's forward and backward pass again."""
        self.optimiser.zero_grad(set_to_none=True)
        plan = BatchStream(self.task, begun.epoch, begun.position).take(self.settings.accumulate)
        return self._gradients(begun.step, plan, sum(self.task.cost(rows).items for rows in plan))

    def _named(self, place: str) -> str:
        """Return the first process's place where something is not finite, of all the processes' places."""
        places = self.processes.gather(place)
        kinds = ("the output", "the loss", "the gradient")  # the others' gradients are bad too once they are exchanged
        ranks = [rank for kind in kinds for rank, each in enumerate(places) if each.startswith(kind)] or [0]
        return f"rank {ranks[0]}: {places[ranks[0]]}" if self.processes.many else place
