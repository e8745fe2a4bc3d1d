import pytest

from phmctl.accounting.counting import count_parameters, parse_ns, split_list
from phmctl.accounting.published import PublishedTable
from phmctl.errors import RecipeError, UserError


def names(count):
    return [ledger.name for ledger in count.ledgers]


def test_the_recipe_s_own_model_is_counted_when_nothing_is_asked():
    count = count_parameters("miniature")
    assert names(count) == ["miniature real"]
    assert count.published == ()


def test_several_n():
    count = count_parameters("miniature", ns=[1, 2, 4])
    assert names(count) == ["miniature real", "miniature phm-n2", "miniature phm-n4"]
    real, two, four = (ledger.without_embeddings.components for ledger in count.ledgers)
    assert (real, real) == (2 * two, 4 * four)


def test_a_fixed_algebra_is_counted_once_beside_several_n():
    count = count_parameters("miniature", ns=[2, 4], algebras=["phm", "quaternion"])
    assert names(count) == ["miniature phm-n2", "miniature phm-n4", "miniature quaternion"]
    four, quaternion = count.ledgers[1:]
    assert four.totals.parameters - quaternion.totals.parameters == four.totals.rule == 22 * 4**3


def test_overrides_reach_every_variant():
    count = count_parameters("miniature", ns=[1, 4], overrides=["data.vocabulary=400"])
    assert [ledger.totals.embedding for ledger in count.ledgers] == [400 * 128, 400 * 128]


def test_n_that_does_not_divide_names_the_nearest():
    with pytest.raises(UserError, match=r"n = 3 .*2 and 4"):
        count_parameters("miniature", ns=[1, 3])


def test_an_unknown_recipe_or_algebra_names_the_nearest():
    with pytest.raises(RecipeError, match="did you mean 'miniature'"):
        count_parameters("minature")
    with pytest.raises(RecipeError, match="did you mean 'quaternion'"):
        count_parameters("miniature", algebras=["quaternon"])


def test_the_paper_s_figures_come_on_request():
    count = count_parameters("ceng501-de-en", ns=[16], paper=True)
    (table,) = count.published
    assert isinstance(table, PublishedTable)
    content = count.as_json()
    assert content["variants"][0]["totals"]["parameters"] == 1_844_224
    row = content["published"][0]["rows"][-1]
    assert (row["figure"], row["holds"], row["candidates"][0]["count"]) == ("1,844,224", True, 1_844_224)


def test_lists_are_split_without_repetition():
    assert parse_ns("1, 2,,2,16") == [1, 2, 16]
    assert parse_ns(None) == []
    assert split_list("phm,quaternion,phm") == ["phm", "quaternion"]


@pytest.mark.parametrize("text", ["0", "x", "1,-2", "2.5"])
def test_a_list_of_n_must_hold_positive_whole_numbers(text):
    with pytest.raises(UserError, match="positive whole number"):
        parse_ns(text)


@pytest.mark.parametrize(
    ("table", "expected"),
    [("table1", [721_200, 180_000, 361_264, 146_200, 81_200]), ("table5", [395_520, 98_304, 198_976, 101_120, 55_552])],
)
def test_a_table_alone(table, expected):
    content = count_parameters(table, paper=True).as_json()
    assert content["variants"] == []
    (published,) = content["published"]
    assert [row["candidates"][0]["count"] for row in published["rows"]] == expected


def test_a_table_takes_no_settings_and_is_no_recipe():
    with pytest.raises(UserError, match="table1 is a published table, not a recipe"):
        count_parameters("table1", ns=[2], paper=True)
    with pytest.raises(RecipeError, match="table1"):
        count_parameters("table1")


def test_recipes_of_other_tasks_are_counted_too(tmp_path):
    path = tmp_path / "mine.yaml"
    head = "name: mine\ntask: {task}\ndata:\n  {data}\nmodel:\n  kind: {kind}\ntraining:\n  steps: 1\n"
    path.write_text(head.format(task="classification", data="card: x\n  vocabulary: 50", kind="encoder"))
    dense, phm = count_parameters(str(path), ns=[1, 8]).ledgers
    assert dense.totals.embedding == phm.totals.embedding == 50 * 128
    assert dense.sizes == {"vocabulary": 50, "classes": 2}
    assert any("as the recipe asks" in text for text in phm.notes)
    path.write_text(head.format(task="rule", data="product: hamilton\n  dims: 2", kind="rule"))
    dense, phm = count_parameters(str(path), ns=[1, 4]).ledgers
    assert (dense.totals.parameters, phm.totals.components, phm.totals.rule) == (64, 16, 64)
    assert dense.sizes == {"features": 8}
