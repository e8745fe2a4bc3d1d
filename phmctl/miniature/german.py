"""German word forms: articles, adjective endings, nouns, pronouns and verbs. No word order; see `german_clause`."""

from phmctl.miniature.lexicon import Noun, Verb
from phmctl.miniature.structure import Agreement, Case, Modal, Person, Tense

_CASES: tuple[Case, ...] = ("nom", "acc", "dat", "gen")
_AGREEMENTS: tuple[Agreement, ...] = ("m", "f", "n", "pl")


def _table(*rows: str) -> dict[tuple[Agreement, Case], str]:
    """Read a paradigm: a row for each case (nom, acc, dat, gen), m f n pl in it, ``-`` for no ending."""
    return {
        (agreement, case): "" if form == "-" else form
        for case, row in zip(_CASES, rows, strict=True)
        for agreement, form in zip(_AGREEMENTS, row.split(), strict=True)
    }


DEFINITE = _table("der die das die", "den die das die", "dem der dem den", "des der des der")
RELATIVE = _table("der die das die", "den die das die", "dem der dem denen", "dessen deren dessen deren")
# dieser, jeder, alle and, with no article at all, the strong adjective.
STRONG = _table("er e es e", "en e es e", "em er em en", "en er en er")
_PRONOMINAL = _table("er e es e", "en e es e", "em er em en", "es er es er")
# ein, kein, mein …
_INDEFINITE = _table("- e - e", "en e - e", "em er em en", "es er es er")
WEAK = _table("e e e en", "en e e en", "en en en en", "en en en en")
MIXED = _table("er e es en", "en e es en", "en en en en", "en en en en")

_PRONOUNS: dict[tuple[str, Agreement], tuple[str, str, str]] = {
    ("1sg", "m"): ("ich", "mich", "mir"),
    ("2sg", "m"): ("du", "dich", "dir"),
    ("3sg", "m"): ("er", "ihn", "ihm"),
    ("3sg", "f"): ("sie", "sie", "ihr"),
    ("3sg", "n"): ("es", "es", "ihm"),
    ("1pl", "pl"): ("wir", "uns", "uns"),
    ("3pl", "pl"): ("sie", "sie", "ihnen"),
}
_POSSESSIVES: dict[tuple[str, Agreement], str] = {
    ("1sg", "m"): "mein",
    ("2sg", "m"): "dein",
    ("3sg", "m"): "sein",
    ("3sg", "f"): "ihr",
    ("3sg", "n"): "sein",
    ("1pl", "pl"): "unser",
    ("3pl", "pl"): "ihr",
}
_CONTRACTIONS = {
    ("in", "dem"): "im",
    ("in", "das"): "ins",
    ("an", "dem"): "am",
    ("an", "das"): "ans",
    ("von", "dem"): "vom",
    ("zu", "dem"): "zum",
    ("zu", "der"): "zur",
}
_NUMBERS = ("zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "zehn", "elf", "zwölf")

_PERSONS: tuple[Person, ...] = ("1sg", "2sg", "3sg", "1pl", "3pl")
# Verbs whose present or preterite follows no rule, as "1sg 2sg 3sg 1pl 3pl".
_PRESENT: dict[str, tuple[str, ...]] = {
    "sein": ("bin", "bist", "ist", "sind", "sind"),
    "haben": ("habe", "hast", "hat", "haben", "haben"),
    "werden": ("werde", "wirst", "wird", "werden", "werden"),
    "wissen": ("weiß", "weißt", "weiß", "wissen", "wissen"),
    "können": ("kann", "kannst", "kann", "können", "können"),
    "müssen": ("muss", "musst", "muss", "müssen", "müssen"),
    "wollen": ("will", "willst", "will", "wollen", "wollen"),
    "sollen": ("soll", "sollst", "soll", "sollen", "sollen"),
    "dürfen": ("darf", "darfst", "darf", "dürfen", "dürfen"),
    "möchten": ("möchte", "möchtest", "möchte", "möchten", "möchten"),
}
_PRETERITE_STEMS: dict[str, str] = {
    "sein": "war",
    "haben": "hatte",
    "werden": "wurde",
    "können": "konnte",
    "müssen": "musste",
    "wollen": "wollte",
    "sollen": "sollte",
    "dürfen": "durfte",
}
# The stem's own t is part of the 3rd singular: hält, but du hältst.
_STEM_T = {"hält": "hältst", "lädt": "lädst", "tritt": "trittst", "betritt": "betrittst"}


def definite(agreement: Agreement, case: Case) -> str:
    """Return the definite article."""
    return DEFINITE[agreement, case]


def indefinite(stem: str, agreement: Agreement, case: Case) -> str:
    """Return ``ein``, ``kein`` or a possessive (the `stem`) with its ending."""
    ending = _INDEFINITE[agreement, case]
    return stem + ending


def pronominal(stem: str, agreement: Agreement, case: Case) -> str:
    """Return ``dies``, ``jed``, ``all``, ``viel`` … with the ending of the definite article."""
    return stem + _PRONOMINAL[agreement, case]


def pronoun(person: Person, agreement: Agreement, case: Case) -> str:
    """Return the personal pronoun; there is no genitive."""
    return _PRONOUNS[person, agreement][_CASES.index(case)]


def possessive_stem(person: Person, agreement: Agreement) -> str:
    """Return ``mein``, ``sein``, ``ihr`` … for its owner."""
    return _POSSESSIVES[person, agreement]


def relative_pronoun(agreement: Agreement, case: Case) -> str:
    """Return the relative pronoun; the genitive is ``dessen`` or ``deren``."""
    return RELATIVE[agreement, case]


def attributive(adjective: str, ending: str) -> str:
    """Return the adjective with its ending: ``teuer`` → ``teure``, ``müde`` → ``müde``, ``hoch`` → ``hohe``."""
    if adjective == "hoch":
        stem = "hoh"
    elif adjective.endswith("el") or adjective.endswith("euer"):
        stem = adjective[:-2] + adjective[-1]
    else:
        stem = adjective.removesuffix("e")
    return stem + ending


def noun_form(noun: Noun, plural: bool, case: Case) -> str:
    """Return the noun's form; the dative plural takes ``-n``, weak masculines take ``-n`` outside the nominative."""
    if plural:
        takes_n = case == "dat" and not noun.plural.endswith(("n", "s"))
        return noun.plural + "n" if takes_n else noun.plural
    if noun.weak and case != "nom":
        return noun.plural
    if case == "gen" and noun.gender != "f":
        return noun.german + genitive_ending(noun.german)
    return noun.german


def genitive_ending(noun: str) -> str:
    """Return ``es`` after a sibilant, else ``s``, or ``es`` where one syllable ends in a consonant."""
    syllables = sum(
        1 for i, c in enumerate(noun.lower()) if c in _VOWELS and (i == 0 or noun.lower()[i - 1] not in _VOWELS)
    )
    if noun.endswith(("s", "ß", "x", "z", "sch")):
        return "es"
    return "es" if syllables == 1 and noun[-1] not in _VOWELS + "lh" else "s"


_VOWELS = "aeiouäöüy"


def contract(preposition: str, words: list[str]) -> list[str]:
    """Return preposition and noun phrase, contracted where German contracts: ``in dem`` → ``im``."""
    short = _CONTRACTIONS.get((preposition, words[0]))
    return [short, *words[1:]] if short else [preposition, *words]


def number_word(count: int) -> str:
    """Return two to twelve as a word, a higher number in digits."""
    return _NUMBERS[count - 2] if count <= 12 else str(count)


def present(verb: str, third: str, person: Person) -> str:
    """Return the present of an infinitive whose 3rd singular is `third`."""
    if verb in _PRESENT:
        return _PRESENT[verb][_PERSONS.index(person)]
    if person in {"1pl", "3pl"}:
        return verb
    if person == "3sg":
        return third
    return _first_present(verb) if person == "1sg" else _second_present(third)


def _first_present(verb: str) -> str:
    if verb.endswith("eln"):
        return verb[:-3] + "le"
    return verb[:-1] + "e" if verb.endswith("ern") else verb[:-2] + "e"


def _second_present(third: str) -> str:
    if third in _STEM_T:
        return _STEM_T[third]
    stem = third[:-1]
    return stem + "t" if stem.endswith(("s", "ß", "z", "x")) else stem + "st"


def preterite(verb: str, third: str, person: Person) -> str:
    """Return the preterite of a verb whose 3rd singular is `third`: ``gab``, ``gaben``; ``kaufte``, ``kauften``."""
    base = _PRETERITE_STEMS.get(verb, third)
    if person in {"1sg", "3sg"}:
        return base
    if person == "2sg":
        return base + ("est" if base.endswith(("s", "ß")) else "st")
    return base + ("n" if base.endswith("e") else "en")


def finite(verb: str, third_present: str, third_preterite: str, tense: Tense, person: Person) -> str:
    """Return the present or the preterite."""
    if tense == "past":
        return preterite(verb, third_preterite, person)
    return present(verb, third_present, person)


def verb_words(verb: Verb, tense: Tense, modal: Modal, passive: bool, person: Person) -> tuple[str, list[str], bool]:
    """Return the finite form, what stands at the end of a main clause, and whether the finite verb holds the prefix.

    ``gibt, [zurück], True``; ``hat, [zurückgegeben], False``; ``muss, [zurückgeben]``; ``wird, [gefunden]``.
    """
    if modal:
        end = [verb.participle, "werden"] if passive else [verb.german]
        return finite(modal, "", "", tense, person), end, False
    if passive:
        return _passive_words(verb, tense, person)
    if tense == "perfect":
        return present(verb.auxiliary, "", person), [verb.participle], False
    if tense == "future":
        return present("werden", "", person), [verb.german], False
    form = finite(verb.stem_infinitive, verb.present, verb.preterite, tense, person)
    return form, [verb.prefix] if verb.prefix else [], True


def _passive_words(verb: Verb, tense: Tense, person: Person) -> tuple[str, list[str], bool]:
    if tense == "perfect":
        return present("sein", "", person), [verb.participle, "worden"], False
    if tense == "future":
        return present("werden", "", person), [verb.participle, "werden"], False
    return finite("werden", "", "", tense, person), [verb.participle], False


def to_infinitive(verb: Verb) -> list[str]:
    """Return the infinitive with ``zu``, which stands inside a separable verb: ``anzurufen``, ``zu helfen``."""
    return [f"{verb.prefix}zu{verb.stem_infinitive}"] if verb.prefix else ["zu", verb.german]
