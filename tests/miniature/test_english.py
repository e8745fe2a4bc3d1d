"""English forms against forms written down by hand."""

import pytest

from phmctl.miniature import english
from phmctl.miniature.english import VerbForms
from phmctl.miniature.lexicon import lexicon, regular_past, regular_plural

GIVE = VerbForms("give", "gave", "given")


@pytest.mark.parametrize(
    ("word", "article"),
    [
        ("apple", "an"),
        ("baker", "a"),
        ("honest", "an"),
        ("umbrella", "an"),
        ("useful", "a"),
        ("old", "an"),
        ("ugly", "an"),
    ],
)
def test_article(word, article):
    assert english.article(word) == article


@pytest.mark.parametrize(
    ("base", "form"),
    [
        ("carry", "carries"),
        ("watch", "watches"),
        ("go", "goes"),
        ("have", "has"),
        ("play", "plays"),
        ("wash", "washes"),
    ],
)
def test_third_person(base, form):
    assert english.third_person(base) == form


@pytest.mark.parametrize(
    ("base", "past"), [("bake", "baked"), ("cry", "cried"), ("stay", "stayed"), ("help", "helped")]
)
def test_regular_past(base, past):
    assert regular_past(base) == past


@pytest.mark.parametrize(
    ("noun", "plural"), [("box", "boxes"), ("library", "libraries"), ("toy", "toys"), ("bus", "buses"), ("key", "keys")]
)
def test_regular_plural(noun, plural):
    assert regular_plural(noun) == plural


def test_irregular_plurals_stand_in_the_table():
    plurals = {noun.german: noun.english_plural for noun in lexicon().nouns}
    chosen = [plurals[n] for n in ("Kind", "Maus", "Schaf", "Messer", "Brot", "Tomate", "Schal", "Polizist")]
    assert chosen == ["children", "mice", "sheep", "knives", "loaves", "tomatoes", "scarves", "policemen"]


def test_possessives():
    assert english.possessive("teacher", False) == "teacher's"
    assert english.possessive("teachers", True) == "teachers'"
    assert english.possessive("children", True) == "children's"


@pytest.mark.parametrize(
    ("tense", "modal", "passive", "support", "words"),
    [
        ("present", "", False, False, "gives"),
        ("past", "", False, False, "gave"),
        ("perfect", "", False, False, "has given"),
        ("future", "", False, False, "will give"),
        ("present", "", False, True, "does give"),
        ("past", "", False, True, "did give"),
        ("present", "können", False, True, "can give"),
        ("past", "müssen", False, False, "had to give"),
        ("past", "müssen", False, True, "did have to give"),
        ("present", "wollen", False, False, "wants to give"),
        ("past", "dürfen", False, True, "was allowed to give"),
        ("present", "möchten", False, True, "would like to give"),
        ("past", "", True, True, "was given"),
        ("perfect", "", True, False, "has been given"),
        ("future", "", True, False, "will be given"),
        ("present", "müssen", True, False, "has to be given"),
    ],
)
def test_verb_groups(tense, modal, passive, support, words):
    group = english.verb_group(GIVE, tense, modal, passive, "3sg", support=support)
    assert " ".join([group.finite, *group.rest]) == words


def test_be_agrees():
    persons = ("1sg", "2sg", "3sg", "3pl")
    assert [english.finite(english.BE, "present", p) for p in persons] == ["am", "are", "is", "are"]
    assert [english.finite(english.BE, "past", p) for p in persons] == ["was", "were", "was", "were"]
