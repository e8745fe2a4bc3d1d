import csv
import io
import json
from functools import partial
from pathlib import Path

import pytest

from phmctl.accounting.published import Column, PublishedTable, published_tables
from phmctl.comparison.papers import Cell, compare_papers
from phmctl.recipe import flatten
from phmctl.recipe.loading import common_overrides, load_recipe
from phmctl.runs import Weights
from phmctl.runs.results import ScoringKey, log_line, read_results, write_result
from phmctl.shipped import shipped_names
from tests.calls import call
from tests.comparison.runs import REFERENCES, make_classifier, make_run, worse

COLUMNS = [
    pytest.param(table, column, id=f"{table.key}-{column.label}")
    for table in published_tables()
    for column in table.columns
]
paper = partial(call, "compare", "--paper")
SMALL = ("model.width=32", "model.feed_forward=64", "model.heads=4")
SHORT = (*SMALL, "training.steps=200")


def cell_of(cells: tuple[Cell, ...], row: str, column: str = "") -> Cell:
    return next(cell for cell in cells if cell.row.label == row and column in ("", cell.column.label))


@pytest.mark.parametrize(("table", "column"), COLUMNS)
def test_each_row_has_a_score_and_the_shipped_recipe_is_of_the_published_setup(
    table: PublishedTable, column: Column
) -> None:
    assert len(column.scores) == len(table.rows)
    assert all(float(score) > 0 for score in column.scores)
    assert set(column.stand_ins) - {"shakespeare"} <= set(shipped_names("recipes"))
    values = dict(flatten(load_recipe(column.recipe).model_dump()))
    assert {key: values[key] for key in column.setup} == dict(column.setup)
    for row in table.rows:
        options = list(zip(row.options[::2], row.options[1::2], strict=True))
        settings = [value for name, value in options if name == "--set"]
        choice: dict[str, object] = {}
        for name, value in options:
            if name != "--set":
                choice[name.removeprefix("--")] = int(value) if name == "--n" else value
        assert load_recipe(column.recipe + row.size, [*common_overrides(**choice), *settings]).variant == row.variant


@pytest.mark.parametrize(
    ("table", "row", "column", "score"),  # read off the papers by hand
    [
        ("table1", "PHM-LSTM n=10", "SciTail", "77.84"),
        ("table1", "Quaternion LSTM", "MNLI-mm", "72.19"),
        ("table2", "PHM n=16", "En-Id", "33.48"),
        ("table2", "PHM n=2 †", "En-Mk", "14.41"),
        ("table2", "PHM n=8", "En-Ro", "21.66"),
        ("table3", "Quaternion", "inference s", "293"),
        ("table4", "PHM n=4", "Modern-Shakespeare", "12.42"),
        ("table5", "PHM n=8", "agreement", "95.62"),
        ("ceng501-de-en", "PHM+ n=8", "de-en", "18.02"),
        ("ni", "+ Both (6+7)", "En-De", "28.54"),
    ],
)
def test_published_scores(table: str, row: str, column: str, score: str, tmp_path: Path) -> None:
    (comparison, *_) = compare_papers(table, root=tmp_path)
    assert cell_of(comparison.cells, row, column).published == score


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of Table 4 (the dense model with two seeds, n = 4 without scores) and a stand-in of Table 2."""
    root = tmp_path_factory.mktemp("runs")
    for seed, period in ((1, 3), (2, 6)):
        lines = worse(REFERENCES, period)
        make_run(root, recipe="table4-shakespeare", settings=SHORT, seed=seed, hypotheses=lines)
    make_run(root, recipe="table4-shakespeare", settings=(*SHORT, "model.algebra=phm", "model.n=4"), hypotheses=None)
    make_run(root, recipe="multi30k-de-en", settings=SMALL)
    return root


def test_scores_are_next_to_the_published_ones_with_a_line_for_each_difference(trained: Path) -> None:
    (comparison,) = compare_papers("table4", root=trained)
    cell = cell_of(comparison.cells, "Transformer")
    shown = paper("table4", "--runs", trained)
    line = next(line for line in shown.stdout.split("\n") if "Transformer" in line)
    assert len(cell.values) == 2
    assert all(text in line for text in (f"{sum(cell.values) / 2:.2f} ± ", "11.65", "44M"))
    lines = list(cell.differences())
    assert "training.steps: 200 here, 10,000 published" in lines
    assert "model.width: 32 here, 512 published" in lines
    assert not [line for line in lines if "layers" in line]
    assert shown.stderr.count("training.steps: 200 here, 10,000 published") == 1


def test_empty_cells_name_the_command_that_fills_them(trained: Path) -> None:
    (comparison,) = compare_papers("table4", root=trained)
    folder = trained / "table4-shakespeare" / "phm-n4" / "v001"
    assert cell_of(comparison.cells, "PHM n=4").command == f"phmctl eval {folder}"
    trainings = [f"phmctl train table4-shakespeare --n {n} --runs {trained}" for n in (2, 8, 16)]
    assert cell_of(comparison.cells, "PHM n=8").command == trainings[1]
    assert cell_of(comparison.cells, "Transformer").command is None
    assert {*comparison.missing()} == {*trainings, f"phmctl eval {folder}"}
    assert trainings[0] in paper("table4", "--runs", trained).stderr.split("\n")


def test_times_of_table_3_are_read_from_result_and_log(tmp_path: Path) -> None:
    run = make_run(tmp_path, recipe="table3-iwslt14-de-en", settings=SMALL)
    (comparison,) = compare_papers("table3", root=tmp_path)
    cell = cell_of(comparison.cells, "Transformer", "inference s")
    assert (cell.values, cell.command) == ([], f"phmctl eval {run.folder}")
    (of_last,) = compare_papers("table3", root=tmp_path, checkpoint="last")
    assert cell_of(of_last.cells, "Transformer", "inference s").command == f"phmctl eval {run.folder} --checkpoint last"
    (result,) = read_results(run)
    setting = ScoringKey("test", Weights(result.checkpoint, result.checkpoint_sha256), result.settings)
    write_result(run, setting, {**result.report, "decoding_seconds": 41.5})
    result.path.unlink()
    entries = [
        {"event": "train", "step": step, "seconds_per_step": seconds} for step, seconds in enumerate((0.5, 0.2, 0.1))
    ]
    run.metrics_path.write_bytes(b"".join(map(log_line, entries)))
    (comparison,) = compare_papers("table3", root=tmp_path)
    cell = cell_of(comparison.cells, "Transformer", "inference s")
    assert (cell.values, cell.command) == ([41.5], None)
    assert cell_of(comparison.cells, "Transformer", "s/100 steps").values == [20.0]
    assert "41.50" in paper("table3", "--runs", tmp_path).stdout


def test_the_score_of_copying_is_printed_with_table_4(tmp_path: Path) -> None:
    """Copying scores higher than every published row, so it is printed even without runs."""
    notes = " ".join(paper("table4", "--runs", tmp_path).stderr.split())
    assert "19.70" in notes
    copy = {"bleu": 21.5, "shared_words": 0.5}
    make_run(tmp_path, recipe="table4-shakespeare", settings=SMALL, copy=copy)
    (comparison,) = compare_papers("table4", root=tmp_path)
    assert "Modern-Shakespeare: copying the source scores 21.50 BLEU" in comparison.remarks()


def test_a_stand_in_is_marked(trained: Path) -> None:
    (comparison,) = compare_papers("table2", root=trained)
    cell = cell_of(comparison.cells, "Transformer", "De-En")
    assert cell.stand_in == "multi30k-de-en"
    assert "multi30k-de-en stands in for table2-iwslt14-de-en, which was not trained" in cell.differences()
    assert not cell_of(comparison.cells, "Transformer", "En-Vi").values
    shown = paper("table2", "--runs", trained).stdout
    assert "‡" in shown
    assert max(map(len, shown.split("\n"))) <= 80


def test_parameters_are_counted_as_the_table_counts_them(tmp_path: Path) -> None:
    """Table 5 counts maps, rules and biases of the encoder: 55,552 at n = 8, whatever the vocabulary."""
    settings = ("model.algebra=phm", "model.n=8")
    make_classifier(tmp_path, [True, True, False, True], settings=settings)
    (comparison,) = compare_papers("table5", root=tmp_path)
    assert [cell.count for cell in comparison.cells if cell.count is not None] == [55_552]
    cell = cell_of(comparison.cells, "PHM n=8")
    assert cell.values == [75.0]
    assert cell.stand_in


def test_csv_and_json_have_an_entry_per_cell(trained: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(paper("table2", "--runs", trained, "--format", "csv").stdout)))
    assert len(rows) == 9 * 7
    assert {row["command"] for row in rows if row["column"] == "En-Vi" and row["row"] == "PHM n=4 †"} == {
        f"phmctl train table2-iwslt15-en-vi --n 4 --set model.upsize=2 --runs {trained}"
    }
    document = json.loads(paper("table4", "--runs", trained, "--json").stdout)
    cells = document["tables"][0]["cells"]
    assert [cell["published"] for cell in cells] == [
        "11.65",
        "12.20",
        "12.42",
        "11.66",
        "10.76",
    ]
    assert paper("ceng501", "--runs", trained, "--format", "latex").stdout.count(r"\begin{tabular}") == 2


def test_a_column_can_be_of_another_test_set(tmp_path: Path) -> None:
    classifier = {
        "recipe": "table1-mnli",
        "settings": ("model.width=20", "model.hidden=20", "model.embedding_width=20"),
    }
    run = make_classifier(tmp_path, [True, False, True, True], split="test_mismatched", **classifier)
    (comparison,) = compare_papers("table1", root=tmp_path)
    assert cell_of(comparison.cells, "LSTM", "MNLI-mm").values == [75.0]
    assert cell_of(comparison.cells, "LSTM", "MNLI").command == f"phmctl eval {run.folder}"


def test_a_recipe_narrows_a_table_to_its_columns(tmp_path: Path) -> None:
    [table] = compare_papers("table2", recipe="table2-iwslt15-en-vi", root=tmp_path)
    assert {cell.recipe for cell in table.cells} == {"table2-iwslt15-en-vi"}
    assert all("table2-iwslt15-en-vi" in command for command in table.missing())
    [table] = compare_papers("table5", recipe="agreement-resplit", root=tmp_path)  # it stands in
    assert {cell.recipe for cell in table.cells} == {"table5-agreement"}
