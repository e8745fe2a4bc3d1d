"""The ledger of classifiers: it adds up to the real model, and its dense column to the dense twin."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.accounting.ledger import Ledger, ledger_for
from phmctl.accounting.published import published_tables
from phmctl.assembly import ClassifierSection, build_classifier
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection
from phmctl.tasks.registry import task_kind

ENCODER: dict[str, Any] = {"kind": "encoder", "width": 16, "feed_forward": 32, "heads": 2}
PAIR: dict[str, Any] = {"kind": "lstm-pair", "width": 16, "embedding_width": 8, "hidden": 7}

shared = {
    "choice": st.sampled_from([("real", 1), ("complex", 2), ("quaternion", 4), ("phm", 2), ("phm", 4), ("phm", 8)]),
    "rules": st.sampled_from(["separate", "sublayer", "model"]),
    "bias": st.booleans(),
}
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


def real_count(section: ClassifierSection) -> int:
    return sum(parameter.numel() for parameter in build_classifier(section, 20, 3).parameters())


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
    assert ledger.totals.parameters == real_count(section)
    assert ledger.totals.dense == real_count(section.dense_twin)
    assert ledger.totals.embedding == 20 * (8 if "gates" in chosen else 16)
    assert ledger.without_embeddings.parameters == ledger.totals.parameters - ledger.totals.embedding


@pytest.mark.parametrize(
    ("choice", "lstm", "encoder"),
    [
        ({}, 721_200, 395_520),
        ({"algebra": "phm", "n": 2}, 361_264, 198_976),
        ({"algebra": "quaternion"}, 181_200, 100_608),
    ],
)
def test_the_defaults_are_the_models_of_tables_1_and_5(choice: dict[str, Any], lstm: int, encoder: int) -> None:
    (table_1,), (table_5,) = published_tables("table1"), published_tables("table5")
    assert table_1.measure(counted(PairClassifierSection(kind="lstm-pair", **choice), 99, 3)) == lstm
    assert table_5.measure(counted(EncoderClassifierSection(kind="encoder", **choice), 99)) == encoder


def test_one_over_n_is_true_of_the_lstm_s_components_alone() -> None:
    dense, phm = (
        counted(PairClassifierSection(kind="lstm-pair", **choice), 99, 3) for choice in ({}, {"algebra": "phm", "n": 5})
    )
    apart = [row for row in dense.rows if not row.component.startswith("lstm.")]
    assert [row for row in phm.rows if not row.component.startswith("lstm.")] == apart
    inner = sum(row.components for row in dense.rows if row.component.startswith("lstm."))
    assert dense.totals.components - phm.totals.components == inner - inner // 5


def test_notes_say_what_the_numbers_hang_on() -> None:
    notes = counted(PairClassifierSection(kind="lstm-pair"), 99, 3).notes
    assert notes[0] == "the map to the classes is counted for 3 of them"
    assert "ready and fixed" in notes[1]
    upsized = counted(EncoderClassifierSection(**ENCODER, upsize=2), 99)
    assert upsized.unscaled == counted(EncoderClassifierSection(**ENCODER), 99).totals.parameters
    assert "upsize 2" in upsized.notes[-1]
