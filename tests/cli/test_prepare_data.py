import json

import pytest
import typer
from typer.testing import CliRunner

from phmctl.cli.prepare_data import prepare_data
from phmctl.errors import DataError

app = typer.Typer()
app.command()(prepare_data)


@pytest.fixture
def files(tmp_path):
    train = [(f"Hund {i} läuft .", f"dog {i} runs .") for i in range(100)] + [("", "x")]
    for name, pairs in (("train", train), ("valid", train[:5]), ("test", [("ein Haus", "a house")])):
        for side, suffix in enumerate(("de", "en")):
            (tmp_path / f"{name}.{suffix}").write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    return [
        part
        for name in ("train", "valid", "test")
        for part in (f"--{name}", str(tmp_path / f"{name}.de"), str(tmp_path / f"{name}.en"))
    ]


def call(tmp_path, *arguments):
    result = CliRunner().invoke(app, [*arguments, "--data", str(tmp_path / "data")])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_a_table_tells_what_was_kept_and_dropped(tmp_path, files):
    result = call(tmp_path, "mine", *files, "--tokenizer", "word", "--vocabulary", "50", "--separate")
    assert result.exit_code == 0
    lines = [line.split("│")[1:-1] for line in result.stdout.splitlines() if line.startswith("│")]
    cells = {row[0].strip(): [cell.strip() for cell in row[1:]] for row in lines}
    assert cells["train"][:4] == ["101", "1", "5", "95"]
    assert cells["valid"][:4] == ["5", "0", "0", "5"]
    assert "mine: word vocabularies of 50 and 50" in result.stdout
    assert "2 (100.0% unknown)" in cells["test"]


def test_json_is_the_manifest_and_nothing_else(tmp_path, files):
    result = call(tmp_path, "mine", *files, "--vocabulary", "300", "--max-tokens", "30", "--json", "--workers", "2")
    document = json.loads(result.stdout)
    assert document["folder"] == str(tmp_path / "data" / "prepared" / "mine" / "bpe-300-joint-30")
    assert document["splits"]["train"]["dropped"] == {"empty_side": 1, "in_valid_or_test": 5}
    assert document["settings"]["max_tokens"] == 30
    again = call(tmp_path, "mine", *files, "--vocabulary", "300", "--max-tokens", "30", "--json")
    assert json.loads(again.stdout) == document
    assert "up to date" in again.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["mine", "--vocabulary", "3"], "--vocabulary 3"),
        (["mine", "--tokenizer", "sentencepiece"], "--tokenizer sentencepiece: .*'bpe' or 'word'"),
        (["mine", "--vocabulary", "100"], "260 or more"),
        (["../mine"], "cannot name a corpus"),
    ],
)
def test_a_wrong_value_is_a_users_error(tmp_path, files, arguments, message):
    with pytest.raises(DataError, match=message):
        call(tmp_path, *arguments, *files)


def test_a_missing_source_folder_is_a_users_error(tmp_path):
    with pytest.raises(DataError):
        call(tmp_path, "multi30k-de-en", "--source", str(tmp_path / "nowhere"))
