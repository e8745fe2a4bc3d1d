"""Random clauses: events, passives, states, comparisons; and what may be done to a clause."""

from dataclasses import replace
from functools import cache

from phmctl.miniature.dice import Dice
from phmctl.miniature.lexicon import GROUPS, Adjective, Noun, Verb, lexicon
from phmctl.miniature.phrases import HE, WE, Actor, I, Phrases, adjectives_of, nouns_of
from phmctl.miniature.structure import (
    Case,
    Clause,
    Front,
    Modal,
    NounPhrase,
    Phrase,
    Predicate,
    PrepositionalPhrase,
    Pronoun,
    Tense,
)

EVENTS = ("i", "l", "g", "s", "a", "d", "da", "p")
_FRAMES = {"i": 8.0, "l": 6.0, "g": 10.0, "s": 6.0, "a": 46.0, "d": 7.0, "da": 13.0, "p": 5.0}
_MODALS: dict[Modal, float] = {"können": 3, "müssen": 3, "wollen": 3, "sollen": 1.5, "dürfen": 1.5, "möchten": 2}
_PRESENT_ONLY = {"sollen", "möchten"}
_SPECIFIC = {"the", "this", "own", "genitive"}
_COUNTED = {"many", "some", "several", "number", "every", "all", "no"}
_COMPARABLE = ("person", "animal", "vehicle", "furniture", "building", "clothing", "text", "fruit", "show", "room")
# What people go somewhere for, wherever it is.
_ERRANDS = ("besuchen", "treffen", "suchen", "fotografieren", "helfen", "abholen", "kennenlernen")


@cache
def verbs_of(frames: tuple[str, ...], kind: str, willing: bool = False) -> tuple[Verb, ...]:
    """Return the verbs of these frames that a subject of this kind (any, if empty) can have, or decide to do."""
    return tuple(
        verb
        for verb in lexicon().verbs
        if verb.frame in frames
        and (not kind or kind in verb.subjects)
        and not (willing and "involuntary" in verb.traits)
    )


@cache
def _passives() -> tuple[Verb, ...]:
    return tuple(v for v in verbs_of(("a",), "person") if "nopassive" not in v.traits and not v.preposition)


@cache
def to_be() -> Verb:
    """Return ``sein``."""
    return next(verb for verb in lexicon().verbs if verb.frame == "v")


def admits(kinds: tuple[str, ...], noun: Noun) -> bool:
    """Return whether a verb's list of kinds and nouns admits a noun."""
    return noun.kind in kinds or noun.german in kinds


def specific(phrase: Phrase | None) -> bool:
    """Return whether a phrase is a noun phrase about something known: ``der``, ``dieser``, ``mein``."""
    return isinstance(phrase, NounPhrase) and phrase.determiner in _SPECIFIC


class Clauses:
    """Draws clauses with the given dice."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.phrases = Phrases(dice)

    def event(
        self,
        tense: Tense,
        *,
        actor: Actor | None = None,
        frames: tuple[str, ...] = EVENTS,
        willing: bool = False,
        plain: bool = True,
        verb: Verb | None = None,
    ) -> Clause:
        """Return a clause in which an actor does something.

        A `willing` event is one that the actor decides on. A `plain` one has few adjuncts, for longer sentences.
        """
        verb = verb or self._verb(frames, actor.kind if actor else "", willing)
        actor = actor or self.phrases.actor(verb.subjects, plain=plain)
        clause = self._arguments(verb, actor.phrase, _possible(verb, tense), plain)
        return self._adjuncts(clause, 0.33 if plain else 0.55)

    def _verb(self, frames: tuple[str, ...], kind: str, willing: bool) -> Verb:
        open_frames = {f: _FRAMES[f] for f in frames if verbs_of((f,), kind, willing)}
        return self.dice.pick(verbs_of((self.dice.weighted(open_frames),), kind, willing))

    def _arguments(self, verb: Verb, subject: Phrase, tense: Tense, plain: bool) -> Clause:
        """Return the clause with what its frame asks for."""
        clause, flat = Clause(verb, subject, tense), "flat" in verb.traits
        if verb.frame in {"s", "a", "da"}:
            clause = replace(clause, accusative=self._sensible(verb, self.thing(verb.objects, subject, plain)))
        if verb.frame in {"d", "da"}:
            people = verb.objects if verb.frame == "d" else GROUPS["human"]
            clause = replace(clause, dative=self.someone(people, subject))
        if verb.frame == "l":
            clause = replace(clause, place=self.phrases.place(verb.places, subject, flat=flat))
        if verb.frame == "g":
            goal = self.phrases.goal(verb.objects, subject, inside="ride" not in verb.traits and not verb.prefix)
            clause = replace(clause, goal=goal)
        if verb.frame == "s":
            clause = replace(clause, goal=self.phrases.goal(verb.places, subject, flat=flat))
        if verb.frame == "p":
            preposition, case = verb.governs
            thing = self.thing(verb.objects, subject, plain)
            target = PrepositionalPhrase(preposition, _case(case), verb.preposition, thing)
            clause = replace(clause, target=target)
        return clause

    @staticmethod
    def _sensible(verb: Verb, thing: Phrase) -> Phrase:
        """Nobody buys what is already theirs, drinks up what has no end, or bakes what is old."""
        if isinstance(thing, NounPhrase) and thing.determiner == "bare" and "whole" in verb.traits:
            return replace(thing, determiner="the")
        if not isinstance(thing, NounPhrase):
            return thing
        if "creation" in verb.traits:
            thing = replace(thing, adjectives=tuple(a for a in thing.adjectives if a.rank != 2))
        if thing.determiner == "genitive" and "creation" in verb.traits:
            return replace(thing, determiner="the", owner=None)
        if thing.determiner == "own" and "gain" in verb.traits:
            return replace(thing, determiner="the", owner=None)
        return thing

    def thing(self, kinds: tuple[str, ...], subject: Phrase, plain: bool = True) -> Phrase:
        """Return an object of one of the kinds; people may be named."""
        if "city" in kinds and self.dice.chance(0.3):
            return self.phrases.name(city=True)
        if "person" in kinds and self.dice.chance(0.2):
            return self.phrases.name()
        noun = self.dice.pick(nouns_of(kinds))
        return self.phrases.noun_phrase(noun, "object", owner=subject, plain=plain)

    def someone(self, kinds: tuple[str, ...], subject: Phrase) -> Phrase:
        """Return an indirect object: a noun phrase, a name, or ``mir``, ``uns``, ``ihm``."""
        if "person" in kinds and self.dice.chance(0.2):
            strangers = [p for p in (I, WE, HE) if p.person[0] != subject.person[0]]
            return self.dice.pick(strangers)
        phrase = self.thing(kinds, subject)
        if isinstance(phrase, NounPhrase) and phrase.determiner != "a" and not specific(phrase):
            return replace(phrase, determiner="the", count=0, owner=None)
        return phrase

    def _adjuncts(self, clause: Clause, probability: float) -> Clause:
        verb = clause.verb
        if verb.places and verb.frame not in {"l", "s"} and self.dice.chance(probability):
            clause = replace(clause, place=self.phrases.place(verb.places, clause.subject))
        if verb.means and self.dice.chance(probability):
            tool = NounPhrase(self.dice.pick(nouns_of(verb.means)), "a" if self.dice.chance(0.6) else "the")
            clause = replace(clause, means=PrepositionalPhrase("mit", "dat", "with", tool))
        if "price" in verb.traits and self.dice.chance(0.35):
            clause = replace(clause, manner=self.phrases.price(clause.accusative))
        if "ride" in verb.traits and clause.goal is not None and self.dice.chance(0.5):
            clause = replace(clause, manner=self.phrases.ride(clause.goal.phrase))
        return clause

    def passive(self, tense: Tense) -> Clause:
        """Return a passive clause, with its agent more often than not."""
        verb = self.dice.pick(_passives())
        subject = self.phrases.noun_phrase(self.dice.pick(nouns_of(verb.objects)), "subject", plain=True)
        clause = Clause(verb, subject, tense, passive=True)
        if self.dice.chance(0.65):
            agent = self.phrases.noun_phrase(self.dice.pick(nouns_of(verb.subjects)), "place", plain=True)
            clause = replace(clause, means=PrepositionalPhrase("von", "dat", "by", agent))
        if verb.places and self.dice.chance(0.3):
            clause = replace(clause, place=self.phrases.place(verb.places))
        return clause

    def state(self, noun: Noun, subject: Phrase, tense: Tense) -> Clause | None:
        """Return what something is like at the moment, or None where no adjective fits."""
        fitting = [a for a in adjectives_of(noun) if a.rank != 2 or a.german == "kaputt"]
        if not fitting:
            return None
        plain_tense: Tense = "past" if tense == "past" else "present"
        return feeling(subject, self.dice.pick(fitting), plain_tense)

    def comparison(self, tense: Tense) -> Clause | None:
        """Return a comparison of two things of one kind, or None where the dice found no second thing."""
        noun = self.dice.pick(nouns_of(_COMPARABLE))
        adjectives = [a for a in adjectives_of(noun) if a.comparative]
        if not adjectives:
            return None
        adjective = self.dice.pick(adjectives)
        others = [n for n in nouns_of((noun.kind,)) if adjective in adjectives_of(n) and n != noun]
        if not others:
            return None
        subject, standard = self._compared(noun), self._compared(self.dice.pick(others))
        predicate = Predicate(adjective, "than" if self.dice.chance(0.65) else "as", standard)
        return Clause(to_be(), subject, tense, predicate=predicate)

    def _compared(self, noun: Noun) -> NounPhrase:
        phrase = replace(self.phrases.noun_phrase(noun, "place"), adjectives=())
        return replace(phrase, determiner="the") if phrase.determiner == "a" else phrase

    def aim(self, main: Clause, actor: Actor, tense: Tense) -> Clause:
        """Return what somebody goes to a place for: something that is done there."""
        noun = main.goal.phrase.noun if main.goal and isinstance(main.goal.phrase, NounPhrase) else None
        verbs = verbs_of(("a", "da", "d"), actor.kind, True)
        fitting = [v for v in verbs if noun is not None and admits(v.places, noun)]
        anywhere = [v for v in verbs if v.german in _ERRANDS]
        if main.verb.german == "umziehen":
            fitting = anywhere = [v for v in verbs if v.german == "helfen"]
        if fitting and self.dice.chance(0.75):
            return replace(self.event(tense, actor=actor, verb=self.dice.pick(fitting)), place=None)
        clause = replace(self.event(tense, actor=actor, verb=self.dice.pick(anywhere)), place=None)
        if clause.accusative is None:
            return clause
        return replace(clause, accusative=self.thing(GROUPS["human"], actor.phrase))

    def parallel(self, clause: Clause, tense: Tense, actor: Actor | None = None) -> Clause:
        """Return another clause about the same kind of thing: somebody cooks, somebody bakes."""
        kinds = set(clause.verb.objects)
        verbs = verbs_of((clause.verb.frame,), actor.kind if actor else "", True)
        related = [v for v in verbs if v != clause.verb and (not v.objects or kinds.intersection(v.objects))]
        return self.event(tense, actor=actor, verb=self.dice.pick(related or verbs))

    def finish(self, clause: Clause, *, time: float = 0.5, change: float = 0.3, move: float = 0.0) -> Clause:
        """Return the clause with, by chance, a time, a modal verb or a negation, and something else in front."""
        if self.dice.chance(time):
            clause = self.timed(clause)
        if self.dice.chance(change):
            way = self.dice.weighted({"modal": 4.0, "negation": 4.0, "both": 2.0})
            clause = self.negate(clause) if way != "modal" else clause
            clause = self.modal(clause) if way != "negation" else clause
        return self.front(clause) if self.dice.chance(move) else clause

    def timed(self, clause: Clause, *, fixed: bool = False) -> Clause:
        """Return the clause with a time; a `fixed` one is a phrase, not ``oft`` or ``schon``."""
        verb = clause.verb
        lasts = "lasting" in verb.traits or verb.frame in {"d", "a", "v"} or clause.tense == "present"
        if ("stative" in verb.traits and lasts) or ("once" in verb.traits and clause.tense == "present"):
            return clause
        whole = (
            fixed or clause.passive or "stative" in verb.traits or "involuntary" in verb.traits or "once" in verb.traits
        )
        if not whole and not _counted(clause.accusative) and not _counted(clause.subject) and self.dice.chance(0.4):
            return self.habitual(clause)
        return replace(clause, time=self.phrases.time(clause.tense, lasting="lasting" in verb.traits))

    def habitual(self, clause: Clause) -> Clause:
        """Return the clause with ``oft``, ``immer``, ``schon`` …, where its tense has one."""
        return replace(clause, time=self.phrases.adverb(clause.tense))

    def modal(self, clause: Clause) -> Clause:
        """Return the clause with a modal verb, where someone decides what is done."""
        if clause.passive or clause.verb.frame not in EVENTS or "involuntary" in clause.verb.traits:
            return clause
        if clause.tense not in {"present", "past"} or not clause.subject.human:
            return clause
        if "stative" in clause.verb.traits or (clause.time is not None and clause.time.slot != "time"):
            return clause
        options = {m: w for m, w in _MODALS.items() if clause.tense == "present" or m not in _PRESENT_ONLY}
        return replace(clause, modal=self.dice.weighted(options))

    def negate(self, clause: Clause) -> Clause:
        """Return the clause negated, where that is clear: ``kein`` for an indefinite object, else ``nicht``."""
        if clause.time is not None and (clause.time.slot != "time" or clause.tense == "present"):
            return clause
        known = [p for p in (clause.subject, clause.dative, clause.target and clause.target.phrase) if p is not None]
        if any(isinstance(phrase, NounPhrase) and not specific(phrase) for phrase in known):
            return clause
        thing = clause.accusative
        if isinstance(thing, NounPhrase) and thing.determiner in {"a", "bare"}:
            return replace(clause, accusative=replace(thing, determiner="no"))
        if isinstance(thing, NounPhrase) and (not specific(thing) or thing.relative is not None):
            return clause
        return replace(clause, negated=True)

    def front(self, clause: Clause) -> Clause:
        """Return the clause with a time, a place or a clearly marked object in front."""
        options: dict[Front, float] = {}
        if clause.time is not None and clause.time.slot == "time":
            options["time"] = 5.0
        if clause.place is not None and clause.verb.frame in {"a", "i"} and not clause.negated:
            options["place"] = 2.0
        if not isinstance(clause.subject, Pronoun) and not clause.negative:
            if _marked(clause.accusative):
                options["accusative"] = 1.0
            if _marked(clause.dative, dative=True):
                options["dative"] = 1.0
        return replace(clause, front=self.dice.weighted(options)) if options else clause


def feeling(subject: Phrase, adjective: Adjective, tense: Tense) -> Clause:
    """Return the clause that says what the subject is like."""
    return Clause(to_be(), subject, tense, predicate=Predicate(adjective))


def _possible(verb: Verb, tense: Tense) -> Tense:
    """Return the tense, or for a verb that says how things are a simple one."""
    if "stative" not in verb.traits:
        return tense
    return "past" if tense in {"past", "perfect"} else "present"


def _case(name: str) -> Case:
    return "acc" if name == "acc" else "dat"


def _counted(phrase: Phrase | None) -> bool:
    """Whether a phrase counts: ``schon`` and ``nie`` before ``drei Hüte`` say something else."""
    return isinstance(phrase, NounPhrase) and phrase.determiner in _COUNTED


def _marked(phrase: Phrase | None, *, dative: bool = False) -> bool:
    """Whether an object's form alone says that it is one."""
    if not isinstance(phrase, NounPhrase) or phrase.plural or phrase.determiner not in {"the", "this"}:
        return False
    return dative or phrase.agreement == "m"


def nominative(phrase: Phrase) -> bool:
    """Return whether a subject's form alone says that it is one."""
    if isinstance(phrase, Pronoun):
        return phrase.reference in {"I", "we", "he"}
    if not isinstance(phrase, NounPhrase):
        return False
    return phrase.agreement == "m" and phrase.determiner in {"the", "a", "this", "own", "every"}
