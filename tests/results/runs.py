"""Write runs without training: only the files that comparisons read."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from phmctl.metrics.text import all_scores
from phmctl.models import build
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.results import ScoringKey, log_line, write_result
from phmctl.saving import model_tensors
from phmctl.storage import write_atomic, write_checkpoint, write_json
from phmctl.tasks import task_of

REFERENCES = [f"the little cat number {row} sat on the old mat in the house" for row in range(24)]
SOURCES = [f"die kleine Katze {row} saß auf der alten Matte im Haus" for row in range(24)]
MACHINE = {"processor": "Test CPU", "threads": 1, "precision": "float32", "git": "abcdef0123", "device": "cpu"}


def worse(lines: Sequence[str], every: int) -> list[str]:
    """Return the lines with an error in every `every`-th of them."""
    spoilt = [line.replace("cat", "dog").replace("old mat", "rug") for line in lines]
    return [spoilt[row] if row % every == 0 else line for row, line in enumerate(lines)]


def make_run(
    root: Path,
    *,
    recipe: str = "miniature",
    settings: Sequence[str] = (),
    seed: int = 1,
    hypotheses: Sequence[str] | None = REFERENCES,
    references: Sequence[str] = REFERENCES,
    decoding: Mapping[str, Any] | None = None,
    environment: Mapping[str, Any] = MACHINE,
    rate: float = 1000.0,
    data: str = "a",
    copy: Mapping[str, float] | None = None,
    loss: float = 2.5,
) -> Run:
    """Write a finished run of a translator; `hypotheses` are its translations of the test set (None: not scored)."""
    loaded = load_recipe(recipe, [*settings, f"training.seed={seed}"])

    def fill(run: Run) -> None:
        for side, lines in (("source", SOURCES[: len(references)]), ("target", references)):
            write_atomic(run.text_folder / f"test.{side}", "".join(f"{line}\n" for line in lines))
        write_json(run.folder / "data.json", {"sources": [{"name": "train", "sha256": data}], "splits": {}})

    run = finish(Run.create(root, loaded, environment=environment, fill=fill), rate, loss)
    if hypotheses is not None:
        score(run, hypotheses, references, decoding, copy)
    return run


def make_classifier(
    root: Path,
    right: Sequence[bool],
    *,
    settings: Sequence[str] = (),
    seed: int = 1,
    recipe: str = "agreement-resplit",
    split: str = "test",
) -> Run:
    """Write a finished run of a classifier; `right` says which examples of the split it labels correctly."""
    loaded = load_recipe(recipe, [*settings, f"training.seed={seed}"])
    examples = [{"texts": [f"text {row}"], "label": "VBZ", "attractors": row % 3} for row in range(len(right))]

    def fill(run: Run) -> None:
        write_atomic(run.text_folder / f"{split}.jsonl", "".join(json.dumps(example) + "\n" for example in examples))
        write_json(run.folder / "data.json", {"sources": []})

    run = finish(Run.create(root, loaded, environment=MACHINE, fill=fill), 500.0)
    setting = ScoringKey(split, run.weights("best"))
    path = setting.path(run, "predictions.tsv")
    write_atomic(path, "label\tpredicted\n" + "".join(f"VBZ\t{'VBZ' if good else 'VBP'}\n" for good in right))
    share = sum(right) / len(right)
    write_result(run, setting, {"accuracy": {"value": share}}, path)
    return run


def finish(run: Run, rate: float, loss: float = 2.5) -> Run:
    """Write a log and a checkpoint of the last step into a run."""
    steps = run.recipe.training.steps
    entries: list[dict[str, Any]] = []
    for step in (steps // 2, steps):
        figures = {"loss": 5 - step / steps, "tokens_per_second": rate, "seconds": 60 * step / steps}
        entries.append({"event": "train", "step": step, **figures})
    entries.append({"event": "validation", "step": steps, "loss": loss, "seconds": 60.0})
    write_atomic(run.metrics_path, b"".join(map(log_line, entries)))
    state = {"step": steps, "best_step": steps, "best_score": -loss, "stale": 0}
    write_checkpoint(run.checkpoints_folder / f"step-{steps:06d}", {"model": tensors_of(run.recipe)}, state)
    for pointer in ("last", "best"):
        run.set_pointer(pointer, steps)
    return run


def tensors_of(recipe: Recipe) -> dict[str, torch.Tensor]:
    """Return the initial tensors of a recipe's model with a small vocabulary."""
    sizes = {name: min(size, 32) for name, size in task_of(recipe).sizes(recipe, None).values.items()}
    torch.manual_seed(recipe.training.seed)
    return model_tensors(build(recipe.model, sizes))


def score(
    run: Run,
    hypotheses: Sequence[str],
    references: Sequence[str] = REFERENCES,
    decoding: Mapping[str, Any] | None = None,
    copy: Mapping[str, float] | None = None,
    lowercase: bool = False,
    checkpoint: str = "best",
) -> None:
    """Write a result like ``phmctl eval``."""
    search = run.recipe.decoding.model_dump(exclude={"batch_tokens"}, exclude_none=True) | dict(decoding or {})
    settings = {"decoding": search, "lowercase": lowercase}
    setting = ScoringKey("test", run.weights(checkpoint), settings, f"beam-{search['beam']}")
    path = setting.path(run, "hyp")
    write_atomic(path, "".join(f"{line}\n" for line in hypotheses))
    scores = all_scores(hypotheses, references)
    write_result(run, setting, {"scores": [asdict(value) for value in scores], "copy": copy}, path)
