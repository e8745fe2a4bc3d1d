from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from phmctl.accounting.ledger import Ledger, ledger_for, rows_of
from phmctl.assembly import ClassifierSection, build_classifier, build_transformer
from phmctl.nn.linear import PHMLinear
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection, TransformerSection
from phmctl.tasks.registry import task_kind
from tests.references import ledger_for_settings

SMALL = {"width": 16, "feed_forward": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
N = 4


def small(**changes):
    return TransformerSection(**(SMALL | changes))


def real_count(model):
    """The truth: parameters of a model whose weights are there."""
    return sum(parameter.numel() for parameter in model.parameters())


shared = {
    "choice": st.sampled_from([("real", 1), ("complex", 2), ("quaternion", 4), ("phm", 2), ("phm", 4), ("phm", 8)]),
    "rules": st.sampled_from(["separate", "sublayer", "model"]),
    "bias": st.booleans(),
}
choices = st.fixed_dictionaries(
    {
        **shared,
        "projections": st.sampled_from(["fused", "separate", "packed"]),
        "embeddings": st.sampled_from(["dense", "phm"]),
        "generator": st.sampled_from(["dense", "phm", "tied"]),
        "share_embeddings": st.booleans(),
        "final_norm": st.booleans(),
        "upsize": st.sampled_from([1, 2]),
    }
)


@settings(max_examples=40, deadline=None)
@given(choices, st.booleans(), st.integers(8, 40), st.integers(8, 40))
def test_the_ledger_adds_up_to_the_real_model(chosen, factors, source, target):
    algebra, n = chosen.pop("choice")
    held = "factors" if factors and algebra == "phm" else "rule"
    model = small(algebra=algebra, n=n, parametrization=held, **chosen)
    ledger = ledger_for_settings(model, source, target)
    assert ledger.totals.parameters == real_count(build_transformer(model, source, target))


@settings(max_examples=20, deadline=None)
@given(choices)
def test_the_dense_column_is_the_dense_twin(chosen):
    algebra, n = chosen.pop("choice")
    ledger = ledger_for_settings(small(algebra=algebra, n=n, **chosen), 16, 24)  # n divides both vocabularies
    twin = small(algebra="real", n=1, **chosen)
    assert ledger.totals.dense == real_count(build_transformer(twin, 16, 24))


@pytest.mark.parametrize("n", [2, 4, 8])
def test_a_map_has_kd_over_n_components_a_cubic_rule_and_its_bias(n):
    row = next(row for row in ledger_for_settings(small(algebra="phm", n=n), 16, 16).rows if row.kind == "map")
    assert row.component == "encoder.0.attention.query_key_value"
    assert row.shape == (48, 16)
    assert (row.components, row.rule, row.bias) == (48 * 16 // n, n**3, 48)
    assert row.dense == 48 * 16 + 48


def test_a_shared_rule_is_counted_once():
    # One encoder layer has two sublayers, each of the two decoder layers three.
    counts = {"separate": 4 + 2 * 7, "sublayer": 2 + 2 * 3, "model": 1}
    for rules, expected in counts.items():
        ledger = ledger_for_settings(small(algebra="phm", n=N, rules=rules), 16, 16)
        assert ledger.rules == expected
        assert ledger.totals.rule == expected * N**3


def test_folding_equal_layers_keeps_the_sums():
    ledger = ledger_for_settings(small(algebra="phm", n=N, rules="model"), 16, 16)
    folded = ledger.folded()
    assert sum(row.parameters for row in folded) == ledger.totals.parameters
    assert sum(row.dense for row in folded) == ledger.totals.dense
    assert sum(row.copies for row in folded) == len(ledger.rows)
    names = [row.component for row in folded]
    assert "decoder.0-1.feed_forward.expand" in names
    assert "encoder.0.feed_forward.expand" in names


def test_rows_of_counts_any_model():
    model = nn.Sequential(nn.Embedding(10, 8), PHMLinear(8, 4, n=2), nn.Linear(4, 3), nn.LayerNorm(3), nn.GRU(3, 2))
    rows, rules = rows_of(model)
    assert sum(row.parameters for row in rows) == real_count(model)
    assert [row.kind for row in rows] == ["embedding", "map", "map", "norm", "other"]
    assert rules == 1
    assert rows[-1].other == real_count(model[4])


def test_a_module_in_two_places_and_tied_weights_are_counted_once():
    layer = nn.Linear(3, 3)
    rows, _ = rows_of(nn.Sequential(layer, layer))
    assert [row.parameters for row in rows] == [12]
    embedding, generator = nn.Embedding(10, 4), nn.Linear(4, 10)
    generator.weight = embedding.weight
    rows, _ = rows_of(nn.Sequential(embedding, generator))
    assert [row.parameters for row in rows] == [40, 10]


def test_upsizing_names_the_unscaled_dense_model():
    ledger = ledger_for_settings(small(algebra="phm", n=N, upsize=2), 16, 16)
    assert ledger.unscaled == real_count(build_transformer(small(), 16, 16))
    assert ledger.totals.dense == real_count(build_transformer(small(upsize=2), 16, 16))
    assert any("upsize 2" in text and f"{ledger.unscaled:,}" in text for text in ledger.notes)


def test_a_vocabulary_that_n_does_not_divide_is_rounded_up_and_said():
    ledger = ledger_for_settings(small(algebra="phm", n=N, embeddings="phm"), 17, 17)
    table = next(row for row in ledger.rows if row.kind == "embedding")
    assert table.shape == (20, 16)
    assert any("17 token types, held in 20 rows" in text for text in ledger.notes)


# --- classifiers


ENCODER: dict[str, Any] = {"kind": "encoder", "width": 16, "feed_forward": 32, "heads": 2}
PAIR: dict[str, Any] = {"kind": "lstm-pair", "width": 16, "embedding_width": 8, "hidden": 7}

encoders = st.fixed_dictionaries(
    {
        **shared,
        "projections": st.sampled_from(["fused", "separate"]),
        "upsize": st.sampled_from([1, 2]),
        "final_norm": st.booleans(),
    }
)
pairs = st.fixed_dictionaries(
    {**shared, "gates": st.sampled_from(["separate", "fused"]), "combination": st.sampled_from(["concat", "full"])}
)


def section_of(chosen: dict[str, Any]) -> ClassifierSection:
    algebra, n = chosen.pop("choice")
    kind, shape = (PairClassifierSection, PAIR) if "gates" in chosen else (EncoderClassifierSection, ENCODER)
    return kind(**shape, algebra=algebra, n=n, **chosen)


def counted(section: ClassifierSection, vocabulary: int, classes: int = 2) -> Ledger:
    return ledger_for(task_kind("classification"), section, {"vocabulary": vocabulary, "classes": classes})


@settings(max_examples=40, deadline=None)
@given(encoders | pairs)
def test_the_ledger_adds_up_to_the_real_model_and_its_dense_twin(chosen: dict[str, Any]) -> None:
    section = section_of(dict(chosen))
    ledger = counted(section, 20, 3)
    assert ledger.totals.parameters == real_count(build_classifier(section, 20, 3))
    assert ledger.totals.dense == real_count(build_classifier(section.dense_twin, 20, 3))
    assert ledger.totals.embedding == 20 * (8 if "gates" in chosen else 16)
    assert ledger.without_embeddings.parameters == ledger.totals.parameters - ledger.totals.embedding
