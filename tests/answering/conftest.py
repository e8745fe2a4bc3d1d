from dataclasses import dataclass

import pytest
import torch

from phmctl.answering.beam import BeamEngine
from phmctl.answering.opening import load_translator
from phmctl.answering.translator import Translator
from phmctl.data.tokenizer import TokenizerPair, train_tokenizer
from phmctl.models.transformer import Transformer
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection
from phmctl.runs import Run
from tests.tasks.classification.conftest import labelled_data, runs, small

__all__ = ["labelled_data", "runs", "small"]

TEXT = [
    "Der Hund schläft auf dem Sofa .",
    "Ein Mann liest die Zeitung .",
    "Zwei Kinder spielen im Park mit einem Ball .",
    "The dog sleeps on the sofa .",
    "A man reads the newspaper .",
    "Two children play with a ball in the park .",
] * 3


def sharp_model(vocabulary: int, seed: int = 1, **settings: object) -> Transformer:
    """Return a random model with distributions far from uniform, so that rounding cannot change the best output."""
    torch.manual_seed(seed)
    section = TransformerSection(
        **({"width": 32, "feed_forward": 64, "heads": 4, "encoder_layers": 1, "decoder_layers": 2} | settings)
    )
    model = Transformer(section, vocabulary, vocabulary)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(1.5 if "embedding" in name else 2.0)
    return model.eval()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A translator's run. Shared: do not change it."""
    from tests.tasks.translation.runs import make_run  # which imports this module

    return make_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def translator(run: Run) -> Translator:
    """The same, loaded."""
    return load_translator(run, device="cpu")


@dataclass
class Kit:
    model: Transformer
    tokenizers: TokenizerPair

    def translator(self, max_tokens: int | None = None, strict: bool = False, **settings: object) -> Translator:
        section = DecodingSection(**({"beam": 3, "max_extra": 4, "max_ratio": 1.0} | settings))
        engine = BeamEngine(self.model, torch.device("cpu"))
        return Translator(engine, self.tokenizers, section, max_tokens=max_tokens, strict=strict)


@pytest.fixture(scope="session")
def kit() -> Kit:
    tokenizer = train_tokenizer(TEXT, "bpe", 320)
    return Kit(sharp_model(tokenizer.size), TokenizerPair(tokenizer, tokenizer))
