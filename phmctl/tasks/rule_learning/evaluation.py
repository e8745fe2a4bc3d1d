"""Judging what was learned: the map against the true one, and the rule against the true one up to its basis."""

import io
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from phmctl.algebra.alignment import align_rules, change_basis, determined_terms
from phmctl.algebra.kronecker import nearest_sum
from phmctl.assembly import trained
from phmctl.console import Table, warn
from phmctl.devices import pick_device
from phmctl.errors import RunError, nearest
from phmctl.files import write_atomic
from phmctl.models.small import RuleModel
from phmctl.recipe.schema import RuleRecipe
from phmctl.runs import Run
from phmctl.runs.results import Setting, write_result
from phmctl.tasks.rule_learning.task import build_model, materialised, mean_squared_error, relative_error
from phmctl.tasks.rule_learning.truth import EVALUATION_SAMPLES, Truth, draw_samples, read_truth

SPLITS = ("test", "valid")
CURVE = "loss.png"  # Figure 2 of the PHM paper
THRESHOLD = 1e-3  # largest relative error of what counts as learned


@dataclass(frozen=True)
class RuleComparison:
    """The learned rule beside the true one."""

    free: str  # the group that H leaves free, GL(n) on the rule's first axis: A'[i] = Σⱼ P[i, j] A[j] with S' = P⁻ᵀ·S
    relative_error: float  # ‖P·A − A*‖ / ‖A*‖ with the P that makes it least
    span_sine: float  # sine of the largest angle between the spans of the A[i] and of the A*[i]
    # ‖P⁻ᵀ·S − S*‖ / ‖S*‖ with the same P: it must explain the components too. None where P has no inverse
    components_error: float | None
    condition: float | None  # of P, in the 2-norm; None where P has no inverse
    basis: list[list[float]]  # P, (n, n)

    def cells(self) -> list[tuple[str, str, str]]:
        """Return a row of a table for each number."""
        return [
            ("rule", _number(self.relative_error), f"‖P·A − A*‖ / ‖A*‖; free is {self.free}"),
            ("span of the A[i]", _number(self.span_sine), "sine of the largest angle to that of the A*[i]"),
            ("components", _number(self.components_error), "‖P⁻ᵀ·S − S*‖ / ‖S*‖ with the same P"),
            (
                "condition of P",
                "–" if self.condition is None else f"{self.condition:.3g}",
                "in the 2-norm; far above 100 the rule is hardly determined",
            ),
        ]


@dataclass(frozen=True)
class RuleEvaluation:
    """What a run has learned."""

    run: str  # its name
    split: str  # ``test`` or ``valid``
    checkpoint: str  # the name of the checkpoint's folder
    product: str  # ``rotation-3d``, ``hamilton`` or ``octonion``
    samples: int  # examples that `loss` is of; none of them was trained on
    loss: float  # mean squared error of a number
    map_error: float  # ‖H − H*‖ / ‖H*‖
    # the least `map_error` that any rule of the model's n can have; None where the rule is fixed or of a limited rank
    attainable_error: float | None
    rule: RuleComparison | None  # the rules compared; None where `rule_note` says why they cannot be
    rule_note: str | None  # why not, or None
    learned: bool  # whether the errors of the map and, if it was compared, of the rule are below :data:`THRESHOLD`

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"threshold": THRESHOLD}

    def tables(self) -> Iterator[Table]:
        rows = [
            ("loss", _number(self.loss), f"mean squared error of {self.samples:,} examples it was not trained on"),
            ("H", _number(self.map_error), "‖H − H*‖ / ‖H*‖"),
        ]
        if self.attainable_error is not None:
            rows.append(("H, at best", _number(self.attainable_error), "of any rule of this n"))
        rows += [("rule", "–", f"not compared: {self.rule_note}")] if self.rule is None else self.rule.cells()
        rows.append(("learned", "yes" if self.learned else "no", f"relative errors below {THRESHOLD:g}"))
        title = f"{self.run}, {self.split}: {self.product}, checkpoint {self.checkpoint}"
        yield Table(title, ["", "value", "meaning"], rows, text=(2,))


def evaluate_rule(run: Run, split: str = "test", checkpoint: str = "best", *, device: str = "auto") -> RuleEvaluation:
    """Judge a run and write the result into it. Raises RunError, OutputError."""
    recipe = run.recipe_of(RuleRecipe)
    if split not in SPLITS:
        raise RunError(f"no split {split!r}{nearest(split, SPLITS)}; a rule is judged on {' or '.join(SPLITS)}")
    truth = read_truth(run)
    untrained, target = build_model(recipe, "meta"), pick_device(device)
    weights, model = run.use(checkpoint, lambda name: (run.weights(name), trained(untrained, run, name, target)))
    samples = draw_samples(truth, split, EVALUATION_SAMPLES, recipe.data.seed)
    rule_note = _why_not(recipe, truth)
    rule = None if rule_note else compare_rules(model, truth)
    map_error = relative_error(materialised(model), truth.H)
    evaluation = RuleEvaluation(
        run=run.name,
        split=split,
        checkpoint=weights.name,
        product=recipe.data.product,
        samples=EVALUATION_SAMPLES,
        loss=mean_squared_error(model, samples),
        map_error=map_error,
        attainable_error=_attainable(recipe, truth),
        rule=rule,
        rule_note=rule_note,
        learned=max(map_error, 0.0 if rule is None else rule.relative_error) < THRESHOLD,
    )
    scores = {"map_error": map_error, "loss": evaluation.loss}
    write_result(run, Setting(split, weights), evaluation.as_json(), scores)
    return evaluation


def compare_rules(model: RuleModel, truth: Truth) -> RuleComparison:
    """Bring the learned rule and components to the true ones' basis, and say what difference is left.

    The model's n must be the truth's, whose components must be independent.
    """
    A, S = (tensor.detach().to("cpu", torch.float64) for tensor in (model.product.A, model.product.S))
    alignment = align_rules(A, truth.A)
    n, invertible = len(A), alignment.condition < 1 / torch.finfo(A.dtype).eps
    return RuleComparison(
        free=f"GL({n}) on the first axis",
        relative_error=alignment.relative_error,
        span_sine=alignment.span_sine,
        components_error=relative_error(change_basis(A, S, alignment.P)[1], truth.S) if invertible else None,
        condition=alignment.condition if invertible else None,
        basis=alignment.P.tolist(),
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1e}"


def _why_not(recipe: RuleRecipe, truth: Truth) -> str | None:
    """Return why the model's rule cannot be compared with the true one, or None if it can."""
    n, order = recipe.model.dimension, len(truth.A)
    if n == 1:
        return "the model is dense: it has no rule"
    if n != order:
        return f"the model's rule is of order {n}, the true one of order {order}"
    terms = determined_terms(truth.S)
    if terms < n:
        return (
            f"H determines {terms} of the {n} dimensions that the rule's matrices span, so many other rules "
            "explain it as well"
        )
    return None


def _attainable(recipe: RuleRecipe, truth: Truth) -> float | None:
    model = recipe.model
    if model.algebra not in ("phm", "real") or model.parametrization != "rule":
        return None
    return nearest_sum(truth.H, model.dimension).relative_error


def draw_curve(path: Path, title: str, entries: Iterable[Mapping[str, Any]]) -> bool:
    """Draw the training and the validation loss over the steps, on a logarithmic axis.

    Return whether it was drawn: without matplotlib a warning says how to get it.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        warn(
            f"no {path.name}: matplotlib is not installed; pip install 'phmctl[report]', then train with --resume to "
            "draw it"
        )
        return False
    figure = Figure(figsize=(6.0, 4.0), dpi=120, layout="constrained")  # no pyplot: nothing global, no window
    axes = figure.add_subplot(xlabel="step", ylabel="mean squared error", yscale="log", title=title)
    entries = list(entries)
    for event, style in (("train", "-"), ("validation", "o")):
        losses = [(each["step"], each.get("loss")) for each in entries if each.get("event") == event]
        points = [(step, loss) for step, loss in losses if isinstance(loss, float) and loss > 0]  # on such an axis
        axes.plot([step for step, _ in points], [loss for _, loss in points], style, label=event, markersize=4)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    picture = io.BytesIO()
    FigureCanvasAgg(figure)  # the figure's from here on
    figure.savefig(picture, format="png", metadata={"Software": None})  # the same bytes for the same run
    write_atomic(path, picture.getvalue())
    return True
