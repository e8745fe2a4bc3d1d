"""What a sentence says, before either language has said it.

The sampler builds these values once, and `german_clause` and `english_clause` read them independently. So the English
is a function of the German: there is one value for both.
"""

from dataclasses import dataclass
from typing import Literal

from phmctl.miniature.lexicon import Adjective, Adverbial, Name, Noun, Verb

Case = Literal["nom", "acc", "dat", "gen"]
Agreement = Literal["m", "f", "n", "pl"]
Person = Literal["1sg", "2sg", "3sg", "1pl", "3pl"]
Tense = Literal["present", "past", "perfect", "future"]
Modal = Literal["", "können", "müssen", "wollen", "sollen", "dürfen", "möchten"]
Determiner = Literal[
    "the", "a", "bare", "this", "every", "no", "own", "all", "many", "some", "several", "number", "genitive", "whose"
]  # fmt: skip
Front = Literal["subject", "time", "place", "accusative", "dative"]
Conjunction = Literal["weil", "obwohl", "wenn", "als", "während", "bevor", "dass", "ob", "zu", "um", "und", "aber"]


@dataclass(frozen=True, slots=True)
class Pronoun:
    """A personal pronoun. `agreement` is the German form, `reference` the English one (`es`, a girl, is `she`)."""

    person: Person
    agreement: Agreement
    reference: str

    @property
    def human(self) -> bool:
        """Whether the pronoun stands for people; it always does here."""
        return True


@dataclass(frozen=True, slots=True)
class NamePhrase:
    """A person or a city by name."""

    name: Name

    @property
    def person(self) -> Person:
        """The person that the verb agrees with."""
        return "3sg"

    @property
    def agreement(self) -> Agreement:
        """The gender that adjectives and pronouns agree with; cities are neuter."""
        return "n" if self.name.kind == "city" else self.name.kind

    @property
    def reference(self) -> str:
        """The English pronoun that refers back."""
        return {"m": "he", "f": "she", "city": "it"}[self.name.kind]

    @property
    def human(self) -> bool:
        """Whether English says `who`."""
        return self.name.kind != "city"


@dataclass(frozen=True, slots=True)
class NounPhrase:
    """A noun with what stands before and after it.

    `owner` is the genitive (``das Auto des Lehrers``, ``Annas Auto``), the owner of ``own`` (``seine Jacke``) or of
    ``whose`` (``dessen Jacke``). `relative` is a clause in which one phrase is a :class:`Gap`.
    """

    noun: Noun
    determiner: Determiner
    plural: bool = False
    adjectives: tuple[Adjective, ...] = ()
    count: int = 0
    owner: "Phrase | None" = None
    relative: "Clause | None" = None

    @property
    def person(self) -> Person:
        """The person that the verb agrees with."""
        return "3pl" if self.plural else "3sg"

    @property
    def agreement(self) -> Agreement:
        """The gender, or ``pl``."""
        return "pl" if self.plural else self.noun.gender

    @property
    def reference(self) -> str:
        """The English pronoun that refers back; empty where English would not say (``das Kind``)."""
        return "they" if self.plural else self.noun.reference

    @property
    def human(self) -> bool:
        """Whether English says `who`."""
        return self.noun.human


@dataclass(frozen=True, slots=True)
class Pair:
    """Two phrases joined by ``und``."""

    left: "NounPhrase | NamePhrase"
    right: "NounPhrase | NamePhrase"

    @property
    def person(self) -> Person:
        """Two are always many."""
        return "3pl"

    @property
    def agreement(self) -> Agreement:
        """Two are always many."""
        return "pl"

    @property
    def reference(self) -> str:
        """The English pronoun that refers back."""
        return "they"

    @property
    def human(self) -> bool:
        """Whether English says `who`."""
        return self.left.human and self.right.human


@dataclass(frozen=True, slots=True)
class Gap:
    """The place of a relative pronoun: it takes person and agreement from the noun that the clause describes."""

    person: Person
    agreement: Agreement
    reference: str
    human: bool


Phrase = NounPhrase | NamePhrase | Pronoun | Pair | Gap


@dataclass(frozen=True, slots=True)
class PrepositionalPhrase:
    """A preposition, the case that it takes here, its English counterpart, and what it governs."""

    german: str
    case: Case
    english: str
    phrase: Phrase


@dataclass(frozen=True, slots=True)
class Predicate:
    """What stands after ``sein``: an adjective, possibly compared (``größer als``, ``so groß wie``)."""

    adjective: Adjective
    degree: Literal["", "than", "as"] = ""
    standard: Phrase | None = None


@dataclass(frozen=True, slots=True)
class Clause:
    """A verb with its arguments. `front` names what stands before the finite verb of a German main clause.

    `negated` asks for ``nicht``; an object with the determiner ``no`` negates by itself. `means` is ``mit …``, `target`
    the prepositional object, `place` where, `goal` whither, `infinitive` a ``zu`` clause that belongs to the verb.
    """

    verb: Verb
    subject: Phrase
    tense: Tense
    dative: Phrase | None = None
    accusative: Phrase | None = None
    means: PrepositionalPhrase | None = None
    target: PrepositionalPhrase | None = None
    place: PrepositionalPhrase | None = None
    goal: PrepositionalPhrase | None = None
    predicate: Predicate | None = None
    time: Adverbial | None = None
    manner: Adverbial | None = None
    modal: Modal = ""
    negated: bool = False
    passive: bool = False
    front: Front = "subject"

    @property
    def negative(self) -> bool:
        """Whether it is negated, by ``nicht`` or by an object with ``kein``."""
        return self.negated or (isinstance(self.accusative, NounPhrase) and self.accusative.determiner == "no")


@dataclass(frozen=True, slots=True)
class Sentence:
    """A main clause, possibly with a second clause joined by `conjunction`, which may come first.

    `question` is empty, ``yes/no`` or one of ``wann``, ``wo``, ``warum``, ``wer``.
    """

    main: Clause
    conjunction: Conjunction | None = None
    second: Clause | None = None
    second_first: bool = False
    question: Literal["", "yes/no", "wann", "warum", "wer"] = ""
