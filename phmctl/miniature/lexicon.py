"""The lemmas of the miniature, read from the tables beside this module.

A kind says what a word may go with: a verb lists the kinds of its subject, object, place and means, an adjective those
of the nouns it describes. Kinds are written in lower case, so a capitalised entry names one noun.
"""

from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, cast

Gender = Literal["m", "f", "n"]
NameKind = Literal["m", "f", "city"]

GROUPS: dict[str, tuple[str, ...]] = {
    "adult": ("person", "kin"),
    "human": ("person", "kin", "child"),
    "living": ("person", "kin", "child", "animal"),
    "tame": ("Hund", "Katze", "Pferd", "Kuh", "Schaf", "Kaninchen", "Esel", "Ziege"),
    "food": ("fruit", "baked", "dish", "salad"),
    "small": ("text", "tool", "knife", "container", "vessel", "clothing", "item", "toy", "picture", "instrument"),
    "ware": (
        "text",
        "container",
        "vessel",
        "clothing",
        "item",
        "toy",
        "instrument",
        "piano",
        "device",
        "furniture",
        "plant",
    ),
    "place": ("building", "shop", "room", "outdoors"),
    "surface": ("Tisch", "Stuhl", "Schrank", "Regal", "Bett", "Sofa"),
}


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun. `plural` is empty for mass nouns; `reference` is the English pronoun for one of them (or empty)."""

    german: str
    gender: Gender
    plural: str
    english: str
    english_plural: str
    kind: str
    weak: bool
    reference: str
    place: tuple[str, str]

    @property
    def human(self) -> bool:
        """Whether the noun names a person."""
        return self.kind in GROUPS["human"]

    @property
    def mass(self) -> bool:
        """Whether the noun has no plural and takes no indefinite article."""
        return not self.plural


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb in one frame.

    `prefix` is the separable prefix (or empty); `present` and `preterite` are 3rd singular without it; `participle` is
    whole. `english` is the base form, `particle` what follows it (``pick`` + ``up``); `preposition` stands before the
    English object.

    Frames: i intransitive, l with a location, g with a goal, s accusative and goal, a accusative, d dative, da both,
    p prepositional object (`governs` is its preposition and case), c with ``dass``, o with ``ob``, z with ``zu``,
    e weather, v ``sein``.

    Traits: ``involuntary`` (nobody decides to), ``stative`` (no perfect, no ``already``), ``lasting`` (may be dated by
    years), ``once`` (not every day), ``gain`` (not of what one owns), ``whole`` (to the last drop), ``flat`` (it lies),
    ``nopassive``, ``price``, ``ride``; ``chore``, ``curiosity``, ``meal``, ``creation`` say what it is done for.
    """

    german: str
    prefix: str
    stem_infinitive: str
    present: str
    preterite: str
    participle: str
    auxiliary: Literal["haben", "sein"]
    english: str
    particle: str
    past: str
    past_participle: str
    frame: str
    subjects: tuple[str, ...]
    objects: tuple[str, ...]
    governs: tuple[str, str]
    preposition: str
    places: tuple[str, ...]
    means: tuple[str, ...]
    traits: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Adjective:
    """An adjective. English puts a lower `rank` first; both languages use that order here."""

    german: str
    english: str
    kinds: tuple[str, ...]
    rank: int
    comparative: str
    english_comparative: str


@dataclass(frozen=True, slots=True)
class Name:
    """A person's or a city's name in both languages."""

    german: str
    kind: NameKind
    english: str


@dataclass(frozen=True, slots=True)
class Adverbial:
    """A fixed adverbial. `slot` is ``time``, ``frequency`` or ``aspect``: they stand in different places."""

    german: str
    english: str
    slot: str
    tenses: tuple[str, ...]


@dataclass(frozen=True)
class Lexicon:
    """All tables, in file order."""

    nouns: tuple[Noun, ...]
    verbs: tuple[Verb, ...]
    adjectives: tuple[Adjective, ...]
    names: tuple[Name, ...]
    adverbials: tuple[Adverbial, ...]


def expand(kinds: str) -> tuple[str, ...]:
    """Return the kinds and nouns that ``a|b|C`` stands for, groups opened, in order and once each."""
    opened = [kind for entry in kinds.split("|") if entry for kind in GROUPS.get(entry, (entry,))]
    nested = [kind for entry in opened for kind in GROUPS.get(entry, (entry,))]
    return tuple(dict.fromkeys(nested))


def regular_past(base: str) -> str:
    """Return the regular English past: ``bake`` → ``baked``, ``cry`` → ``cried``, ``work`` → ``worked``."""
    if base.endswith("e"):
        return base + "d"
    if base.endswith("y") and base[-2] not in "aeiou":
        return base[:-1] + "ied"
    return base + "ed"


def regular_plural(noun: str) -> str:
    """Return the regular English plural: ``box`` → ``boxes``, ``library`` → ``libraries``, ``toy`` → ``toys``."""
    if noun.endswith(("s", "x", "z", "ch", "sh")):
        return noun + "es"
    if noun.endswith("y") and noun[-2] not in "aeiou":
        return noun[:-1] + "ies"
    return noun + "s"


def _rows(table: str) -> list[dict[str, str]]:
    lines = files(__package__).joinpath("tables", f"{table}.tsv").read_text(encoding="utf-8").splitlines()
    header = lines[0].split("\t")
    return [dict(zip(header, line.split("\t"), strict=True)) for line in lines[1:]]


def _noun(row: dict[str, str]) -> Noun:
    pronoun = {"m": "he", "f": "she", "n": "it"}[row["gender"]]
    if row["kind"] not in GROUPS["human"]:
        pronoun = "it"
    note = row["note"]
    reference = {"she": "she", "nopronoun": ""}.get(note, pronoun)
    german_place, _, english_place = note.partition("/")
    return Noun(
        german=row["german"],
        gender=cast("Gender", row["gender"]),
        plural=row["plural"],
        english=row["english"],
        english_plural=row["english_plural"] or (regular_plural(row["english"]) if row["plural"] else ""),
        kind=row["kind"],
        weak=note == "weak",
        reference=reference,
        place=(german_place, english_place) if english_place else ("", ""),
    )


def _verb(row: dict[str, str]) -> Verb:
    prefix, _, stem = row["german"].rpartition("|")
    base, _, particle = row["english"].partition(" ")
    past, _, past_participle = row["english_past"].partition("/")
    german_link, _, english_link = row["link"].rpartition("/")
    preposition, _, case = german_link.partition("+")
    return Verb(
        german=prefix + stem,
        prefix=prefix,
        stem_infinitive=stem,
        present=row["present"],
        preterite=row["preterite"],
        participle=prefix + row["participle"],
        auxiliary=cast('Literal["haben", "sein"]', row["auxiliary"]),
        english=base,
        particle=particle,
        past=past or regular_past(base),
        past_participle=past_participle or regular_past(base),
        frame=row["frame"],
        subjects=expand(row["subject"]),
        objects=expand(row["object"]),
        governs=(preposition, case),
        preposition=english_link,
        places=expand(row["place"]),
        means=expand(row["means"]),
        traits=expand(row["traits"]),
    )


def _adjective(row: dict[str, str]) -> Adjective:
    german, _, english = row["comparative"].partition("/")
    return Adjective(row["german"], row["english"], expand(row["kinds"]), int(row["rank"]), german, english)


@cache
def lexicon() -> Lexicon:
    """Return the lexicon, read once."""
    return Lexicon(
        nouns=tuple(map(_noun, _rows("nouns"))),
        verbs=tuple(map(_verb, _rows("verbs"))),
        adjectives=tuple(map(_adjective, _rows("adjectives"))),
        names=tuple(Name(row["german"], cast("NameKind", row["kind"]), row["english"]) for row in _rows("names")),
        adverbials=tuple(
            Adverbial(row["german"], row["english"], row["slot"], tuple(row["tenses"].split("|")))
            for row in _rows("adverbials")
        ),
    )
