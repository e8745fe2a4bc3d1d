"""The published parameter counts of the classifiers: Zhang et al. 2021, Table 1 (PHM-LSTM) and Table 5 (encoder).

What the numbers force:

* Table 1 is one LSTM, 300 → 300, with one bias of 4·300: no embeddings, no MLP. Each of four gates has a map of the
  input and one of the state, each with a rule of its own (K = 8). The two maps that the equation prints (K = 2) round
  to neither figure of n = 5 and n = 10. The quaternion row leaves the bias out.
* Table 5 is two encoder layers, with biases, without layer norms: no embeddings, no map to the classes. n = 8 decides
  this: another arrangement of Q, K and V, layer norms or no biases give another figure.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from phmctl.accounting.figures import Candidate, PublishedRow, PublishedTable
from phmctl.accounting.ledger import Ledger, Row, rows_of
from phmctl.accounting.printed import TABLE_1, TABLE_5
from phmctl.accounting.printed import Row as Model
from phmctl.assembly import Classifier, build_classifier
from phmctl.nn.lstm import PHMLSTM
from phmctl.recipe.schema import EncoderClassifierSection

_TEN_THOUSAND = 10_000  # what Table 5's 400K, 200K and 100K are rounded to
_ANY_VOCABULARY = 8  # the encoder alone is counted

Choice = dict[str, Any]  # an algebra and an n

_QUATERNION: Choice = {"algebra": "quaternion", "n": 4}


def map_parameters(rows: Sequence[Row], *, bias: bool = True) -> int:
    """Count S, A and, unless told otherwise, b of the linear maps among rows."""
    maps = [row for row in rows if row.kind == "map"]
    return sum(row.components + row.rule + (row.bias if bias else 0) for row in maps)


# Table 1.


def table_1() -> PublishedTable:
    """Table 1, natural language inference: one column of counts for five data sets."""
    rows = [_quaternion_lstm_row(row) if row.algebra == "quaternion" else _lstm_row(row) for row in TABLE_1.rows]
    notes = (
        "counted: weights, rules and biases of one LSTM, 300 → 300; no embeddings, no MLP",
        "n = 5 and n = 10 show that each gate has a map of the input and one of the state, and each map its rule; the "
        "two maps of four gates that the equation prints have too few parameters",
        "the bias is one of 4·300; nn.LSTM has two, which are only ever added",
        "the quaternion row leaves the bias out: with it, it would be 181K",
    )
    title = "PHM paper, Table 1 (natural language inference)"
    return PublishedTable("table1", title, tuple(rows), notes, "maps, rules and biases of the LSTM", lstm_parameters)


def lstm_parameters(ledger: Ledger) -> int:
    """Count what Table 1 counts of a pair classifier."""
    return map_parameters([row for row in ledger.rows if row.component.startswith("lstm.")])


def _lstm_row(row: Model) -> PublishedRow:
    candidates, choice = [], {"algebra": row.algebra, "n": row.n}
    for gates, arrangement in (("separate", "a map a gate and input"), ("fused", "a map an input, as printed")):
        rows, rules = rows_of(_lstm(choice, gates=gates))
        if gates == "separate" or rules:  # dense gates are the same either way
            words = f"{arrangement} (K = {rules})" if rules else "dense, with one bias"
            candidates.append(Candidate.of(words, map_parameters(rows), row.figure))
    return PublishedRow(row.label, row.figure, tuple(candidates))


def _quaternion_lstm_row(row: Model) -> PublishedRow:
    rows, _ = rows_of(_lstm(_QUATERNION))
    without, with_bias = (map_parameters(rows, bias=bias) for bias in (False, True))
    candidates = (
        Candidate.of("without bias", without, row.figure),
        Candidate.of("with bias", with_bias, row.figure),
    )
    return PublishedRow(row.label, row.figure, candidates)


def _lstm(choice: Choice, **options: Any) -> PHMLSTM:
    return PHMLSTM(300, 300, n=choice["n"], algebra=choice["algebra"], device="meta", **options)


# Table 5.


def table_5() -> PublishedTable:
    """Table 5, subject-verb agreement."""
    rows = [_quaternion_encoder_row(row) if row.algebra == "quaternion" else _encoder_row(row) for row in TABLE_5.rows]
    notes = (
        "counted: weights, rules and biases of the linear maps of two encoder layers, 128 wide, feed-forward 512; no "
        "embeddings, no map to the classes",
        "400K, 200K and 100K are taken as rounded to ten thousand; the table's percentages are taken from these",
        "n = 8 decides: only fused Q, K and V, one rule a map, with biases and without layer norms give 56K",
        "100K does not tell whether the quaternion row has biases; Table 1's has none",
    )
    title = "PHM paper, Table 5 (subject-verb agreement)"
    counted = "maps, rules and biases of the encoder"
    return PublishedTable("table5", title, tuple(rows), notes, counted, encoder_parameters)


def encoder_parameters(ledger: Ledger) -> int:
    """Count what Table 5 counts of an encoder classifier."""
    return map_parameters(_encoder_rows(ledger.rows))


def _encoder_row(row: Model) -> PublishedRow:
    step = _TEN_THOUSAND if row.figure.endswith("00K") else None
    choice = {"algebra": row.algebra, "n": row.n}
    candidates = [Candidate.of(words, count, row.figure, step) for words, count in _encoder_counts(choice)]
    return PublishedRow(row.label, row.figure, tuple(candidates))


def _encoder_counts(choice: Choice) -> Iterator[tuple[str, int]]:
    """Yield an arrangement in words and its count; the first is the one that all rows fit."""
    rows, rules = rows_of(_encoder(choice))
    inner = _encoder_rows(rows)
    learned = f" (K = {rules})" if rules else ""
    yield f"fused Q, K, V{learned}, with biases", map_parameters(inner)
    if rules:
        apart, more = rows_of(_encoder(choice | {"projections": "separate"}))
        yield f"Q, K and V separate (K = {more}), with biases", map_parameters(_encoder_rows(apart))
    norms = sum(row.norm for row in inner)
    yield f"fused{learned}, with biases and layer norms", map_parameters(inner) + norms
    yield f"fused{learned}, without biases", map_parameters(inner, bias=False)


def _quaternion_encoder_row(row: Model) -> PublishedRow:
    inner = _encoder_rows(rows_of(_encoder(_QUATERNION))[0])
    without, with_bias = (map_parameters(inner, bias=bias) for bias in (False, True))
    candidates = (
        Candidate.of("without biases", without, row.figure, _TEN_THOUSAND),
        Candidate.of("with biases", with_bias, row.figure, _TEN_THOUSAND),
    )
    return PublishedRow(row.label, row.figure, candidates)


def _encoder(settings: dict[str, Any]) -> Classifier:
    section = EncoderClassifierSection(kind="encoder", **settings)
    return build_classifier(section, _ANY_VOCABULARY, 2, device="meta")


def _encoder_rows(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row.component.startswith("encoder.")]
