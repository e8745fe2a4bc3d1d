"""Readers of tables and JSON lines: each trap of the real files, in small files."""

import json

import pytest

from phmctl.data.card import RowFormat
from phmctl.data.corpus import table_rows
from phmctl.data.readers import tables
from phmctl.errors import DataError
from tests.data.helpers import put

PAIR = {"texts": ("premise", "hypothesis"), "label": "label"}


def read(path, **rows):
    return list(tables([path], RowFormat(**rows)))


def test_a_quote_is_a_character_without_quoting(tmp_path):
    """SentEval, SciTail, GLUE: a sentence that begins with a quote must not swallow the rows that follow."""
    lines = ['tr\tA\t"Never , he said .', "tr\tB\tNothing .", 'va\tA\tYes " .', "te\tB\tno"]
    path = put(tmp_path / "task.txt", *lines)
    rows = {"header": False, "split": 0, "label": 1, "texts": (2,)}
    assert [example.texts[0] for example in read(path, **rows)] == ['"Never , he said .', "Nothing .", 'Yes " .', "no"]
    train = tables([path], RowFormat(**rows), part="tr")
    assert [(example.label, example.location[1]) for example in train] == [("A", 1), ("B", 2)]


def test_with_the_wrong_quoting_nothing_merges_silently(tmp_path):
    path = put(tmp_path / "task.txt", 'tr\tA\t"Never , he said .', "tr\tB\tNothing .", "te\tA\tx")
    with pytest.raises(DataError, match=r"task\.txt, line 1:"):
        read(path, header=False, quoting=True, label=1, texts=(2,))
    path = put(tmp_path / "stray.txt", "tr\tA\tfine .", 'tr\tA\t"Oh" , he said .', "te\tA\tx")
    with pytest.raises(DataError, match=r"stray\.txt, line 2:"):
        read(path, header=False, quoting=True, label=1, texts=(2,))


def test_a_quoted_table_unquotes_and_may_hold_separators_and_line_feeds(tmp_path):
    long = "x" * 200_000  # longer than Python's default limit of a field
    lines = ["premise\thypothesis\tlabel", '"He said ""no"""\t"a\tb"\t1', '"two', 'lines"\tc\t0', f"{long}\td\t2"]
    examples = read(put(tmp_path / "a.tsv", *lines), quoting=True, **PAIR)
    assert [example.texts for example in examples] == [('He said "no"', "a\tb"), ("two lines", "c"), (long, "d")]
    assert [example.location[1] for example in examples] == [2, 3, 5]


def test_labels_are_renamed_and_blanks_mean_no_label(tmp_path):
    path = put(tmp_path / "a.tsv", "premise\thypothesis\tlabel", "a\tb\t0", "a\tc\t-1", "a\td\t-", "a\te\tother")
    rows = {**PAIR, "names": {"0": "entailment"}, "unlabelled": ("-", "-1")}
    assert [example.label for example in read(path, **rows)] == ["entailment", None, None, "other"]
    path = put(tmp_path / "a.csv", "text,label", "a,", "b,  ", "c, yes", "d,yes ")
    labels = [example.label for example in read(path, format="csv", texts=("text",), label="label")]
    assert labels == [None, None, "yes", "yes"]


@pytest.mark.parametrize("quoting", [True, False])
def test_line_ends_of_carriage_returns_alone_are_named(tmp_path, quoting):
    path = tmp_path / "mac.csv"
    path.write_bytes(b"text,label\ra,x\rb,y\r")
    with pytest.raises(DataError, match=r"mac\.csv: .*carriage returns"):
        read(path, format="csv", quoting=quoting, texts=("text",), label="label")
    path.write_bytes(b"text,label\na,x\rb,y\nc,x\n")
    if quoting:
        with pytest.raises(DataError, match=r"mac\.csv, line 2: a carriage return"):
            read(path, format="csv", texts=("text",), label="label")


@pytest.mark.parametrize("quoting", [True, False])
def test_a_row_with_too_few_or_many_fields(tmp_path, quoting):
    for row, columns in (("a", 1), ("a\t0", 2), ("a\tb\tc\t0", 4)):
        path = put(tmp_path / "a.tsv", "premise\thypothesis\tlabel", "a\tb\t0", row)
        with pytest.raises(DataError, match=rf"a\.tsv, line 3: .* {columns}, "):
            read(path, quoting=quoting, **PAIR)
        (dropped,) = (
            example for example in read(path, quoting=quoting, odd_rows="drop", **PAIR) if not example.readable
        )
        assert (dropped.label, dropped.location[1]) == (None, 3)
    path = put(tmp_path / "b.tsv", "A\tx", "B")
    with pytest.raises(DataError, match=r"b\.tsv, line 2: .*\b1\b"):
        read(path, header=False, texts=(1,), label=0)


def test_an_empty_line_in_pairs_is_an_error(tmp_path):
    path = put(tmp_path / "a.tsv", "a\tb", "", "c\td")
    pairs = {"header": False, "texts": (0, 1)}
    with pytest.raises(DataError, match=r"a\.tsv, line 2"):
        read(path, **pairs)
    assert [row.readable for row in read(path, odd_rows="drop", **pairs)] == [True, False, True]
    assert len(read(path, header=False, texts=(0,), label=1)) == 2  # labelled text skips it


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        *(("a.csv", b"\xff,x"), ("a.CSV", b'"q" r,x'), ("a.csv", b'"q\n1,2\n3"r,x'), ("a.tsv", b"\xff")),
        *(("a.jsonl", b"{"), ("a.ndjson", b"7")),
    ],
)
def test_bad_lines_are_refused(tmp_path, name, bad):
    path = tmp_path / name
    good = {"csv": b"%d,x", "tsv": b"%d\tx"}.get(name[2:].lower(), b'{"a": "%d", "b": "x"}')
    path.write_bytes(b"".join(line + b"\n" for line in (bad, good % 1, bad, good % 2)))
    columns = RowFormat(texts=("a", "b")) if good[:1] == b"{" else None
    with pytest.raises(DataError, match=r"line 1: (.|\n)*(iconv|quotes|JSON)"):
        list(table_rows(path, columns))


def test_an_empty_file_or_a_column_name_that_is_not_unique(tmp_path):
    with pytest.raises(DataError, match=r"a\.tsv"):
        read(put(tmp_path / "a.tsv"), **PAIR)
    path = put(tmp_path / "a.tsv", "premise\tlabel\thypothesis\tlabel\tother\tother", "a\t0\tb\t1\tx\ty")
    with pytest.raises(DataError, match=r"a\.tsv .*'label'"):
        read(path, **PAIR)
    assert read(path, texts=("premise",), label="hypothesis")[0].label == "b"  # other columns do not matter


def test_json_lines(tmp_path):
    records = [{"sentence1": "a\nb", "sentence2": "c", "label": "x"}, {"sentence1": "d", "sentence2": "e", "label": 1}]
    rows = {"format": "jsonl", "texts": ("sentence1", "sentence2"), "label": "label"}
    first, second = read(put(tmp_path / "lines.jsonl", *map(json.dumps, records)), **rows)
    assert (first.texts, second.label) == (("a b", "c"), "1")
    with pytest.raises(DataError, match=r"array\.jsonl, line 1: (.|\n)*jq"):
        read(put(tmp_path / "array.jsonl", json.dumps(records)), **rows)


def test_a_label_is_one_however_its_accents_are_encoded(tmp_path):
    path = put(tmp_path / "a.tsv", "text\tlabel", "a\tcaf\u00e9", "b\tcafe\u0301")
    assert {row.label for row in read(path, texts=("text",), label="label")} == {"caf\u00e9"}


@pytest.mark.parametrize(
    ("line", "place"),
    [
        ("{", ""),
        ("[1]", r"'\[1\]'"),
        ('{"text": "x"}', "'label'.* text"),
        ('{"text": null, "label": "a"}', "'text' .*None"),
        ('{"text": "\\ud800", "label": "x"}', "'text'"),
        ('{"text": "\\u0000", "label": "x"}', "'text'"),
    ],
)
def test_malformed_json_lines(tmp_path, line, place):
    path = put(tmp_path / "a.jsonl", '{"text": "x", "label": "a"}', line)
    with pytest.raises(DataError, match=rf"a\.jsonl, line 2: .*{place}"):
        read(path, format="jsonl", texts=("text",), label="label")


@pytest.mark.parametrize("number", ["2147483648", "-2", "9" * 5000])
def test_an_extra_has_32_bits(tmp_path, number):
    path = tmp_path / "a.tsv"
    path.write_text(f"text\tlabel\textra\na\tb\t{number}\n")
    rows = RowFormat(texts=("text",), label="label", extras={"extra": "extra"})
    with pytest.raises(DataError, match=r"a\.tsv, line 2: column 'extra'"):
        list(tables([path], rows))
    path.write_text("text\tlabel\textra\na\tb\t-1\n")
    assert next(iter(tables([path], rows))).extras == {"extra": -1}
