"""phmctl: sequence models whose linear layers are parameterized hypercomplex multiplications.

:class:`PHMLinear`, :class:`PHMEmbedding`, :class:`PHMLSTM` and :class:`PHMConv2d` (1d, 3d) replace torch's layers.
:func:`convert` parametrizes the weights of any model with :class:`Kronecker`, :func:`heal` trains it to answer as
before, :func:`to_dense` computes dense weights, :func:`parameter_groups` sets learning rates for the factors, and
:func:`step` builds each H once for an optimiser step. :func:`save` and :func:`load_into` store converted models,
:func:`from_pretrained` reads those of `transformers`. :func:`load` returns the :class:`Translator` or
:class:`Classifier` of a run or an export. :func:`prepare`, :func:`train`, :func:`distil`, :func:`evaluate`,
:func:`compare` and :func:`count_parameters` are the commands of the same names. All names are imported on first use, so
that ``import phmctl`` does not load torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from phmctl.version import __version__

__all__ = [
    "PHMLSTM",
    "Classified",
    "Classifier",
    "Kronecker",
    "PHMConv1d",
    "PHMConv2d",
    "PHMConv3d",
    "PHMEmbedding",
    "PHMLinear",
    "Translation",
    "Translator",
    "__version__",
    "compare",
    "convert",
    "count_parameters",
    "distil",
    "evaluate",
    "from_pretrained",
    "heal",
    "load",
    "load_into",
    "parameter_groups",
    "prepare",
    "save",
    "step",
    "to_dense",
    "train",
]

if TYPE_CHECKING:
    from phmctl.answering.classifier import Classified, Classifier
    from phmctl.answering.translator import Translation, Translator
    from phmctl.distillation import distil
    from phmctl.healing import heal
    from phmctl.nn.convert import convert, to_dense
    from phmctl.nn.convolution import PHMConv1d, PHMConv2d, PHMConv3d
    from phmctl.nn.embedding import PHMEmbedding
    from phmctl.nn.linear import PHMLinear
    from phmctl.nn.lstm import PHMLSTM
    from phmctl.nn.parametrization import Kronecker
    from phmctl.nn.rates import parameter_groups
    from phmctl.nn.step import step
    from phmctl.results.compare import compare
    from phmctl.results.counting import count_parameters
    from phmctl.saving import from_pretrained, load_into, save
    from phmctl.verbs import evaluate, load, prepare, train

_MODULES = {
    "PHMLSTM": "nn.lstm",
    "Classified": "answering.classifier",
    "Classifier": "answering.classifier",
    "Kronecker": "nn.parametrization",
    "PHMConv1d": "nn.convolution",
    "PHMConv2d": "nn.convolution",
    "PHMConv3d": "nn.convolution",
    "PHMEmbedding": "nn.embedding",
    "PHMLinear": "nn.linear",
    "Translation": "answering.translator",
    "Translator": "answering.translator",
    "compare": "results.compare",
    "convert": "nn.convert",
    "count_parameters": "results.counting",
    "distil": "distillation",
    "evaluate": "verbs",
    "from_pretrained": "saving",
    "heal": "healing",
    "load": "verbs",
    "load_into": "saving",
    "parameter_groups": "nn.rates",
    "prepare": "verbs",
    "save": "saving",
    "step": "nn.step",
    "to_dense": "nn.convert",
    "train": "verbs",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    if name not in _MODULES:
        raise AttributeError(f"module 'phmctl' has no attribute {name!r}")
    return getattr(import_module(f"phmctl.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
