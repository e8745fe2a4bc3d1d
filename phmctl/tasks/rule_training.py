"""Learn a multiplication rule from examples: Figure 2 of the PHM paper, and octonions beyond it.

The true map and the examples are drawn from a seed. Every true map is a sum of Kronecker products,
``H* = Σᵢ kron(A*[i], S*[i])``:

- ``hamilton`` and ``octonion``: the features are hypercomplex numbers, and y[s] = Σₜ w[s, t] · x[t] with the algebra's
  product. A* is the algebra's rule, and S*[i, s, t] is component i of the weight w[s, t] (eq. 3.4 and 3.5).
- ``rotation-3d``: the features are points in space, and one rotation is applied to all of them: y = Wx (§3.2). A*[0] is
  the rotation matrix W and S*[0] the identity. The other terms are zero.

An evaluation compares the learned map with the true map. It compares the learned rule with the true rule up to a change
of basis.
"""

import math
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.algebra.alignment import align_rules, change_basis, determined_terms
from phmctl.algebra.kronecker import fixed_rule, kronecker_sum, nearest_sum
from phmctl.console import Table
from phmctl.data.batches import RandomNumbers
from phmctl.devices import pick_device
from phmctl.errors import RunError, check_known
from phmctl.models import load as load_model
from phmctl.models.classifiers import RuleModel
from phmctl.processes import Processes
from phmctl.recipe.schema import RuleDataSection, RuleRecipe
from phmctl.runs import AUTO, DATA, Run
from phmctl.runs.copies import ADVICE
from phmctl.runs.results import ScoringKey, write_result
from phmctl.storage import file_entry, verify, write_atomic, write_json
from phmctl.tasks.base import Autocast, Cost, Rows, Task

TRUTH = "truth.safetensors"  # stored in a run, because another version of torch may draw another map
EVALUATION_SAMPLES = 1000  # size of the validation and of the test split
THRESHOLD = 1e-3  # the map and the rule are learned if the relative errors are smaller
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

    @property
    def target_tokens(self) -> int:
        return self.targets.numel()

    def to(self, device: torch.device) -> "Samples":
        return Samples(self.inputs.to(device), self.targets.to(device))


def draw_truth(data: RuleDataSection) -> Truth:
    """Draw the true map of a recipe: the same for the same product, number of features and seed.

    Targets have about unit variance, so that losses of all products compare.
    """
    random = _generator(data.seed, "truth")
    if data.product == "rotation-3d":
        A = torch.zeros(3, 3, 3, dtype=torch.float64)
        A[0] = draw_rotation(random)
        S = torch.zeros(3, data.dims, data.dims, dtype=torch.float64)
        S[0] = torch.eye(data.dims)
        return Truth(A, S)
    A = fixed_rule(_ALGEBRA[data.product], dtype=torch.float64)
    S = torch.randn(len(A), data.dims, data.dims, generator=random, dtype=torch.float64)
    return Truth(A, S / (len(A) * data.dims) ** 0.5)


def draw_rotation(random: torch.Generator) -> Tensor:
    """Draw a rotation of space from a uniform random unit quaternion. (3, 3), float64."""
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
    """Return a generator that is independent of the generators for other purposes."""
    return torch.Generator().manual_seed(zlib.crc32(f"{seed} {purpose}".encode()))


def read_truth(run: Run) -> Truth:
    """Return the true map that a run was trained on. Raises RunError."""
    verify(run.folder, run.data().get("files", []), RunError, ADVICE, [TRUTH])
    return Truth(**load((run.folder / TRUTH).read_bytes()))


class RuleTask(Task):
    """A recipe's layer, and examples of the true map that it learns."""

    least_score = -math.inf

    def __init__(self, recipe: RuleRecipe) -> None:
        self.recipe = recipe
        self.truth = draw_truth(recipe.data)
        self._train = draw_samples(self.truth, "train", recipe.data.samples, recipe.data.seed)
        self._valid = draw_samples(self.truth, "valid", EVALUATION_SAMPLES, recipe.data.seed)

    def build_model(self, device: torch.device | str | None = None) -> RuleModel:
        return RuleModel(self.recipe.model, self.truth.H.shape[1], device)

    def plan(self, epoch: int) -> list[Rows]:
        settings = self.recipe.training
        count, size = len(self._train.inputs), settings.batch_size
        order = RandomNumbers(settings.seed, epoch).permutation(count)  # (N,)
        return [order[begin : begin + size] for begin in range(0, count, size)]

    def cost(self, rows: Rows) -> Cost:
        numbers = len(rows) * self._train.targets.shape[1]
        return Cost(numbers, numbers)

    def collate(self, rows: Rows) -> Samples:
        return Samples(*(side[torch.from_numpy(rows)] for side in self._train))

    def loss(self, model: nn.Module, batch: Samples) -> tuple[Tensor, int]:
        return F.mse_loss(model(batch.inputs), batch.targets, reduction="sum"), batch.target_tokens

    @torch.no_grad()
    def validate(self, model: nn.Module, autocast: Autocast, processes: Processes) -> dict[str, float]:
        """Return ``loss``, the mean squared error of a number, and ``map_error``, the relative error of H.

        Each process computes both, because sharing the work would take longer.
        """
        with autocast():
            loss = _mean_squared_error(model, self._valid)
        return {"loss": loss, "map_error": _map_error(model, self.truth)}

    def score(self, metrics: Mapping[str, float]) -> float:
        return -metrics["loss"]

    def check_run(self, run: Run) -> None:
        if not all(map(torch.equal, read_truth(run), self.truth)):
            raise RunError(
                f"{run.folder / TRUTH} is not the map that the recipe draws here (another version of torch?): "
                "leave resume out to start a new run"
            )

    def furnish(self, run: Run) -> None:
        """Write the true map, and ``data.json`` with the map's SHA-256."""
        write_atomic(run.folder / TRUTH, save({"A": self.truth.A.contiguous(), "S": self.truth.S.contiguous()}))
        files = [file_entry(run.folder, TRUTH)]
        write_json(run.folder / DATA, {**self.recipe.data.model_dump(), "files": files})


@torch.no_grad()
def _mean_squared_error(model: nn.Module, samples: Samples) -> float:
    device = next(model.parameters()).device
    outputs = model(samples.inputs.to(device))  # (N, d)
    return F.mse_loss(outputs.float(), samples.targets.to(device)).item()


def _map_error(model: nn.Module, truth: Truth) -> float:
    weight: Tensor = model.product.weight  # type: ignore[union-attr, assignment]
    return _relative_error(weight.detach().to("cpu", torch.float64), truth.H)


def _relative_error(value: Tensor, truth: Tensor) -> float:
    return float((value - truth).norm() / truth.norm())


@dataclass(frozen=True)
class RuleComparison:
    """Differences between the learned rule and the true rule A*."""

    # H does not change if A becomes P·A and S becomes P⁻ᵀ·S. P is the basis that fits A best.
    relative_error: float  # ‖P·A − A*‖ / ‖A*‖
    span_sine: float  # sine of the largest angle between the spans of the A[i] and of the A*[i]
    components_error: float | None  # ‖P⁻ᵀ·S − S*‖ / ‖S*‖, or None if P is singular
    condition: float | None  # condition number of P in the 2-norm, or None if P is singular
    basis: list[list[float]]  # P, (n, n)


@dataclass(frozen=True)
class RuleEvaluation:
    run: str  # name of the run
    split: str  # ``test`` or ``valid``
    checkpoint: str  # the name of the checkpoint's folder
    product: str  # ``rotation-3d``, ``hamilton`` or ``octonion``
    samples: int  # number of examples, none of which is in train
    loss: float  # mean squared error of a number in the examples' targets
    map_error: float  # ‖H − H*‖ / ‖H*‖
    attainable_error: float | None  # least possible `map_error` for this n, or None if the rule is fixed or factored
    rule: RuleComparison | None
    rule_note: str | None  # the reason if the rules were not compared
    learned: bool  # whether the errors of the map and, if compared, of the rule are below :data:`THRESHOLD`

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"threshold": THRESHOLD}

    def tables(self) -> Iterator[Table]:
        rows = [
            ("loss", _number(self.loss), f"mean squared error of {self.samples:,} new examples"),
            ("H", _number(self.map_error), "‖H − H*‖ / ‖H*‖"),
        ]
        if self.attainable_error is not None:
            rows.append(("H, at best", _number(self.attainable_error), "smallest error of any rule of this n"))
        rule = self.rule
        if rule is None:
            rows.append(("rule", "–", f"not compared: {self.rule_note}"))
        else:
            condition = "–" if rule.condition is None else f"{rule.condition:.3g}"
            rows += [
                ("rule", _number(rule.relative_error), "‖P·A − A*‖ / ‖A*‖ for the best basis P"),
                ("span of the A[i]", _number(rule.span_sine), "sine of the largest angle to the span of the A*[i]"),
                ("components", _number(rule.components_error), "‖P⁻ᵀ·S − S*‖ / ‖S*‖ with the same P"),
                ("condition of P", condition, "in the 2-norm. Far above 100 the rule is hardly determined"),
            ]
        rows.append(("learned", "yes" if self.learned else "no", f"relative errors below {THRESHOLD:g}"))
        title = f"{self.run}, {self.split}: {self.product}, checkpoint {self.checkpoint}"
        yield Table(title, ["", "value", "meaning"], rows, text=(2,))


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def _why_not_compared(n: int, truth: Truth) -> str | None:
    order, terms = len(truth.A), determined_terms(truth.S)
    if n == 1:
        return "the model is dense: it has no rule"
    if n != order:
        return f"the model's rule is of order {n}, the true one of order {order}"
    if terms < n:
        return f"H determines {terms} of the {n} dimensions of the rule's span, so many other rules explain it as well"
    return None


def _compare_rules(model: RuleModel, truth: Truth) -> RuleComparison:
    A, S = (tensor.detach().to("cpu", torch.float64) for tensor in (model.product.A, model.product.S))
    alignment = align_rules(A, truth.A)
    invertible = alignment.condition < 1 / torch.finfo(A.dtype).eps
    return RuleComparison(
        relative_error=alignment.relative_error,
        span_sine=alignment.span_sine,
        components_error=_relative_error(change_basis(A, S, alignment.P)[1], truth.S) if invertible else None,
        condition=alignment.condition if invertible else None,
        basis=alignment.P.tolist(),
    )


def evaluate_rule(run: Run, split: str = "test", checkpoint: str = AUTO, device: str = "auto") -> RuleEvaluation:
    """Compare a run's map and rule with the true ones, and write the comparison into the run.

    Raises RunError, UserError.
    """
    recipe = run.recipe_of(RuleRecipe)
    check_known("split", split, ("test", "valid"))
    settings, truth = recipe.model, read_truth(run)
    sizes = {"features": recipe.data.dims * recipe.data.components}
    path, tensors = run.read_model(run.chosen(checkpoint))
    weights = run.weights(path.name)
    model: Any = load_model(settings, sizes, tensors, path, pick_device(device))
    rule_note = _why_not_compared(settings.n, truth)
    rule = None if rule_note else _compare_rules(model, truth)
    map_error = _map_error(model, truth)
    is_free = settings.algebra in ("phm", "real") and settings.rank is None
    rule_error = 0.0 if rule is None else rule.relative_error
    evaluation = RuleEvaluation(
        run.name,
        split,
        weights.name,
        recipe.data.product,
        EVALUATION_SAMPLES,
        _mean_squared_error(model, draw_samples(truth, split, EVALUATION_SAMPLES, recipe.data.seed)),
        map_error,
        nearest_sum(truth.H, settings.n).relative_error if is_free else None,
        rule,
        rule_note,
        learned=max(map_error, rule_error) < THRESHOLD,
    )
    write_result(run, ScoringKey(split, weights), evaluation.as_json())
    return evaluation
