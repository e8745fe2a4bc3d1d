"""English word forms: articles, pronouns, possessives and verbs. No word order; see `english_clause`."""

from dataclasses import dataclass

from phmctl.miniature.structure import Modal, Person, Tense

_NUMBERS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")
_OBJECTS = {"I": "me", "you": "you", "he": "him", "she": "her", "it": "it", "we": "us", "they": "them"}
_POSSESSIVES = {"I": "my", "you": "your", "he": "his", "she": "her", "it": "its", "we": "our", "they": "their"}
# Words whose first sound is not what their first letter says.
_CONSONANT_SOUND = ("uni", "use", "euro", "one")
_VOWEL_SOUND = ("hour", "honest")


@dataclass(frozen=True, slots=True)
class VerbForms:
    """The principal parts of an English verb: base, past, past participle."""

    base: str
    past: str
    participle: str


BE = VerbForms("be", "was", "been")
HAVE = VerbForms("have", "had", "had")
DO = VerbForms("do", "did", "done")


@dataclass(frozen=True, slots=True)
class VerbGroup:
    """The finite verb and the verbs after it. Only an `auxiliary` inverts and takes ``not`` itself."""

    finite: str
    rest: tuple[str, ...]
    auxiliary: bool


def article(following: str) -> str:
    """Return ``a`` or ``an`` by the sound that the following word begins with."""
    word = following.lower()
    if word.startswith(_VOWEL_SOUND):
        return "an"
    vowel = word[0] in "aeiou" and not word.startswith(_CONSONANT_SOUND)
    return "an" if vowel else "a"


def object_pronoun(subject: str) -> str:
    """Return ``him`` for ``he``, and so on."""
    return _OBJECTS[subject]


def possessive_pronoun(subject: str) -> str:
    """Return ``his`` for ``he``, and so on."""
    return _POSSESSIVES[subject]


def possessive(word: str, plural: bool) -> str:
    """Return the possessive: ``teacher's``, ``teachers'``, ``children's``."""
    return word + ("'" if plural and word.endswith("s") else "'s")


def number_word(count: int) -> str:
    """Return two to twelve as a word, a higher number in digits."""
    return _NUMBERS[count - 2] if count <= 12 else str(count)


def third_person(base: str) -> str:
    """Return the third person singular: ``carries``, ``watches``, ``goes``, ``has``."""
    irregular = {"be": "is", "have": "has"}
    if base in irregular:
        return irregular[base]
    if base.endswith(("s", "x", "z", "ch", "sh", "o")):
        return base + "es"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ies"
    return base + "s"


def finite(verb: VerbForms, tense: Tense, person: Person) -> str:
    """Return the simple present or past in the given person."""
    if verb is BE:
        return _be(tense, person)
    if tense == "past":
        return verb.past
    return third_person(verb.base) if person == "3sg" else verb.base


def _be(tense: Tense, person: Person) -> str:
    if tense == "past":
        return "was" if person in {"1sg", "3sg"} else "were"
    return {"1sg": "am", "3sg": "is"}.get(person, "are")


_PLAIN_MODALS = {
    ("können", "present"): ("can",),
    ("können", "past"): ("could",),
    ("sollen", "present"): ("should",),
    ("möchten", "present"): ("would", "like", "to"),
}


def verb_group(
    verb: VerbForms, tense: Tense, modal: Modal, passive: bool, person: Person, *, support: bool
) -> VerbGroup:
    """Return the verb group; `support` asks for ``do`` where there is no auxiliary (negation, questions)."""
    head = BE if passive else verb
    tail: tuple[str, ...] = (verb.participle,) if passive else ()
    if (modal, tense) in _PLAIN_MODALS:
        first, *others = _PLAIN_MODALS[modal, tense]
        return VerbGroup(first, (*others, head.base, *tail), True)
    if modal:
        head, tail = _modal(modal, (head.base, *tail))
    if tense == "perfect":
        return VerbGroup(finite(HAVE, "present", person), (head.participle, *tail), True)
    if tense == "future":
        return VerbGroup("will", (head.base, *tail), True)
    if head is BE:
        return VerbGroup(finite(BE, tense, person), tail, True)
    if support:
        return VerbGroup(finite(DO, tense, person), (head.base, *tail), True)
    return VerbGroup(finite(head, tense, person), tail, False)


def _modal(modal: Modal, infinitive: tuple[str, ...]) -> tuple[VerbForms, tuple[str, ...]]:
    if modal == "dürfen":
        return BE, ("allowed", "to", *infinitive)
    head = HAVE if modal == "müssen" else VerbForms("want", "wanted", "wanted")
    return head, ("to", *infinitive)
