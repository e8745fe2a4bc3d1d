import json
import time
from collections import Counter

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from phmctl.data import SPECIAL_TOKENS, UNK
from phmctl.data.tokenizer import SMALLEST_BPE, Tokenizer, TokenizerPair, train_pair, train_tokenizer
from phmctl.errors import DataError
from tests.data.helpers import as_rows

LINES = [
    "Ein Mann, der läuft, sieht einen Hund.",
    "Madam , he's well .",
    "Zwei Männer und ein Hund laufen; zwei Hunde laufen nicht.",
    "The men don't run -- they walk ...",
] * 3


@pytest.fixture(scope="module")
def bpe() -> Tokenizer:
    return train_tokenizer(LINES, "bpe", 320)


@pytest.fixture(scope="module")
def words() -> Tokenizer:
    return train_tokenizer(LINES, "word", 1000)


@given(st.text())
@example("a\u00a0b\u200bc\ufffd")
@example("<s> </s><pad> <unk>")
@example("  two   spaces ")
@example("\u2028line\u2029separators\x85\r\n")
@example("👩‍👩‍👧 e\u0301 ﬃ İ ß\x00")
def test_bpe_gives_any_text_back(bpe, text):
    assert bpe.decode(bpe.encode([text])[0]) == text


@given(
    st.lists(
        st.sampled_from([*" ,.'\u00a0\u200b_-\"’", "Mann", "he's", "Ä", "<s>", "  ", "東", "e\u0301"]), max_size=12
    )
)
def test_words_give_text_of_their_vocabulary_back(pieces):
    text = "".join(pieces)
    tokenizer = train_tokenizer([text], "word", 1000)
    ids = tokenizer.encode([text])[0]
    assert UNK not in ids
    assert tokenizer.decode(ids) == text


def test_a_word_is_one_token(words):
    pieces = [[words.vocabulary[index] for index in ids] for ids in words.encode(LINES[:4])]
    assert pieces[0] == [" Ein", " Mann", ",", " der", " läuft", ",", " sieht", " einen", " Hund", "."]
    assert pieces[1] == [" Madam", " ,", " he's", " well", " ."]
    assert pieces[3] == [" The", " men", " don't", " run", " --", " they", " walk", " ..."]


@pytest.mark.parametrize("kind", ["bpe", "word"])
def test_special_tokens_are_never_made_from_text(kind):
    lines = ["<s> </s> <pad> <unk>", "<s></s><pad><unk>"] * 50
    tokenizer = train_tokenizer(lines, kind, 1000)
    ids = {index for row in tokenizer.encode(lines) for index in row}
    assert not ids & set(range(4))
    assert tuple(tokenizer.vocabulary[:4]) == SPECIAL_TOKENS


def test_an_unknown_word_decodes_to_nothing(words):
    ids = words.encode(["Madam Xylophon well"])[0]
    assert ids[1] == UNK
    assert words.decode(ids) == "Madam well"


def test_bpe_has_every_byte_and_merges_frequent_pairs(bpe):
    assert bpe.size == 320
    assert " Hund" in [bpe.vocabulary[i].replace("Ġ", " ") for i in bpe.encode(["ein Hund"])[0]]
    assert UNK not in bpe.encode(["東京 \U0001f600"])[0]


def test_words_are_taken_by_frequency_and_then_alphabetically():
    tokenizer = train_tokenizer(["d c b a", "b b", "c d"], "word", 4 + 3)
    assert Counter(tokenizer.vocabulary[4:]) == Counter([" b", " c", " d"])
    assert train_tokenizer(["z y x w v"], "word", 4 + 2).vocabulary[4:] == [" v", " w"]


def test_training_does_not_depend_on_the_order_of_the_lines(tmp_path):
    for kind in ("bpe", "word"):
        train_tokenizer(LINES, kind, 300).save(tmp_path / "one.json")
        train_tokenizer(reversed(LINES), kind, 300).save(tmp_path / "two.json")
        assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()


def test_a_pair_is_joint_or_separate(tmp_path):
    pairs = as_rows([("ein Hund", "a dog"), ("ein Mann", "a man")])
    joint = train_pair(pairs, "word", 100, joint=True)
    joint.save(tmp_path / "joint")
    loaded = TokenizerPair.load(tmp_path / "joint")
    assert loaded.joint
    assert sorted(loaded.source.vocabulary[4:]) == [" Hund", " Mann", " a", " dog", " ein", " man"]
    separate = train_pair(pairs, "word", 100, joint=False)
    separate.save(tmp_path / "separate")
    loaded = TokenizerPair.load(tmp_path / "separate")
    assert not loaded.joint
    assert loaded.source.vocabulary[4:] == [" ein", " Hund", " Mann"]
    assert loaded.target.vocabulary[4:] == [" a", " dog", " man"]


def test_a_bpe_vocabulary_must_hold_the_bytes():
    with pytest.raises(DataError, match="260"):
        train_tokenizer(LINES, "bpe", SMALLEST_BPE - 1)
    assert train_tokenizer(LINES, "bpe", SMALLEST_BPE).size == SMALLEST_BPE


def test_a_missing_or_damaged_file_is_a_users_error(tmp_path):
    for content in (None, '{"format": "other"}'):
        if content is not None:
            (tmp_path / "tokenizer.json").write_text(content)
        with pytest.raises(DataError, match=r"tokenizer\.json"):
            TokenizerPair.load(tmp_path)


def test_learning_takes_time_in_proportion_to_the_text():
    begun = time.process_time()
    tokenizer = train_tokenizer(["ab" * 500_000, "ein Hund", "ein Haus"], "bpe", 300)
    assert time.process_time() - begun < 20
    assert tokenizer.decode(tokenizer.encode(["ab" * 500_000])[0]) == "ab" * 500_000


def test_long_lines_of_short_words_are_learned_from_as_they_are():
    long, short = (train_tokenizer(["ein Hund  läuft " * count + "schnell"], "word", 50) for count in (100, 2))
    assert {*long.vocabulary} == {*short.vocabulary}


@pytest.mark.parametrize("kind", ["bpe", "word"])
@pytest.mark.parametrize("lowercase", [True, False])
def test_the_library_reads_a_tokenizer_by_its_ordinary_call(tmp_path, kind, lowercase):
    tokenizer = train_tokenizer(LINES, kind, 300, lowercase=lowercase)
    tokenizer.save(tmp_path / "tokenizer.json")
    engine = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    for line in [*LINES, "Ganz  Neues <s> ß"]:
        ids = tokenizer.encode([line])[0]
        assert engine.encode(line).ids == ids
        decoded = engine.decode(ids)
        assert decoded.removeprefix(" ") == tokenizer.decode(ids) or tokenizer.vocabulary[UNK] in decoded
    assert [engine.token_to_id(token) for token in tokenizer.vocabulary] == list(range(tokenizer.size))
    assert Tokenizer.load(tmp_path / "tokenizer.json") == tokenizer


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("model", "type"), "Unigram"),
        (("model", "vocab"), {"a": 0}),
        (("model", "merges"), [["a"]]),
        (("normalizer",), None),
    ],
)
def test_a_tokenizer_of_another_program_is_refused(tmp_path, path, value):
    file = tmp_path / "tokenizer.json"
    train_tokenizer(["ein Hund", "ein Haus"], "bpe", 300).save(file)
    content = json.loads(file.read_text(encoding="utf-8"))
    part = content
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    file.write_text(json.dumps(content))
    with pytest.raises(DataError, match=r"tokenizer\.json"):
        Tokenizer.load(file)
