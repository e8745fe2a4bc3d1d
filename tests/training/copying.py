"""A corpus that a tiny Transformer learns in seconds: sentences of made-up words, each with one translation."""

import random
from pathlib import Path
from typing import Any

from phmctl.data.prepared import PreparedData
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import ParallelSection, TranslationRecipe, TranslationTraining
from tests.data.helpers import prepare_files

_ONSETS, _VOWELS = "bdfgklmnprst", "aeiou"
_DATA = ParallelSection(card="copying", tokenizer="word", vocabulary=80, joint=False, max_tokens=16)


def prepare_copying(root: Path) -> PreparedData:
    """Write and prepare 900/60/60 pairs of 3 to 7 words from a dictionary of 30."""
    generator = random.Random(3)
    words = sorted({a + b for a in _ONSETS for b in _VOWELS})
    dictionary = dict(zip(words[:30], words[30:60], strict=True))
    files = {}
    for split, count in (("train", 900), ("valid", 60), ("test", 60)):
        source = [generator.choices(list(dictionary), k=generator.randint(3, 7)) for _ in range(count)]
        pair = root / f"{split}.source", root / f"{split}.target"
        pair[0].write_text("".join(" ".join(line) + "\n" for line in source))
        pair[1].write_text("".join(" ".join(dictionary[word] for word in line) + "\n" for line in source))
        files[split] = pair
    return prepare_files(_DATA, root=root, files=files)


def copying_recipe(*, n: int = 4, dropout: float = 0.1, rank: int | None = None, **training: Any) -> TranslationRecipe:
    """Return a recipe for a Transformer of one layer a side; with a `rank` its maps hold factors."""
    settings = {
        "steps": 300,
        "batch_tokens": 512,
        "learning_rate": 5e-3,
        "warmup": 50,
        "label_smoothing": 0.0,
        "log_every": 50,
        "validate_every": 100,
        "save_every": 100,
        "device": "cpu",
    }
    model = TransformerSection(
        algebra="phm" if n > 1 else "real",
        n=n,
        width=64,
        feed_forward=128,
        heads=2,
        encoder_layers=1,
        decoder_layers=1,
        dropout=dropout,
        share_embeddings=False,
        rank=rank,
    )
    return TranslationRecipe(
        name="copying", data=_DATA, model=model, training=TranslationTraining(**(settings | training))
    )
