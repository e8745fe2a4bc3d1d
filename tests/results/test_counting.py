import pytest

from phmctl.errors import RecipeError, UserError
from phmctl.results.counting import count_parameters


def names(count):
    return [ledger.name for ledger in count.ledgers]


def test_the_recipe_s_model_or_several_n():
    count = count_parameters("miniature")
    assert names(count) == ["miniature real"]
    assert count.published == ()
    count = count_parameters("miniature", ns=[1, 2, 4])
    assert names(count) == ["miniature real", "miniature phm-n2", "miniature phm-n4"]
    real, two, four = (ledger.without_embeddings.components for ledger in count.ledgers)
    assert (real, real) == (2 * two, 4 * four)


def test_a_fixed_algebra_is_counted_once_with_several_n():
    count = count_parameters("miniature", ns=[2, 4], algebras=["phm", "quaternion"])
    assert names(count) == ["miniature phm-n2", "miniature phm-n4", "miniature quaternion"]
    four, quaternion = count.ledgers[1:]
    assert four.totals.parameters - quaternion.totals.parameters == four.totals.rule == 24 * 4**3


def test_a_table_takes_no_settings():
    content = count_parameters("table5", paper=True).as_json()
    assert content["variants"] == []
    rows = [(row["figure"], row["candidates"][0]["count"]) for row in content["published"][0]["rows"]]
    assert rows[:2] == [("400K", 395_520), ("100K", 98_304)]
    with pytest.raises(UserError):
        count_parameters("table1", ns=[2], paper=True)
    with pytest.raises(RecipeError):
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


def printed(*args, place=0, **kwargs):
    """The rows of a table, and its notes."""
    table = [*count_parameters(*args, **kwargs).tables()][place]
    return [[str(cell) for cell in row] for row in table.rows], "\n".join(table.below)


def test_one_variant_prints_its_ledger():
    rows, below = printed("miniature", ns=[4], overrides=["data.vocabulary=2000"])
    total = ["total", "", "", "1,438,208", "367,616", "293,376", "1,536", "5,632", "3,072", "64,000"]
    assert total in rows
    assert "saved against the dense twin: 74.4%; without embeddings 74.1%" in below
    assert "as the recipe asks" in below


def test_several_variants_print_a_comparison():
    rows, _ = printed("miniature", ns=[1, 4], overrides=["data.vocabulary=2000"])
    assert rows[1] == ["phm-n4", "367,616", "25.6%", "239,488", "25.9%", "24", "0.42%"]


def test_sizes_are_printed_for_each_type_of_number():
    """Every S or table is rounded with a float32 scale for each row; A, biases and norms stay float32."""
    rows, _ = printed("multi30k-de-en", ns=[1, 4], place=1)
    assert rows == [["real", "22.94", "11.51", "5.86", "3.01"], ["phm-n4", "11.94", "6.01", "3.12", "1.64"]]
    rows, _ = printed("multi30k-de-en-tiny", place=1)
    assert rows == [["phm-n4", "5.79", "2.93", "1.58", "0.87"]]
    (ledger,) = count_parameters("miniature", ns=[4], overrides=["data.vocabulary=2000"]).ledgers
    exact = ledger.totals.rule + ledger.totals.bias + ledger.totals.norm
    matrices = ledger.totals.parameters - exact
    scales = ledger.totals.bias + 2 * 2000  # a row for each bias, and those of the table and the generator
    sizes = {"float32": 4 * (matrices + exact), "float16": 2 * matrices + 4 * exact}
    sizes |= {"int8": matrices + 4 * (exact + scales), "int4": matrices // 2 + 4 * (exact + scales)}
    assert ledger.totals.bytes == ledger.as_json()["totals"]["bytes"] == sizes


def test_published_figures_are_printed_with_ours():
    rows, below = printed("ceng501-de-en", ns=[16], paper=True)
    assert rows[-1] == ["PHM+ n=16", "1,844,224", "1,844,224", "yes", "n everywhere"]
    assert ["PHM+ n=2", "13,579,416", "13,579,416", "yes", "one d×d map a layer left at n = 16"] in rows
    assert ["", "", "13,677,752", "no, +0.7%", "n everywhere"] in rows
    assert "one d×d map of each layer was left at n = 16" in below
    _, below = printed("table2-iwslt14-de-en", ns=[1, 16], paper=True)
    assert "table2-iwslt14-de-en itself, counted so: real 3,670,016, phm-n16 319,488" in below


def test_without_a_stdout_all_columns_are_kept(monkeypatch):
    expected = printed("miniature")
    monkeypatch.setattr("sys.stdout", None)
    assert printed("miniature") == expected


def test_a_narrow_terminal_gets_fewer_columns_and_whole_words(monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    table, _ = count_parameters("ceng501-de-en", ns=[16]).tables()
    assert (len(table.columns), table.rows[-3][0]) == (5, "generator")
