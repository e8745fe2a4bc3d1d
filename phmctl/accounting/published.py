"""The published parameter counts, and which arrangement of the model each of them is.

Sources: Zhang et al. 2021, Tables 2 and 4 (:mod:`~phmctl.accounting.published_classifiers` has 1 and 5); the CENG501
reproduction of that paper. Every count of ours is taken from
the ledger of a real model on the ``meta`` device. The papers leave the arrangement unsaid; what the numbers force:

* 44M is six encoder and six decoder layers of the base model without embeddings, though the text says four.
* A † row doubles the inner widths and leaves the residual width: exactly twice the components.
* CENG501's rows at n = 1 and 16 are exact with n everywhere. Those at n = 2, 4 and 8 are exact when one d×d map a layer
  stays at n = 16, in both of their setups; with n everywhere no single vocabulary size gives them.
"""

from collections.abc import Callable, Iterator
from functools import cache
from operator import attrgetter
from typing import Any

from phmctl.accounting import printed
from phmctl.accounting.figures import Candidate, PublishedRow, PublishedTable, agrees, value_of
from phmctl.accounting.ledger import Ledger, Row, ledger_for_settings
from phmctl.accounting.published_classifiers import table_1, table_5
from phmctl.accounting.published_ni import ni_table_1, ni_table_2
from phmctl.recipe.schema import TransformerSection

_ANY_VOCABULARY = 8  # the maps alone are counted
_MAPS = ("maps and rules", attrgetter("map_weights"))  # what Tables 2 and 4 count, in words and of a ledger


def published_tables(name: str) -> list[PublishedTable]:
    """Return the tables that a recipe reproduces; all of them for a recipe that reproduces none.

    Args:
        name: of a recipe, or of a table in :func:`table_names`.
    """
    chosen = [make for prefix, makers in _tables().items() if name.startswith(prefix) for make in makers]
    everything = dict.fromkeys(make for makers in _tables().values() for make in makers)
    return [make() for make in chosen or everything]


def table_names() -> list[str]:
    """Return the names by which tables are asked for; a recipe's name begins with that of its table."""
    return [*_tables()]


def _tables() -> dict[str, tuple[Callable[[], PublishedTable], ...]]:
    paper = {"table1": table_1, "table2": table_2, "table3": table_2, "table4": table_4, "table5": table_5}
    single = {**paper, "ceng501-shakespeare": ceng501_shakespeare, "ceng501-de-en": ceng501_de_en}
    return {**{key: (make,) for key, make in single.items()}, "ni": (ni_table_1, ni_table_2)}


# Tables 2 and 4 of the paper.


def base_model(layers: int = 6, **changes: Any) -> TransformerSection:
    """Return the base Transformer, 512 wide with a feed-forward of 2048, of `layers` + `layers` layers."""
    settings = {"encoder_layers": layers, "decoder_layers": layers, "width": 512, "feed_forward": 2048, "heads": 8}
    return TransformerSection(**(settings | changes))


def table_2() -> PublishedTable:
    """Table 2, machine translation: one column of counts for seven corpora."""
    title = "PHM paper, Table 2 (machine translation)"
    rows = tuple(map(_row_of_the_paper, printed.TABLE_2.rows))
    return PublishedTable("table2", title, rows, tuple(_table_2_notes()), *_MAPS)


def table_4() -> PublishedTable:
    """Table 4, style transfer."""
    rows = tuple(map(_row_of_the_paper, printed.TABLE_4.rows))
    return PublishedTable("table4", "PHM paper, Table 4 (style transfer)", rows, tuple(_paper_notes()), *_MAPS)


def _row_of_the_paper(row: printed.Row) -> PublishedRow:
    candidates = []
    for words, changes in _arrangements(row.n):
        ledger = _maps(base_model(algebra=row.algebra, n=row.n, upsize=row.upsize, **changes))
        rules = f"{words[1]} (K = {ledger.rules})" if ledger.rules else ""
        candidates.append(Candidate.of(words[0] + rules, ledger.map_weights, row.figure))
    return PublishedRow(row.label, row.figure, tuple(candidates))


def _arrangements(n: int) -> Iterator[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield the arrangements to try: words, words about learned rules, settings.

    Only at n = 16 do the rules weigh enough to tell one arrangement of them from another.
    """
    yield ("6+6 layers", ", one rule a map"), {}
    yield ("4+4 layers, as the text says", ""), {"layers": 4}
    if n == 16:
        yield ("6+6 layers", ", Q, K and V separate"), {"projections": "separate"}
        yield ("6+6 layers", ", packed in-projections"), {"projections": "packed"}
        yield ("6+6 layers", ", one rule a sublayer"), {"rules": "sublayer"}
        yield ("6+6 layers", ", one rule in all"), {"rules": "model"}


def _paper_notes() -> Iterator[str]:
    components = _maps(base_model(algebra="phm", n=16)).without_embeddings.components
    fits = [rules for rules in range(200) if agrees("2.9M", components + rules * 16**3)]
    yield "counted: weights of the linear maps and their K learned rules; no embeddings, biases or norms"
    yield f"44M is 6+6 layers ({_maps(base_model()).map_weights:,}); the 4+4 of the text have {_four_layers():,}"
    yield (
        f"2.9M at n = 16 needs {fits[0]} to {fits[-1]} rules, as one a sublayer gives, and not one a map, which our "
        "recipes have; the paper does not say how its rules are arranged"
    )


def _four_layers() -> int:
    return _maps(base_model(4)).map_weights


def _table_2_notes() -> Iterator[str]:
    yield from _paper_notes()
    doubled = [_maps(base_model(algebra="phm", n=n, upsize=2)).without_embeddings.components for n in (2, 4, 8)]
    plain = [_maps(base_model(algebra="phm", n=n)).without_embeddings.components for n in (2, 4, 8)]
    twice = all(two == 2 * one for two, one in zip(doubled, plain, strict=True))
    yield f"† rows: S is {'exactly' if twice else 'not'} twice that of the row without †; the rules stay as they are"
    small = _maps(base_model(2, width=256, feed_forward=1024, heads=4)).map_weights
    yield f"De-En and Ro-En are 2+2 layers, 256 wide, in the text: {small:,}, so 44M cannot be theirs"


# The CENG501 reproduction.


def phm_plus(layers: int, width: int, heads: int, n: int) -> TransformerSection:
    """Return CENG501's model: tables and generator are PHM too, the feed-forward is as wide as the model."""
    return TransformerSection(
        algebra="real" if n == 1 else "phm",
        n=n,
        width=width,
        feed_forward=width,
        heads=heads,
        encoder_layers=layers,
        decoder_layers=layers,
        projections="packed",
        embeddings="phm",
        generator="phm",
        generator_bias=True,
        share_embeddings=False,
        norm="post",
        final_norm=False,
    )


def ceng501_shakespeare() -> PublishedTable:
    """CENG501, style transfer: 4+4 layers, 512 wide, vocabulary 8192."""
    return _ceng501("ceng501-shakespeare", "CENG501, style transfer", printed.CENG501_SHAKESPEARE, 8192, (4, 512, 8))


def ceng501_de_en() -> PublishedTable:
    """CENG501, De-En: 2+2 layers, 256 wide, vocabulary 32768."""
    return _ceng501("ceng501-de-en", "CENG501, De-En", printed.CENG501_DE_EN, 32768, (2, 256, 4))


def _ceng501(
    key: str, title: str, table: printed.Printed, vocabulary: int, shape: tuple[int, int, int]
) -> PublishedTable:
    rows = []
    for row in table.rows:
        candidates = list(_ceng501_candidates(row.figure, vocabulary, lambda n: phm_plus(*shape, n), row.n))
        rows.append(PublishedRow(row.label, row.figure, tuple(candidates)))
    rules = _ledger(phm_plus(*shape, 16), vocabulary).rules
    figures = {row.n: row.figure for row in table.rows}
    fitting = {n: fitting_vocabulary(_exact(figures[n]), phm_plus(*shape, n), vocabulary) for n in (2, 4, 8)}
    wanted = ", ".join(f"{types:,.1f} at n = {n}" for n, types in fitting.items())
    notes = (
        f"counted: every parameter; PHM+ has PHM embeddings and a PHM generator too, {rules} rules in all",
        "n = 2, 4, 8: exact if one d×d map of each layer was left at n = 16; which one, the counts cannot tell",
        f"no vocabulary would do instead: it would need {wanted} token types",
    )
    return PublishedTable(key, f"{title} ({vocabulary:,} token types a side)", tuple(rows), notes)


def _ceng501_candidates(
    figure: str, vocabulary: int, settings: Callable[[int], TransformerSection], n: int
) -> Iterator[Candidate]:
    ours = _ledger(settings(n), vocabulary)
    everywhere = Candidate.of("dense" if n == 1 else "n everywhere", ours.totals.parameters, figure)
    yield everywhere
    if not everywhere.holds:
        mixed = left_at(ours, _ledger(settings(16), vocabulary))
        yield Candidate.of("one d×d map a layer left at n = 16", mixed, figure)


def _exact(figure: str) -> int:
    return int(value_of(figure))


def fitting_vocabulary(wanted: int, settings: TransformerSection, near: int) -> float:
    """Return the vocabulary, on both sides, at which a model would have `wanted` parameters.

    A model's count is linear in the vocabulary. A figure that is not a whole number means that there is none.
    """
    here, step = _ledger(settings, near).totals.parameters, settings.dimension
    slope = (_ledger(settings, near + step).totals.parameters - here) / step
    return near + (wanted - here) / slope


def left_at(ledger: Ledger, other: Ledger) -> int:
    """Count a model in which one map of each layer was left as it is in another model of the same shape.

    The map taken is the feed-forward's second, which each layer has once.
    """
    pairs = zip(ledger.rows, other.rows, strict=True)
    return sum((there if _is_left(here) else here).parameters for here, there in pairs)


def _is_left(row: Row) -> bool:
    return row.component.endswith(".feed_forward.contract")


def _maps(settings: TransformerSection) -> Ledger:
    return _ledger(settings, _ANY_VOCABULARY)


@cache
def _ledger(settings: TransformerSection, vocabulary: int) -> Ledger:
    return ledger_for_settings(settings, vocabulary, vocabulary)
