"""``phmctl prepare-data`` on a user's own corpus: files, tables, test sets, cleaning, vocabularies."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
from typer.testing import Result

from phmctl.cli.preparing import files_by_split
from phmctl.data.card import load_card
from phmctl.data.prepared import PreparedData
from phmctl.errors import DataError
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.storage import write_json
from phmctl.tasks import trains
from phmctl.training.train import train
from tests.calls import call, rows_of
from tests.data.helpers import put

PAIRS = [(f"Hund {number} läuft .", f"dog {number} runs .") for number in range(40)]
SMALL = ("--tokenizer", "word", "--vocabulary", "90", "--max-tokens", "30")


def run_command(tmp_path: Path, *arguments: object) -> Result:
    return call("prepare-data", "mine", *arguments, "--data", tmp_path / "data")


def prepare(tmp_path: Path, *arguments: object) -> PreparedData:
    """Prepare the corpus ``mine``."""
    return PreparedData(Path(json.loads(run_command(tmp_path, *arguments, "--json").stdout)["folder"]))


def sides(tmp_path: Path, name: str, pairs: list[tuple[str, str]], option: str = "train") -> list[str]:
    """Write a pair of files, and return the options that name them."""
    source, target = zip(*pairs, strict=True)
    files = put(tmp_path / f"{name}.de", *source), put(tmp_path / f"{name}.en", *target)
    return [f"--{option}={file}" for file in files]


def valid(tmp_path: Path) -> list[str]:
    return sides(tmp_path, "v", [("ein Haus", "a house"), ("zwei", "two")], "valid")


def test_several_train_files_are_concatenated(tmp_path: Path) -> None:
    first, second = sides(tmp_path, "a", PAIRS[:10]), sides(tmp_path, "b", PAIRS[10:25])
    table = put(tmp_path / "c.tsv", *("\t".join(pair) for pair in PAIRS[25:]))
    prepared = prepare(tmp_path, *first, *second, "--train", table, *valid(tmp_path), *SMALL)
    assert prepared.manifest["splits"]["train"]["read"] == 40
    decoded = [prepared.tokenizers.source.decode(row) for row in prepared.split("train").sides[0]]
    assert decoded == [source for source, _ in PAIRS]
    entries = [(entry["name"], entry["side"]) for entry in prepared.manifest["sources"] if entry["split"] == "train"]
    pairs = [(f"{name}.{suffix}", side) for name in "ab" for suffix, side in (("de", "source"), ("en", "target"))]
    assert entries == [*pairs, ("c.tsv", "rows")]


def test_named_test_sets(tmp_path: Path) -> None:
    sets = {"test": [("eins", "one")], "test_news": [("zwei", "two"), ("", "")], "test_talks": [("drei", "three")]}
    arguments = sides(tmp_path, "test", sets["test"], "test")
    for name in ("news", "talks"):
        arguments += [
            option.replace("=", f"={name}=") for option in sides(tmp_path, name, sets[f"test_{name}"], "test")
        ]
    prepared = prepare(tmp_path, *sides(tmp_path, "t", [*PAIRS, ("zwei", "two")]), *valid(tmp_path), *arguments, *SMALL)
    assert prepared.splits == ["train", "valid", "test", "test_news", "test_talks"]
    assert {name: [*zip(*prepared.split(name).texts, strict=True)] for name in sets} == sets
    assert prepared.manifest["splits"]["train"]["dropped"] == {"in_valid_or_test": 1}


@pytest.mark.parametrize(
    ("name", "lines", "options"),
    [
        ("t.tsv", ["{de}\t{en}"], ()),
        ("t.tsv.gz", ["7\t{de}\t{en}\trest"], ("--columns", "1,2")),
        ("t.tsv", ["id\ten\tde", "7\t{en}\t{de}"], ("--columns", "de,en")),
        ("t.tsv", ["id\ten\tde", "7\t{en}\t{de}"], ("--columns", "2,1", "--header")),
        ("t.csv", ['"de","x, y",en', '"{de}",",",{en}'], ("--columns", "de,en")),
        ("t.csv.gz", ["{de},{en}"], ()),
        ("t.jsonl", ['{{"en": "{en}", "de": "{de}"}}'], ("--columns", "de,en")),
        ("t.txt", ['"{de}"\t{en}'], ("--quoting", "--columns", "0,1")),
    ],
)
def test_a_table_of_both_sides(tmp_path: Path, name: str, lines: list[str], options: tuple[str, ...]) -> None:
    """Names and numbers of columns; plain, gzipped, quoted, JSON lines; a byte order mark and Windows' line ends."""
    *header, row = lines
    for split, pairs in (("train", PAIRS), ("valid", [("ein Haus", "a house")])):
        rows = [row.format(de=source, en=target) for source, target in pairs]
        put(tmp_path / f"{split}-{name}", *header, *rows, end="\r\n", mark=b"\xef\xbb\xbf")
    tables = ["--train", str(tmp_path / f"train-{name}"), "--valid", str(tmp_path / f"valid-{name}")]
    prepared = prepare(tmp_path, *tables, *options, *SMALL)
    assert prepared.manifest["splits"]["train"]["kept"] == 40
    assert prepared.split("valid").texts == (["ein Haus"], ["a house"])


def test_cleaning_is_an_option(tmp_path: Path) -> None:
    pairs = [*PAIRS, ("Ein  Cafe\u0301 &amp; Tee", "A CAFE"), ("eins zwei drei vier fünf sechs", "one")]
    arguments = [*sides(tmp_path, "t", pairs), *valid(tmp_path), *SMALL, "--separate"]
    options = ["--lowercase", "--normalise", "--entities", "decode", "--max-ratio", "3", "--min-count", "2"]
    prepared = prepare(tmp_path, *arguments, *options)
    cleaning = prepared.manifest["settings"]["cleaning"]
    assert cleaning == cleaning | {"lowercase": True, "normalise": True, "entities": "decode", "max_ratio": 3.0}
    assert cleaning["min_count"] == 2
    assert prepared.manifest["splits"]["train"]["dropped"] == {"length_ratio": 1}
    words = prepared.tokenizers.source.vocabulary[4:]
    assert {" hund", " läuft", " ."} <= set(words)
    assert not {" Hund", " 7", " café"} & set(words)  # these occur once
    plain = prepare(tmp_path, *arguments)
    assert " Hund" in plain.tokenizers.source.vocabulary
    assert plain.manifest["splits"]["train"]["dropped"] == {}


def test_cleaning_overrides_a_cards(tmp_path: Path, tiny_run: Run) -> None:
    for split in ("train", "val", "test_2016_flickr"):
        sides(tmp_path, split, [(f"{split} {source}", f"{split} {target}") for source, target in PAIRS])
    arguments = ["multi30k-de-en", "--source", tmp_path, "--data", tmp_path / "data", *SMALL]
    document = json.loads(call("prepare-data", *arguments, "--lowercase", "--json").stdout)
    assert document["settings"]["cleaning"]["lowercase"] is True
    assert " hund" in PreparedData(Path(document["folder"])).tokenizers.source.vocabulary
    with pytest.raises(DataError, match="entities=x"):
        call("prepare-data", *arguments, "--entities", "x")
    card = load_card("multi30k-de-en").model_dump(mode="json", exclude_defaults=True)
    card |= {"id": "escaped", "cleaning": {"entities": "decode", "lowercase": True}}
    file = put(tmp_path / "escaped.yaml", json.dumps(card))
    document = json.loads(
        call("prepare-data", file, *arguments[1:5], "--vocabulary-of", tiny_run.folder, "--json").stdout
    )
    cleaning = document["settings"]["cleaning"]
    assert (cleaning["entities"], cleaning["lowercase"]) == ("decode", False)  # of the vocabulary


def test_the_vocabulary_of_a_run_for_training_it_further(
    tmp_path: Path, tiny_run: Run, tiny_recipe: TranslationRecipe
) -> None:
    arguments = [*sides(tmp_path, "t", PAIRS), *valid(tmp_path), "--vocabulary-of", str(tiny_run.folder)]
    prepared = prepare(tmp_path, *arguments)
    settings = prepared.manifest["settings"]
    run_settings = tiny_run.data()["settings"]
    assert {key: settings[key] for key in ("tokenizer", "vocabulary", "joint", "max_tokens")} == {
        key: run_settings[key] for key in ("tokenizer", "vocabulary", "joint", "max_tokens")
    }
    assert prepared.manifest["vocabulary_from"] == tiny_run.name
    assert prepared.tokenizers.source.encode(["der Hund"]) == prepared.tokenizers.target.encode(["der Hund"])
    recipe = tiny_recipe.model_copy(update={"data": tiny_recipe.data.model_copy(update={"card": "mine"})})
    steps = recipe.training.model_copy(update={"steps": 3, "initialise_from": str(tiny_run.folder)})
    run = train(recipe.model_copy(update={"training": steps}), data=tmp_path / "data", runs=tmp_path / "runs").run
    assert run.data()["settings"]["vocabulary_of"] == settings["vocabulary_of"]
    again = prepare(tmp_path, *arguments[:-1], str(prepared.folder), "--force")
    assert again.manifest["settings"] == settings


def test_tokenizers_keep_their_languages_in_the_reverse_direction(tmp_path: Path) -> None:
    arguments = [*sides(tmp_path, "t", PAIRS), *valid(tmp_path), "--languages", "deu_Latn,en"]
    first = prepare(tmp_path, *arguments, *SMALL, "--separate")
    before = first.folder.stat()
    assert prepare(tmp_path, *arguments, *SMALL, "--separate").folder.stat() == before  # nothing has changed
    reverse = prepare(tmp_path, *arguments, "--vocabulary-of", str(first.folder), "--reverse")
    assert reverse.tokenizers.source.vocabulary == first.tokenizers.target.vocabulary
    assert reverse.manifest["splits"]["train"]["source"]["unknown"] == 0
    style = prepare(tmp_path, *arguments[:-1], "en,en", *SMALL, "--joint")
    assert style.manifest["source_language"] == style.manifest["target_language"] == "en"


def test_a_folder_without_a_vocabulary_is_refused(tmp_path: Path, tiny_run: Run) -> None:
    arguments = [*sides(tmp_path, "t", PAIRS), *valid(tmp_path)]
    rule_run = Path(shutil.copytree(tiny_run.folder, tmp_path / "run"))
    write_json(rule_run / "data.json", {})
    folder = prepare(tmp_path, *arguments, *SMALL).folder
    for path, place in ((rule_run, "miniature"), (folder.parent, f"{folder.parent} .*{folder}$")):
        with pytest.raises(DataError, match=place):
            prepare(tmp_path, *arguments, "--vocabulary-of", path)


def test_scores_of_translations_are_broken_down_by_extra_columns(
    tmp_path: Path, tiny_recipe: TranslationRecipe
) -> None:
    """Values of ``--extra`` columns are kept in the data and in the run; -1, or a missing column, is unknown."""
    rows = [f"{number % 3}\t{source}\t{target}" for number, (source, target) in enumerate(PAIRS)]
    tables = [put(tmp_path / "train.tsv", "depth\tde\ten", *rows)]
    tables.append(put(tmp_path / "valid.tsv", "depth\tde\ten", "0\tein Haus\ta house"))
    tests = put(tmp_path / "test.tsv", "depth\tde\ten", "2\tHund 3\tdog 3", "-1\tHund 4\tdog 4", "2\tHund 5\tdog 5")
    files = ("--train", tables[0], "--valid", tables[1], "--test", tests)
    options = ("--columns", "de,en", "--tokenizer", "bpe", "--vocabulary", "300", "--max-tokens", "64")
    reverse = prepare(tmp_path, *files, *options, "--extra", "depth", "--reverse")
    languages = [reverse.manifest[f"{side}_language"] for side in ("source", "target")]
    assert languages == ["source", "target"]  # headings of the file, not of the direction
    assert reverse.split("test").extras["depth"].tolist() == [2, -1, 2]
    assert reverse.split("test").texts[0] == ["dog 3", "dog 4", "dog 5"]
    prepared = prepare(tmp_path, *files, *options, "--extra", "depth")
    assert prepared.manifest["extras"] == ["depth"]
    data = tiny_recipe.data.model_copy(update={"card": "mine", "vocabulary": 300})
    recipe = tiny_recipe.model_copy(update={"data": data})
    run = train(recipe, data=tmp_path / "data", runs=tmp_path / "runs").run
    assert run.splits() == ["test", "valid"]
    document = json.loads(call("eval", run.folder, "--device", "cpu", "--json").stdout)
    bins = document["bleu_by_extra"]["depth"]
    assert [(row["value"], row["sentences"]) for row in bins] == [(2, 2), (None, 1)]
    assert "BLEU by depth" in call("eval", run.folder, "--device", "cpu").stdout
    (result,) = read_results(run)
    answers = trains(run.recipe).scored_answers(run, result)
    assert answers is not None
    assert [*answers.groups] == ["depth"]


def test_header_says_that_a_table_of_two_columns_has_a_header(tmp_path: Path) -> None:
    table = put(tmp_path / "t.tsv", "source\ttarget", *("\t".join(pair) for pair in PAIRS))
    arguments = ["--train", table, "--valid", put(tmp_path / "v.tsv", "source\ttarget", "ein Haus\ta house"), *SMALL]
    done = run_command(tmp_path, *arguments)
    assert rows_of(done.stdout)["train"][0] == "41"
    assert "--header" in done.stderr
    assert rows_of(run_command(tmp_path, *arguments, "--header").stdout)["train"][0] == "40"


def test_split_takes_valid_and_test_out_of_one_file(tmp_path: Path) -> None:
    """Equal sources stay in one split, and the same file is always divided in the same way."""
    pairs = [(f"Hund {number // 3} läuft .", f"dog {number} runs .") for number in range(60)]
    table = put(tmp_path / "all.tsv", *("\t".join(pair) for pair in pairs))
    prepared = prepare(tmp_path, "--train", table, "--split", "6,9", *SMALL)
    sources = {split: prepared.split(split).texts[0] for split in ("valid", "test")}
    assert (len(sources["valid"]), len(sources["test"])) == (6, 9)
    assert not {*sources["valid"]} & {*sources["test"]}
    assert all(count == 3 for lines in sources.values() for count in Counter(lines).values())
    assert prepared.manifest["splits"]["train"]["read"] == 45
    again = prepare(tmp_path, "--train", table, "--split", "10%,15%", *SMALL)
    assert again.split("valid").texts[0] == sources["valid"]
    assert again.split("test").texts[0] == sources["test"]


def test_a_labelled_table_is_split(tmp_path: Path) -> None:
    table = put(
        tmp_path / "all.csv", "text,mood", *(f"day {number},{'good' if number % 2 else 'bad'}" for number in range(30))
    )
    options = ("--table", f"train={table}", "--text", "text", "--label", "mood", "--split", "5")
    prepared = prepare(tmp_path, *options, "--tokenizer", "word", "--vocabulary", "50")
    assert len(prepared.split("valid")) == 5


@pytest.mark.parametrize("ending", [".tsv", ".json", ".ndjson.gz", ".TMX"])
def test_two_tables_of_a_split_are_no_pair_of_files(ending: str) -> None:
    files = [f"a{ending}", f"b{ending}"]
    assert files_by_split({"train": files}) == {"train": [(file,) for file in files]}
