"""German forms against paradigms written down by hand."""

import pytest

from phmctl.miniature import german
from phmctl.miniature.lexicon import lexicon

CASES = ("nom", "acc", "dat", "gen")
AGREEMENTS = ("m", "f", "n", "pl")
NOUNS = {noun.german: noun for noun in lexicon().nouns}
VERBS = {verb.german: verb for verb in lexicon().verbs}


def paradigm(form):
    """The forms by case, each row in the order m f n pl."""
    return [" ".join(form(agreement, case) for agreement in AGREEMENTS) for case in CASES]


def test_the_definite_article():
    assert paradigm(german.definite) == ["der die das die", "den die das die", "dem der dem den", "des der des der"]


def test_kein_and_the_possessives():
    assert paradigm(lambda a, c: german.indefinite("kein", a, c)) == [
        "kein keine kein keine",
        "keinen keine kein keine",
        "keinem keiner keinem keinen",
        "keines keiner keines keiner",
    ]
    assert german.indefinite("unser", "m", "dat") == "unserem"


def test_dieser_declines_like_the_article():
    assert paradigm(lambda a, c: german.pronominal("dies", a, c)) == [
        "dieser diese dieses diese",
        "diesen diese dieses diese",
        "diesem dieser diesem diesen",
        "dieses dieser dieses dieser",
    ]


@pytest.mark.parametrize(
    ("endings", "rows"),
    [
        (german.STRONG, ["er e es e", "en e es e", "em er em en", "en er en er"]),
        (german.WEAK, ["e e e en", "en e e en", "en en en en", "en en en en"]),
        (german.MIXED, ["er e es en", "en e es en", "en en en en", "en en en en"]),
    ],
    ids=["strong", "weak", "mixed"],
)
def test_adjective_endings(endings, rows):
    assert paradigm(lambda a, c: endings[a, c]) == rows


@pytest.mark.parametrize(
    ("adjective", "form"),
    [
        ("alt", "alten"),
        ("teuer", "teuren"),
        ("dunkel", "dunklen"),
        ("hoch", "hohen"),
        ("müde", "müden"),
        ("neu", "neuen"),
    ],
)
def test_adjective_stems(adjective, form):
    assert german.attributive(adjective, "en") == form


def test_relative_pronouns():
    assert paradigm(german.relative_pronoun) == [
        "der die das die",
        "den die das die",
        "dem der dem denen",
        "dessen deren dessen deren",
    ]


@pytest.mark.parametrize(
    ("noun", "singular", "plural"),
    [
        ("Hund", "Hund Hund Hund Hundes", "Hunde Hunde Hunden Hunde"),
        ("Junge", "Junge Jungen Jungen Jungen", "Jungen Jungen Jungen Jungen"),
        ("Nachbar", "Nachbar Nachbarn Nachbarn Nachbarn", "Nachbarn Nachbarn Nachbarn Nachbarn"),
        ("Kind", "Kind Kind Kind Kindes", "Kinder Kinder Kindern Kinder"),
        ("Auto", "Auto Auto Auto Autos", "Autos Autos Autos Autos"),
        ("Frau", "Frau Frau Frau Frau", "Frauen Frauen Frauen Frauen"),
        ("Apfel", "Apfel Apfel Apfel Apfels", "Äpfel Äpfel Äpfeln Äpfel"),
        ("Haus", "Haus Haus Haus Hauses", "Häuser Häuser Häusern Häuser"),
        ("Arzt", "Arzt Arzt Arzt Arztes", "Ärzte Ärzte Ärzten Ärzte"),
    ],
)
def test_nouns(noun, singular, plural):
    assert " ".join(german.noun_form(NOUNS[noun], False, case) for case in CASES) == singular
    assert " ".join(german.noun_form(NOUNS[noun], True, case) for case in CASES) == plural


@pytest.mark.parametrize(
    ("verb", "present", "preterite"),
    [
        ("geben", "gebe gibst gibt geben geben", "gab gabst gab gaben gaben"),
        ("lesen", "lese liest liest lesen lesen", "las lasest las lasen lasen"),
        ("füttern", "füttere fütterst füttert füttern füttern", "fütterte füttertest fütterte fütterten fütterten"),
        ("bügeln", "bügle bügelst bügelt bügeln bügeln", "bügelte bügeltest bügelte bügelten bügelten"),
        (
            "arbeiten",
            "arbeite arbeitest arbeitet arbeiten arbeiten",
            "arbeitete arbeitetest arbeitete arbeiteten arbeiteten",
        ),
        ("wissen", "weiß weißt weiß wissen wissen", "wusste wusstest wusste wussten wussten"),
        ("sein", "bin bist ist sind sind", "war warst war waren waren"),
        ("sitzen", "sitze sitzt sitzt sitzen sitzen", "saß saßest saß saßen saßen"),
    ],
)
def test_finite_verbs(verb, present, preterite):
    entry = VERBS[verb]
    persons = ("1sg", "2sg", "3sg", "1pl", "3pl")
    forms = [[german.verb_words(entry, tense, "", False, p)[0] for p in persons] for tense in ("present", "past")]
    assert [" ".join(row) for row in forms] == [present, preterite]


@pytest.mark.parametrize(("third", "second"), [("hält", "hältst"), ("lädt", "lädst"), ("betritt", "betrittst")])
def test_a_stem_that_ends_in_t_keeps_it_in_the_second_person(third, second):
    assert german.present("x", third, "2sg") == second


@pytest.mark.parametrize(
    ("tense", "modal", "passive", "words"),
    [
        ("present", "", False, ("ruft", ["an"], True)),
        ("past", "", False, ("rief", ["an"], True)),
        ("perfect", "", False, ("hat", ["angerufen"], False)),
        ("future", "", False, ("wird", ["anrufen"], False)),
        ("present", "müssen", False, ("muss", ["anrufen"], False)),
        ("past", "wollen", False, ("wollte", ["anrufen"], False)),
        ("present", "", True, ("wird", ["angerufen"], False)),
        ("perfect", "", True, ("ist", ["angerufen", "worden"], False)),
        ("future", "", True, ("wird", ["angerufen", "werden"], False)),
    ],
)
def test_separable_verbs(tense, modal, passive, words):
    assert german.verb_words(VERBS["anrufen"], tense, modal, passive, "3sg") == words


def test_the_perfect_takes_its_own_auxiliary():
    assert german.verb_words(VERBS["aufstehen"], "perfect", "", False, "3pl")[:2] == ("sind", ["aufgestanden"])
    assert german.verb_words(VERBS["lesen"], "perfect", "", False, "1pl")[:2] == ("haben", ["gelesen"])


def test_zu_stands_inside_a_separable_verb():
    assert german.to_infinitive(VERBS["anrufen"]) == ["anzurufen"]
    assert german.to_infinitive(VERBS["helfen"]) == ["zu", "helfen"]


@pytest.mark.parametrize(
    ("preposition", "article", "words"),
    [
        ("in", "dem", ["im"]),
        ("in", "das", ["ins"]),
        ("zu", "der", ["zur"]),
        ("von", "dem", ["vom"]),
        ("auf", "dem", ["auf", "dem"]),
    ],
)
def test_contractions(preposition, article, words):
    assert german.contract(preposition, [article, "X"]) == [*words, "X"]


def test_numbers_above_twelve_are_digits():
    assert [german.number_word(n) for n in (2, 12, 13, 40)] == ["zwei", "zwölf", "13", "40"]
