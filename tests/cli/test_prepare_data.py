import json
import re
import signal
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from phmctl.cli import main
from phmctl.data.card import card_names
from phmctl.errors import DataError, UserError


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
    result = CliRunner().invoke(main.app, ["prepare-data", *arguments, "--data", str(tmp_path / "data")])
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


def test_the_list_tells_of_every_card_and_what_is_prepared(tmp_path):
    done = tmp_path / "data" / "prepared" / "wmt18-en-et"
    for folder in ("bpe-32000-joint-256", "word-100-20", ".bpe-8-8.new"):
        (done / folder).mkdir(parents=True)
        (done / folder / "manifest.json").write_text("{}")
    (tmp_path / "data" / "prepared" / "wmt14-en-de" / "bpe-9-9").mkdir(parents=True)  # nothing in it
    document = json.loads(call(tmp_path, "--list", "--json").stdout)
    cards = {card["name"]: card for card in document["cards"]}
    assert set(cards) == set(card_names())
    assert cards["wmt18-en-et"]["prepared"] == ["bpe-32000-joint-256", "word-100-20"]
    assert cards["wmt14-en-de"]["prepared"] == []
    assert cards["wmt14-en-de"]["sizes"] == {"train": 4_508_785, "valid": 3_000, "test": 3_003}
    assert cards["setimes-en-mk"]["divided"] == ["valid", "test"]
    assert cards["multi30k-de-en"]["origins"] == ["urls", "hub"]  # asked in this order
    assert cards["iwslt14-de-en"]["origins"] == ["hub", "urls"]
    assert cards["miniature"]["origins"] == ["built in"]
    assert cards["iwslt14-ro-en"]["languages"] == ["ro", "en"]


def test_the_list_fits_80_columns_and_breaks_no_name(tmp_path, monkeypatch):
    for name, value in (("COLUMNS", "80"), ("FORCE_COLOR", "1"), ("NO_COLOR", "1")):
        monkeypatch.setenv(name, value)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", call(tmp_path, "--list").stdout)
    assert max(map(len, shown.splitlines())) <= 80
    assert set(card_names()) <= set(shown.split())


def test_the_list_says_what_was_done_here(tmp_path):
    (tmp_path / "data" / "prepared" / "setimes-en-mk" / "bpe-8-8").mkdir(parents=True)
    (tmp_path / "data" / "raw" / "multi30k-de-en" / "urls-0123").mkdir(parents=True)
    (tmp_path / "data" / "prepared" / "setimes-en-mk" / "bpe-8-8" / "manifest.json").write_text("{}")
    result = call(tmp_path, "--list")
    rows = {cells[1].strip(): cells for line in result.stdout.splitlines() if len(cells := line.split("│")) > 2}
    assert [cell.strip() for cell in rows["setimes-en-mk"][1:-1]] == [
        "setimes-en-mk",
        "en → mk",
        "203,622 / 2,077* / 2,078*",
        "CC BY-SA 4.0",
        "hub, urls",
        "prepared",
    ]
    assert rows["iwslt14-ro-en"][3].strip() == "not known"
    assert rows["wmt18-en-ro"][6].strip() == "never tried"
    assert rows["multi30k-de-en"][6].strip() == "fetched"
    assert rows["miniature"][6].strip() == "–"
    assert "* held out of train" in result.stderr
    assert "held out" not in call(tmp_path, "miniature", "--list").stderr


def test_the_list_of_one_name_and_of_nothing_else(tmp_path):
    (card,) = json.loads(call(tmp_path, "miniature", "--list", "--json").stdout)["cards"]
    assert card["name"] == "miniature"
    with pytest.raises(DataError, match=r"no dataset card 'miniatur' \(did you mean 'miniature'"):
        call(tmp_path, "miniatur", "--list")
    with pytest.raises(UserError, match=r"^--test, --force have no part in --list: leave one out$"):
        call(tmp_path, "--list", "--force", "--test", "a", "b")


def test_the_list_imports_nothing_heavy():
    import subprocess
    import sys

    code = (
        "import sys; import phmctl.data.listing; print([name for name in ('torch', 'datasets') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_name_is_wanted_without_the_list(tmp_path):
    with pytest.raises(DataError, match=r"no corpus is named: .*NAME\nphmctl prepare-data --list"):
        call(tmp_path)


def test_an_unknown_name_gets_the_nearest_and_the_list(tmp_path):
    with pytest.raises(DataError, match=r"no dataset card 'wmt18-en-rp' \(did you mean 'wmt18-en-ro'\?\); .*--list"):
        call(tmp_path, "wmt18-en-rp")


def test_refetch_is_for_what_is_downloaded(tmp_path, files):
    for given in (["mine", *files], ["multi30k-de-en", "--source", str(tmp_path)]):
        with pytest.raises(DataError, match="--refetch is for what a card downloads"):
            call(tmp_path, *given, "--refetch")


@pytest.mark.parametrize(
    ("twice", "advice"),
    [
        (
            ["--vocabulary", "5", "--vocabulary", "6", "--vocabulary", "7"],
            "--vocabulary is given 3 times.*; leave one out",
        ),
        (["--joint", "--separate"], "--joint is given 2 times"),
    ],
)
def test_an_option_given_twice_is_refused(twice, advice):
    with pytest.raises(UserError, match=advice):
        CliRunner().invoke(main.app, ["prepare-data", "mine", *twice], catch_exceptions=False)


def test_options_that_mean_several_may_be_repeated(tmp_path):
    (tmp_path / "t.tsv").write_text("a\tb\tlabel\n" + "".join(f"w{n}\tv{n}\t{n % 2}\n" for n in range(40)))
    (tmp_path / "v.tsv").write_text("a\tb\tlabel\nx\ty\t0\nx\tz\t1\n")
    given = ["--table", f"train={tmp_path}/t.tsv", "--table", f"valid={tmp_path}/v.tsv", "--text", "a", "--text", "b"]
    given += ["--label", "label", "--vocabulary", "50", "--data", str(tmp_path / "data")]
    assert CliRunner().invoke(main.app, ["prepare-data", "mine", *given], catch_exceptions=False).exit_code == 0


def test_sigterm_leaves_nothing_half_made(tmp_path):
    """The real command, asked to end while its folder is being made."""
    command = [sys.executable, "-m", "phmctl", "prepare-data", "miniature", "--data", str(tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if line.startswith("tokenizing "):
                break
        assert [path for path in tmp_path.rglob("*") if path.is_file()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 143
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
