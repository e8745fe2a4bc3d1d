"""Every shipped recipe loads, builds its model, and names the sources of its values."""

import math
import re

import pytest

from phmctl.data.prepared import choose_section, prepare_command
from phmctl.models import build
from phmctl.models.transformer import Transformer
from phmctl.nn.rates import dense_rate
from phmctl.recipe.loading import common_overrides, load_recipe
from phmctl.recipe.schema import ClassificationRecipe, ParallelSection, TranslationRecipe
from phmctl.results.counting import published_tables
from phmctl.results.ledger import ledger_for_recipe
from phmctl.shipped import shipped, shipped_names

ALL = shipped_names("recipes")
NAMES = [name for name in ALL if isinstance(load_recipe(name), TranslationRecipe)]  # of translation
CLASSIFICATION = [name for name in ALL if isinstance(load_recipe(name), ClassificationRecipe)]
PAIRS = [name for name in CLASSIFICATION if load_recipe(name).model.kind == "lstm-pair"]
ENCODERS = [name for name in CLASSIFICATION if load_recipe(name).model.kind == "encoder"]


@pytest.mark.parametrize("name", ALL)
def test_a_recipe_is_named_after_its_file_and_names_its_sources(name):
    recipe, text = load_recipe(name), (shipped("recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    assert recipe.name == name
    assert recipe.description
    assert text.startswith("# ")
    assert text.count("#") >= 6 or "\nextends: " in text


SHAPES = [*{repr(load_recipe(name).model): name for name in NAMES}.values()]  # one name of each


@pytest.mark.parametrize(
    ("name", "choice"),
    [(name, {"n": 16}) for name in NAMES]
    + [(name, choice) for name in SHAPES for choice in ({"n": 1}, {"n": 4}, {"algebra": "quaternion"})],
    ids=str,
)
def test_a_recipe_builds_its_model(name, choice):
    recipe = load_recipe(name, common_overrides(**choice))
    vocabulary = recipe.data.vocabulary
    model = Transformer(recipe.model, vocabulary, vocabulary, device="meta")
    assert len(model.encoder) == recipe.model.encoder_layers
    assert len(model.decoder) == recipe.model.decoder_layers
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


@pytest.mark.parametrize(
    ("names", "layers", "width", "heads", "steps", "beam"),
    [
        ("table2-iwslt14-de-en table2-iwslt14-ro-en", 2, 256, 4, 50_000, 5),  # appendix B.2
        ("table2-iwslt15-en-vi table2-iwslt17-en-id", 4, 512, 8, 50_000, 5),
        ("table2-setimes-en-mk table2-wmt18-en-et table2-wmt18-en-ro", 4, 512, 8, 100_000, 5),
        ("table3-iwslt14-de-en", 2, 256, 4, 50_000, 4),  # its caption
        ("table4-shakespeare", 4, 512, 8, 10_000, 5),  # appendix B.3
    ],
)
def test_the_paper_s_recipes_have_the_paper_s_shape(names, layers, width, heads, steps, beam):
    for recipe in map(load_recipe, names.split()):
        model = recipe.model
        assert (model.encoder_layers, model.decoder_layers) == (layers, layers)
        assert (model.width, model.heads, model.feed_forward) == (width, heads, 4 * width)
        assert (recipe.training.steps, recipe.decoding.beam, recipe.decoding.alpha) == (steps, beam, 0.6)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("table2", "table3"))])
def test_the_recipes_of_table_2_differ_only_in_corpus_shape_and_steps(name):
    recipe, other = load_recipe(name), load_recipe("table2-iwslt15-en-vi")
    shape = {"width", "feed_forward", "heads", "encoder_layers", "decoder_layers"}
    assert recipe.model.model_dump(exclude=shape) == other.model.model_dump(exclude=shape)
    assert recipe.data.model_dump(exclude={"card"}) == other.data.model_dump(exclude={"card"})
    schedule = {"steps", "learning_rate"}
    assert recipe.training.model_dump(exclude=schedule) == other.training.model_dump(exclude=schedule)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("table")])
def test_the_peak_rate_of_dense_maps_is_near_tensor2tensor_s(name):
    recipe = load_recipe(name)
    training = recipe.training
    peak = 2 * recipe.model.width**-0.5 * training.warmup**-0.5
    assert math.isclose(training.learning_rate * dense_rate(recipe.model.width), peak, rel_tol=0.3)
    assert (training.beta1, training.beta2, training.epsilon) == (0.9, 0.997, 1e-9)
    assert (training.schedule, training.warmup, training.average) == ("inverse_sqrt", 16_000, 8)


def test_the_fast_recipe_multiplies_by_few_blocks():
    model = load_recipe("multi30k-de-en-fast").model
    assert (model.algebra, model.n, model.rank) == ("phm", 4, 4)
    assert load_recipe("multi30k-de-en-fast").data == load_recipe("multi30k-de-en").data


@pytest.mark.parametrize("name", ["miniature", "multi30k-de-en"])
def test_a_recipe_named_after_its_card_has_the_card_s_settings(name):
    # so that `prepare-data NAME` and `train NAME` need no options
    assert load_recipe(name).data == choose_section(name, ParallelSection)


@pytest.mark.parametrize("name", NAMES + CLASSIFICATION)
def test_a_recipe_names_the_command_that_prepares_its_data(name):
    """``train`` without prepared data names the same command."""
    text = (shipped("recipes") / f"{name}.yaml").read_text(encoding="utf-8")
    (command,) = re.findall(
        r"^# Prepare its data: (phmctl prepare-data (\S+)(?: --recipe (\S+))?)$", text, re.MULTILINE
    )
    data = load_recipe(name).data
    assert choose_section(command[1], type(data), load_recipe(command[2]) if command[2] else None) == data
    assert command[2] or prepare_command(data).startswith(command[0])


# Neuron interaction.

NI = [name for name in NAMES if name.startswith("ni-")]


@pytest.mark.parametrize("name", NI)
def test_each_row_of_the_paper_is_the_recipe_with_two_settings(name):
    for row in published_tables("ni")[0].rows:
        recipe = load_recipe(name, row.settings.split())
        layers, heads = recipe.model.compose_layers, recipe.model.compose_heads
        model = Transformer(recipe.model, 8, 8, device="meta")
        composed = [path for path, _ in model.named_parameters() if ".composition." in path or "output.P" in path]
        assert bool(composed) == (layers == "bilinear" or heads == "bilinear" or layers in ("linear", "hierarchical"))
    assert (recipe.model.compose_layers, recipe.model.compose_heads) == ("bilinear", "bilinear")
    assert recipe.model == load_recipe(name).model  # row 8
    assert recipe.model.pooling_rank == recipe.model.width


def test_multi30k_is_reversed():
    data = load_recipe("ni-multi30k-en-de").data
    assert data == load_recipe("multi30k-de-en").data.model_copy(update={"direction": "reverse"})


# Classifiers.


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        (name, choice)
        for name in PAIRS
        for choice in ({"n": 1}, {"n": 2}, {"n": 5}, {"n": 10}, {"algebra": "quaternion"})
    ]
    + [(name, choice) for name in ENCODERS for choice in ({"n": 1}, {"n": 2}, {"n": 4}, {"n": 8})]
    + [(name, {"algebra": "quaternion"}) for name in ENCODERS],
    ids=str,
)
def test_a_classifier_builds_in_each_row_of_its_table_with_the_published_count(name, choice):
    recipe = load_recipe(name, common_overrides(**choice))
    model = build(recipe.model, {"vocabulary": recipe.data.vocabulary, "classes": 3}, "meta")
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    (table,) = published_tables("table1" if name in PAIRS else "table5")
    assert table.measure(ledger_for_recipe(recipe)) in [each.parameters for row in table.rows for each in row.counts]


@pytest.mark.parametrize("name", [name for name in PAIRS if name.startswith("table1")])
def test_the_lstm_s_maps_have_the_paper_s_rate(name):
    recipe = load_recipe(name)
    assert math.isclose(recipe.training.learning_rate * dense_rate(300), 4e-4, rel_tol=0.02)
    assert recipe.training.optimizer == "adam"


PAPERS = ["table1-snli", "table1-mnli", "table1-quora", "table1-dialogue-nli", "table1-scitail"]


def test_the_recipes_of_table_1_differ_only_in_corpus_and_length():
    first, *others = map(load_recipe, PAPERS)
    lengths = {"steps", "log_every", "validate_every", "save_every"}
    for other in others:
        assert other.model == first.model
        assert other.training.model_dump(exclude=lengths) == first.training.model_dump(exclude=lengths)
    full = load_recipe("table1-snli-full")
    assert full.model == first.model.model_copy(update={"combination": "full"})
    assert (full.data, full.training) == (first.data, first.training)


def test_the_agreement_recipes_have_the_same_model():
    paper, own = load_recipe("table5-agreement"), load_recipe("agreement-resplit")
    assert (paper.model, paper.training) == (own.model, own.training)
    model = paper.model
    assert (model.layers, model.heads, model.width, paper.training.steps) == (2, 4, 128, 10_000)  # appendix B.4
    assert model.projections == "fused"
