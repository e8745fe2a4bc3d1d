"""phmctl: sequence models whose linear layers are parameterized hypercomplex multiplications.

Public names: :class:`PHMLinear`, :class:`PHMEmbedding` and :class:`PHMLSTM` stand in for
``nn.Linear``, ``nn.Embedding`` and ``nn.LSTM``; :func:`convert` makes the weights of any model PHM (by
:class:`Kronecker`), :func:`to_dense` goes back; :func:`tune` measures and sets the faster execution;
:func:`parameter_groups` fits learning rates to the structure. :func:`load` makes a :class:`Model` of a run, to ask from
a program; :func:`prepare`, :func:`train`, :func:`distil`, :func:`evaluate`, :func:`compare` and
:func:`count_parameters` are the commands. All are imported on first use, so that ``import phmctl`` loads no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "PHMLSTM",
    "Classified",
    "Kronecker",
    "Model",
    "PHMEmbedding",
    "PHMLinear",
    "Translation",
    "__version__",
    "compare",
    "convert",
    "count_parameters",
    "distil",
    "evaluate",
    "load",
    "parameter_groups",
    "prepare",
    "to_dense",
    "train",
    "tune",
]

if TYPE_CHECKING:
    from phmctl.accounting.counting import count_parameters
    from phmctl.comparison.compare import compare
    from phmctl.decoding.model import Classified, Model
    from phmctl.decoding.translator import Translation
    from phmctl.distillation import distil
    from phmctl.nn.convert import Kronecker, convert, to_dense
    from phmctl.nn.embedding import PHMEmbedding
    from phmctl.nn.linear import PHMLinear
    from phmctl.nn.lstm import PHMLSTM
    from phmctl.nn.tuning import parameter_groups, tune
    from phmctl.verbs import evaluate, load, prepare, train


_HOMES = {
    name: f"phmctl.{module}"
    for module, names in {
        "accounting.counting": ("count_parameters",),
        "comparison.compare": ("compare",),
        "decoding.model": ("Classified", "Model"),
        "decoding.translator": ("Translation",),
        "distillation": ("distil",),
        "nn.convert": ("Kronecker", "convert", "to_dense"),
        "nn.embedding": ("PHMEmbedding",),
        "nn.linear": ("PHMLinear",),
        "nn.lstm": ("PHMLSTM",),
        "nn.tuning": ("parameter_groups", "tune"),
        "verbs": ("evaluate", "load", "prepare", "train"),
    }.items()
    for name in names
}


def __getattr__(name: str) -> Any:
    """Import the layers on first use (PEP 562): the command line answers ``--help`` without torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'phmctl' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
