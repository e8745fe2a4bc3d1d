"""Readers of text: written lines are read back; errors name the file and the line."""

import gzip

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from phmctl.data.readers import parallel_files, read_lines, read_sentences
from phmctl.data.rows import select_periodic
from phmctl.errors import DataError
from tests.data.helpers import put

SURPRISES = "\u00a0\u200b\u2028\u2029\u0085\x0b\x0c\x1c\ufffd\ufeff\r\t@ <&äß漢🙂"
CHARACTERS = st.one_of(st.sampled_from(SURPRISES), st.characters(exclude_categories=["Cs"], exclude_characters="\n\0"))
SENTENCES = st.lists(st.text(CHARACTERS, max_size=20).filter(lambda line: not line.endswith("\r")), max_size=8)
MODEST = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@MODEST
@given(lines=SENTENCES, end=st.sampled_from(["\n", "\r\n"]), name=st.sampled_from(["a.de", "a.de.gz"]))
def test_written_lines_are_read_back(tmp_path, lines, end, name):
    if lines:
        lines[0] = lines[0].lstrip("\ufeff")
    path = put(tmp_path / name, *lines, end=end)
    assert list(read_lines(path)) == lines


def test_line_ends_at_the_end_of_a_file(tmp_path):
    path = tmp_path / "a.de"
    for content, lines in (
        *((b"", []), (b"a", ["a"]), (b"a\n\n", ["a", ""]), (b"a\r\nb\r", ["a", "b"]), (b"a\r\r\n", ["a\r"])),
        (b"\xef\xbb\xbfa\n\xef\xbb\xbfb\n", ["a", "\ufeffb"]),
    ):
        path.write_bytes(content)
        assert list(read_lines(path)) == lines


@pytest.mark.parametrize("name", ["a.de", "a.de.gz"])
def test_invalid_utf8_names_file_and_line(tmp_path, name):
    path = put(tmp_path / name, mark=b"gut\n" * 2 + "schön\n".encode("latin-1"))
    with pytest.raises(DataError, match=rf"{name}, line 3: .*0xf6 at position 4") as caught:
        list(read_lines(path))
    assert "8859" not in str(caught.value)  # the encoding is not guessed


def test_missing_and_damaged_files(tmp_path):
    shortened = put(tmp_path / "a.gz", *map(str, range(1000)))
    shortened.write_bytes(shortened.read_bytes()[:-20])
    (tmp_path / "b.gz").write_bytes(b"not gzip")
    (tmp_path / "c.de").mkdir()
    for name in ("a.gz", "b.gz", "c.de", "absent.de"):
        with pytest.raises(DataError, match=name):
            list(read_lines(tmp_path / name))


@pytest.mark.parametrize(("sources", "targets"), [([3], [5]), ([5], [3]), ([0], [1]), ([2, 1], [1, 2])])
def test_unequal_lengths_name_both_files_and_counts(tmp_path, sources, targets):
    """Each pair of files is compared, not the totals."""
    source_files = [put(tmp_path / f"{number}.de", *["x"] * count) for number, count in enumerate(sources)]
    target_files = [put(tmp_path / f"{number}.en", *["y"] * count) for number, count in enumerate(targets)]
    with pytest.raises(DataError, match=rf"0\.de .*{sources[0]} .*0\.en .*{targets[0]}\b"):
        list(parallel_files(source_files, target_files))


def test_subwords_are_joined(tmp_path):
    path = put(tmp_path / "a.de", "die pyrami@@ de .", "mutter@@ mil@@ ch", "an@@", "a@@b @ @@@ c")
    assert list(read_sentences(path, "bpe")) == ["die pyramide .", "muttermilch", "an", "a@@b @ @c"]


XML = """\
<?xml version="1.0" encoding="UTF-8"?>
<mteval>
<srcset setid="iwslt2014-dev2010" srclang="german">
<doc docid="69" genre="lectures">
<url>http://www.example.org/talk</url>
<description>Ein Vortrag &amp; mehr</description>
<title>Kein Satz</title>
<seg id="1"> Tom &amp; Jerry &lt;3 &#228;, R&D &amp;lt; &ltd </seg>
<seg id="2"></seg>
<seg id="3">\u00a0zwei
Zeilen </seg>
<seg id="4">a</seg><seg id="5">b &#10;c</seg>
</doc>
</srcset>
</mteval>"""


def test_iwslt_xml_without_an_end_tag(tmp_path):
    path = put(tmp_path / "a.xml", '<seg id="1">ganz</seg>', '<seg id="2">nicht', "ganz")
    with pytest.raises(DataError, match=r"a\.xml, line 2:"):
        list(read_sentences(path, "iwslt-xml"))


def test_iwslt_tags_drop_the_talks_elements_and_no_sentence(tmp_path):
    plain = ("url", "keywords", "speaker", "talkid", "title", "description")
    linked = ("reviewer", "translator")
    talk = ['<doc docid="1">', *(f"<{name}>Angabe</{name}>" for name in plain), "<transcript>"]
    talk += [f'<{name} href="http://www.example.org">N. N.</{name}>' for name in linked]
    spoken = ["Eins.", "<i>Zwei</i> <3", "<applaus> drei", "", "1 < 2", "<urlaub> ist schön"]
    path = put(tmp_path / "train.tags.de-en.de", *talk, *spoken[:3], "</transcript>", "</doc>", *talk, *spoken[3:])
    assert list(read_sentences(path, "iwslt-tags")) == spoken


@given(
    st.integers(0, 60),
    st.integers(2, 12).flatmap(lambda period: st.tuples(st.just(period), st.permutations(range(1, period + 1)))),
)
def test_selected_rows_and_their_complement_are_all_rows(size, choice):
    period, (first, second, *_) = choice
    pairs = [(str(number), "") for number in range(1, size + 1)]
    valid, test = (list(select_periodic(pairs, period, [number])) for number in (first, second))
    train = list(select_periodic(pairs, period, [first, second], complement=True))
    assert sorted(valid + test + train) == sorted(pairs)
    assert [int(number) for number, _ in valid] == list(range(first, size + 1, period))


@pytest.mark.parametrize(
    ("text", "segments"),
    [
        (XML, ["Tom & Jerry <3 ä, R&D &lt; &ltd", "", "\u00a0zwei Zeilen", "a", "b  c"]),
        (
            '<doc docid="a.1" genre="news">\n<hl>\n<seg id="1">AT&amp;T rises</seg>\n</hl>\n<p>\n'
            '<seg id="2"> Two &lt;tags&gt; </seg>\n<seg id="3"></seg>\n</p>\n</doc>',
            ["AT&T rises", "Two <tags>", ""],
        ),
        (
            '<doc> <seg\nid="1">a\nb</seg> x <seg>c</seg><seg>d\n\ne</seg>\n</doc>\n<seg>f</seg>',
            ["a b", "c", "d  e", "f"],
        ),
        (f"<seg>&#{'9' * 5000};&#65;&#x110000;</seg>", [f"&#{'9' * 5000};A\ufffd"]),  # an invalid number is text
    ],
)
def test_segments_of_iwslt_and_wmt(tmp_path, text, segments):
    """Documents contain paragraphs, headlines and XML's entities."""
    assert list(read_sentences(put(tmp_path / "newstest-src.en.sgm", text), "iwslt-xml")) == segments


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_other_encodings_are_refused_with_the_program_that_converts_them(tmp_path, encoding):
    path = tmp_path / "a.en"
    path.write_bytes("The small dog\nruns\n".encode(encoding))
    with pytest.raises(DataError, match=r"a\.en, line 1: (.|\n)*iconv"):
        list(read_lines(path))


def test_a_line_without_end_is_refused(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"a\n" + bytes(40 << 20)))
    with pytest.raises(DataError, match=r"bomb\.gz, line 2:"):
        list(read_lines(path))
