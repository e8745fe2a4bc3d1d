"""The parameter ledger: the parameters of each module of a model, and of the dense twin.

The ledger reads the model that trains, module by module, built on torch's ``meta`` device, which allocates nothing.
"1/n" holds only for the weights of linear maps, so rules, biases, norms and tables are counted separately.
"""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

from torch import nn
from torch.nn.modules.conv import _ConvNd

from phmctl.models import build
from phmctl.nn.convolution import PHMConv
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import LowRankLinear, PHMLinear, StructuredWeight
from phmctl.recipe.models import LinearSection, StackSection
from phmctl.recipe.schema import Recipe
from phmctl.tasks import task_of
from phmctl.tasks.base import Sizes, TaskSpec

ModuleKind = Literal["map", "norm", "embedding", "generator", "other"]

_LAYER = re.compile(r"\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Totals:
    """Parameter counts of a model or a part of it."""

    dense: int = 0  # parameters of the dense twin, biases included
    components: int = 0  # S of the maps, the weight of a dense map, both factors of a thin map
    rule: int = 0  # learned rules (a shared rule is counted at the first map)
    bias: int = 0  # biases of the maps
    norm: int = 0
    embedding: int = 0  # S of the tables, or dense tables
    other: int = 0  # modules of any other type
    matrices: int = 0  # entries of all matrices but rules: what an export may round
    scales: int = 0  # rows of these matrices: an int8 or int4 export has a float32 scale for each

    @property
    def parameters(self) -> int:
        return self.components + self.rule + self.bias + self.norm + self.embedding + self.other

    @property
    def share(self) -> float:
        """Parameters as a fraction of the dense twin's, 1 without any."""
        return self.parameters / self.dense if self.dense else 1.0

    @property
    def bytes(self) -> dict[str, int]:
        """Bytes of the stored parameters by the type of the matrices. Rules, biases and norms stay float32.

        ``int4`` does not include the half byte that fills a row of an odd number of columns.
        """
        exact = 4 * (self.parameters - self.matrices)
        scaled = exact + 4 * self.scales
        sizes = {"float32": 4 * self.matrices + exact, "float16": 2 * self.matrices + exact}
        return sizes | {"int8": self.matrices + scaled, "int4": -(-self.matrices // 2) + scaled}

    def as_json(self) -> dict[str, object]:
        return {"parameters": self.parameters, **asdict(self), "share_of_dense": self.share, "bytes": self.bytes}


@dataclass(frozen=True)
class ModuleCounts(Totals):
    """The row of one module, or of equal modules of several layers."""

    component: str  # module name, such as ``encoder.0-3.`` in a folded row of equal layers
    kind: ModuleKind
    shape: tuple[int, ...]  # shape of the dense weight: (k, d) of a map, (V, d) of a table, (d,) of a norm
    copies: int = 1  # number of modules in the row


@dataclass(frozen=True)
class Ledger:
    """Parameter counts of a model, module by module."""

    name: str  # title in tables
    settings: LinearSection
    sizes: Mapping[str, int]  # sizes that the data decides: ``source`` and ``target`` token types
    rows: tuple[ModuleCounts, ...]  # a row for each module that holds parameters, in the model's order
    rules: int  # K, the number of distinct learned rules
    notes: tuple[str, ...] = ()  # remarks on the numbers, for people

    @cached_property
    def totals(self) -> Totals:
        return Totals(**_sums(self.rows))

    @cached_property
    def without_embeddings(self) -> Totals:
        """Totals without embedding and generator, as in Tables 2 and 4 of the PHM paper."""
        return Totals(**_sums(row for row in self.rows if row.kind not in ("embedding", "generator")))

    @cached_property
    def map_weights(self) -> int:
        """Number of parameters in S and A of the linear maps, the count of Tables 2 and 4 of the PHM paper."""
        return self.without_embeddings.components + self.without_embeddings.rule

    def folded(self) -> list[ModuleCounts]:
        """Return the rows, with rows that differ only in layer numbers added up."""
        groups: dict[tuple[object, ...], list[ModuleCounts]] = {}
        for row in self.rows:
            groups.setdefault((_LAYER.sub(".*.", row.component), row.kind, row.shape), []).append(row)
        folded = []
        for rows in groups.values():
            numbers_by_row = [map(int, _LAYER.findall(row.component)) for row in rows]
            spans = []
            for numbers in zip(*numbers_by_row, strict=True):  # the layer numbers at one place of the names
                first, last = min(numbers), max(numbers)
                spans.append(f"{first}-{last}" if first < last else f"{first}")
            name = _LAYER.sub(".{}.", rows[0].component).format(*spans)
            folded.append(replace(rows[0], component=name, copies=len(rows), **_sums(rows)))
        return folded

    def as_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "model": self.settings.model_dump(),
            "sizes": dict(self.sizes),
            "rules": self.rules,
            "rows": [asdict(row) | {"parameters": row.parameters} for row in self.rows],
            "totals": self.totals.as_json(),
            "without_embeddings": self.without_embeddings.as_json(),
            "map_weights": self.map_weights,
            "notes": list(self.notes),
        }


def ledger_for_recipe(recipe: Recipe, sizes: Sizes | None = None) -> Ledger:
    """Return the ledger of a recipe's model. Without `sizes` of the data it uses the recipe's sizes and adds a note.

    Raises DimensionError if n does not divide a dimension.
    """
    task = task_of(recipe)
    sizes = sizes or task.sizes(recipe, None)
    ledger = ledger_for(task, recipe.model, sizes.values, name=f"{recipe.name} {recipe.variant}")
    notes = () if sizes.trained or not sizes.note else (sizes.note,)
    return replace(ledger, notes=(*notes, *ledger.notes))


def ledger_for(task: TaskSpec, settings: LinearSection, sizes: Mapping[str, int], *, name: str = "model") -> Ledger:
    """Return the ledger of a model of any task, without allocating weights.

    Raises DimensionError if n does not divide a dimension.
    """
    rows, rules = rows_of(build(settings, sizes, "meta"))
    notes = list(task.notes(settings, sizes))
    tables = task.tables(sizes)
    for row in rows:
        token_types = tables.get(row.component, row.shape[0])
        if row.shape[0] != token_types:
            notes.append(f"{row.component}: {token_types:,} token types in {row.shape[0]:,} rows, a multiple of n")
    if isinstance(settings, StackSection) and settings.upsize > 1:
        notes.append(f"upsize {settings.upsize}: the dense twin has the larger widths too")
    return Ledger(name, settings, sizes, rows, rules, tuple(notes))


def rows_of(model: nn.Module) -> tuple[tuple[ModuleCounts, ...], int]:
    """Return a row for each module that holds parameters itself, and the number of distinct learned rules.

    Shared modules and parameters are counted at the first use, so the rows add up to
    ``sum(p.numel() for p in model.parameters())``.
    """
    counted: set[nn.Parameter] = set()
    rules = 0
    rows = []
    for name, module in model.named_modules():
        counts = {}  # parameters of this module that are not counted yet
        matrices = scales = 0
        for key, parameter in module.named_parameters(recurse=False):
            if parameter not in counted:
                counted.add(parameter)
                counts[key] = parameter.numel()
                if parameter.dim() > 1 and key not in _rule_names(module):
                    matrices += parameter.numel()
                    scales += parameter.numel() // parameter.shape[-1]
        if counts:
            if not _rule_names(module).isdisjoint(counts):
                rules += 1
            rows.append(replace(_row(name, module, counts), matrices=matrices, scales=scales))
    return tuple(rows), rules


def _rule_names(module: nn.Module) -> set[str]:
    return set(module.structure.rule_names) if isinstance(module, StructuredWeight) else set()


def _row(name: str, module: nn.Module, counts: Mapping[str, int]) -> ModuleCounts:
    """Return the row of a module that has `counts` parameters under the names of the attributes."""
    total, bias = sum(counts.values()), counts.get("bias", 0)
    rule = sum(counts.get(key, 0) for key in _rule_names(module))
    components = total - rule - bias
    match module:
        case PHMLinear() | LowRankLinear() | nn.Linear():
            shape = (module.out_features, module.in_features)
            map_kind: ModuleKind = "generator" if name == "generator" else "map"
            dense = math.prod(shape) + bias
            if name.endswith("embedding.map"):  # the map of a narrow table
                return ModuleCounts(name, "embedding", shape, dense=dense, rule=rule, embedding=components)
            return ModuleCounts(name, map_kind, shape, dense=dense, components=components, rule=rule, bias=bias)
        case PHMConv() | _ConvNd():
            weight = module.on_meta().weight if isinstance(module, PHMConv) else module.weight
            sizes = {"dense": weight.numel() + bias, "components": components, "rule": rule, "bias": bias}
            return ModuleCounts(name, "map", tuple(weight.shape), **sizes)
        case PHMEmbedding() | nn.Embedding():
            shape = (module.num_embeddings, module.embedding_dim)
            return ModuleCounts(name, "embedding", shape, dense=math.prod(shape), rule=rule, embedding=components)
        case nn.LayerNorm():
            return ModuleCounts(name, "norm", tuple(module.normalized_shape), dense=total, norm=total)
    return ModuleCounts(name, "other", (total,), dense=total, other=total)


def _sums(rows: Iterable[ModuleCounts]) -> dict[str, Any]:
    rows = list(rows)
    return {field.name: sum(getattr(row, field.name) for row in rows) for field in fields(Totals)}
