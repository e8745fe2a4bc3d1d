"""What is to be learned: a true map, drawn from a seed, and examples of it.

Every true map is a sum of Kronecker products itself, ``H* = Σᵢ kron(A*[i], S*[i])``:

- ``hamilton`` and ``octonion``: A* is the algebra's rule and S*[i, s, t] is component i of the number by which the
  hypercomplex feature t of the input is multiplied, from the left, on its way to feature s of the output (eq. 3.4 and
  3.5).
- ``rotation-3d``: A*[0] is one rotation matrix W and S*[0] the identity; all else is zero. Each feature is a point in
  space, and all are rotated alike: y = Wx (§3.2).
"""

import zlib
from typing import NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from phmctl.algebra.kronecker import fixed_rule, kronecker_sum
from phmctl.data.copies import ADVICE, record_copies, refuse_damaged_copy
from phmctl.errors import RunError
from phmctl.files import write_atomic
from phmctl.recipe.schema import RuleDataSection
from phmctl.runs import Run

ROTATION = "rotation-3d"
TRUTH = "truth.safetensors"  # in a run, which is judged by it wherever it was moved, whatever torch draws there
EVALUATION_SAMPLES = 1000  # of the validation and of the test split
_ALGEBRA = {"hamilton": "quaternion", "octonion": "octonion"}


class Truth(NamedTuple):
    """A true map, in float64 on the CPU."""

    A: Tensor  # (n, n, n)
    S: Tensor  # (n, dims, dims)

    @property
    def H(self) -> Tensor:
        """The matrix. (d, d) with d = n·dims."""
        return kronecker_sum(self.A, self.S)


class Samples(NamedTuple):
    """Examples of a true map, in float32."""

    inputs: Tensor  # x, (N, d), standard normal
    targets: Tensor  # y = H*x, (N, d), without noise


def draw_truth(data: RuleDataSection) -> Truth:
    """Draw the true map of a recipe: the same for the same product, number of features and seed.

    Targets have about unit variance, so that losses of all products compare.
    """
    random = _generator(data.seed, "truth")
    if data.product == ROTATION:
        A = torch.zeros(3, 3, 3, dtype=torch.float64)
        A[0] = draw_rotation(random)
        S = torch.zeros(3, data.dims, data.dims, dtype=torch.float64)
        S[0] = torch.eye(data.dims)
        return Truth(A, S)
    A = fixed_rule(_ALGEBRA[data.product], dtype=torch.float64)
    n = len(A)
    S = torch.randn(n, data.dims, data.dims, generator=random, dtype=torch.float64) / (n * data.dims) ** 0.5
    return Truth(A, S)


def draw_rotation(random: torch.Generator) -> Tensor:
    """Draw a rotation of space, each as likely as another: that of a random unit quaternion. (3, 3), float64."""
    w, x, y, z = torch.nn.functional.normalize(torch.randn(4, generator=random, dtype=torch.float64), dim=0).tolist()
    return torch.tensor(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ],
        dtype=torch.float64,
    )


def draw_samples(truth: Truth, split: str, count: int, seed: int) -> Samples:
    """Draw examples: the same for the same split, count and seed, and others for another split."""
    H = truth.H
    x = torch.randn(count, H.shape[1], generator=_generator(seed, split), dtype=torch.float64)  # (N, d)
    return Samples(x.float(), (x @ H.t()).float())


def _generator(seed: int, purpose: str) -> torch.Generator:
    """Return a stream of random numbers that has nothing to do with those of other purposes."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {purpose}".encode()))


def write_truth(run: Run, data: RuleDataSection, truth: Truth) -> None:
    """Write the true map into a new run, and ``data.json`` with its SHA-256. Raises OutputError."""
    write_atomic(run.folder / TRUTH, save({"A": truth.A.contiguous(), "S": truth.S.contiguous()}))
    record_copies(run, data.model_dump(), run.folder / TRUTH)


def read_truth(run: Run) -> Truth:
    """Return the true map that a run was trained on. Raises RunError."""
    path = run.folder / TRUTH
    refuse_damaged_copy(run, path)
    try:
        return Truth(**load(path.read_bytes()))
    except (OSError, SafetensorError, TypeError) as error:
        raise RunError(f"{path} cannot be used ({error}); {ADVICE}") from error
