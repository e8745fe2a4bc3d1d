"""The loop: batches to gradients to weights; logging, validation and checkpoints at their intervals.

A step runs on the device without a wait for it: losses, norms and the NaN flag stay there until the next log line. On
the CPU, where looking costs nothing, the flag is read before each update.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from phmctl.checkpoints import Checkpoint, load_model, model_tensors, saved_steps
from phmctl.console import warn
from phmctl.data.order import ORDER
from phmctl.errors import NonFiniteError, PhmctlError
from phmctl.nn.caching import cached
from phmctl.recipe.schema import TrainingSection
from phmctl.runs import Run
from phmctl.tasks.base import ALONE
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
from phmctl.training.progress import LogLine, ProgressLine
from phmctl.training.randomness import seed_dropout
from phmctl.training.saving import Tensors, save_checkpoint, scheduled_steps
from phmctl.training.schedule import build_schedule
from phmctl.training.signals import StopRequest
from phmctl.training.state import TrainingState
from phmctl.training.stream import BatchStream
from phmctl.training.throughput import Throughput

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
    """

    task: "Task"
    settings: TrainingSection
    run: Run
    device: torch.device
    log: MetricsLog
    progress: ProgressLine
    state: TrainingState = field(default_factory=TrainingState)

    def __post_init__(self) -> None:
        torch.manual_seed(self.settings.seed)
        self.model: nn.Module = self.task.build_model(self.device)
        self.model.train()
        self.optimiser = build_optimiser(self.model, self.settings)
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._schedule = build_schedule(self.settings)
        self._autocast = build_autocast(self.device, self.settings.precision)
        self._resumed = False
        self._unsaved = True
        self._standing: int | None = None  # the step whose tensors stand in its checkpoint
        self._begin()

    def restore(self, checkpoint: Checkpoint, where: Run) -> None:
        """Continue from a checkpoint that :meth:`save` wrote: weights, moments and counters.

        Raises:
            RunError: it does not fit the model.
        """
        folder = where.checkpoints_folder
        load_model(self.model, checkpoint.tensors["model"], folder)
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
        self._stream = BatchStream(self.task, self.state.epoch, self.state.position)
        self._guard = Guard(self.device)
        if self.device.type != "cpu":
            skip_updates_when(self.optimiser, self._guard.found)
        self._loss = torch.tensor(self.state.window_loss, dtype=torch.float64, device=self.device)
        self._norm = torch.zeros((), device=self.device)
        self._replayable: list[_Step] = []
        self._throughput = Throughput(self.log.seconds)

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
            self._loop(stop)
        except torch.OutOfMemoryError as error:
            raise PhmctlError(self._out_of_memory(error)) from error
        self.save()

    def _loop(self, stop: StopRequest) -> None:
        if self._resumed:
            self._settle()
        while not self.finished and stop.received is None:
            self._step()
            self.progress.step(self.state.step)
            if self._due(self.settings.log_every):
                self._log()
            if stop.received is None:
                self._settle()

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

    def _settle(self) -> None:
        """Validate and save where due. After an interruption this makes up for what it left out."""
        state = self.state
        if state.step == 0:
            return
        validated = self._due(self.settings.validate_every) and state.validated < state.step
        improved = self._validate() if validated else False
        if improved or self._due(self.settings.save_every) or (validated and self._resumed):
            self.save()
        self._resumed = False

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
        total = torch.zeros((), device=self.device)
        for number, rows in enumerate(plan):
            seed_dropout(self.settings.seed, step, number)
            total += self._backward(self.task.collate(rows), items)
        return total

    def _backward(self, batch: "TrainingBatch", items: int) -> Tensor:
        """Add the gradient of a micro-batch's summed loss, divided by the step's items; return the summed loss."""
        with self._autocast():
            loss, _ = self.task.loss(self.model, batch.to(self.device))
        (loss / items).backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _clip(self) -> Tensor:
        """Scale the gradients down to the norm allowed; return the norm before, on the device."""
        return torch.nn.utils.clip_grad_norm_(self._parameters, self.settings.clip or math.inf)

    def _count(self, step: int, costs: Sequence["Cost"]) -> None:
        state = self.state
        targets = sum(cost.items for cost in costs)
        self._unsaved = True
        state.step = step
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

    def _validate(self) -> bool:
        """Measure the validation set; return whether this is the best so far."""
        self._check()
        self._unsaved = True
        with self._throughput.paused():
            metrics = self.evaluate()
            improved = self.state.note_score(self.task.score(metrics))
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

    def evaluate(self) -> dict[str, float]:
        """Return the validation metrics of the model as it is."""
        self.model.eval()
        try:
            with cached():
                return self.task.validate(self.model, self._autocast, ALONE)
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
            state.logged = self.log.seal(state.step)
            save_checkpoint(self.run, state, self._tensors, self.settings, standing=self._standing == state.step)
        self._standing = state.step
        self._unsaved = False

    def _tensors(self) -> Tensors:
        return {
            "model": model_tensors(self.model),
            "optimizer": optimiser_tensors(self.optimiser, self.model),
        }

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
        place = trace(self.model, lambda: self._run_again(begun))
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
