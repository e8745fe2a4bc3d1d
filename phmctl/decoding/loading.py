"""From a run to what translates: its model, its tokenizers, its settings."""

from phmctl.assembly import build_transformer
from phmctl.checkpoints import load_model, read_checkpoint
from phmctl.data.catalog import Cleaning
from phmctl.data.copies import load_cleaning, load_tokenizers
from phmctl.decoding.torch_engine import TorchEngine
from phmctl.decoding.translator import Translator
from phmctl.devices import pick_device
from phmctl.nn.kept_factors import set_execution
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import Run


def load_translator(
    run: Run,
    checkpoint: str = "best",
    device: str = "auto",
    decoding: DecodingSection | None = None,
    *,
    cleaned: bool = False,
    keep_factors: bool = True,
) -> Translator:
    """Load a run's model and tokenizers, ready to translate.

    Args:
        run: the run.
        checkpoint: ``best``, ``last``, ``average`` or ``step-…``.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:1``.
        decoding: beam search settings other than the recipe's.
        cleaned: the lines will be the run's own text, which has been cleaned already. Twice is once too often:
            ``&amp;lt;`` stands for ``&lt;``, and that for ``<``.
        keep_factors: where the maps are to be applied by rank, write the factors that are found into the run.

    Raises:
        RunError: the checkpoint, the tokenizer or the data's manifest is missing or damaged.
    """
    tokenizers = load_tokenizers(run)
    target = pick_device(device)
    recipe = run.recipe_of(TranslationRecipe)
    model = build_transformer(recipe.model, tokenizers.source.size, tokenizers.target.size, "meta")
    folder = run.checkpoint(checkpoint)
    load_model(model, read_checkpoint(folder, ("model",)).tensors["model"], folder, target)
    model.eval()
    settings = decoding or recipe.decoding
    set_execution(model, settings.execution, folder, keep=keep_factors)
    return Translator(
        TorchEngine(model, target),
        tokenizers,
        settings,
        max_source_tokens=recipe.data.max_tokens,
        cleaning=Cleaning() if cleaned else load_cleaning(run),
    )
