from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from phmctl.models import build
from phmctl.nn.convolution import PHMConv2d
from phmctl.nn.linear import PHMLinear
from phmctl.recipe.models import EncoderClassifierSection, LinearSection, PairClassifierSection, TransformerSection
from phmctl.results.ledger import ledger_for, rows_of
from phmctl.tasks import TASKS
from tests.references import ledger_for_settings

SMALL = {"width": 16, "feed_forward": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 2}
N = 4


def small(**changes):
    return TransformerSection(**(SMALL | changes))


def real_count(model):
    """The truth: parameters of a model whose weights are there."""
    return sum(parameter.numel() for parameter in model.parameters())


def sections(kind: type[LinearSection], shape: dict[str, object], **choices: list[object]) -> st.SearchStrategy:
    """Models of a kind with any algebra, any reach of the rules, and any of the choices."""
    algebras = [("real", 1), ("complex", 2), ("quaternion", 4), ("phm", 2), ("phm", 4), ("phm", 8)]
    reach = st.sampled_from(["separate", "sublayer", "model"])
    drawn = {"rules": reach, "bias": st.booleans(), **{key: st.sampled_from(values) for key, values in choices.items()}}
    return st.builds(
        lambda choice, rank, options: kind(
            **shape,
            algebra=choice[0],
            n=choice[1],
            **({"rank": 6} if rank and choice[0] == "phm" else {}),
            **options,
        ),
        st.sampled_from(algebras),
        st.booleans(),
        st.fixed_dictionaries(drawn),
    )


ENCODER = {"kind": "encoder", "width": 16, "feed_forward": 32, "heads": 2}
PAIR = {"kind": "lstm-pair", "width": 16, "embedding_width": 8, "hidden": 7}
STACK = {"projections": ["fused", "separate", "packed"], "upsize": [1, 2], "final_norm": [True, False]}
TABLES = {"embeddings": ["dense", "phm"], "generator": ["dense", "phm", "tied"], "share_embeddings": [True, False]}
MODELS = sections(TransformerSection, SMALL, **STACK, **TABLES)
MODELS |= sections(EncoderClassifierSection, ENCODER, **STACK | {"projections": ["fused", "separate"]})
MODELS |= sections(PairClassifierSection, PAIR, gates=["separate", "fused"], combination=["concat", "full"])


@given(MODELS, st.sampled_from([16, 24, 17]), st.sampled_from([16, 24, 39]))
def test_the_ledger_adds_up_to_the_real_model_and_its_dense_twin(section, source_size, target_size):
    translator = isinstance(section, TransformerSection)
    kind = TASKS["translation" if translator else "classification"]
    sizes = {"source": source_size, "target": target_size} if translator else {"vocabulary": source_size, "classes": 3}
    ledger = ledger_for(kind, section, sizes)
    assert ledger.totals.parameters == real_count(build(section, sizes))
    if not translator or source_size % 8 == target_size % 8 == 0:  # n divides both vocabularies
        assert ledger.totals.dense == real_count(build(section.dense_twin, sizes))
    if not translator:
        assert ledger.totals.embedding == source_size * (8 if section.kind == "lstm-pair" else 16)
        assert ledger.without_embeddings.parameters == ledger.totals.parameters - ledger.totals.embedding


def test_folding_equal_layers_keeps_the_sums():
    ledger = ledger_for_settings(small(algebra="phm", n=N, rules="model"), 16, 16)
    folded = ledger.folded()
    assert sum(row.parameters for row in folded) == ledger.totals.parameters
    assert sum(row.dense for row in folded) == ledger.totals.dense
    assert sum(row.copies for row in folded) == len(ledger.rows)
    names = [row.component for row in folded]
    assert "decoder.0-1.feed_forward.expand" in names
    assert "encoder.0.feed_forward.expand" in names
    composed = ledger_for_settings(small(encoder_layers=3, compose_heads="hierarchical"), 16, 16).folded()
    parts = [row.component for row in composed if "nodes" in row.component]
    assert len(parts) == len({*parts})


def test_rows_of_counts_any_model():
    model = nn.Sequential(nn.Embedding(10, 8), PHMLinear(8, 4, n=2), nn.Linear(4, 3), nn.LayerNorm(3), nn.GRU(3, 2))
    rows, rules = rows_of(model)
    assert sum(row.parameters for row in rows) == real_count(model)
    assert [row.kind for row in rows] == ["embedding", "map", "map", "norm", "other"]
    assert rules == 1
    assert rows[-1].other == real_count(model[4])


def test_convolutions_are_maps():
    model = nn.Sequential(PHMConv2d(8, 16, 3, n=4, groups=2, device="meta"), nn.Conv1d(16, 8, 3))
    (first, second), rules = rows_of(model)
    assert (first.kind, first.shape, first.dense) == ("map", (16, 4, 3, 3), 16 * 4 * 9 + 16)
    assert (first.components, first.rule, first.bias, rules) == (16 * 9, 64, 16, 1)
    assert (second.kind, second.shape, second.parameters) == ("map", (8, 16, 3), real_count(model[1]))


def test_a_vocabulary_that_n_does_not_divide_is_rounded_up_and_said():
    ledger = ledger_for_settings(small(algebra="phm", n=N, embeddings="phm"), 17, 17)
    table = next(row for row in ledger.rows if row.kind == "embedding")
    assert table.shape == (20, 16)
    assert any("17 token types" in text and "20 rows" in text for text in ledger.notes)


def test_a_module_in_two_places_and_tied_weights_are_counted_once():
    layer = nn.Linear(3, 3)
    rows, _ = rows_of(nn.Sequential(layer, layer))
    assert [row.parameters for row in rows] == [12]
    embedding, generator = nn.Embedding(10, 4), nn.Linear(4, 10)
    generator.weight = embedding.weight
    rows, _ = rows_of(nn.Sequential(embedding, generator))
    assert [row.parameters for row in rows] == [40, 10]
