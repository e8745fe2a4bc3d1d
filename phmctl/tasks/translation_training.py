"""Train translators by cross-entropy, and validate by cross-entropy and BLEU."""

import math
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from phmctl.answering.beam import BeamEngine
from phmctl.answering.translator import Translator
from phmctl.console import silence
from phmctl.data.batches import Batch, collate, lengths_of, plan_by_tokens
from phmctl.data.prepared import PARALLEL, PreparedData, Split
from phmctl.metrics.text import bleu, check_tokenizer, usual_tokenizer
from phmctl.models.transformer import Transformer
from phmctl.processes import Processes
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import DATA, Run
from phmctl.runs.copies import EXTRAS, check_same_data, check_same_vocabulary
from phmctl.storage import write_atomic, write_json
from phmctl.tasks.base import Autocast, Cost, Rows, Task

_LINES = 256  # validation lines that are translated between two checks for a signal


class TranslationTask(Task):
    """A recipe's model on prepared parallel text."""

    def __init__(self, recipe: TranslationRecipe, prepared: PreparedData) -> None:
        self.recipe = recipe
        self.least_score = 1.0 if recipe.training.validate_bleu else -math.inf  # lower BLEU is chance
        self.prepared = prepared
        for name in prepared.splits:
            prepared.split(name)  # checks and maps the file, before a run is created or changed

    def build_model(self, device: torch.device | str | None = None) -> Transformer:
        sizes = self.prepared.tokenizers
        return Transformer(self.recipe.model, sizes.source.size, sizes.target.size, device)

    def plan(self, epoch: int) -> list[Rows]:
        training = self.recipe.training
        lengths = lengths_of(self.prepared.split("train"))
        return plan_by_tokens(lengths, training.batch_tokens, seed=training.seed, epoch=epoch)

    def cost(self, rows: Rows) -> Cost:
        split = self.prepared.split("train")
        source, target = (int(side.lengths[rows].sum()) + len(rows) for side in (split.source, split.target))
        return Cost(target, source + target)

    def collate(self, rows: Rows) -> Batch:
        return collate(self.prepared.split("train"), rows)

    def loss(self, model: nn.Module, batch: Batch) -> tuple[Tensor, int]:
        smoothing = self.recipe.training.label_smoothing
        loss, _ = model(batch.source, batch.target[:, :-1], batch.target[:, 1:], smoothing)
        return loss, batch.target_tokens

    @torch.no_grad()
    def validate(self, model: nn.Module, autocast: Autocast, processes: Processes) -> dict[str, float]:
        """Return ``loss`` (mean nats a token, not smoothed), ``perplexity`` and, if enabled, greedy ``bleu``."""
        device = next(model.parameters()).device
        split = self.prepared.split("valid")
        sums = torch.zeros(2, dtype=torch.float64, device=device)  # nats, tokens
        lengths = lengths_of(split)
        # The validation split keeps lines that are longer than a batch of the recipe.
        budget = max(self.recipe.training.batch_tokens, *(int(side.max(initial=0)) for side in lengths))
        for rows in processes.mine(plan_by_tokens(lengths, budget, seed=0, epoch=0, shuffle=False)):
            batch = collate(split, rows).to(device)
            with autocast():
                _, likelihood = model(batch.source, batch.target[:, :-1], batch.target[:, 1:], 0.0)
            sums[0] += likelihood
            sums[1] += batch.target_tokens
        nats, tokens = processes.total(sums).tolist()
        loss = nats / tokens
        metrics = {"loss": loss, "perplexity": math.exp(min(loss, 700.0))}
        if self.recipe.training.validate_bleu:
            with autocast():
                metrics["bleu"] = self._greedy_bleu(model, split, processes)
        return metrics

    def score(self, metrics: Mapping[str, float]) -> float:
        return metrics["bleu"] if "bleu" in metrics else -metrics["loss"]

    def furnish(self, run: Run) -> None:
        """Write the tokenizers, the manifest, and the lines and extras of each split except train."""
        self.prepared.tokenizers.save(run.tokenizer_folder)
        for name in self.prepared.splits:
            if name != "train":
                split = self.prepared.split(name)
                for side, lines in zip(PARALLEL, split.texts, strict=True):
                    write_atomic(run.text_folder / f"{name}.{side}", "".join(f"{line}\n" for line in lines))
                if extras := {key: values.tolist() for key, values in split.extras.items()}:
                    write_json(run.text_folder / f"{name}{EXTRAS}", extras)
        write_json(run.folder / DATA, self.prepared.manifest)

    def check_data(self, runs: Path | None = None) -> None:
        """Plan the first epoch. Raises DataError if a sentence is longer than a batch, UserError for the tokenizer."""
        if self.recipe.training.validate_bleu:
            check_tokenizer(self._bleu_tokenizer)
        self.plan(0)

    def check_run(self, run: Run) -> None:
        check_same_data(run, self.prepared)

    def check_vocabulary(self, run: Run) -> None:
        check_same_vocabulary(run, self.prepared)

    @property
    def _bleu_tokenizer(self) -> str:
        return self.recipe.training.bleu_tokenizer or usual_tokenizer(self.prepared.manifest.get("target_language"))

    @silence()  # each validation would warn about the same over-long lines
    def _greedy_bleu(self, model: nn.Module, split: Split, processes: Processes) -> float:
        settings = self.recipe.decoding.model_copy(update={"beam": 1})
        engine = BeamEngine(model, next(model.parameters()).device)
        max_tokens = self.recipe.data.max_tokens  # longer lines are truncated, as in `decode`
        translator = Translator(engine, self.prepared.tokenizers, settings, max_tokens=max_tokens)
        lines, references = split.texts
        translations = {}
        for start in processes.mine(range(0, len(lines), _LINES)):
            answers = translator.answer(lines[start : start + _LINES], first=start + 1)
            translations[start] = [text for text, _ in answers]
        by_start = {start: texts for part in processes.gather(translations) for start, texts in part.items()}
        hypotheses = [text for _, texts in sorted(by_start.items()) for text in texts]
        lowercase = self.prepared.tokenizers.target.lowercase
        return bleu(hypotheses, references, lowercase=lowercase, tokenize=self._bleu_tokenizer).value
