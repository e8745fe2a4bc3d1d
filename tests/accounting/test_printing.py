import re

import pytest

from phmctl.accounting.counting import count_parameters, print_count


def printed(capsys, *args, **kwargs):
    print_count(count_parameters(*args, **kwargs))
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_one_variant_prints_its_ledger(capsys):
    out, err = printed(capsys, "miniature", ns=[4], overrides=["data.vocabulary=2000"])
    total = next(line for line in out.splitlines() if "│ total" in line)
    cells = [cell.strip() for cell in total.strip("│").split("│")]
    assert cells == ["total", "", "", "1,182,208", "495,488", "229,376", "1,408", "5,632", "3,072", "256,000"]
    assert "saved against the dense twin: 58.1%; without embeddings 74.1%" in err
    assert "as the recipe asks" in err


def test_several_variants_print_a_comparison(capsys):
    out, _ = printed(capsys, "miniature", ns=[1, 4], overrides=["data.vocabulary=2000"])
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    assert rows == [
        ["real", "1,182,208", "100.0%", "926,208", "100.0%", "0", "0.00%"],
        ["phm-n4", "495,488", "41.9%", "239,488", "25.9%", "22", "0.28%"],
    ]


def test_published_figures_stand_beside_ours(capsys):
    out, err = printed(capsys, "ceng501-de-en", ns=[16], paper=True)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    assert rows[-1] == ["PHM+ n=16", "1,844,224", "1,844,224", "yes", "n everywhere"]
    assert ["PHM+ n=2", "13,579,416", "13,579,416", "yes", "one d×d map a layer left at n = 16"] in rows
    assert ["", "", "13,677,752", "no, +0.7%", "n everywhere"] in rows
    assert "one d×d map of each layer was left at n = 16" in err


def test_a_recipe_of_another_shape_says_what_it_has_itself(capsys):
    out, err = printed(capsys, "table2-iwslt14-de-en", ns=[1, 16], paper=True)
    assert "table2-iwslt14-de-en itself, counted so: real 3,670,016, phm-n16 319,488" in err
    assert "no, −33.3%" in out


def test_a_narrow_terminal_gets_fewer_columns_and_whole_words(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    out, err = printed(capsys, "ceng501-de-en", ns=[16])
    assert max(map(len, re.sub(r"\x1b\[\d*m", "", out).splitlines())) <= 100
    assert "decoder.0-1.cross_attention.query_key_value" in out
    assert "bias" not in out
    assert "S, rule, bias, norm, embedding: on a terminal of" in err


@pytest.mark.parametrize("recipe", ["table2-iwslt14-de-en", "table4-shakespeare", "ceng501-shakespeare"])
def test_all_fits_a_terminal_of_100_columns(capsys, monkeypatch, recipe):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    out, err = printed(capsys, recipe, ns=[1, 2, 4, 8, 16], paper=True)
    assert max(map(len, [*out.splitlines(), *err.splitlines()])) <= 100


def test_a_table_alone_says_what_it_counts(capsys):
    out, err = printed(capsys, "table1", paper=True)
    rows = [[cell.strip() for cell in line.strip("│").split("│")] for line in out.splitlines() if line.startswith("│")]
    assert [row[:4] for row in rows if row[1] == "146K"] == [["PHM-LSTM n=5", "146K", "146,200", "yes"]]
    assert "counted: weights, rules and biases of one LSTM, 300 → 300; no embeddings, no MLP" in err
    assert "itself, counted so" not in err


@pytest.mark.parametrize("table", ["table1", "table5"])
def test_the_classifiers_tables_fit_a_terminal_of_100_columns(capsys, monkeypatch, table):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    out, err = printed(capsys, table, paper=True)
    assert max(map(len, [*out.splitlines(), *err.splitlines()])) <= 100
