"""The published parameter counts of Li et al. 2020 (neuron interaction), and which arrangement each of them is.

d = 512, six and six layers, 18 attention modules, 8 heads of 64. What the numbers force:

* Row 2 is 12 maps of d×d. Row 3 is two trees of three nodes, with inputs of 2d, 3d and 3d, hidden width 4d: 88d².
* Rows 4 and 7 do not take off the output map that the compositions stand for: 18·184·64² and 18·3·d² are whole.
* Row 6 is 64d², and the equations give 26d² at r = 512: 19d² a stack are missing, in the big model too.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

from phmctl.accounting.figures import Candidate, PublishedRow, PublishedTable
from phmctl.accounting.ledger import Ledger, Row, ledger_for_settings
from phmctl.accounting.printed import COMPOSITIONS, NI_TABLE_1, NI_TABLE_2
from phmctl.recipe.schema import TransformerSection

Composition = dict[str, Any]  # keys of a model's section

ROWS: dict[int, tuple[str, Composition]] = {
    number: (row.label.removeprefix("+ "), {f"compose_{place}": kind for place, kind in COMPOSITIONS[number].items()})
    for number, row in enumerate(NI_TABLE_1.rows, start=1)
    if number > 1
}
FIGURES = {number: row.figure for number, row in enumerate(NI_TABLE_1.rows, start=1) if number > 1}

_BASE, _BIG = (512, 8), (1024, 16)  # width and heads; hidden width 4d, 6+6 layers
_ATTENTIONS = 18
_PUZZLE = 64  # multi-layer NI, in d², as both models have it
_ANY_VOCABULARY = 8


def ni_model(width: int = 512, heads: int = 8, **changes: Any) -> TransformerSection:
    """Return the paper's model: post-norm, with tables for source, target and generator apart, as THUMT has them."""
    settings: dict[str, Any] = {
        "width": width,
        "heads": heads,
        "feed_forward": 4 * width,
        "norm": "post",
        "final_norm": False,
    }
    tables = {"share_embeddings": False, "generator": "dense"}
    return TransformerSection(**(settings | tables | changes))


def added(composition: Composition, width: int = 512, heads: int = 8, **changes: Any) -> int:
    """Count what a composition adds to a model, less the output maps that it stands for."""
    composed, base = (_ledger(ni_model(width, heads, **changes, **more)) for more in (composition, {}))
    return composed.totals.parameters - base.totals.parameters


def composition_weights(composition: Composition, width: int = 512, heads: int = 8) -> int:
    """Count the weights of compositions alone: no biases, no norms, and nothing taken off for output maps."""
    return sum(row.components for row in _composition_rows(composition, width, heads))


def whole(composition: Composition, width: int = 512, heads: int = 8) -> int:
    """Count compositions with biases and norms, and nothing taken off for the output maps."""
    return sum(row.parameters for row in _composition_rows(composition, width, heads))


def _composition_rows(composition: Composition, width: int, heads: int) -> Iterator[Row]:
    for row in _ledger(ni_model(width, heads, **composition)).rows:
        plain = row.component.endswith("attention.output")
        if ".composition." in row.component or (".output." in row.component and not plain):
            yield row


# Table 1.


def ni_table_1() -> PublishedTable:
    """Table 1, WMT14 English to German: a base model and what seven compositions add to it."""
    rows = [_base_row("Transformer-Base", "88.0M", *_BASE)]
    rows += [
        PublishedRow(f"+ {label}", FIGURES[number], tuple(_candidates(number))) for number, (label, _) in ROWS.items()
    ]
    return PublishedTable("ni", "Neuron interaction, Table 1 (WMT14 En-De)", tuple(rows), tuple(_notes()))


def _candidates(number: int) -> Iterator[Candidate]:
    """Yield the arrangements of a row that were tried; the last is that of our model."""
    composition, figure = ROWS[number][1], FIGURES[number]
    if number == 3:
        yield Candidate.of("88d²: without biases and norms", composition_weights(composition), figure)
    if number == 4:
        words = "18·184·64²: hidden width d, the output map not taken off"
        yield Candidate.of(words, composition_weights(composition), figure)
    if number == 5:
        yield Candidate.of("rows 3 and 4 with biases and norms", whole(composition), figure)
    if number == 6:
        yield from (Candidate.of(words, count * 512**2, figure) for words, count in _readings().items())
    if number == 7:
        count = composition_weights(composition)
        yield Candidate.of("18·3·d²: the output map not taken off; cut off, not rounded", count, figure, cut=True)
    if number == 8:
        yield Candidate.of("64d² + 18·3·d²", (_PUZZLE + 3 * _ATTENTIONS) * 512**2, figure)
    own = {2: "12d²", 3: "ours, with biases and norms", 6: "ours: the equations at r = d, 26d² and biases"}
    yield Candidate.of(own.get(number, "ours: in the output map's place"), added(composition), figure)


def _readings() -> dict[str, int]:
    """Return readings of multi-layer NI that have 64d², in words, with their counts in d² of both stacks."""
    parts, rank = 6, 1  # layers; r in units of d
    pooling = 2 * parts * rank + rank  # U, V and P
    tree = sum(2 * inputs * rank + rank for inputs in (2, 3, 3))
    return {
        "pooling of all six layers, and in each node of the tree": 2 * (pooling + tree),
        "pooling of all six layers twice, and a linear map of each": 2 * (2 * pooling + parts),
        "pooling at r = 2d, and a linear map of each layer": 2 * (2 * pooling + parts),
        "no pooling: a feed-forward of seven parts, hidden width 4d": 2 * 4 * (7 + 1),
        "pooling of seven parts (with the embeddings) at r = d": 2 * (2 * 7 + 1),
    }


def _notes() -> Iterator[str]:
    yield "counted: what is added to the base model; the base model with its three tables"
    yield (
        "multi-layer NI: 16.8M is 64d², and 387M − 264M of Table 2's big model is 64d² + 54d² with d = 1024, so it is "
        "an arrangement; the equations give 13d² a stack (U and V 6d×r, P r×d, r = d), and 19d² a stack are missing"
    )
    yield (
        "19d² is what the three nodes of the tree (2d, 3d, 3d) have if each pools bilinearly, and also a second "
        "pooling with a linear map; the text has neither, so ours are the equations as printed: 13d² a stack"
    )
    yield (
        "rows 4 and 7 are whole: the text has the compositions in the place of the output map (eq. 4), whose d² "
        "each the counts keep"
    )
    yield _vocabulary_note("88.0M", *_BASE)
    for number, (label, composition) in {1: ("base, without tables", {}), **ROWS}.items():
        counts = ", ".join(f"{_phm_count(composition, n):,}" for n in (2, 4, 8))
        yield f"row {number} with PHM at n = 2, 4, 8 ({label}): {counts}"


def _phm_count(composition: Composition, n: int) -> int:
    """Count what a composition adds to the PHM model; without one the model itself, less its tables."""
    if composition:
        return added(composition, algebra="phm", n=n)
    return _ledger(ni_model(algebra="phm", n=n)).without_embeddings.parameters


# Table 2.


def ni_table_2() -> PublishedTable:
    """Table 2: base and big models of two language pairs, with and without both NI compositions."""
    rows = []
    for label, base, composed, shape in _pairs():
        rows += [_base_row(label, base, *shape), _composed_row(f"{label} + NI", base, composed, *shape)]
    notes = (
        "the composed models are the base models and 118d², cut off, not rounded: 64d² over layers and 54d² over heads",
        *(_vocabulary_note(figure, *shape) for figure, shape in (("95M", _BASE), ("264M", _BIG), ("278M", _BIG))),
        "88.0M and 264M want the same tables, and so do 95M and 278M: the tables are apart in both models of a pair",
    )
    return PublishedTable("ni-table2", "Neuron interaction, Table 2", tuple(rows), notes)


def _pairs() -> Iterator[tuple[str, str, str, tuple[int, int]]]:
    """Yield a model and language pair, its figures without and with NI, and the model's shape."""
    base, base_ni, big, big_ni = NI_TABLE_2.rows
    for plain, composed, shape in ((base, base_ni, _BASE), (big, big_ni, _BIG)):
        figures = zip(NI_TABLE_2.columns, plain.figure.split("/"), composed.figure.split("/"), strict=True)
        yield from ((f"{plain.label}, {column.label}", one, other, shape) for column, one, other in figures)


def _composed_row(label: str, base: str, composed: str, width: int, heads: int) -> PublishedRow:
    body = _ledger(ni_model(width, heads)).without_embeddings.parameters
    tables = 3 * fitting_rows(base, width, heads) * width
    published = body + tables + (_PUZZLE + 3 * _ATTENTIONS) * width**2
    ours = body + tables + added(ROWS[8][1], width, heads)
    candidates = (
        Candidate.of("64d² + 54d² on top of the base model, cut off", published, composed, cut=True),
        Candidate.of("ours: the equations, in the output map's place", ours, composed),
    )
    return PublishedRow(label, composed, candidates)


def _base_row(label: str, figure: str, width: int, heads: int) -> PublishedRow:
    body, fitting = _ledger(ni_model(width, heads)).without_embeddings.parameters, fitting_rows(figure, width, heads)
    arrangements = {
        f"three tables of {fitting:,}: source, target, generator": 3 * fitting,
        "three tables of 32,000": 3 * 32_000,
        "two tables of 32,000: the generator tied": 2 * 32_000,
        "one table of 37,000 in all three places": 37_000,
    }
    found = [Candidate.of(words, body + rows * width, figure) for words, rows in arrangements.items()]
    return PublishedRow(label, figure, tuple(found))


def fitting_rows(figure: str, width: int, heads: int) -> int:
    """Return the mean rows of three tables at which the base model comes nearest to a published total."""
    body = _ledger(ni_model(width, heads)).without_embeddings.parameters
    return round((float(figure.rstrip("M")) * 1e6 - body) / (3 * width))


def _vocabulary_note(figure: str, width: int, heads: int) -> str:
    body, rows = _ledger(ni_model(width, heads)).without_embeddings.parameters, fitting_rows(figure, width, heads)
    return (
        f"{figure}: the model without tables has {body:,}; the rest is {3 * rows:,} rows of {width}, as three tables "
        f"of {rows:,} have them; one table of a joint vocabulary of 32K merges, or two, give another figure"
    )


@cache
def _cached(settings: str) -> Ledger:
    section = TransformerSection.model_validate_json(settings)
    return ledger_for_settings(section, _ANY_VOCABULARY, _ANY_VOCABULARY)


def _ledger(settings: TransformerSection) -> Ledger:
    return _cached(settings.model_dump_json())
