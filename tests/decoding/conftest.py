from dataclasses import dataclass

import pytest
import torch

from phmctl.assembly import build_transformer
from phmctl.data.tokenizer import TokenizerPair, train_tokenizer
from phmctl.decoding.beam import TorchEngine
from phmctl.decoding.translator import Translator
from phmctl.models.transformer import Transformer
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection

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
    model = build_transformer(section, vocabulary, vocabulary)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.mul_(1.5 if "embedding" in name else 2.0)
    return model.eval()


@dataclass
class Kit:
    model: Transformer
    tokenizers: TokenizerPair

    def translator(self, max_tokens: int | None = None, strict: bool = False, **settings: object) -> Translator:
        section = DecodingSection(**({"beam": 3, "max_extra": 4, "max_ratio": 1.0} | settings))
        engine = TorchEngine(self.model, torch.device("cpu"))
        return Translator(engine, self.tokenizers, section, max_tokens=max_tokens, strict=strict)


@pytest.fixture(scope="session")
def kit() -> Kit:
    tokenizer = train_tokenizer(TEXT, "bpe", 320)
    return Kit(sharp_model(tokenizer.size), TokenizerPair(tokenizer, tokenizer))
