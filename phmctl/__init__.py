"""phmctl: sequence models whose linear layers are parameterized hypercomplex multiplications.

The public surface is small: :class:`PHMLinear` and :class:`PHMEmbedding` are drop-ins for ``nn.Linear`` and
``nn.Embedding``. They are imported on first use, so that ``import phmctl`` does not import torch.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["PHMEmbedding", "PHMLinear", "__version__"]

if TYPE_CHECKING:
    from phmctl.nn.embedding import PHMEmbedding
    from phmctl.nn.linear import PHMLinear


def __getattr__(name: str) -> Any:
    """Import the layers on first use (PEP 562): the command line answers ``--help`` without torch."""
    if name == "PHMLinear":
        from phmctl.nn.linear import PHMLinear

        return PHMLinear
    if name == "PHMEmbedding":
        from phmctl.nn.embedding import PHMEmbedding

        return PHMEmbedding
    raise AttributeError(f"module 'phmctl' has no attribute {name!r}")
