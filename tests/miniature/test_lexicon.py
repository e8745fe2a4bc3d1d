"""The tables are consistent: whoever adds a word finds out here what it lacks."""

from collections import Counter

from phmctl.miniature.lexicon import expand, lexicon
from phmctl.miniature.phrases import adjectives_of, nouns_of

FRAMES = {"i", "l", "g", "s", "a", "d", "da", "p", "c", "o", "z", "e", "v"}
WITHOUT_NOUN = {"city"}


def test_every_noun_and_name_has_one_translation():
    names = Counter(word.german for word in (*lexicon().nouns, *lexicon().names))
    assert [word for word, count in names.items() if count > 1] == []


def test_every_kind_that_a_verb_names_exists():
    for verb in lexicon().verbs:
        assert verb.frame in FRAMES
        for kinds in (verb.subjects, verb.objects, verb.places, verb.means):
            missing = [kind for kind in kinds if kind not in WITHOUT_NOUN and not nouns_of((kind,))]
            assert not missing, (verb.german, missing)


def test_every_kind_that_an_adjective_names_exists():
    for adjective in lexicon().adjectives:
        missing = [kind for kind in adjective.kinds if not nouns_of((kind,))]
        assert not missing, (adjective.german, missing)


def test_every_adjective_describes_something():
    used = {adjective for noun in lexicon().nouns for adjective in adjectives_of(noun)}
    assert used == set(lexicon().adjectives)


def test_place_nouns_say_how_one_is_there():
    for noun in nouns_of(("building", "shop", "room", "outdoors", "water")):
        assert all(noun.place), noun.german


def test_the_english_of_a_german_verb_depends_on_its_frame_alone():
    pairs = Counter((verb.german, verb.frame) for verb in lexicon().verbs)
    assert max(pairs.values()) == 1


def test_groups_open_once_and_in_order():
    assert expand("human|animal|child") == ("person", "kin", "child", "animal")
    assert expand("tame")[0] == "Hund"
    assert expand("") == ()
