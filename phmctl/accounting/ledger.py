"""The parameter ledger: where a model's parameters lie, and where those of its dense twin would.

The model is built on torch's ``meta`` device, which allocates nothing, and walked module by module: what is counted is
the model that trains. "1/n" is true of the linear maps' weights only; the ledger keeps the rules, biases, norms and the
vocabulary's tables apart, so that it is never claimed of anything else.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, singledispatch
from typing import Any, Literal

from torch import nn

from phmctl.errors import RecipeError
from phmctl.models.classifiers import ClassifierSection, build_classifier
from phmctl.models.transformer import build_transformer
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import PHMLinear
from phmctl.recipe.schema import (
    ClassificationRecipe,
    LinearSection,
    PairClassifierSection,
    Recipe,
    StackSection,
    TransformerSection,
    TranslationRecipe,
)

Kind = Literal["map", "norm", "embedding", "generator", "other"]

# The parts of a model whose size is the vocabulary's. Tables 2 and 4 of the PHM paper leave them out.
VOCABULARY_KINDS: tuple[Kind, ...] = ("embedding", "generator")

_SUMMED = ("dense", "components", "rule", "bias", "norm", "embedding", "other")
_LAYER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True)
class Row:
    """One module's parameters, in numbers.

    Attributes:
        component: the module's name in the model; ``encoder.0-3.`` where rows of equal layers are folded into one.
        kind: ``map`` (a linear map), ``norm``, ``embedding``, ``generator`` or ``other``.
        shape: of the dense weight: (k, d) of a map, (V, d) of a table, (d,) of a norm.
        copies: how many modules the row stands for.
        dense: parameters of the dense module of that shape, its bias included.
        components: a map's S; its whole weight where n = 1.
        rule: a learned rule A. A shared one is counted in the first row that holds it.
        bias: of a map.
        norm: of a layer norm.
        embedding: a table's S; the whole table where n = 1.
        other: of a module that the ledger knows nothing about.
    """

    component: str
    kind: Kind
    shape: tuple[int, ...]
    copies: int = 1
    dense: int = 0
    components: int = 0
    rule: int = 0
    bias: int = 0
    norm: int = 0
    embedding: int = 0
    other: int = 0

    @property
    def parameters(self) -> int:
        """This model's parameters in the row."""
        return self.components + self.rule + self.bias + self.norm + self.embedding + self.other


@dataclass(frozen=True)
class Totals:
    """Sums over rows; the fields are those of :class:`Row`."""

    dense: int
    components: int
    rule: int
    bias: int
    norm: int
    embedding: int
    other: int

    @property
    def parameters(self) -> int:
        """This model's parameters."""
        return self.components + self.rule + self.bias + self.norm + self.embedding + self.other

    @property
    def share(self) -> float:
        """This model's parameters as a share of the dense twin's; 1 where there are none."""
        return self.parameters / self.dense if self.dense else 1.0

    def as_json(self) -> dict[str, int | float]:
        """Return the totals as plain values."""
        return {"parameters": self.parameters, **asdict(self), "share_of_dense": self.share}


@dataclass(frozen=True)
class Ledger:
    """A model's parameters.

    Attributes:
        name: what the model is called in tables.
        settings: the model.
        vocabularies: rows of the source and of the target table, or of a classifier's one, as asked for.
        rows: one a module that holds parameters, in the model's order.
        rules: number of distinct learned rules, K.
        unscaled: parameters of the dense model with ``upsize: 1``; None where that is the dense twin itself.
        notes: what a reader of the numbers must know.
    """

    name: str
    settings: LinearSection
    vocabularies: tuple[int, ...]
    rows: tuple[Row, ...]
    rules: int
    unscaled: int | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def totals(self) -> Totals:
        """Of the whole model."""
        return Totals(**_sums(self.rows))

    @cached_property
    def without_embeddings(self) -> Totals:
        """Of all that does not grow with the vocabulary: no tables, no generator."""
        return Totals(**_sums(row for row in self.rows if row.kind not in VOCABULARY_KINDS))

    @cached_property
    def map_weights(self) -> int:
        """S and A of the linear maps alone: what Tables 2 and 4 of the PHM paper count."""
        return self.without_embeddings.components + self.without_embeddings.rule

    def folded(self) -> list[Row]:
        """Return the rows with those of equal layers added up."""
        groups: dict[tuple[object, ...], list[Row]] = {}
        for row in self.rows:
            pattern = _LAYER.sub(".*.", row.component)
            groups.setdefault((pattern, row.kind, row.shape), []).append(row)
        return [_fold(rows) for rows in groups.values()]

    def as_json(self) -> dict[str, Any]:
        """Return the ledger as plain values."""
        return {
            "name": self.name,
            "model": self.settings.model_dump(),
            "vocabularies": list(self.vocabularies),
            "rules": self.rules,
            "rows": [asdict(row) | {"parameters": row.parameters} for row in self.rows],
            "totals": self.totals.as_json(),
            "without_embeddings": self.without_embeddings.as_json(),
            "map_weights": self.map_weights,
            "dense_unscaled": self.unscaled,
            "notes": list(self.notes),
        }


@singledispatch
def ledger_for_recipe(recipe: Recipe, vocabularies: tuple[int, ...] | None = None) -> Ledger:
    """Count a recipe's model. Each class of recipes that has something to count registers how.

    Args:
        recipe: the experiment.
        vocabularies: the sizes of the trained tokenizers: (source, target) of translation, one of classification. None
            takes what the recipe asks for, and a note says so: a corpus may hold fewer token types.

    Raises:
        DimensionError: n does not divide a dimension; names the nearest that do.
        RecipeError: recipes of this task have no ledger.
    """
    raise RecipeError(f"{recipe.name}: a recipe of task {recipe.task!r} has no ledger of parameters")


@ledger_for_recipe.register
def _(recipe: TranslationRecipe, vocabularies: tuple[int, int] | None = None) -> Ledger:
    asked = (recipe.data.vocabulary, recipe.data.vocabulary)
    ledger = ledger_for_settings(recipe.model, *(vocabularies or asked), name=f"{recipe.name} {recipe.variant}")
    return ledger if vocabularies else _asked_for(ledger, recipe.data.vocabulary)


@ledger_for_recipe.register
def _(recipe: ClassificationRecipe, vocabularies: tuple[int] | None = None) -> Ledger:
    (vocabulary,) = vocabularies or (recipe.data.vocabulary,)
    ledger = ledger_for_classifier(recipe.model, vocabulary, name=f"{recipe.name} {recipe.variant}")
    return ledger if vocabularies else _asked_for(ledger, vocabulary)


def _asked_for(ledger: Ledger, vocabulary: int) -> Ledger:
    text = f"vocabulary: {vocabulary:,}, as the recipe asks; a trained tokenizer may be smaller"
    return replace(ledger, notes=(text, *ledger.notes))


def ledger_for_classifier(
    settings: ClassifierSection, vocabulary: int, classes: int = 2, *, name: str = "model"
) -> Ledger:
    """Count a classifier, without allocating its weights.

    Raises:
        DimensionError: n does not divide a dimension; names the nearest that do.
    """
    rows, rules = rows_of(build_classifier(settings, vocabulary, classes, device="meta"))
    unscaled = None
    if isinstance(settings, StackSection) and settings.upsize > 1:
        base = settings.dense_twin.model_copy(update={"upsize": 1})
        unscaled = ledger_for_classifier(base, vocabulary, classes).totals.parameters
    notes = [f"the map to the classes is counted for {classes} of them"]
    if isinstance(settings, PairClassifierSection) and settings.embeddings != "trained":
        notes.append("the embedding is trained where the data has no vectors, and ready and fixed where it has")
    notes += [_unscaled_note(settings.upsize, unscaled)] if unscaled and isinstance(settings, StackSection) else []
    return Ledger(name, settings, (vocabulary,), rows, rules, unscaled, tuple(notes))


def ledger_for_settings(
    settings: TransformerSection, source_vocabulary: int, target_vocabulary: int, *, name: str = "model"
) -> Ledger:
    """Count a model, without allocating its weights.

    Raises:
        DimensionError: n does not divide a dimension; names the nearest that do.
    """
    model = build_transformer(settings, source_vocabulary, target_vocabulary, device="meta")
    rows, rules = rows_of(model)
    vocabularies = (source_vocabulary, target_vocabulary)
    unscaled = _unscaled(settings, vocabularies) if settings.upsize > 1 else None
    notes = tuple(_notes(settings, vocabularies, rows, unscaled))
    return Ledger(name, settings, vocabularies, rows, rules, unscaled, notes)


def rows_of(model: nn.Module) -> tuple[tuple[Row, ...], int]:
    """Return a row for each module of any model that holds parameters itself, and the number of distinct rules.

    A module or a parameter that stands in several places is counted where it comes first, so the rows add up to
    ``sum(p.numel() for p in model.parameters())``.
    """
    seen: set[int] = set()
    rules: set[int] = set()
    rows = []
    for name, module in model.named_modules():
        own = {key: value for key, value in module.named_parameters(recurse=False) if id(value) not in seen}
        if own:
            seen.update(id(value) for value in own.values())
            if isinstance(module, PHMLinear | PHMEmbedding):
                rules.update(id(own[key]) for key in ("A", "W") if key in own)
            rows.append(_row(name, module, {key: value.numel() for key, value in own.items()}))
    return tuple(rows), len(rules)


def _row(name: str, module: nn.Module, own: Mapping[str, int]) -> Row:
    """Describe one module, given the sizes of the parameters that no earlier module holds."""
    components = own.get("S", own.get("weight", 0))
    rule, bias = sum(own.get(key, 0) for key in ("A", "W", "U", "V")), own.get("bias", 0)
    match module:
        case PHMLinear() | nn.Linear():
            shape = (module.out_features, module.in_features)
            kind: Kind = "generator" if name == "generator" else "map"
            dense = math.prod(shape) + bias
            return Row(name, kind, shape, dense=dense, components=components, rule=rule, bias=bias)
        case PHMEmbedding() | nn.Embedding():
            shape = (module.num_embeddings, module.embedding_dim)
            return Row(name, "embedding", shape, dense=math.prod(shape), rule=rule, embedding=components)
        case nn.LayerNorm():
            size = sum(own.values())
            return Row(name, "norm", tuple(module.normalized_shape), dense=size, norm=size)
    size = sum(own.values())
    return Row(name, "other", (size,), dense=size, other=size)


def _fold(rows: Sequence[Row]) -> Row:
    """Add up the rows of equal layers, whose names differ in the layer's number only."""
    layers = sorted({int(number) for row in rows for number in _LAYER.findall(row.component)})
    span = f"{layers[0]}-{layers[-1]}" if len(layers) > 1 else "".join(map(str, layers))
    name = _LAYER.sub(f".{span}.", rows[0].component)
    return replace(rows[0], component=name, copies=len(rows), **_sums(rows))


def _sums(rows: Iterable[Row]) -> dict[str, Any]:
    rows = list(rows)
    return {name: sum(getattr(row, name) for row in rows) for name in _SUMMED}


def _unscaled(settings: TransformerSection, vocabularies: tuple[int, int]) -> int:
    """Count the dense model that a † row is measured against: the same widths, before they are doubled."""
    base = settings.model_copy(update={"upsize": 1, "algebra": "real", "n": 1})
    return ledger_for_settings(base, *vocabularies).totals.parameters


def _notes(
    settings: TransformerSection, vocabularies: tuple[int, int], rows: Sequence[Row], unscaled: int | None
) -> Iterator[str]:
    served = ["source"] * settings.share_embeddings + ["target"] + ["generator"] * (settings.generator == "tied")
    if len(served) > 1:
        yield f"one table serves {', '.join(served[:-1])} and {served[-1]}"
    for row in rows:
        asked = vocabularies[1] if row.kind == "generator" or "target" in row.component else vocabularies[0]
        if row.kind in VOCABULARY_KINDS and row.shape[0] != asked:
            yield f"{row.component}: {asked:,} token types, held in {row.shape[0]:,} rows, which n must divide"
    if unscaled is not None:
        yield _unscaled_note(settings.upsize, unscaled)


def _unscaled_note(upsize: int, unscaled: int) -> str:
    return (
        f"upsize {upsize}: the dense twin has the doubled widths too; "
        f"the dense model without upsize has {unscaled:,} parameters"
    )
