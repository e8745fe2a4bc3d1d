"""``phmctl prepare-data`` on labelled text."""

import json
from pathlib import Path

import pytest

from phmctl.data.prepared.folder import PreparedData
from phmctl.errors import DataError
from tests.calls import call


def prepare(tmp_path, *arguments):
    return call("prepare-data", *arguments, "--data", tmp_path / "data")


def test_a_card_with_vectors(tmp_path):
    for name in ("train", "dev", "test"):
        path = tmp_path / "all_combined" / f"{name}.tsv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"sentence1\tsentence2\tgold_label\n{name} a\tb\tneutral\n")
    (tmp_path / "v.txt").write_text("a 0.1 0.2\n")
    result = prepare(
        tmp_path,
        *("snli-counterfactual", "--source", str(tmp_path / "all_combined"), "--vectors", str(tmp_path / "v.txt")),
    )
    assert "2-dimensional vectors of v.txt for 1 of 3 token types; of the tokens 33.3% of train" in result.stderr


def test_extra_columns_break_scores_down(tmp_path):
    for name in ("train", "valid"):
        lines = ["gold\ttext\tlength", *(f"{'yes' if n % 2 else 'no'}\t{name} {n}\t{n % 3}" for n in range(12))]
        (tmp_path / f"{name}.tsv").write_text("".join(f"{line}\n" for line in lines))
    tables = [part for name in ("train", "valid") for part in ("--table", f"{name}={tmp_path / name}.tsv")]
    columns = ["--text", "text", "--label", "gold", "--extra", "length"]
    document = json.loads(prepare(tmp_path, "mine", *tables, *columns, "--json").stdout)
    assert document["extras"] == ["length"]
    split = PreparedData.open(Path(document["folder"])).split("valid")
    assert split.extras["length"].tolist() == [n % 3 for n in range(12)]
    with pytest.raises(DataError, match=r"no column 'lenght' \(did you mean 'length'\?\)"):
        prepare(tmp_path, "mine", *tables, *columns[:-1], "lenght")
    for taken in ("predicted", "label", "gold", "first_text"):
        with pytest.raises(DataError, match=f"--extra {taken}: "):
            prepare(tmp_path, "mine", *tables, *columns[:-1], taken)
