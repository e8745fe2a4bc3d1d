"""A whole run made in a moment: a tiny random model, its tokenizer, its text."""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from phmctl.data.tokenizer import TokenizerPair, train_tokenizer
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection, ParallelSection, TranslationRecipe, TranslationTraining
from phmctl.runs import Run
from phmctl.saving import model_tensors
from phmctl.storage import write_atomic, write_checkpoint, write_json
from phmctl.tasks import translation
from phmctl.tasks.translation import Evaluation
from tests.answering.conftest import TEXT, sharp_model

SOURCES = [*TEXT[:3], "", *TEXT[1:3], TEXT[0]]
REFERENCES = [*TEXT[3:6], "nothing .", *TEXT[4:6], TEXT[3]]


def make_run(
    root: Path,
    name: str = "tiny",
    seed: int = 1,
    references: list[str] = REFERENCES,
    maps: Mapping[str, Any] = MappingProxyType({}),
    decoding: Mapping[str, Any] = MappingProxyType({}),
) -> Run:
    """Write a run with the checkpoints step-000001 (`last`) and step-000002 (`best`)."""
    recipe = TranslationRecipe(
        name=name,
        data=ParallelSection(card="miniature", vocabulary=320, max_tokens=20),
        model=TransformerSection(width=32, feed_forward=64, heads=4, encoder_layers=1, decoder_layers=2, **maps),
        training=TranslationTraining(steps=2),
        decoding=DecodingSection(beam=3, max_ratio=1.0, max_extra=4, **decoding),
    )
    both = train_tokenizer(TEXT, "bpe", 320)

    def fill(run: Run) -> None:
        TokenizerPair(both, both).save(run.tokenizer_folder)
        for side, lines in (("source", SOURCES), ("target", references)):
            write_atomic(run.text_folder / f"test.{side}", "".join(f"{line}\n" for line in lines))
        write_json(run.folder / "data.json", {"settings": {"cleaning": {}}})

    run = Run.create(root, recipe, fill=fill)
    section = recipe.model.model_dump(mode="json")
    for step, pointer in ((1, "last"), (2, "best")):
        model = sharp_model(both.size, seed=seed * 10 + step, **maps)
        tensors = model_tensors(model)
        write_checkpoint(run.checkpoints_folder / f"step-{step:06d}", {"model": tensors}, {"step": step}, section)
        run.set_pointer(pointer, step)
    return run


def evaluate(run: Run, split: str = "test", checkpoint: str = "best", **options: Any) -> Evaluation:
    return translation.evaluate(run, split, checkpoint, "cpu", **options)
