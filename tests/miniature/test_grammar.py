"""Whole sentences built by hand, against their text in both languages written by hand."""

from dataclasses import replace

import pytest

from phmctl.miniature.clauses import feeling, to_be
from phmctl.miniature.corpus import render
from phmctl.miniature.lexicon import Adverbial, lexicon
from phmctl.miniature.phrases import HE, IT, SHE, YOU, I
from phmctl.miniature.structure import (
    Clause,
    Gap,
    NamePhrase,
    NounPhrase,
    Predicate,
    PrepositionalPhrase,
    Sentence,
)

WORDS = {word.german: word for table in (lexicon().nouns, lexicon().adjectives, lexicon().names) for word in table}
VERBS = {(verb.german, verb.frame): verb for verb in lexicon().verbs}
TIMES = {adverbial.german: adverbial for adverbial in lexicon().adverbials}


def np(noun, determiner="the", *adjectives, **more):
    return NounPhrase(WORDS[noun], determiner, adjectives=tuple(WORDS[a] for a in adjectives), **more)


def clause(verb, frame, subject, tense="present", **more):
    return Clause(VERBS[verb, frame], subject, tense, **more)


def pp(german, case, english, phrase):
    return PrepositionalPhrase(german, case, english, phrase)


def about(phrase, verb, frame, tense="present", **roles):
    """The phrase with a relative clause; a role given as "gap" is the relative pronoun."""
    gap = Gap(phrase.person, phrase.agreement, phrase.reference, phrase.human)
    filled = {name: gap if value == "gap" else value for name, value in roles.items()}
    return replace(phrase, relative=clause(verb, frame, filled.pop("subject"), tense, **filled))


KNIFE = np("Messer", "a")
CHILD_BREAD = {"dative": np("Kind"), "accusative": np("Brot", "a", "frisch")}

GOLDEN = {
    "agreement": (
        Sentence(clause("geben", "da", np("Bäcker", "the", "alt"), **CHILD_BREAD)),
        "Der alte Bäcker gibt dem Kind ein frisches Brot.",
        "The old baker gives the child a fresh loaf.",
    ),
    "inversion": (
        Sentence(
            clause(
                "lesen",
                "a",
                np("Frau", "a", "jung"),
                "past",
                accusative=np("Zeitung"),
                time=TIMES["gestern"],
                front="time",
            )
        ),
        "Gestern las eine junge Frau die Zeitung.",
        "Yesterday a young woman read the newspaper.",
    ),
    "separable verb": (
        Sentence(clause("anrufen", "a", np("Lehrerin"), accusative=np("Arzt"), time=TIMES["jeden Tag"])),
        "Die Lehrerin ruft jeden Tag den Arzt an.",
        "The teacher calls the doctor every day.",
    ),
    "separable verb, verb last": (
        Sentence(clause("wissen", "c", I), "dass", clause("anrufen", "a", np("Lehrerin"), accusative=np("Arzt"))),
        "Ich weiß, dass die Lehrerin den Arzt anruft.",
        "I know that the teacher calls the doctor.",
    ),
    "modal, negated": (
        Sentence(clause("schwimmen", "i", np("Junge"), modal="können", negated=True)),
        "Der Junge kann nicht schwimmen.",
        "The boy cannot swim.",
    ),
    "kein": (
        Sentence(clause("kaufen", "a", np("Student"), "past", accusative=np("Apfel", "no"))),
        "Der Student kaufte keinen Apfel.",
        "The student did not buy an apple.",
    ),
    "perfect with sein": (
        Sentence(
            clause("fahren", "g", np("Tourist"), "perfect", goal=pp("nach", "dat", "to", NamePhrase(WORDS["München"])))
        ),
        "Der Tourist ist nach München gefahren.",
        "The tourist has travelled to Munich.",
    ),
    "question": (
        Sentence(
            clause("schneiden", "a", YOU, accusative=np("Apfel"), means=pp("mit", "dat", "with", KNIFE)),
            question="yes/no",
        ),
        "Schneidest du den Apfel mit einem Messer?",
        "Do you cut the apple with a knife?",
    ),
    "question word": (
        Sentence(clause("abfahren", "i", np("Zug"), "past"), question="wann"),
        "Wann fuhr der Zug ab?",
        "When did the train depart?",
    ),
    "who": (
        Sentence(clause("sehen", "a", HE, accusative=np("Hund", "the", "schwarz", "klein")), question="wer"),
        "Wer sieht den schwarzen kleinen Hund?",
        "Who sees the black small dog?",
    ),
    "accusative relative, moved behind the prefix": (
        Sentence(
            clause(
                "einladen", "a", np("Koch"), accusative=about(np("Frau"), "lieben", "a", subject=HE, accusative="gap")
            )
        ),
        "Der Koch lädt die Frau ein, die er liebt.",
        "The cook invites the woman whom he loves.",
    ),
    "dative relative": (
        Sentence(
            clause(
                "schlafen",
                "i",
                about(np("Mann"), "geben", "da", "past", subject=I, dative="gap", accusative=np("Ring", "a")),
                "past",
            )
        ),
        "Der Mann, dem ich einen Ring gab, schlief.",
        "The man to whom I gave a ring slept.",
    ),
    "dative plural relative": (
        Sentence(clause("lachen", "i", about(np("Kind", plural=True), "helfen", "d", subject=SHE, dative="gap"))),
        "Die Kinder, denen sie hilft, lachen.",
        "The children whom she helps laugh.",
    ),
    "passive": (
        Sentence(
            clause(
                "bauen",
                "a",
                np("Haus"),
                "past",
                passive=True,
                means=pp("von", "dat", "by", np("Bauer", "the", "reich")),
            )
        ),
        "Das Haus wurde vom reichen Bauern gebaut.",
        "The house was built by the rich farmer.",
    ),
    "nicht before where to": (
        Sentence(clause("gehen", "g", np("Mädchen"), "past", goal=pp("in", "acc", "into", np("Schule")), negated=True)),
        "Das Mädchen ging nicht in die Schule.",
        "The girl did not walk into the school.",
    ),
    "um zu": (
        Sentence(
            clause("gehen", "g", np("Vater"), goal=pp("zu", "dat", "to", np("Markt"))),
            "um",
            clause("mitbringen", "a", HE, accusative=np("Ei", "number", count=12, plural=True)),
        ),
        "Der Vater geht zum Markt, um zwölf Eier mitzubringen.",
        "The father walks to the market in order to bring along twelve eggs.",
    ),
    "subordinate clause first": (
        Sentence(clause("aufwachen", "i", np("Hund"), "past"), "als", clause("regnen", "e", IT, "past"), True),
        "Als es regnete, wachte der Hund auf.",
        "When it rained, the dog woke up.",
    ),
    "fronted object": (
        Sentence(clause("finden", "a", np("Gärtner"), "past", accusative=np("Hut"), front="accusative")),
        "Den Hut fand der Gärtner.",
        "The gardener found the hat.",
    ),
    "comparison": (
        Sentence(Clause(to_be(), np("Turm"), "present", predicate=Predicate(WORDS["alt"], "than", np("Kirche")))),
        "Der Turm ist älter als die Kirche.",
        "The tower is older than the church.",
    ),
    "genitives": (
        Sentence(feeling(np("Auto", "genitive", owner=np("Nachbar")), WORDS["teuer"], "present")),
        "Das Auto des Nachbarn ist teuer.",
        "The neighbour's car is expensive.",
    ),
    "whose": (
        Sentence(
            clause(
                "warten",
                "i",
                replace(
                    np("Frau"),
                    relative=feeling(
                        np("Auto", "whose", owner=Gap("3sg", "f", "she", True)), WORDS["kaputt"], "present"
                    ),
                ),
            )
        ),
        "Die Frau, deren Auto kaputt ist, wartet.",
        "The woman whose car is broken waits.",
    ),
    "a girl is she": (
        Sentence(
            clause("schlafen", "i", np("Mädchen"), negated=True),
            "weil",
            feeling(replace(IT, reference="she"), WORDS["krank"], "present"),
        ),
        "Das Mädchen schläft nicht, weil es krank ist.",
        "The girl does not sleep because she is ill.",
    ),
    "price": (
        Sentence(
            clause(
                "kaufen",
                "a",
                SHE,
                "past",
                accusative=np("Hut", "a"),
                manner=Adverbial("für 20 Euro", "for 20 euros", "price", ()),
            )
        ),
        "Sie kaufte für 20 Euro einen Hut.",
        "She bought a hat for 20 euros.",
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_pairs(name):
    sentence, german, english = GOLDEN[name]
    assert render(sentence) == (german, english)


def test_an_embedded_relative_clause_does_not_contract_its_article():
    station = about(np("Bahnhof"), "ankommen", "i", subject=np("Zug", "a"), place=pp("an", "dat", "at", np("Park")))
    sentence = Sentence(clause("warten", "i", I, place=pp("an", "dat", "at", replace(station, relative=None))))
    assert render(sentence)[0] == "Ich warte am Bahnhof."
    open_clause = replace(station.relative, place=pp("an", "dat", "at", Gap("3sg", "m", "it", False)))
    described = replace(station, relative=open_clause)
    sentence = Sentence(clause("warten", "i", I, place=pp("an", "dat", "at", described)))
    assert render(sentence) == (
        "Ich warte an dem Bahnhof, an dem ein Zug ankommt.",
        "I wait at the station at which a train arrives.",
    )
