"""Values are checked against the definitions (Papineni et al. 2002; Popović 2015; Snover et al. 2006), by hand."""

import importlib.util
import math
from typing import Any

import pytest

from phmctl.errors import UserError
from phmctl.metrics.significance import Difference, difference
from phmctl.metrics.text import (
    all_scores,
    bleu,
    bleu_by,
    check_tokenizer,
    copy_baseline,
    is_code,
    language,
    length_parts,
    text_scorer,
    usual_tokenizer,
)

REFERENCES = ["the cat sat on the mat", "a dog barks at the moon tonight"]


def test_bleu_by_hand() -> None:
    # 5 of 6 words, 4 of 5 pairs, 3 of 4 and 2 of 3 longer n-grams; equal lengths
    score = bleu(["the cat sat on the rug"], ["the cat sat on the mat"])
    assert score.name == "BLEU"
    assert score.value == pytest.approx(100 * (5 / 6 * 4 / 5 * 3 / 4 * 2 / 3) ** 0.25)
    short = bleu(["the cat sat on"], ["the cat sat on the mat"])
    assert short.value == pytest.approx(100 * math.exp(1 - 6 / 4))  # the brevity penalty


def test_copying_the_source_is_scored_like_a_translation() -> None:
    modern = ["I have not seen him since yesterday , sir .", "You are a good man ."]
    original = ["I have not seen him since yestereve , sir .", "Thou art a good man ."]
    copy = copy_baseline(modern, original)
    assert copy.bleu == bleu(modern, original).value
    assert copy.shared_words == pytest.approx((7 + 3) / (8 + 5))  # words without punctuation
    assert copy.one_language
    assert copy_baseline(modern, [line.upper() for line in original], lowercase=True).bleu == pytest.approx(copy.bleu)


def test_names_and_numbers_do_not_make_two_languages_one() -> None:
    german = ["Maria und Peter kamen 1999 in die große Stadt , in der sie heute noch gern leben ."]
    english = ["Maria and Peter came in 1999 to the large town , where they still like to live today ."]
    copy = copy_baseline(german, english)
    assert copy.shared_words == pytest.approx(4 / 16)  # a word of the reference matches one word of the source
    assert not copy.one_language
    # of several references the most similar counts
    copy = copy_baseline(["a b", "c"], ["x y", "c"], other_references=[["a z", "w"]])
    assert copy.shared_words == pytest.approx(2 / 3)


def test_lowercase_ignores_case() -> None:
    assert bleu(["The Cat Sat On The Mat"], REFERENCES[:1]).value < 10
    score = bleu(["The Cat Sat On The Mat"], REFERENCES[:1], lowercase=True)
    assert score.value == pytest.approx(100)
    assert "case:lc" in score.signature


def test_bleu_by_length_scores_each_group_separately() -> None:
    sources = [" ".join("w" * length) for length in (2, 11, 0, 10)]  # upper ends are inclusive
    hypotheses = [REFERENCES[0], "the cat sat on the rug", REFERENCES[0], REFERENCES[0]]
    bins = bleu_by(length_parts(sources), hypotheses, REFERENCES[:1] * 4)
    assert [(group.value, group.sentences) for group in bins] == [("1–10", 3), ("11–20", 1)]
    assert [group.bleu for group in bins] == pytest.approx([100, bleu(hypotheses[1:2], REFERENCES[:1]).value])
    chinese = ["我们明天去", "我们明天去北京看看他们的新 A380 飞机"]
    assert [rows for _, rows in length_parts(chinese)] == [[0], [1]]


def bootstrap(name: str, baseline: list[str], system: list[str], references: list[str], **options: Any) -> Difference:
    """Compare two translations, as for models with one training each."""
    scorers = [text_scorer(name, [lines], references, **options) for lines in (baseline, system)]
    return difference(*scorers, len(references))


def test_several_references_are_one_corpus() -> None:
    hypotheses, first, second = ["the cat sat on the rug"], ["the cat sat on the mat"], ["the cat lay on the rug"]
    scores = all_scores(hypotheses, first, other_references=[second])
    assert all("nrefs:2" in score.signature for score in scores)
    assert scores[0].value == pytest.approx(100 * (6 / 6 * 5 / 5 * 4 / 4 * 2 / 3) ** 0.25)
    assert scores[0].value > all_scores(hypotheses, first)[0].value
    assert scores[2].value == pytest.approx(100 / 6)
    test = bootstrap("BLEU", hypotheses * 3, second * 3, first * 3, other_references=[second * 3])
    assert test.system.value == pytest.approx(100)
    (group,) = bleu_by(length_parts(["a b c"]), hypotheses, first, other_references=[second])
    assert group.bleu == pytest.approx(scores[0].value)


def test_chinese_is_split_into_characters() -> None:
    hypothesis, reference = ["我们明天去北京看看"], ["我们明天去上海看看"]
    usual, chinese = (bleu(hypothesis, reference, tokenize=name) for name in ("13a", "zh"))
    assert "tok:zh" in chinese.signature
    assert usual.value < 1 < chinese.value
    ter = all_scores(hypothesis, reference)[2]
    assert ter.value == pytest.approx(100 * 2 / 9)
    assert "asian:yes" in ter.signature
    assert "asian:no" in all_scores(REFERENCES, REFERENCES)[2].signature


def test_the_usual_tokenizer_of_a_language() -> None:
    groups = {
        "13a": ("de", "deu", "ger", "deu_Latn", "xx", "original", None),
        "zh": ("zh", "zh-TW", "ZH_hant", "zho", "chi", "cmn", "zho_Hans", "cmn-Hant-TW"),
        "char": ("th", "tha", "tha_Thai"),
        "ja-mecab" if importlib.util.find_spec("MeCab") else "char": ("ja", "jpn", "jpn_Jpan"),
        "ko-mecab" if importlib.util.find_spec("mecab_ko") else "char": ("ko", "kor", "kor_Hang"),
    }
    for tokenizer, codes in groups.items():
        assert {code: usual_tokenizer(code) for code in codes} == dict.fromkeys(codes, tokenizer)


def test_a_missing_tokenizer_is_refused() -> None:
    with pytest.raises(UserError, match=r"tokenize=ja-mekab: .*'ja-mecab'"):
        check_tokenizer("ja-mekab")
    if importlib.util.find_spec("MeCab") is None:
        with pytest.raises(UserError, match=r"tokenize=ja-mecab: .*pip install sacrebleu\[ja\]"):
            check_tokenizer("ja-mecab")


@pytest.mark.parametrize(
    ("codes", "shortest"),
    [
        (("zh", "ZH", "zh-TW", "zh_Hans", "zho", "zho_Hant", "chi", "cmn"), "zh"),
        (("ja", "jpn"), "ja"),
        (("en", "en-GB", "EN"), "en"),
    ],
)
def test_the_codes_of_a_language(codes: tuple[object, ...], shortest: str) -> None:
    assert {language(code) for code in codes} == {shortest}


def test_the_form_of_a_code() -> None:
    assert all(map(is_code, ("de", "pt-BR", "zh_Hans", "zho-Hant-TW", "EN")))
    assert not any(map(is_code, ("german", "d", "de en", "zh_", "")))
