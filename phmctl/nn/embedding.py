"""The PHM embedding: a table that is a sum of Kronecker products (the PHM+ of the CENG501 reproduction)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phmctl.algebra.dimension import LEARNED, check_divides
from phmctl.algebra.modes import without_autocast
from phmctl.errors import DimensionError
from phmctl.nn.linear import KroneckerWeight, LowRankLinear, PHMLinear
from phmctl.nn.structures import leaf_of


class PHMEmbedding(KroneckerWeight):
    """A table ``H = Σᵢ kron(A[i], S[i])`` of V rows: Vd/n + n³ parameters instead of Vd.

    Row v is ``Σᵢ A[i, a, :] ⊗ S[i, s, :]`` with a = v // (V/n) and s = v % (V/n), so that a lookup builds
    these rows only, not the table.

    Attributes:
        A: (n, n, n), the rule: a parameter for ``phm``, a constant of a fixed algebra. Absent with n = 1.
        S: (n, V/n, d/n), the components. Absent with n = 1.
        weight: H, (V, d), for a generator that is tied to the table. With n = 1 it is a parameter.
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        *,
        n: int,
        algebra: str = LEARNED,
        padding_idx: int | None = None,
        initialization: str = "standard_normal",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a table.

        Args:
            num_embeddings: V.
            embedding_dim: d.
            n: the PHM hyperparameter. 1 is ``nn.Embedding``.
            algebra: ``phm`` for a learned rule, or a fixed algebra of dimension n.
            padding_idx: a token whose lookup gives zeros and no gradient. A negative index counts from the end. The row
                of :attr:`weight` is not zero, unlike in ``nn.Embedding``, because it shares components with other rows.
            initialization: one of :data:`~phmctl.algebra.initialisation.SCHEMES`: ``standard_normal`` as
                ``nn.Embedding``, or ``embedding``, N(0, 1/d).
            device: device of the parameters.
            dtype: dtype of the parameters.

        Raises:
            DimensionError: n does not divide V and d, n is not the algebra's dimension, or `padding_idx` is not a row.
            UserError: unknown algebra or initialization.
        """
        n = check_divides(n, num_embeddings=num_embeddings, embedding_dim=embedding_dim)
        super().__init__(num_embeddings, embedding_dim, n, algebra, device=device, dtype=dtype)
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        if padding_idx is not None and padding_idx not in range(-num_embeddings, num_embeddings):
            raise DimensionError(f"padding_idx = {padding_idx}: expected a row of the {num_embeddings}")
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.initialization = initialization
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters."""
        self.draw(self.initialization, self.embedding_dim, self.num_embeddings)

    def forward(self, ids: Tensor) -> Tensor:
        """Look up tokens, in the parameters' dtype also under autocast. Integers (...) -> (..., d)."""
        if self.n == 1:
            rows = F.embedding(ids, self.weight)  # (..., d)
        else:
            with without_autocast(self.S.device.type):  # nn.Embedding has the parameters' dtype too
                rows = self._rows(ids.reshape(-1)).view(*ids.shape, self.embedding_dim)  # (..., d)
        if self.padding_idx is None:
            return rows
        return rows.masked_fill((ids == self.padding_idx).unsqueeze(-1), 0.0)

    def _rows(self, ids: Tensor) -> Tensor:
        """Build the rows of these tokens only, unless H exists. (T,) -> (T, d)."""
        H = leaf_of(self.tensors(), lookup=True)
        if H is not None:
            return F.embedding(ids, H)
        n, height, width = self.S.shape  # n, V/n, d/n
        outer = torch.div(ids, height, rounding_mode="floor")  # (T,): a
        inner = (ids % height)[:, None] + torch.arange(n, device=ids.device) * height  # (T, i): s in component i
        rule_rows = F.embedding(outer, self.A.permute(1, 2, 0).reshape(n, n * n))  # (T, b i)
        component_rows = F.embedding(inner, self.S.reshape(n * height, width))  # (T, i, t)
        return torch.bmm(rule_rows.view(-1, n, n), component_rows).view(-1, n * width)  # (T, b t)

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return f"{self.num_embeddings}, {self.embedding_dim}, n={self.n}, algebra={self.algebra!r}{padding}"


class NarrowEmbedding(nn.Module):
    """A table of e columns and a map from e to d: V·e + e·d parameters instead of V·d (Lan et al. 2020, ALBERT, §3.1).

    Attributes:
        table: (V, e).
        map: from e to d, without bias.
        weight: the product of table and map, (V, d), computed at every use.
    """

    def __init__(self, table: PHMEmbedding, map: PHMLinear | LowRankLinear) -> None:
        super().__init__()
        self.table, self.map = table, map
        self.num_embeddings, self.embedding_dim = table.num_embeddings, map.out_features

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.map(self.table.weight)
        return weight

    def forward(self, ids: Tensor) -> Tensor:
        """Look up tokens. Integers (...) -> (..., d)."""
        rows: Tensor = self.map(self.table(ids))
        return rows
