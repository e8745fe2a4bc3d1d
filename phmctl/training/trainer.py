"""The training loop: batches, gradients, updates, log lines, validations and checkpoints.

A step does not wait for the device: losses, norms and the NaN flag stay on it until the next log line. On the CPU the
flag is read before each update. The micro-batches of a process depend only on seed, epoch, position, rank and
number of processes, and random numbers on seed, step, micro-batch and piece, so that checkpoints contain no generator
state.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, fields
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from phmctl.console import note
from phmctl.data.batches import BatchStream, parts_of, seed_dropout
from phmctl.devices import takes_bfloat16
from phmctl.errors import NonFiniteError, PhmctlError, RunError, lack_of_memory
from phmctl.nn.convert import to_dense
from phmctl.nn.step import Leaves
from phmctl.processes import Processes, ValidationStoppedError
from phmctl.recipe.schema import TrainingSection
from phmctl.runs import Run
from phmctl.runs.summary import is_done
from phmctl.saving import copy_tensors, model_tensors, optimiser_tensors, prepare_moments
from phmctl.signals import StopRequest
from phmctl.storage import (
    FORMAT,
    MOMENTS,
    prune,
    read_state,
    saved_steps,
    step_name,
    whole_steps,
    write_checkpoint,
)
from phmctl.training.optimiser import (
    build_optimiser,
    build_schedule,
    choose_rates,
    set_learning_rate,
)
from phmctl.training.progress import EARLY_STOP, VALIDATION, MetricsLog, Throughput

if TYPE_CHECKING:
    from phmctl.tasks.base import Autocast, Rows, Task

# Attention's kernels in training, without cuDNN's: it makes a plan for every new shape.
ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_TIMED_STEPS = 5  # steps after which the time of the training is estimated


@dataclass
class TrainingState:
    """The counters of a training. They contain no clock time: equal trainings have equal checkpoints."""

    step: int = 0  # optimiser steps done
    epoch: int = 0  # epoch of the next batch
    position: int = 0  # place of the next batch in the epoch
    validated: int = 0  # step of the newest validation
    best_score: float | None = None  # higher is better
    best_loss: float | None = None  # validation loss at the best score
    best_step: int | None = None
    stale: int = 0  # validations since the best one
    target_tokens: int = 0  # trained on since step 1
    # Since the newest log line:
    window_loss: float = 0.0  # sum
    window_target_tokens: int = 0
    format: int = FORMAT  # changes with the order of batches, on which `position` depends

    @classmethod
    def from_json(cls, values: Mapping[str, Any], checkpoint: Path) -> Self:
        """Return the state that a checkpoint stores, without unknown keys. Raises RunError if it cannot be resumed."""
        if values.get("format") != FORMAT:
            raise RunError(
                f"{checkpoint} has format {values.get('format')!r}, and this phmctl resumes format {FORMAT}: "
                "decode with it, or train again"
            )
        return cls(**{field.name: values[field.name] for field in fields(cls) if field.name in values})

    def note_score(self, score: float, loss: float, least_score: float = -math.inf) -> bool:
        """Count a validation and return whether it is the best so far: by score, and by loss if scores are equal.

        Scores below `least_score` count as equal. NaN is never the best.
        """
        self.validated = self.step
        improved = not math.isnan(score)
        if improved and self.best_score is not None:
            best_loss = math.inf if self.best_loss is None else self.best_loss
            improved = (max(score, least_score), -loss) > (max(self.best_score, least_score), -best_loss)
        if improved:
            self.best_score, self.best_loss, self.best_step = score, loss, self.step
            self.stale = 0
        else:
            self.stale += 1
        return improved


def update_pointers(run: Run, settings: TrainingSection) -> None:
    """Set ``last`` and ``best`` and remove checkpoints that are not kept. Raises OutputError.

    Both follow from the checkpoints alone: the newest complete one, and the one that the newest state calls the best.
    They are updated after every save and whenever a run is resumed, so that a kill leaves at worst outdated pointers.
    Checkpoints that an interruption or a new best score wrote do not count among the ``training.keep`` newest, so that
    the kept checkpoints do not depend on interruptions.
    """
    folder = run.checkpoints_folder
    steps = whole_steps(folder)
    if not steps:
        return
    newest = folder / step_name(steps[-1])
    state = TrainingState.from_json(read_state(newest), newest)
    best = state.best_step if state.best_step in steps else None
    run.set_pointer("last", state.step)
    run.set_pointer("best", best)
    final = state.step if is_done(state.step, state.stale, settings.steps, settings.patience) else None
    scheduled = [step for step in steps if step == final or (step and step % settings.save_every == 0)]
    kept = {state.step, *scheduled[-max(settings.keep, settings.average) :]}
    if best is not None:
        kept.add(best)
    prune(folder, kept)


def build_autocast(device: torch.device, precision: str) -> "Autocast":
    """Return a function that makes the context of a forward pass.

    ``bfloat16`` is torch's autocast, with float32 weights. A device that only emulates bfloat16 computes in float32,
    with a warning, because emulation is slower.
    """
    if precision == "float32" or not takes_bfloat16(device, "training.precision"):
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


class Guard:
    """Flags on the device that record the first step whose loss or gradient norm is not finite.

    From that step on the fused optimiser skips all updates, so that the weights stay as they were.
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


class Trainer:
    """Trains a task's model into a run, as the training section of the run's recipe says.

    Each of several processes has a trainer. Only rank 0 reads a checkpoint's tensors and writes files. Call
    :meth:`begin` before the first step. `state` is the state of the checkpoint from which the training continues.
    """

    def __init__(
        self,
        task: "Task",
        run: Run,
        device: torch.device,
        processes: Processes | None = None,
        *,
        state: TrainingState | None = None,
    ) -> None:
        self.task = task
        self.run = run
        self.device = device
        self.settings = run.recipe.training
        self.processes = processes or Processes()
        self.state = state or TrainingState()
        self._unsaved = state is None
        leads = self.processes.leads
        step = self.state.step
        board = run.folder / "tensorboard" if leads and self.settings.tensorboard else None
        self.log = MetricsLog(run.metrics_path if leads else None, step, self.state.validated, board)
        torch.manual_seed(self.settings.seed)
        self.model: nn.Module = task.build_model(device)
        self._compiled: Any = self.model.train()  # compiled by `begin` if the recipe says so
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._schedule = build_schedule(self.settings)
        self._autocast = build_autocast(device, self.settings.precision)
        self._leaves = Leaves(self.model)
        self._stream = BatchStream(task.plan, self.state.epoch, self.state.position)
        self._guard = Guard(device)
        self._loss = torch.tensor(self.state.window_loss, dtype=torch.float64, device=device)
        self._norm = torch.zeros((), device=device)

    def begin(
        self, stored: Mapping[str, Mapping[str, Tensor]] | None = None, initial: Mapping[str, Tensor] | None = None
    ) -> None:
        """Give all processes the model and optimiser of rank 0's checkpoint, or the start of a training.

        `stored` has a checkpoint's groups of tensors. A model that starts has random tensors, except for the tensors
        `initial`. Raises RunError if the checkpoint or the rates that the run stores do not fit the model.
        """
        tensors = model_tensors(self.model)
        folder = self.run.checkpoints_folder

        def load() -> dict[str, float]:
            for name, tensor in (initial or {}).items():
                tensors[name].copy_(tensor)
            rates = choose_rates(self.model, self.settings, self.run)
            if stored is not None:
                copy_tensors(tensors, stored["model"], folder)
            return rates

        rates = self.processes.from_leader(load)
        self.optimiser = build_optimiser(self.model, self.settings, rates)
        if self.device.type != "cpu":  # the fused kernels read this attribute of gradient scaling and skip bad steps
            self.optimiser.found_inf = self._guard.flag  # type: ignore[attr-defined]
        if not self._unsaved:
            moments = prepare_moments(self.optimiser, self.model)
            with self.processes.agreed():
                if stored is not None:
                    copy_tensors(moments, stored[MOMENTS], folder)
            self.processes.broadcast_tensors(moments.values())
        self.processes.broadcast_tensors(tensors.values())
        if self.settings.compile:
            self._compiled = torch.compile(self.model)
        self._throughput = Throughput(self.log.seconds)  # after loading

    # ------------------------------------------------------------------------------------------------ the loop

    @property
    def finished(self) -> bool:
        """Whether all steps are done, or patience has run out."""
        return is_done(self.state.step, self.state.stale, self.settings.steps, self.settings.patience)

    @sdpa_kernel(ATTENTION)
    def fit(self, stop: StopRequest) -> bool:
        """Train until finished or asked to stop, save, and return whether the training was asked to stop.

        Raises NonFiniteError, OutputError, and PhmctlError if the device's memory is too small.
        """
        self.processes.stop = stop
        first = self.state.step
        try:
            with suppress(ValidationStoppedError):
                if self.state.step:
                    self._conclude_step()  # the interruption of a resumed training may have skipped it
                while not self.finished and not self.processes.stopping():
                    self._step()
                    if self.state.step - first <= _TIMED_STEPS:
                        self._estimate(self.state.step - first)
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
        self._throughput.count(sum(cost.tokens for cost in costs))

    def _gradients(self, step: int, plan: Sequence["Rows"], items: int) -> Tensor:
        """Add up the gradient of the mean loss over all items of the step. Return the summed loss."""
        total = torch.zeros((), device=self.device)
        parts = parts_of(plan, self.processes.rank, self.processes.count)
        with self._leaves.active(self._autocast if self.settings.compile else None, passes=len(parts)):
            for part in parts:
                seed_dropout(self.device, self.settings.seed, step, part)
                batch = self.task.collate(part.rows).to(self.device)
                with self._autocast():
                    loss, _ = self.task.loss(self._compiled, batch)
                scaled = loss / items if part.counts else loss * 0
                scaled.backward()  # type: ignore[no-untyped-call]
                total += loss.detach() * part.counts
        self.processes.sum_gradients(self._parameters)
        return self.processes.total(total)

    # ------------------------------------------------------------------------------------- log, validate, save

    def _estimate(self, steps: int) -> None:
        """Say once how long the training takes: by the steps after the first, which is slower than the others."""
        left = self.settings.steps - self.state.step
        if steps == 1:
            self._check()  # waits for the device
            self._first_seconds = self._throughput.trained
        elif steps == _TIMED_STEPS and left:
            self._check()
            seconds = (self._throughput.trained - self._first_seconds) / (steps - 1)
            total = timedelta(seconds=round(seconds * left))
            note(f"about {total} on this machine for {left:,} steps, without validations")

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
        time_left = timedelta(seconds=round(values["seconds_per_step"] * (self.settings.steps - state.step)))
        speed = f"{values['tokens_per_second']:,.0f} tok/s"
        rate = values["learning_rate"]
        note(f"step {state.step}/{self.settings.steps}  loss {loss:.4f}  lr {rate:.2e}  {speed}  {time_left} left")
        if self._throughput.slowed(values["tokens_per_second"]):
            note(
                "less than a third of the speed of the first minute: other processes use the cores, and threads wait "
                "for each other; stop and continue with --threads 1"
            )
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
        note(f"step {state.step}: validation {scores}{'  (best)' if improved else ''}")
        if 0 < self.settings.patience <= state.stale and state.step < self.settings.steps:
            since = "at all: no score was a number"
            values: dict[str, object] = {"validations": state.stale}
            if state.best_step is not None:
                values |= {"best_step": state.best_step, "best_score": state.best_score}
                since = f"since step {state.best_step}"
            self.log.add(EARLY_STOP, state.step, {**values, "seconds": self._throughput.elapsed})
            note(
                f"stopped early at step {state.step}: no better validation {since} "
                f"(training.patience = {self.settings.patience})"
            )
        return improved

    def evaluate(self) -> dict[str, float]:
        """Return the validation metrics of the dense copy of the current model. Raises ValidationStoppedError."""
        return self.task.validate(to_dense(self.model).eval(), self._autocast, self.processes)

    def save(self) -> None:
        """Write the checkpoint of this step unless it is written, update ``last`` and ``best``, and prune old ones."""
        self._check()
        if not self._unsaved:
            return

        def write() -> None:
            self.log.flush()
            if self.state.step:
                moments = optimiser_tensors(self.optimiser, self.model)
            else:
                moments = prepare_moments(self.optimiser, self.model)  # Adam creates them in step 1
            tensors = {"model": model_tensors(self.model), MOMENTS: moments}
            folder = self.run.checkpoints_folder / step_name(self.state.step)
            write_checkpoint(folder, tensors, asdict(self.state), self.run.recipe.model.model_dump(mode="json"))
            update_pointers(self.run, self.settings)

        with self._throughput.paused():
            self.state.window_loss = self._loss.item()
            self.processes.from_leader(write)
        self._unsaved = False

    def _check(self) -> None:
        """Raise NonFiniteError if a step since the last check was not finite. Waits for the device.

        Rank 0 raises for all processes, and the others exit.
        """
        bad = self._guard.first_bad_step()
        if bad is None:
            return
        if not self.processes.leads:
            raise SystemExit(NonFiniteError.exit_code)
        advice = "no checkpoint is saved yet"
        if saved_steps(self.run.checkpoints_folder):
            advice = f"the checkpoints in {self.run.checkpoints_folder} are not affected"
        raise NonFiniteError(
            f"the loss or a gradient is NaN or infinite at step {bad}; {advice}\n"
            "lower training.learning_rate, lengthen training.warmup or set training.clip, then train again"
        )
