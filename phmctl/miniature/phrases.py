"""Random noun phrases and adverbials that make sense where they stand."""

from dataclasses import dataclass
from functools import cache

from phmctl.miniature import english, german
from phmctl.miniature.dice import Dice
from phmctl.miniature.lexicon import GROUPS, Adjective, Adverbial, Name, Noun, lexicon
from phmctl.miniature.structure import (
    Determiner,
    NamePhrase,
    NounPhrase,
    Pair,
    Phrase,
    PrepositionalPhrase,
    Pronoun,
    Tense,
)

I = Pronoun("1sg", "m", "I")  # noqa: E741
YOU = Pronoun("2sg", "m", "you")
WE = Pronoun("1pl", "pl", "we")
HE = Pronoun("3sg", "m", "he")
SHE = Pronoun("3sg", "f", "she")
IT = Pronoun("3sg", "n", "it")

_SUBJECT: dict[Determiner, float] = {
    "the": 50, "a": 10, "this": 5, "every": 2, "no": 1, "own": 7, "genitive": 5,
    "all": 2, "many": 3, "some": 3, "several": 2, "number": 5,
}  # fmt: skip
_OBJECT: dict[Determiner, float] = {
    "the": 34, "a": 30, "this": 6, "own": 9, "genitive": 5, "many": 2, "some": 3, "several": 2, "number": 6, "bare": 6,
}  # fmt: skip
_PLACE: dict[Determiner, float] = {"the": 78, "a": 10, "this": 3, "own": 2, "genitive": 7}
_KIN: dict[Determiner, float] = {"the": 40, "own": 40, "genitive": 20}
_MASS: dict[Determiner, float] = {"the": 50, "bare": 43, "this": 7}
_HEAD: dict[Determiner, float] = {"the": 70, "a": 24, "every": 3, "this": 3}
_WEIGHTS = {"subject": _SUBJECT, "object": _OBJECT, "place": _PLACE, "head": _HEAD}
_ALWAYS_PLURAL = {"all", "many", "some", "several", "number"}
_NEVER_PLURAL = {"a", "every"}
_UNITS = {"Tagen": "days", "Wochen": "weeks", "Monaten": "months", "Jahren": "years"}
_MONTHS = {
    "Januar": "January", "Februar": "February", "März": "March", "April": "April", "Mai": "May", "Juni": "June",
    "Juli": "July", "August": "August", "September": "September", "Oktober": "October", "November": "November",
    "Dezember": "December",
}  # fmt: skip
# Nouns that may belong to somebody, among kinds of which not all may.
_RELATED = (
    "Nachbar", "Nachbarin", "Freund", "Freundin", "Kollege", "Gast", "Lehrer", "Lehrerin", "Arzt", "Ärztin", "Schüler",
    "Schülerin", "Hund", "Katze", "Pferd", "Kuh", "Schaf", "Kaninchen", "Esel", "Ente", "Ziege", "Haus", "Garten",
    "Küche", "Büro", "Werkstatt", "Wohnzimmer", "Keller", "Garage", "Stall", "Laden", "Bäckerei", "Hotel", "Restaurant",
    "Hof", "Dorf", "Schule",
)  # fmt: skip
_BY_THE_DOZEN = ("fruit", "baked", "dish", "text", "plant", "vessel", "picture")
_UNRELATED = ("person", "child", "animal", "building", "shop", "room", "outdoors", "water", "transport", "tree", "show")
_AROUND = {"vor": "in front of", "hinter": "behind", "neben": "next to"}
# On, under or beside furniture: where a thing is, and where it goes.
_SURFACES = {
    "auf": ("on", "onto"), "neben": ("next to", "next to"), "unter": ("under", "under"), "hinter": ("behind", "behind"),
}  # fmt: skip
_UPRIGHT = ("auf", "neben")
_BOXES = ("Schachtel", "Korb", "Tasche", "Koffer", "Kiste", "Schublade")


@dataclass(frozen=True, slots=True)
class Actor:
    """A subject and the kind of what it names, which decides what it can do."""

    phrase: Phrase
    kind: str


@cache
def nouns_of(kinds: tuple[str, ...]) -> tuple[Noun, ...]:
    """Return the nouns that a list of kinds and nouns admits, in the order of the table."""
    return tuple(noun for noun in lexicon().nouns if noun.kind in kinds or noun.german in kinds)


@cache
def adjectives_of(noun: Noun) -> tuple[Adjective, ...]:
    """Return the adjectives that go with a noun."""
    return tuple(a for a in lexicon().adjectives if noun.kind in a.kinds or noun.german in a.kinds)


@cache
def _names(city: bool) -> tuple[Name, ...]:
    return tuple(name for name in lexicon().names if (name.kind == "city") == city)


@cache
def _adverbials(slots: tuple[str, ...], tense: str) -> tuple[Adverbial, ...]:
    return tuple(a for a in lexicon().adverbials if a.slot in slots and tense in a.tenses)


def refer(phrase: Phrase) -> Pronoun | None:
    """Return the pronoun that refers back to a phrase, or None where English has no good one."""
    if not phrase.reference:
        return None
    return Pronoun(phrase.person, phrase.agreement, phrase.reference)


class Phrases:
    """Draws phrases with the given dice."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice

    def noun_phrase(self, noun: Noun, role: str, *, owner: Phrase | None = None, plain: bool = False) -> NounPhrase:
        """Return the noun with a determiner fit for its `role` (subject, object, place, head of a relative clause).

        `owner` is whom ``sein`` or ``ihr`` may refer to. A `plain` phrase has at most one adjective and no genitive.
        """
        determiner = self._determiner(noun, role, plain)
        plural = self._plural(noun, role, determiner)
        count = 0
        if determiner == "number":
            count = self._count(noun)
        holder: Phrase | None = None
        if determiner == "own":
            holder = self._holder(owner)
        elif determiner == "genitive":
            holder = self._possessor(noun)
        adjectives = self._adjectives(noun, 0.45 if plain else 0.55)
        return NounPhrase(noun, determiner, plural, adjectives, count, holder)

    def _count(self, noun: Noun) -> int:
        """Return how many: few people and animals, up to a hundred apples."""
        if noun.kind in GROUPS["living"]:
            return self.dice.between(2, 6)
        many = noun.kind in _BY_THE_DOZEN and self.dice.chance(0.4)
        return self.dice.between(13, 99) if many else self.dice.between(2, 12)

    def _determiner(self, noun: Noun, role: str, plain: bool) -> Determiner:
        weights = _WEIGHTS[role]
        if noun.kind == "kin" and role != "head":
            weights = _KIN
        elif noun.mass:
            weights = _MASS
        barred = {"genitive", "no", "every"} if plain and role != "head" else set()
        if noun.human:  # "der Koch Fischer lobte" looks like a name
            barred |= {"bare"}
        if noun.kind in _UNRELATED and noun.german not in _RELATED:
            barred |= {"own", "genitive"}
        return self.dice.weighted({key: weight for key, weight in weights.items() if key not in barred})

    def _plural(self, noun: Noun, role: str, determiner: Determiner) -> bool:
        if noun.mass or determiner in _NEVER_PLURAL:
            return False
        if determiner in _ALWAYS_PLURAL or determiner == "bare":
            return True
        if role == "place" or noun.kind == "kin":
            return False
        return self.dice.chance(0.22)

    def _holder(self, owner: Phrase | None) -> Pronoun:
        own = refer(owner) if owner is not None and owner.human else None
        if own is not None and self.dice.chance(0.75):
            return own
        return I if self.dice.chance(0.6) else WE

    def _possessor(self, noun: Noun) -> Phrase:
        if self.dice.chance(0.5):
            return self.name()
        kinds = ("person",) if noun.kind == "kin" else GROUPS["human"]
        owner = self.dice.pick([n for n in nouns_of(kinds) if n != noun])
        return NounPhrase(owner, "the", self.dice.chance(0.15), self._adjectives(owner, 0.2))

    def _adjectives(self, noun: Noun, probability: float) -> tuple[Adjective, ...]:
        fitting = adjectives_of(noun)
        if not fitting or not self.dice.chance(probability):
            return ()
        first = self.dice.pick(fitting)
        others = [a for a in fitting if a.rank > first.rank]
        if others and self.dice.chance(0.2):
            return first, self.dice.pick(others)
        return (first,)

    def name(self, *, city: bool = False) -> NamePhrase:
        """Return a person, or a city."""
        return NamePhrase(self.dice.pick(_names(city)))

    def actor(self, kinds: tuple[str, ...], *, plain: bool = False) -> Actor:
        """Return a subject of one of the kinds: a noun phrase, or a name or pronoun where people may be meant."""
        if "person" in kinds or "kin" in kinds:
            way = self.dice.weighted({"noun": 68.0, "name": 14.0, "pronoun": 12.0, "pair": 6.0})
            if way == "name":
                return Actor(self.name(), "person")
            if way == "pronoun":
                return Actor(self.dice.pick((I, WE, HE, SHE)), "person")
            if way == "pair":
                return Actor(self._pair(), "person")
        noun = self.dice.pick(nouns_of(kinds))
        return Actor(self.noun_phrase(noun, "subject", plain=plain), noun.kind)

    def _pair(self) -> Pair:
        left: NounPhrase | NamePhrase = self.name()
        if self.dice.chance(0.5):
            left = NounPhrase(self.dice.pick(nouns_of(("person",))), "the")
        if self.dice.chance(0.3):
            return Pair(left, NounPhrase(self.dice.pick(nouns_of(("kin",))), "own", owner=refer(left)))
        return Pair(left, NounPhrase(self.dice.pick(nouns_of(("person", "child"))), "the"))

    def place(self, kinds: tuple[str, ...], owner: Phrase | None = None, *, flat: bool = False) -> PrepositionalPhrase:
        """Return where something happens: ``im Park``, ``auf dem Tisch``, ``vor dem Haus``, ``in Berlin``.

        What lies `flat` may also be under the furniture or in a box.
        """
        if "city" in kinds and self.dice.chance(0.4):
            return PrepositionalPhrase("in", "dat", "in", self.name(city=True))
        noun, phrase = self._place_noun(kinds, owner, flat)
        if noun.german in _BOXES:
            return PrepositionalPhrase("in", "dat", "in", phrase)
        if noun.kind == "furniture":
            preposition = self.dice.pick(tuple(_SURFACES) if flat else _UPRIGHT)
            return PrepositionalPhrase(preposition, "dat", _SURFACES[preposition][0], phrase)
        if noun.kind == "building" and self.dice.chance(0.2):
            around = self.dice.pick(tuple(_AROUND))
            return PrepositionalPhrase(around, "dat", _AROUND[around], phrase)
        return PrepositionalPhrase(noun.place[0], "dat", noun.place[1], phrase)

    def goal(
        self, kinds: tuple[str, ...], owner: Phrase | None = None, *, flat: bool = False, inside: bool = True
    ) -> PrepositionalPhrase:
        """Return where something goes: ``zum Bahnhof``, ``in den Wald``, ``nach Berlin``, ``auf den Tisch``.

        `inside` says whether it may go into the place or only to it.
        """
        if "city" in kinds and self.dice.chance(0.4 if len(kinds) > 1 else 1.0):
            return PrepositionalPhrase("nach", "dat", "to", self.name(city=True))
        noun, phrase = self._place_noun(kinds, owner, flat)
        if noun.german in _BOXES:
            return PrepositionalPhrase("in", "acc", "into", phrase)
        if noun.kind == "furniture":
            preposition = self.dice.pick(tuple(_SURFACES) if flat else _UPRIGHT)
            return PrepositionalPhrase(preposition, "acc", _SURFACES[preposition][1], phrase)
        if inside and noun.place == ("in", "in") and self.dice.chance(0.5):
            return PrepositionalPhrase("in", "acc", "into", phrase)
        return PrepositionalPhrase("zu", "dat", "to", phrase)

    def _place_noun(self, kinds: tuple[str, ...], owner: Phrase | None, flat: bool) -> tuple[Noun, NounPhrase]:
        noun = self.dice.pick(nouns_of(_BOXES if flat and self.dice.chance(0.3) else kinds))
        return noun, self.noun_phrase(noun, "place", owner=owner, plain=True)

    def adverb(self, tense: Tense) -> Adverbial | None:
        """Return ``oft``, ``schon`` …, or None where the tense has none."""
        found = _adverbials(("frequency", "aspect"), tense)
        return self.dice.pick(found) if found else None

    def time(self, tense: Tense, *, lasting: bool = False) -> Adverbial | None:
        """Return when something happens; only what is `lasting` is dated by years."""
        if tense in {"past", "future"} and self.dice.chance(0.35):
            return self._dated(tense, lasting)
        found = _adverbials(("time",), tense)
        return self.dice.pick(found) if found else None

    def _dated(self, tense: Tense, lasting: bool) -> Adverbial:
        """Return a time with a number in it."""
        way = self.dice.weighted({"span": 3.0, "date": 2.0, "hour": 2.0, "year": 4.0 * (lasting and tense == "past")})
        if way == "span":
            return self._span(tense, lasting)
        if way == "date":
            day, month = self.dice.between(1, 28), self.dice.pick(tuple(_MONTHS))
            return Adverbial(f"am {day}. {month}", f"on {day} {_MONTHS[month]}", "time", (tense,))
        if way == "hour":
            hour = self.dice.between(2, 12)
            words = german.number_word(hour), english.number_word(hour)
            return Adverbial(f"um {words[0]} Uhr", f"at {words[1]} o'clock", "time", (tense,))
        year = self.dice.between(1950, 2020)
        return Adverbial(f"im Jahr {year}", f"in {year}", "time", (tense,))

    def _span(self, tense: Tense, lasting: bool) -> Adverbial:
        unit = self.dice.pick(tuple(_UNITS) if lasting else ("Tagen", "Wochen"))
        count = self.dice.between(2, 12)
        words = german.number_word(count), english.number_word(count)
        if tense == "past":
            return Adverbial(f"vor {words[0]} {unit}", f"{words[1]} {_UNITS[unit]} ago", "time", (tense,))
        return Adverbial(f"in {words[0]} {unit}", f"in {words[1]} {_UNITS[unit]}", "time", (tense,))

    def ride(self, goal: Phrase) -> Adverbial:
        """Return what someone travels by: a train goes to a city, a bicycle does not."""
        far = isinstance(goal, NamePhrase)
        local = ("mit dem Fahrrad", "mit der Straßenbahn")
        rides = [a for a in _adverbials(("ride",), "present") if not (far and a.german in local)]
        return self.dice.pick([a for a in rides if far or a.german != "mit dem Zug"])

    def price(self, thing: Phrase | None) -> Adverbial:
        """Return what something costs; food costs little."""
        kind = thing.noun.kind if isinstance(thing, NounPhrase) else ""
        count = self.dice.between(2, 9) if kind in GROUPS["food"] else self.dice.between(13, 99)
        euros = f"für {german.number_word(count)} Euro", f"for {english.number_word(count)} euros"
        return Adverbial(*euros, "price", ())
