"""``phmctl prepare-data`` on labelled text."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phmctl.cli.main import app
from phmctl.data.prepared.folder import PreparedData
from phmctl.errors import DataError


def call(tmp_path, *arguments):
    result = CliRunner().invoke(app, ["prepare-data", *arguments, "--data", str(tmp_path / "data")])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def tables(tmp_path):
    rows = {
        "train": ["yes\ta dog\tbarks", "no\ta cat\tbarks", "yes\ta cat\tsleeps"],
        "valid": ["yes\ta\tb", "no\tc\td"],
    }
    for name, lines in rows.items():
        text = "".join(f"{line}\n" for line in ["gold\tone\ttwo", *lines])
        (tmp_path / f"{name}.tsv").write_text(text)
    return [part for name in rows for part in ("--table", f"{name}={tmp_path / name}.tsv")]


def test_own_tables(tmp_path, tables):
    columns = ["--text", "one", "--text", "two", "--label", "gold", "--vocabulary", "50"]
    document = json.loads(call(tmp_path, "mine", *tables, *columns, "--json").stdout)
    assert document["folder"] == str(tmp_path / "data" / "prepared" / "mine" / "labelled-word-50-128")
    assert (document["labels"], document["texts"], document["task"]) == (["no", "yes"], 2, "classification")
    again = call(tmp_path, "mine", *tables, *columns)
    assert "up to date" in again.stderr
    assert "mine: pairs; no, yes; word vocabulary of" in again.stdout
    cells = [cell.strip() for line in again.stdout.splitlines() if "train" in line for cell in line.split("│")[1:-1]]
    assert cells == ["train", "3", "3", "yes 66.7%", "9"]


def test_columns_by_number(tmp_path):
    (tmp_path / "train.tsv").write_text("yes\ta dog\nno\ta cat\n")
    (tmp_path / "valid.tsv").write_text("no\tx\nyes\ty\n")
    tables = [part for name in ("train", "valid") for part in ("--table", f"{name}={tmp_path / name}.tsv")]
    columns = ["--text", "1", "--label", "0", "--no-header"]
    document = json.loads(call(tmp_path, "mine", *tables, *columns, "--json").stdout)
    assert (document["labels"], document["splits"]["train"]["read"]) == (["no", "yes"], 2)


def test_a_card_with_vectors(tmp_path):
    for name in ("train", "dev", "test"):
        path = tmp_path / "all_combined" / f"{name}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"sentence1\tsentence2\tgold_label\n{name} a\tb\tneutral\n")
    (tmp_path / "snli").mkdir()
    (tmp_path / "snli" / "test.tsv").write_text("premise\thypothesis\tlabel\nx\ty\t1\n")
    (tmp_path / "v.txt").write_text("a 0.1 0.2\n")
    result = call(
        tmp_path,
        *("snli-counterfactual", "--source", str(tmp_path / "all_combined"), "--vectors", str(tmp_path / "v.txt")),
        *("--extra-split", f"test_snli={tmp_path / 'snli'}"),
    )
    assert "test_snli" in result.stdout
    assert "2-dimensional vectors of v.txt for 1 of 3 token types; of the tokens 33.3% of train" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["snli", "--joint"], "--joint and --separate are for translation"),
        (["snli", "--reverse"], "--reverse is for translation; snli is labelled text"),
        (["snli", "--copies"], "--copies is for translation; snli is labelled text"),
        (["snli", "--text", "a"], "--text is for your own tables: give those with --table SPLIT=FILE"),
        (["miniature", "--vectors", "v"], "--vectors is for labelled text; miniature is parallel text"),
        (["mine", "--table", "train"], "--table train: wants SPLIT=FILE"),
        (["mine", "--table", "train=a", "--table", "train=b"], "--table train is given twice"),
        (["mine", "--table", "train=a", "--text", "a", "--label", "a"], "column 'a' is named twice"),
        (["mine", "--table", "train=a", "--text", "a"], "tables want --text COLUMN .* and --label COLUMN"),
        (
            ["mine", "--table", "train=a", "--text", "a", "--label", "0", "--no-header"],
            "with --no-header, --text and --label are numbers",
        ),
        (["snil"], r"no dataset card 'snil' \(did you mean 'snli'\?\)"),
    ],
)
def test_what_cannot_be(tmp_path, arguments, message):
    with pytest.raises(DataError, match=message):
        call(tmp_path, *arguments)


def test_the_list_tells_of_labelled_text(tmp_path):
    cards = {card["name"]: card for card in json.loads(call(tmp_path, "--list", "--json").stdout)["cards"]}
    assert (cards["snli"]["texts"], cards["snli"]["labels"]) == (2, ["entailment", "neutral", "contradiction"])
    assert cards["agreement-resplit"]["divided"] == ["valid", "test"]
    assert cards["mnli"]["divided"] == ["valid"]
    lines = call(tmp_path, "--list").stdout.splitlines()
    (row,) = [line for line in lines if "│ snli " in line]
    assert "pair → 3" in row
    assert "550,152 / 10,000 / 10,000" in row


def test_extra_columns_break_scores_down(tmp_path):
    for name in ("train", "valid"):
        lines = ["gold\ttext\tlength", *(f"{'yes' if n % 2 else 'no'}\t{name} {n}\t{n % 3}" for n in range(12))]
        (tmp_path / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))
    tables = [part for name in ("train", "valid") for part in ("--table", f"{name}={tmp_path / name}.tsv")]
    columns = ["--text", "text", "--label", "gold", "--extra", "length"]
    document = json.loads(call(tmp_path, "mine", *tables, *columns, "--json").stdout)
    assert document["extras"] == ["length"]
    split = PreparedData.open(Path(document["folder"])).split("valid")
    assert split.extras["length"].tolist() == [n % 3 for n in range(12)]
    with pytest.raises(DataError, match=r"no column 'lenght' \(did you mean 'length'\?\)"):
        call(tmp_path, "mine", *tables, *columns[:-1], "lenght")
    for taken in ("predicted", "label", "gold", "first_text"):
        with pytest.raises(DataError, match=f"--extra {taken}: "):
            call(tmp_path, "mine", *tables, *columns[:-1], taken)
