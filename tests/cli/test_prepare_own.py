"""``phmctl prepare-data`` on corpora as people have them: files, tables, test sets, cleaning, vocabularies."""

import gzip
import json
import shutil
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phmctl import verbs
from phmctl.cli import main
from phmctl.data.prepared.folder import PreparedData
from phmctl.errors import DataError, UserError
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.tasks.answers import TextComparer
from phmctl.tasks.registry import kind_of
from phmctl.training.train import train

PAIRS = [(f"Hund {number} läuft .", f"dog {number} runs .") for number in range(40)]
SMALL = ("--tokenizer", "word", "--vocabulary", "90", "--max-tokens", "30")


def call(tmp_path: Path, *arguments: str) -> PreparedData:
    """Prepare a corpus ``mine`` of small settings; return it."""
    given = ["prepare-data", "mine", *arguments, "--data", str(tmp_path / "data"), "--json"]
    result = CliRunner().invoke(main.app, given, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return PreparedData.open(Path(json.loads(result.stdout)["folder"]))


def put(path: Path, *lines: str, end: str = "\n", mark: bytes = b"") -> str:
    content = mark + "".join(line + end for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def test_a_wide_table_without_header_is_refused_where_no_column_is_named(tmp_path: Path) -> None:
    rows = put(tmp_path / "t.tsv", *(f"{number}\t{de}\t{en}" for number, (de, en) in enumerate(PAIRS)))
    other = put(tmp_path / "v.tsv", "1\tein Haus\ta house")
    with pytest.raises(DataError):
        call(tmp_path, "--train", rows, "--valid", other, *SMALL, "--no-header")
    kept = call(tmp_path, "--train", rows, "--valid", other, *SMALL, "--no-header", "--columns", "1,2")
    assert len(kept.split("train")) == len(PAIRS)


def test_own_files_may_have_languages(tmp_path: Path) -> None:
    train = ("--train", *sides(tmp_path, "t", PAIRS))
    known = call(tmp_path, *train, *valid(tmp_path), *SMALL, "--languages", "de,en")
    assert (known.manifest["source_language"], known.manifest["target_language"]) == ("de", "en")
    back = call(tmp_path, *train, *valid(tmp_path), *SMALL, "--languages", "de,en", "--reverse")
    assert (back.manifest["source_language"], back.manifest["target_language"]) == ("en", "de")
    with pytest.raises(DataError):
        call(tmp_path, *train, *valid(tmp_path), *SMALL, "--languages", "de")
    with pytest.raises(DataError):
        call(tmp_path, "--languages", "de,en")


def sides(tmp_path: Path, name: str, pairs: list[tuple[str, str]]) -> tuple[str, str]:
    """Write a pair of files."""
    source, target = zip(*pairs, strict=True)
    return put(tmp_path / f"{name}.de", *source), put(tmp_path / f"{name}.en", *target)


def valid(tmp_path: Path) -> tuple[str, str, str]:
    return ("--valid", *sides(tmp_path, "v", [("ein Haus", "a house"), ("zwei", "two")]))


def test_several_train_files_follow_one_another(tmp_path: Path) -> None:
    one, other = sides(tmp_path, "a", PAIRS[:10]), sides(tmp_path, "b", PAIRS[10:25])
    table = put(tmp_path / "c.tsv", *("\t".join(pair) for pair in PAIRS[25:]))
    prepared = call(tmp_path, "--train", *one, "--train", *other, "--train", table, *valid(tmp_path), *SMALL)
    assert prepared.manifest["splits"]["train"]["read"] == 40
    decoded = [prepared.tokenizers.source.decode(row) for row in prepared.split("train").sides[0]]
    assert decoded == [source for source, _ in PAIRS]
    entries = [(entry["name"], entry["side"]) for entry in prepared.manifest["sources"] if entry["split"] == "train"]
    assert entries == [
        ("a.de", "source"),
        ("a.en", "target"),
        ("b.de", "source"),
        ("b.en", "target"),
        ("c.tsv", "pairs"),
    ]


def test_named_test_sets(tmp_path: Path) -> None:
    sets = {"test": [("eins", "one")], "test_news": [("zwei", "two"), ("", "")], "test_talks": [("drei", "three")]}
    files = {name: sides(tmp_path, name, pairs) for name, pairs in sets.items()}
    given = ["--test", *files["test"]]
    for name in ("news", "talks"):
        source, target = files[f"test_{name}"]
        given += ["--test", f"{name}={source}", target]
    prepared = call(
        tmp_path, "--train", *sides(tmp_path, "t", [*PAIRS, ("zwei", "two")]), *valid(tmp_path), *given, *SMALL
    )
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
@pytest.mark.parametrize(("end", "mark"), [("\n", b""), ("\r\n", b"\xef\xbb\xbf")])
def test_a_table_of_both_sides(
    tmp_path: Path, name: str, lines: list[str], options: tuple[str, ...], end: str, mark: bytes
) -> None:
    """Names and numbers of columns; plain, gzipped, quoted, JSON lines; a byte order mark and Windows' line ends."""
    *header, row = lines
    for split, pairs in (("train", PAIRS), ("valid", [("ein Haus", "a house")])):
        rows = [row.format(de=source, en=target) for source, target in pairs]
        put(tmp_path / f"{split}-{name}", *header, *rows, end=end, mark=mark)
    tables = ["--train", str(tmp_path / f"train-{name}"), "--valid", str(tmp_path / f"valid-{name}")]
    prepared = call(tmp_path, *tables, *options, *SMALL)
    assert prepared.manifest["splits"]["train"]["kept"] == 40
    assert prepared.split("valid").texts == (["ein Haus"], ["a house"])


def test_a_row_of_empty_cells_is_a_pair_that_is_dropped(tmp_path: Path) -> None:
    train = put(tmp_path / "t.tsv", *(f"{source}\t{target}" for source, target in PAIRS), "\t")
    table = put(tmp_path / "v.tsv", "ein Haus\ta house")
    counts = call(tmp_path, "--train", train, "--valid", table, *SMALL).manifest["splits"]["train"]
    assert (counts["read"], counts["kept"], sum(counts["dropped"].values())) == (41, 40, 1)


@pytest.mark.parametrize(
    ("name", "content", "options", "message"),
    [
        ("t.tsv", "a\tb", ("--columns", "0"), "--columns 0: wants two, SOURCE,TARGET"),
        ("t.tsv", "a\tb", ("--columns", "1,1"), "--columns 1,1: wants two"),
        ("t.tsv", "a\tb", ("--columns", "1,2"), r"line 1: 2 columns, but column 3 is wanted \(2, counted from 0\)"),
        ("t.tsv", "a\tb\n\nc\td", ("--columns", "0,1", "--no-header"), "line 2 is empty"),
        ("t.tsv", "de\tfr\na\tb", ("--columns", "de,en"), "has no column 'en' .*; it has de, fr"),
        ("t.tsv", "a\tb", ("--columns", "a,b", "--no-header"), "with --no-header, --columns are numbers"),
        ("t.jsonl", '{"de": "a", "en": "b"}', (), "the keys of JSON lines have names: --columns SOURCE,TARGET"),
        ("t.tsv", "a\tb", ("--label", "de"), "--label is for labelled text; mine is parallel text"),
    ],
)
def test_tables_that_cannot_be(tmp_path: Path, name: str, content: str, options: tuple[str, ...], message: str) -> None:
    path = put(tmp_path / name, *content.split("\n"))
    with pytest.raises(DataError, match=message):
        call(tmp_path, "--train", path, "--valid", path, *options)


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    train_files, valid_files = ("--train", *sides(tmp_path, "t", PAIRS)), valid(tmp_path)
    with pytest.raises(DataError, match=r"--train .*t\.de .*t\.en: --columns is for a table with both sides in it"):
        call(tmp_path, *train_files, *valid_files, "--columns", "0,1")
    with pytest.raises(
        DataError, match=r"no split can be called 'test_News' .use train, valid, test, or test_ and a name of small"
    ):
        call(tmp_path, *train_files, *valid_files, "--test", f"News={train_files[1]}", train_files[2])
    with pytest.raises(DataError, match=r"t\.de has one column, .*name two files: SOURCE TARGET"):
        call(tmp_path, *train_files[:2], *valid_files)
    with pytest.raises(DataError, match="--columns"):
        CliRunner().invoke(main.app, ["prepare-data", "miniature", "--columns", "0,1"], catch_exceptions=False)
    with pytest.raises(UserError, match="--columns is given 2 times"):
        call(tmp_path, *train_files, "--columns", "0,1", "--columns", "1,0")


def test_doubled_quotes_in_an_unquoted_table_get_a_hint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quoted = put(tmp_path / "q.tsv", *("\t".join(pair) for pair in PAIRS), '"er sagt ""ja"""\the says yes')
    plain = put(tmp_path / "p.tsv", '"Nein" , sagt er .\t" no " , he says .', 'das ist ""\t"x" "y"')
    files = {"train": quoted, "valid": plain}
    prepared = verbs.prepare("mine", data=tmp_path, files=files, tokenizer="word", vocabulary=90, quiet=False)
    said = capsys.readouterr().err
    assert "q.tsv, line 41: doubled quotes" in said
    assert "--quoting" in said
    assert "p.tsv, line" not in said
    assert prepared.split("valid").texts[0] == ['"Nein" , sagt er .', 'das ist ""']


def test_looking_for_doubled_quotes_takes_time_linear_in_the_line(tmp_path: Path) -> None:
    hostile = ',"x""x' * 400
    table = put(tmp_path / "h.tsv", *("\t".join(pair) for pair in PAIRS), f"{hostile}\tno")
    files = {"train": table, "valid": put(tmp_path / "v.tsv", "ein Haus\ta house")}
    began = time.monotonic()
    verbs.prepare("mine", data=tmp_path, files=files, tokenizer="word", vocabulary=90)
    assert time.monotonic() - began < 3


def test_cleaning_is_an_option(tmp_path: Path) -> None:
    pairs = [*PAIRS, ("Ein  Cafe\u0301 &amp; Tee", "A CAFE"), ("eins zwei drei vier fünf sechs", "one")]
    given = ["--train", *sides(tmp_path, "t", pairs), *valid(tmp_path), *SMALL, "--separate"]
    options = ["--lowercase", "--normalise", "--entities", "decode", "--max-ratio", "3", "--min-count", "2"]
    prepared = call(tmp_path, *given, *options)
    cleaning = prepared.manifest["settings"]["cleaning"]
    assert cleaning == cleaning | {"lowercase": True, "normalise": True, "entities": "decode", "max_ratio": 3.0}
    assert cleaning["min_count"] == 2
    assert prepared.manifest["splits"]["train"]["dropped"] == {"length_ratio": 1}
    words = prepared.tokenizer.vocabulary[4:]
    assert {" hund", " läuft", " ."} <= set(words)
    assert not {" Hund", " 7", " café"} & set(words)  # these occur once
    plain = call(tmp_path, *given)
    assert " Hund" in plain.tokenizer.vocabulary
    assert plain.manifest["splits"]["train"]["dropped"] == {}


def test_cleaning_overrides_a_cards(tmp_path: Path) -> None:
    for split in ("train", "val", "test_2016_flickr"):
        sides(tmp_path, split, [(f"{split} {source}", f"{split} {target}") for source, target in PAIRS])
    given = ["prepare-data", "multi30k-de-en", "--source", str(tmp_path), "--data", str(tmp_path / "data"), *SMALL]
    result = CliRunner().invoke(main.app, [*given, "--lowercase", "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert document["settings"]["cleaning"]["lowercase"] is True
    assert " hund" in PreparedData.open(Path(document["folder"])).tokenizer.vocabulary
    with pytest.raises(DataError, match="--entities x"):
        CliRunner().invoke(main.app, [*given, "--entities", "x"], catch_exceptions=False)


def test_the_vocabulary_of_a_run_for_training_it_further(
    tmp_path: Path, tiny_run: Run, tiny_recipe: TranslationRecipe
) -> None:
    given = ["--train", *sides(tmp_path, "t", PAIRS), *valid(tmp_path), "--vocabulary-of", str(tiny_run.folder)]
    prepared = call(tmp_path, *given)
    settings = prepared.manifest["settings"]
    theirs = tiny_run.data()["settings"]
    assert {key: settings[key] for key in ("tokenizer", "vocabulary", "joint", "max_tokens")} == {
        key: theirs[key] for key in ("tokenizer", "vocabulary", "joint", "max_tokens")
    }
    assert prepared.manifest["vocabulary_from"] == tiny_run.name
    assert prepared.tokenizers.source.encode(["der Hund"]) == prepared.tokenizers.target.encode(["der Hund"])
    recipe = tiny_recipe.model_copy(update={"data": tiny_recipe.data.model_copy(update={"card": "mine"})})
    steps = recipe.training.model_copy(update={"steps": 3, "initialise_from": str(tiny_run.folder)})
    run = train(
        recipe.model_copy(update={"training": steps}), data=tmp_path / "data", runs=tmp_path / "runs", quiet=True
    ).run
    assert run.data()["settings"]["vocabulary_of"] == settings["vocabulary_of"]
    again = call(tmp_path, *given[:-1], str(prepared.folder), "--force")
    assert again.manifest["settings"] == settings


def test_a_vocabulary_that_would_be_another_is_refused(tmp_path: Path, tiny_run: Run) -> None:
    given = ["--train", *sides(tmp_path, "t", PAIRS), *valid(tmp_path), "--vocabulary-of", str(tiny_run.folder)]
    with pytest.raises(DataError, match="was made with tokenizer 'bpe', not 'word': leave that out"):
        call(tmp_path, *given, "--tokenizer", "word")
    with pytest.raises(DataError, match=r"--lowercase: the vocabulary of .* is cased; leave it out"):
        call(tmp_path, *given, "--lowercase")
    damaged = Path(shutil.copytree(tiny_run.folder, tmp_path / "run"))
    (damaged / "tokenizer" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer\.json .*; copy the run again"):
        call(tmp_path, *given[:-1], str(damaged))


def test_a_vocabulary_of_labelled_text_serves_pairs(tmp_path: Path) -> None:
    """It is one for both sides."""
    rows = [f"{source}\t{number % 2}" for number, (source, _) in enumerate(PAIRS)]
    tables = [put(tmp_path / "t.tsv", "text\tlabel", *rows), put(tmp_path / "v.tsv", "text\tlabel", "Maus\t0", "Ei\t1")]
    given = ["--table", f"train={tables[0]}", "--table", f"valid={tables[1]}", "--text", "text", "--label", "label"]
    labelled = call(tmp_path, *given, *SMALL)
    pairs = ["--train", *sides(tmp_path, "t", PAIRS), *valid(tmp_path), "--vocabulary-of", str(labelled.folder)]
    prepared = call(tmp_path, *pairs)
    assert prepared.manifest["settings"]["joint"] is True
    assert prepared.split("train").sides[0][0].tolist() == labelled.tokenizers.source.encode(["Hund 0 läuft ."])[0]
    with pytest.raises(DataError, match="was made with joint True, not False"):
        call(tmp_path, *pairs, "--separate")


def test_a_vocabulary_that_does_not_fit_is_warned_of(tmp_path: Path) -> None:
    text = ["--train", *sides(tmp_path, "t", PAIRS), *valid(tmp_path)]
    turned = call(tmp_path, *text, *SMALL, "--separate", "--reverse")
    told = prepared_with(tmp_path, *text, "--vocabulary-of", str(turned.folder))
    assert "50% of train's source tokens are unknown to the vocabulary" in told
    assert "50% of train's target tokens" in told
    assert "of this direction (--reverse)?" in told
    assert "warning" not in prepared_with(tmp_path, *text, "--vocabulary-of", str(turned.folder), "--reverse")


def prepared_with(tmp_path: Path, *arguments: str) -> str:
    """Prepare ``mine`` as :func:`call` does, and return what was said."""
    given = ["prepare-data", "mine", *arguments, "--data", str(tmp_path / "data"), "--json"]
    result = CliRunner().invoke(main.app, given, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result.stderr


def test_what_has_no_part_in_a_vocabulary_is_refused(tmp_path: Path, tiny_run: Run) -> None:
    given = ["--train", *sides(tmp_path, "t", PAIRS), *valid(tmp_path), "--vocabulary-of"]
    with pytest.raises(DataError, match=r"--min-count: the vocabulary of .* is learned already; leave it out"):
        call(tmp_path, *given, str(tiny_run.folder), "--min-count", "3")
    ruled = Path(shutil.copytree(tiny_run.folder, tmp_path / "run"))
    (ruled / "data.json").write_text("{}")
    with pytest.raises(DataError, match="has no vocabulary of its own; name another run"):
        call(tmp_path, *given, str(ruled))
    folder = call(tmp_path, *given[:-1], *SMALL).folder
    with pytest.raises(DataError, match=f"is the folder of a corpus; name a preparation in it: {folder}$"):
        call(tmp_path, *given, str(folder.parent))


def test_a_missing_file_is_named_with_the_option_that_named_it(tmp_path: Path) -> None:
    train_files = sides(tmp_path, "t", PAIRS)
    with pytest.raises(DataError, match=r"^--test: no file .*nope"):
        call(tmp_path, "--train", *train_files, *valid(tmp_path), "--test", f"news={tmp_path / 'nope'}", train_files[1])
    with pytest.raises(DataError, match=r"no split can be called 'test_a b' \(use .*small letters, digits and _\)"):
        call(tmp_path, "--train", *train_files, *valid(tmp_path), "--test", f"a b={train_files[0]}", train_files[1])


def test_a_run_is_scored_on_a_named_test_set(tmp_path: Path, tiny_recipe: TranslationRecipe) -> None:
    news = sides(tmp_path, "n", [("Hund 3", "dog 3")])
    prepared = call(
        tmp_path,
        *("--train", *sides(tmp_path, "t", PAIRS), *valid(tmp_path), "--test", f"news={news[0]}", news[1]),
        *("--tokenizer", "bpe", "--vocabulary", "300", "--max-tokens", "64"),
    )
    data = tiny_recipe.data.model_copy(update={"card": "mine", "vocabulary": 300})
    recipe = tiny_recipe.model_copy(update={"data": data})
    run = train(recipe, data=tmp_path / "data", runs=tmp_path / "runs", quiet=True).run
    given = ["eval", str(run.folder), "--split", "test_news", "--json", "--device", "cpu"]
    document = json.loads(CliRunner().invoke(main.app, given, catch_exceptions=False).stdout)
    assert (document["split"], document["sentences"]) == ("test_news", len(prepared.split("test_news")))


def test_scores_of_translations_are_broken_down_by_extra_columns(
    tmp_path: Path, tiny_recipe: TranslationRecipe
) -> None:
    """``--extra``: kept beside the pairs, and in the run; -1, or a file without the column, is not known."""
    rows = [f"{number % 3}\t{source}\t{target}" for number, (source, target) in enumerate(PAIRS)]
    tables = [put(tmp_path / "train.tsv", "depth\tde\ten", *rows)]
    tables.append(put(tmp_path / "valid.tsv", "depth\tde\ten", "0\tein Haus\ta house"))
    tests = put(tmp_path / "test.tsv", "depth\tde\ten", "2\tHund 3\tdog 3", "-1\tHund 4\tdog 4", "2\tHund 5\tdog 5")
    files = ("--train", tables[0], "--valid", tables[1], "--test", tests)
    options = ("--columns", "de,en", "--tokenizer", "bpe", "--vocabulary", "300", "--max-tokens", "64")
    turned = call(tmp_path, *files, *options, "--extra", "depth", "--reverse")
    languages = [turned.manifest[f"{side}_language"] for side in ("source", "target")]
    assert languages == ["source", "target"]  # and not the other way round: they are headings
    assert turned.split("test").extras["depth"].tolist() == [2, -1, 2]
    assert turned.split("test").texts[0] == ["dog 3", "dog 4", "dog 5"]
    prepared = call(tmp_path, *files, *options, "--extra", "depth")
    assert prepared.manifest["extras"] == ["depth"]
    data = tiny_recipe.data.model_copy(update={"card": "mine", "vocabulary": 300})
    recipe = tiny_recipe.model_copy(update={"data": data})
    run = train(recipe, data=tmp_path / "data", runs=tmp_path / "runs", quiet=True).run
    assert run.splits() == ["test", "valid"]
    given = ["eval", str(run.folder), "--device", "cpu"]
    document = json.loads(CliRunner().invoke(main.app, [*given, "--json"], catch_exceptions=False).stdout)
    bins = document["bleu_by_extra"]["depth"]
    assert [(one["value"], one["sentences"]) for one in bins] == [(2, 2), (None, 1)]
    shown = CliRunner().invoke(main.app, given, catch_exceptions=False).stdout
    assert "BLEU by depth" in shown
    (result,) = (each for each in read_results(run) if each.against is None)
    answers = kind_of(run.recipe).answers(run, result)
    assert answers is not None
    names = [each.title for each in TextComparer().breakdowns([answers])]
    assert names == ["BLEU by words of the source", "BLEU by depth"]


def test_extra_columns_that_cannot_be(tmp_path: Path) -> None:
    table = put(tmp_path / "t.tsv", "source\ten\tdepth", "a\tb\tx")
    files = ("--train", table, "--valid", table, "--columns", "source,en")
    with pytest.raises(DataError, match="line 2: column 'depth' holds 'x', not a whole number"):
        call(tmp_path, *files, "--extra", "depth", *SMALL)
    with pytest.raises(DataError, match="--extra en: a column of whole numbers beside the texts"):
        call(tmp_path, *files, "--extra", "en")
    with pytest.raises(DataError, match=r"has no column 'dept' .did you mean 'depth'"):
        call(tmp_path, *files, "--extra", "dept")


@pytest.mark.parametrize("columns", [(), ("--columns", "0,1")])
@pytest.mark.parametrize("first", ["source\ttarget", "de\ten", "Sentence1\tpt-br"])
def test_a_header_is_known_by_its_words_unless_told_otherwise(
    tmp_path: Path, first: str, columns: tuple[str, ...]
) -> None:
    table = put(tmp_path / "t.tsv", first, *("\t".join(pair) for pair in PAIRS))
    own_valid = put(tmp_path / "v.tsv", first, "ein Haus\ta house")
    given = ["prepare-data", "mine", "--train", table, "--valid", own_valid, *columns, *SMALL]
    given += ["--data", str(tmp_path / "data")]
    told = CliRunner().invoke(main.app, given, catch_exceptions=False)
    assert told.stdout.count(" 40 │") == 2
    assert "--no-header" in told.stderr
    told = CliRunner().invoke(main.app, [*given, "--no-header"], catch_exceptions=False)
    assert " 41 │" in told.stdout
    assert f"warning: {table}" in told.stderr


def test_a_pair_that_is_no_header_is_not_taken_for_one(tmp_path: Path) -> None:
    """Nor is a header that is named one."""
    plain = put(tmp_path / "t.tsv", *("\t".join(pair) for pair in PAIRS))
    headed = put(tmp_path / "h.tsv", "de\ten", *("\t".join(pair) for pair in PAIRS))
    tables = [put(tmp_path / "v.tsv", "ein Haus\ta house"), put(tmp_path / "w.tsv", "de\ten", "ein Haus\ta house")]
    for train_table, valid_table, options in ((plain, tables[0], ()), (headed, tables[1], ("--header",))):
        given = ["prepare-data", "mine", "--train", train_table, "--valid", valid_table, *options, *SMALL]
        told = CliRunner().invoke(main.app, [*given, "--data", str(tmp_path / "data")], catch_exceptions=False)
        assert "looks like a header" not in told.stderr
        assert told.stdout.count(" 40 │") == 2


def test_a_table_of_more_than_two_columns_wants_to_be_told_which(tmp_path: Path) -> None:
    table = put(tmp_path / "t.tsv", *(f"{number}\t{source}\t{target}" for number, (source, target) in enumerate(PAIRS)))
    with pytest.raises(DataError, match="--columns SOURCE,TARGET"):
        call(tmp_path, "--train", table, *valid(tmp_path), *SMALL)
    own_valid = put(tmp_path / "v.tsv", "0\tein Haus\ta house")
    chosen = ["--train", table, "--valid", own_valid, "--columns", "1,2"]
    assert f"the first pair of t.tsv is {PAIRS[0][0]!r} → {PAIRS[0][1]!r}" in prepared_with(tmp_path, *chosen)


def test_bad_lines_are_left_out_and_counted_where_that_is_asked(tmp_path: Path) -> None:
    """Of a pair of files, of a table and of JSON lines: no UTF-8, a NUL, a cell or a key too few."""
    sides = [[pair[side].encode() for pair in PAIRS] for side in (0, 1)]
    sides[0][3], sides[1][7], sides[1][9] = b"sch\xf6n", b"a\0b", b"x" * ((1 << 24) + 5)
    source, target = tmp_path / "t.de", tmp_path / "t.en"
    source.write_bytes(b"\n".join(sides[0]) + b"\n")
    target.write_bytes(b"\n".join(sides[1]) + b"\n")
    table = tmp_path / "t.tsv"
    table.write_bytes(b"\n".join([*("\t".join(pair).encode() for pair in PAIRS[:30]), b"\xff\tx", b"one"]) + b"\n")
    lines = put(
        tmp_path / "t.jsonl", *(json.dumps({"de": a, "tr": {"en": b}}) for a, b in PAIRS[:30]), "{", '{"de": ""}'
    )
    valid_json = put(tmp_path / "v.jsonl", json.dumps({"de": "ein Haus", "tr": {"en": "a house"}}))
    cases = [
        ((str(source), str(target)), valid(tmp_path)[1:], (), 3, 37),
        ((str(table),), valid(tmp_path)[1:], (), 2, 30),
        ((str(lines),), [str(valid_json)], ("--columns", "de,tr.en"), 2, 30),
    ]
    for number, (files, held, options, bad, kept) in enumerate(cases):
        given = ["--train", *files, "--valid", *held, *options, *SMALL]
        root = tmp_path / str(number)
        root.mkdir()
        with pytest.raises(DataError, match=r"line \d+"):
            call(root, *given)
        counts = call(root, *given, "--skip-bad-lines").manifest["splits"]["train"]
        assert (counts["kept"], counts["dropped"]) == (kept, {"odd_row": bad})
