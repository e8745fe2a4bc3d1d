"""The training loop: batches, gradients, updates, log lines, validations and checkpoints.

A step does not wait for the device: losses, norms and the NaN flag stay on it until the next log line. On the CPU the
flag is read before each update. The micro-batches and random numbers of a process depend only on seed, epoch,
position, rank and number of processes, so that checkpoints contain no generator state.
"""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel

from phmctl.data.batches import RandomNumbers
from phmctl.errors import NonFiniteError, PhmctlError, RunError, lack_of_memory
from phmctl.nn.convert import to_dense
from phmctl.nn.step import Leaves
from phmctl.recipe.schema import TrainingSection
from phmctl.runs import Run
from phmctl.runs.summary import is_done
from phmctl.saving import copy_tensors, model_tensors
from phmctl.storage import (
    FORMAT,
    MOMENTS,
    Checkpoint,
    prune,
    read_state,
    saved_steps,
    step_name,
    whole_steps,
    write_checkpoint,
)
from phmctl.training.optimiser import (
    ATTENTION,
    Guard,
    build_autocast,
    build_optimiser,
    build_schedule,
    choose_rates,
    find_non_finite,
    optimiser_tensors,
    prepare_moments,
    set_learning_rate,
)
from phmctl.training.processes import Processes, ValidationStoppedError
from phmctl.training.progress import EARLY_STOP, VALIDATION, MetricsLog, ProgressLine, Throughput
from phmctl.training.signals import StopRequest

if TYPE_CHECKING:
    from phmctl.tasks.base import Rows, Task

_DROPOUT = 1  # separates dropout's random numbers from the batch order's, which use the same seed
_TIMED_STEPS = 5  # steps after which the time of the training is estimated


_Count = Annotated[int, Field(ge=0)]


class TrainingState(BaseModel):
    """The counters of a training. They contain no clock time: equal trainings have equal checkpoints."""

    model_config = ConfigDict(strict=True, extra="ignore")

    step: _Count = 0  # optimiser steps done
    epoch: _Count = 0  # epoch of the next batch
    position: _Count = 0  # place of the next batch in the epoch
    validated: _Count = 0  # step of the newest validation
    best_score: float | None = None  # higher is better
    best_loss: float | None = None  # validation loss at the best score
    best_step: _Count | None = None
    stale: _Count = 0  # validations since the best one
    target_tokens: _Count = 0  # trained on since step 1
    # Since the newest log line:
    window_loss: float = 0.0  # sum
    window_target_tokens: _Count = 0
    format: _Count = FORMAT  # changes with the order of batches, on which `position` depends

    @classmethod
    def from_json(cls, values: Mapping[str, object], checkpoint: Path) -> Self:
        """Return the state that a checkpoint stores, without unknown keys. Raises RunError if it cannot be resumed."""
        if values.get("format") != FORMAT:
            raise RunError(
                f"{checkpoint} has format {values.get('format')!r}, and this phmctl resumes format {FORMAT}: "
                "decode with it, or train again"
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            key = error.errors()[0]["loc"][0]
            raise RunError(f"{checkpoint} cannot be resumed: {key} in state.json is damaged") from None

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


class BatchStream:
    """Yields the rows of micro-batches, beginning at an epoch and position. The attributes name the next batch."""

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

    micro_batch: int  # number in the step, from 0
    piece: int  # number in the micro-batch, from 0
    rows: "Rows"  # rows of the training split
    counts: bool = True  # False for a process without rows, which only takes part in the exchange of gradients


def parts_of(plan: Sequence["Rows"], rank: int, processes: int) -> list[Part]:
    """Return the parts of a step that process `rank` computes, from the rows of the step's micro-batches.

    Process r of W gets parts r, r + W, … A part is a micro-batch. Only if there are fewer micro-batches than processes,
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
        quiet: bool = False,
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
        self.progress = ProgressLine(self.settings.steps, step, quiet=quiet or not leads)
        torch.manual_seed(self.settings.seed)
        self.model: nn.Module = task.build_model(device)
        self._compiled: Any = self.model.train()  # compiled by `begin` if the recipe says so
        self._parameters = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self._schedule = build_schedule(self.settings)
        self._autocast = build_autocast(device, self.settings.precision)
        self._leaves = Leaves(self.model)
        self._stream = BatchStream(task, self.state.epoch, self.state.position)
        self._guard = Guard(device)
        self._loss = torch.tensor(self.state.window_loss, dtype=torch.float64, device=device)
        self._norm = torch.zeros((), device=device)
        self._step_starts: dict[int, tuple[int, int]] = {}  # epoch and position of the steps since the last check
        self._throughput = Throughput(self.log.seconds)

    def begin(self, checkpoint: Checkpoint | None = None, initial: Mapping[str, Tensor] | None = None) -> None:
        """Give all processes the model and optimiser of rank 0's checkpoint, or the start of a training.

        A model that starts has random tensors, except for the tensors `initial`. Raises RunError if the checkpoint or
        the rates that the run stores do not fit the model.
        """
        tensors = model_tensors(self.model)
        folder = self.run.checkpoints_folder

        def load() -> dict[str, float]:
            for name, tensor in (initial or {}).items():
                tensors[name].copy_(tensor)
            rates = choose_rates(self.model, self.settings, self.run)
            if checkpoint is not None:
                copy_tensors(tensors, checkpoint.tensors["model"], folder)
            return rates

        rates = self.processes.from_leader(load)
        self.optimiser = build_optimiser(self.model, self.settings, rates)
        if self.device.type != "cpu":  # the fused kernels read this attribute of gradient scaling and skip bad steps
            self.optimiser.found_inf = self._guard.flag  # type: ignore[attr-defined]
        if not self._unsaved:
            moments = prepare_moments(self.optimiser, self.model)
            with self.processes.agreed():
                if checkpoint is not None:
                    copy_tensors(moments, checkpoint.tensors[MOMENTS], folder)
            self.processes.broadcast_tensors(moments.values())
        self.processes.broadcast_tensors(tensors.values())
        if self.settings.compile:
            self._compiled = torch.compile(self.model)

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
                    self.progress.step(self.state.step)
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
        self._throughput.count(sum(cost.tokens for cost in costs))

    def _gradients(self, step: int, plan: Sequence["Rows"], items: int, *, repeated: bool = False) -> Tensor:
        """Add up the gradient of the mean loss over all items of the step. Return the summed loss.

        Processes exchange gradients afterwards, unless the step is `repeated`.
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
            self.progress.say(f"about {total} on this machine for {left:,} steps, without validations")

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
        self.progress.log(state.step, f"loss {loss:.4f}  lr {rate:.2e}  {speed}  {time_left} left")
        if self._throughput.slowed(values["tokens_per_second"]):
            self.progress.say(
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
        self.progress.say(f"step {state.step}: validation {scores}{'  (best)' if improved else ''}")
        if 0 < self.settings.patience <= state.stale and state.step < self.settings.steps:
            since = "at all: no score was a number"
            values: dict[str, object] = {"validations": state.stale}
            if state.best_step is not None:
                values |= {"best_step": state.best_step, "best_score": state.best_score}
                since = f"since step {state.best_step}"
            self.log.add(EARLY_STOP, state.step, {**values, "seconds": self._throughput.elapsed})
            self.progress.say(
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
            write_checkpoint(folder, tensors, self.state.model_dump(), self.run.recipe.model.model_dump(mode="json"))
            update_pointers(self.run, self.settings)

        with self._throughput.paused():
            self.state.window_loss = self._loss.item()
            self.processes.from_leader(write)
        self._unsaved = False

    def _check(self) -> None:
        """Raise NonFiniteError if a step since the last check was not finite. Run it again to name the first bad value.

        Waits for the device. Rank 0 raises for all processes, and the others exit.
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
        rank, (_, subject) = min(enumerate(values), key=lambda item: item[1][0])
        place = f"epoch {epoch}, batch {position}"
        if self.processes.many:
            place = f"rank {rank}, {place}"
        advice = "no checkpoint is saved yet"
        if saved_steps(self.run.checkpoints_folder):
            advice = f"the checkpoints in {self.run.checkpoints_folder} are not affected"
        raise NonFiniteError(
            f"{subject} is NaN or infinite at step {bad} ({place}); {advice}\n"
            "lower training.learning_rate, lengthen training.warmup or set training.clip, then train again"
        )
