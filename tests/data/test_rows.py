import pytest

from phmctl.data import Row
from phmctl.data.card import Cleaning
from phmctl.data.rows import CleanRows, clean_line, hold_out, row_digests
from phmctl.errors import DataError
from tests.data.helpers import as_rows, texts

PLAIN = Cleaning()


def held_out(*pairs):
    return {digest for pair in pairs for digest in row_digests(pair, symmetric=False, sides=True)}


def cleaned(pairs, settings, max_tokens, held_out=None):
    return CleanRows(as_rows(pairs), settings, max_tokens, None, held_out)


def fits(rows, *lengths):
    return rows.fit(as_rows([("a", "b")])[0], [[0] * length for length in lengths]) is not None


@pytest.mark.parametrize(
    ("settings", "line", "clean"),
    [
        (PLAIN, " \tein  Mann\t ", "ein  Mann"),
        (PLAIN, "\u00a0ein&apos;s\u200b", "\u00a0ein&apos;s\u200b"),
        (Cleaning(entities="decode"), "it &apos;s &quot; A &amp; B &quot;", "it 's \" A & B \""),
        (Cleaning(entities="decode"), "&#91; &#124; &#93; &lt; &gt;", "[ | ] < >"),
        (Cleaning(entities="decode"), "&amp;apos; &copy; &#65; AT&T", "&apos; &copy; &#65; AT&T"),
        (Cleaning(lowercase=True), "Ein Mann", "Ein Mann"),  # the tokenizer lower-cases
        (Cleaning(normalise=True), " e\u0301\u00a0 x\u2028y ", "\u00e9 x y"),
    ],
)  # fmt: skip
def test_a_line_is_cleaned_as_the_card_says(settings, line, clean):
    assert clean_line(line, settings) == clean


def test_train_loses_empty_sides_and_held_out_pairs_with_counts():
    pairs = [
        ("ein Hund", "a dog"),
        ("", "nothing"),
        ("nichts", "\u00a0 "),
        ("", ""),
        ("guten  Tag.", "HELLO ."),  # only case and white space differ
        ("Ja", "Indeed"),
        ("Genau", "Yes"),
        ("Guten Tag .", "Yes"),  # both sides are in valid or test, but not as a pair
    ]
    clean = cleaned(pairs, PLAIN, 10, held_out(("Guten Tag .", "Hello."), ("Ja", "Yes")))
    assert texts(clean) == [pairs[0], *pairs[5:]]
    assert clean.counts() == {
        "read": 8,
        "kept": 0,
        "dropped": {"empty_side": 3, "in_valid_or_test": 1},
        "noted": {"source_in_valid_or_test": 2, "target_in_valid_or_test": 2},
    }
    assert texts(clean) == [pairs[0], *pairs[5:]]
    assert clean.read == 8


def test_train_loses_long_and_unequal_rows():
    train = cleaned([], Cleaning(max_ratio=1.5), 10, held_out())
    lengths = [(10, 10), (11, 10), (10, 11), (1, 2), (5, 3), (6, 3), (3, 6), (1, 3)]
    assert [fits(train, *pair) for pair in lengths] == [True, False, False, True, True, False, False, False]
    assert train.counts()["dropped"] == {"over_long": 2, "length_ratio": 3}
    assert train.kept == 3
    assert fits(cleaned([], PLAIN, 10, held_out()), 1, 9)


def test_valid_and_test_keep_every_line():
    pairs = [("", ""), ("a", ""), ("a b", "c")]
    clean = cleaned(pairs, Cleaning(max_ratio=1.5), 10)
    assert texts(clean) == pairs
    assert fits(clean, 50, 1)
    assert fits(clean, 1, 5)
    assert clean.counts() == {"read": 3, "kept": 2, "dropped": {}, "noted": {"empty_side": 2, "over_long": 1}}


@pytest.mark.parametrize("seed", range(5))
def test_the_last_source_of_a_label_stays_in_train(seed):
    """Half of the labels have one source, the others two."""
    rows = [Row((f"text {seed} {number}",), f"label {number % 67}") for number in range(100)]
    divided = hold_out({"train": rows}, "10%,10%")[0]
    assert {row.label for row in divided["train"]} == {row.label for row in rows}
    assert [len([*divided[name]]) for name in ("train", "valid", "test")] == [80, 10, 10]


@pytest.mark.parametrize("split", ["5000", "200,200", "100"])
def test_more_rows_than_labelled_text_has_are_refused(split):
    rows = [Row((f"text {number}",), f"label {number % 2}") for number in range(100)]
    with pytest.raises(DataError, match=f"split={split}"):
        list(hold_out({"train": rows}, split)[0]["train"])


def test_a_pair_and_its_swap_are_held_out_together():
    pairs = [(f"sentence {number}", f"other {number}") for number in range(100)]
    rows = as_rows([*pairs, *(pair[::-1] for pair in pairs), ("sentence 1", "a third")])
    divided = hold_out({"train": rows}, "40,40")[0]
    kept = {frozenset(row.texts) for row in divided["train"]}
    for name in ("valid", "test"):
        held = [row.texts for row in divided[name]]
        assert 40 <= len(held) <= 43
        assert not kept & {frozenset(pair) for pair in held}
    sources = {name: {row.texts[0] for row in divided[name]} for name in divided}
    assert not sources["train"] & (sources["valid"] | sources["test"])
