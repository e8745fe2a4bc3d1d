"""Translation, as the commands know it."""

from __future__ import annotations  # what a method works with is imported in it: decoding with an export wants no torch

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.data.copies import read_text
from phmctl.errors import RunError, UserError
from phmctl.recipe.schema import TransformerSection, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.results import Result, Setting
from phmctl.tasks.answers import Answers, Metric, TextComparer
from phmctl.tasks.base import USUAL_COMMANDS, Asked, Candidate, Preparation, Sizes, TaskKind
from phmctl.tasks.translation.predictor import TranslationModel

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from phmctl.data.batches import Batch
    from phmctl.data.prepared.folder import PreparedData
    from phmctl.models.transformer import Transformer
    from phmctl.tasks.translation.evaluation import Evaluation, Text
    from phmctl.tasks.translation.task import TranslationTask

_SEARCH = ("beam", "alpha", "batch_tokens", "execution", "precision")


class TranslationKind(TaskKind[TranslationRecipe]):
    """Sequence to sequence: beam search, BLEU, two vocabularies."""

    recipe = TranslationRecipe
    commands = (*USUAL_COMMANDS, "bench decode")
    corpus_options = ("train", "valid", "test")
    eval_options = (*_SEARCH, "lowercase", "tokenize", "source", "reference")
    decode_options = (*_SEARCH, "n_best", "strict")
    metrics = (Metric("BLEU", tested=True), Metric("chrF2", tested=True), Metric("TER", higher=False))
    comparer = TextComparer()

    def prepare(self, asked: Preparation) -> PreparedData:
        from phmctl.tasks.translation.options import prepare_asked

        return prepare_asked(asked)

    def open(self, recipe: TranslationRecipe, data: Path) -> TranslationTask:
        from phmctl.data.prepared.folder import PreparedData
        from phmctl.tasks.translation.task import TranslationTask

        return TranslationTask(recipe, PreparedData.find(recipe.data, data))

    def sizes(self, recipe: TranslationRecipe, data: Path | None = None) -> Sizes:
        from phmctl.data.prepared.folder import trained_sizes

        trained = None if data is None else trained_sizes(recipe.data, data)
        if trained is not None:
            note = "vocabulary: {:,} source and {:,} target token types, as in the prepared data".format(*trained)
            return Sizes({"source": trained[0], "target": trained[1]}, note, trained=True)
        asked = recipe.data.vocabulary
        note = f"vocabulary: {asked:,}, as the recipe asks; a trained tokenizer may be smaller"
        return Sizes({"source": asked, "target": asked}, note)

    def build(
        self, settings: TransformerSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> Transformer:
        from phmctl.assembly import build_transformer

        return build_transformer(settings, sizes["source"], sizes["target"], device)

    def scored(self, asked: Asked) -> Evaluation:
        from phmctl.tasks.translation.evaluation import evaluate

        text, how = _scoring(asked)
        how |= {"against": asked.against, "device": asked.device, "text": text}
        return evaluate(asked.run, asked.split, asked.checkpoint, **how)

    def setting(self, asked: Asked) -> Setting:
        from phmctl.tasks.translation.evaluation import Text, setting_of

        text, how = _scoring(asked)
        return setting_of(asked.run, text or Text.of_split(asked.run, asked.split), asked.checkpoint, **how)

    def answers(self, run: Run, result: Result) -> Answers | None:
        from phmctl.tasks.translation.copies import read_extras

        if result.answers is None or "source_sha256" in result.settings:  # of text that is not the run's
            return None
        try:
            given = result.answers.read_text(encoding="utf-8").split("\n")[:-1]
        except (OSError, ValueError) as error:
            raise RunError(f"{result.answers} cannot be read ({error}); remove it and score the run anew") from error
        asked, right = (read_text(run, result.split, side) for side in ("source", "target"))
        if len(given) != len(right):
            raise RunError(f"{result.answers} has {len(given):,} lines for {len(right):,} references; remove it")
        lowercase = bool(result.settings.get("lowercase", "case:lc" in str(result.report.get("scores"))))
        tokenize = str(result.settings.get("tokenize", "13a"))
        groups = read_extras(run, result.split)
        return Answers(asked, right, given, groups, lowercase=lowercase, tokenize=tokenize)

    def answering(self, asked: Asked) -> TranslationModel:
        from phmctl.decoding.loading import load_translator
        from phmctl.decoding.settings import change_decoding

        run, given = asked.run, dict(asked.options)
        n_best, strict = given.pop("n_best", None), given.pop("strict", False)
        settings = change_decoding(run.recipe_of(TranslationRecipe).decoding, **given)
        if n_best is not None and n_best > settings.beam:
            raise UserError(f"--n-best {n_best} needs a beam at least as large; add --beam {n_best}")
        how: dict[str, Any] = {"cleaned": asked.own_text, "threads": asked.threads}
        translator = load_translator(run, asked.checkpoint, asked.device, settings, **how)
        return TranslationModel(translator, run, asked.checkpoint, n_best, strict=strict)

    def split_lines(self, run: Run, split: str) -> list[str]:
        return read_text(run, split, "source")

    def tables(self, settings: TransformerSection, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"source_embedding": sizes["source"], "target_embedding": sizes["target"], "generator": sizes["target"]}

    def notes(self, settings: TransformerSection, sizes: Mapping[str, int]) -> Iterator[str]:
        served = ["source"] * settings.share_embeddings + ["target"] + ["generator"] * (settings.generator == "tied")
        if len(served) > 1:
            yield f"one table serves {', '.join(served[:-1])} and {served[-1]}"

    def candidates(self, task: TranslationTask, device: torch.device) -> dict[str, Candidate]:
        import torch

        from phmctl.assembly import bare_transformer
        from phmctl.models.bare import bare_loss

        sizes = task.prepared.tokenizers
        model = bare_transformer(task.recipe.model, max(sizes.source.size, sizes.target.size)).to(device)
        smoothing = task.recipe.training.label_smoothing

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return bare_loss(model, batch.source, batch.target, smoothing)

        return {"nn.Transformer": Candidate(model, loss, torch.optim.Adam(model.parameters()))}


def _scoring(asked: Asked) -> tuple[Text | None, dict[str, Any]]:
    """Return the text of the user's own that is to be scored, if there is any, and the settings of the scoring."""
    from phmctl.decoding.settings import change_decoding
    from phmctl.tasks.translation.evaluation import own_text

    run, given = asked.run, dict(asked.options)
    how = {name: given.pop(name, None) for name in ("lowercase", "tokenize")}
    text = own_text(run, given.pop("source", None), given.pop("reference", None))
    if text and asked.split != "test":
        raise UserError(f"--split {asked.split} is for the run's own text, --source for other text: give one of them")
    return text, how | {"decoding": change_decoding(run.recipe_of(TranslationRecipe).decoding, **given)}


KIND = TranslationKind()
