"""Random clauses: an event with its participants, a state, a relative clause."""

from dataclasses import replace
from functools import cache

from phmctl.data.miniature.dice import Dice
from phmctl.data.miniature.lexicon import GROUPS, Noun, Verb, lexicon
from phmctl.data.miniature.phrases import HE, WE, Actor, I, Phrases, adjectives_of, nouns_of
from phmctl.data.miniature.structure import (
    Case,
    Clause,
    Front,
    Gap,
    Modal,
    NamePhrase,
    NounPhrase,
    Phrase,
    Predicate,
    PrepositionalPhrase,
    Pronoun,
    Tense,
)

EVENTS = ("i", "l", "g", "s", "a", "d", "da", "p")
_FRAMES = {"i": 10.0, "l": 6.0, "g": 10.0, "s": 5.0, "a": 46.0, "d": 7.0, "da": 12.0, "p": 5.0}
_MODALS: dict[Modal, float] = {"können": 3, "müssen": 3, "wollen": 3, "sollen": 1.5, "dürfen": 1.5, "möchten": 2}
_PRESENT_ONLY = {"sollen", "möchten"}
_OWN_PRONOUNS = ("1sg", "2sg", "1pl")


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


def admits(kinds: tuple[str, ...], noun: Noun) -> bool:
    """Return whether a verb's list of kinds and nouns admits a noun."""
    return noun.kind in kinds or noun.german in kinds


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
        """Return a clause in which an actor does something. A `plain` clause has few adjuncts, for longer sentences."""
        verb = verb or self._verb(frames, actor.kind if actor else "", willing)
        actor = actor or self.phrases.actor(verb.subjects, plain=plain)
        if _stative(verb) and tense in {"perfect", "future"}:
            tense = "past" if tense == "perfect" else "present"
        clause = self._arguments(verb, actor, tense, plain)
        return self._adjuncts(clause, 0.22 if plain else 0.5)

    def _verb(self, frames: tuple[str, ...], kind: str, willing: bool) -> Verb:
        open_frames = {f: _FRAMES[f] for f in frames if verbs_of((f,), kind, willing)}
        return self.dice.pick(verbs_of((self.dice.weighted(open_frames),), kind, willing))

    def _arguments(self, verb: Verb, actor: Actor, tense: Tense, plain: bool) -> Clause:
        subject = actor.phrase
        clause = Clause(verb, subject, tense)
        match verb.frame:
            case "l":
                return replace(clause, place=self.phrases.place(verb.places, subject))
            case "g":
                return replace(clause, goal=self.phrases.goal(verb.objects, subject))
            case "s":
                thing = self.thing(verb.objects, subject, plain)
                return replace(clause, accusative=thing, goal=self.phrases.goal(verb.places, subject))
            case "a":
                return replace(clause, accusative=self.thing(verb.objects, subject, plain))
            case "d":
                return replace(clause, dative=self.someone(verb.objects, subject))
            case "da":
                dative = self.someone(GROUPS["human"], subject)
                return replace(clause, dative=dative, accusative=self.thing(verb.objects, subject, plain))
            case "p":
                preposition, case = verb.governs
                thing = self.thing(verb.objects, subject, plain)
                return replace(clause, target=PrepositionalPhrase(preposition, _case(case), verb.preposition, thing))
        return clause

    def thing(self, kinds: tuple[str, ...], subject: Phrase, plain: bool = True) -> Phrase:
        """Return an object of one of the kinds; people may be named."""
        if kinds == ("city",):
            return self.phrases.name(city=True)
        if "person" in kinds and self.dice.chance(0.2):
            return self.phrases.name()
        noun = self.dice.pick(nouns_of(kinds))
        return self.phrases.noun_phrase(noun, "object", owner=subject, plain=plain)

    def someone(self, kinds: tuple[str, ...], subject: Phrase) -> Phrase:
        """Return an indirect object: a noun phrase, a name, or ``mir``, ``uns``, ``ihm``."""
        if "person" in kinds and self.dice.chance(0.2):
            options = [p for p in (I, WE, HE) if p.person != subject.person]
            return self.dice.pick(options)
        phrase = self.thing(kinds, subject)
        if isinstance(phrase, NounPhrase) and phrase.determiner not in {"the", "a", "own", "this"}:
            return replace(phrase, determiner="the", count=0, owner=None)
        return phrase

    def _adjuncts(self, clause: Clause, probability: float) -> Clause:
        verb = clause.verb
        if verb.places and verb.frame not in {"l", "s"} and self.dice.chance(probability):
            clause = replace(clause, place=self.phrases.place(verb.places, clause.subject))
        if verb.means and self.dice.chance(probability):
            tool = self.thing(verb.means, clause.subject)
            if isinstance(tool, NounPhrase):
                tool = replace(tool, determiner="the" if tool.plural else "a", plural=False, count=0, owner=None)
            clause = replace(clause, means=PrepositionalPhrase("mit", "dat", "with", tool))
        if "price" in verb.traits and self.dice.chance(0.35):
            clause = replace(clause, manner=self.phrases.price())
        if "ride" in verb.traits and self.dice.chance(0.5):
            clause = replace(clause, manner=self.phrases.ride())
        return clause

    def passive(self, tense: Tense) -> Clause:
        """Return a passive clause, with its agent more often than not."""
        verbs = [v for v in verbs_of(("a",), "person") if "nopassive" not in v.traits and not v.preposition]
        verb = self.dice.pick(verbs)
        noun = self.dice.pick(nouns_of(verb.objects))
        subject = self.phrases.noun_phrase(noun, "subject", plain=True)
        agent: PrepositionalPhrase | None = None
        if self.dice.chance(0.65):
            actor = self.phrases.noun_phrase(self.dice.pick(nouns_of(verb.subjects)), "place", plain=True)
            agent = PrepositionalPhrase("von", "dat", "by", actor)
        clause = Clause(verb, subject, tense, means=agent, passive=True)
        if verb.places and self.dice.chance(0.2):
            clause = replace(clause, place=self.phrases.place(verb.places))
        return clause

    def state(self, noun: Noun, subject: Phrase, tense: Tense) -> Clause | None:
        """Return what something is like, or None where no adjective fits."""
        taken = subject.adjectives if isinstance(subject, NounPhrase) else ()
        fitting = [a for a in adjectives_of(noun) if a not in taken]
        if not fitting:
            return None
        plain_tense: Tense = "past" if tense == "past" else "present"
        return Clause(BE, subject, plain_tense, predicate=Predicate(self.dice.pick(fitting)))

    def comparison(self, tense: Tense) -> Clause:
        """Return a comparison of two things of one kind."""
        noun = self.dice.pick([n for n in nouns_of(_COMPARABLE) if any(a.comparative for a in adjectives_of(n))])
        adjective = self.dice.pick([a for a in adjectives_of(noun) if a.comparative])
        others = [n for n in nouns_of((noun.kind,)) if adjective in adjectives_of(n) and n.english != noun.english]
        if not others:
            return self.comparison(tense)
        subject, standard = self._compared(noun), self._compared(self.dice.pick(others))
        degree = self.dice.weighted({"than": 0.65, "as": 0.35})
        predicate = Predicate(adjective, "than" if degree == "than" else "as", standard)
        return Clause(BE, subject, tense, predicate=predicate)

    def _compared(self, noun: Noun) -> NounPhrase:
        phrase = replace(self.phrases.noun_phrase(noun, "place"), adjectives=())
        return replace(phrase, determiner="the") if phrase.determiner == "a" else phrase

    def finish(self, clause: Clause, *, time: float = 0.5, change: float = 0.3, move: float = 0.0) -> Clause:
        """Return the clause with, by chance, a time, a modal verb or a negation, and something else in front."""
        if clause.time is None and self.dice.chance(time):
            fixed = clause.passive or _stative(clause.verb) or "involuntary" in clause.verb.traits
            clause = replace(clause, time=self.phrases.time(clause.tense, fixed=fixed))
        if self.dice.chance(change):
            clause = self.negate(clause) if self.dice.chance(0.45) else self.modal(clause)
        return self.front(clause) if self.dice.chance(move) else clause

    def modal(self, clause: Clause) -> Clause:
        """Return the clause with a modal verb, where someone decides what is done."""
        if clause.passive or clause.verb.frame not in EVENTS or "involuntary" in clause.verb.traits:
            return clause
        if clause.tense not in {"present", "past"} or not clause.subject.human:
            return clause
        if clause.time is not None and clause.time.slot != "time":
            return clause
        options = {m: w for m, w in _MODALS.items() if clause.tense == "present" or m not in _PRESENT_ONLY}
        return replace(clause, modal=self.dice.weighted(options))

    def aim(self, goal: PrepositionalPhrase, actor: Actor, tense: Tense) -> Clause:
        """Return what somebody goes to a place for: something that is done there."""
        noun = goal.phrase.noun if isinstance(goal.phrase, NounPhrase) else None
        verbs = verbs_of(("a", "da", "d"), actor.kind, True)
        fitting = [v for v in verbs if noun is not None and admits(v.places, noun)]
        anywhere = [v for v in verbs if v.german in _ERRANDS]
        verb = self.dice.pick(fitting if fitting and self.dice.chance(0.75) else anywhere)
        return replace(self.event(tense, actor=actor, verb=verb), place=None)

    def parallel(self, clause: Clause, tense: Tense, actor: Actor | None = None) -> Clause:
        """Return another clause about the same kind of thing: somebody cooks, somebody bakes."""
        kinds = set(clause.verb.objects)
        frame = (clause.verb.frame,)
        verbs = [v for v in verbs_of(frame, actor.kind if actor else "", True) if v != clause.verb]
        related = [v for v in verbs if not v.objects or kinds.intersection(v.objects)] or verbs or [clause.verb]
        return self.event(tense, actor=actor, verb=self.dice.pick(related))

    def negate(self, clause: Clause) -> Clause:
        """Return the clause negated: ``kein`` for an indefinite object, else ``nicht``."""
        if clause.time is not None and (clause.time.slot != "time" or clause.tense == "present"):
            return clause
        if isinstance(clause.subject, NounPhrase) and clause.subject.determiner not in {
            "the",
            "this",
            "own",
            "genitive",
        }:
            return clause
        phrase = clause.accusative
        if isinstance(phrase, NounPhrase):
            if phrase.determiner in {"a", "bare"}:
                return replace(clause, accusative=replace(phrase, determiner="no"))
            if phrase.determiner not in {"the", "this", "own", "genitive"}:
                return clause
        return replace(clause, negated=True)

    def front(self, clause: Clause) -> Clause:
        """Return the clause with a time, a place or a clearly marked object in front."""
        options: dict[Front, float] = {}
        if clause.time is not None and clause.time.slot == "time":
            options["time"] = 5.0
        if clause.place is not None and clause.verb.frame in {"a", "i"} and not clause.negated:
            options["place"] = 2.0
        if not isinstance(clause.subject, Pronoun) and not clause.negated:
            if _marked(clause.accusative):
                options["accusative"] = 1.0
            if _marked(clause.dative, dative=True):
                options["dative"] = 1.0
        return replace(clause, front=self.dice.weighted(options)) if options else clause

    def relative(self, head: NounPhrase, tense: Tense) -> Clause | None:
        """Return a relative clause about `head`, or None where the dice found none."""
        gap = Gap(head.person, head.agreement, head.reference, head.human)
        ways = {
            "subject": 5.0,
            "accusative": 4.0,
            "dative": 2.0 if head.human else 0.0,
            "place": 3.0,
            "whose": 1.0,
            "target": 1.0,
        }
        way = self.dice.weighted(ways)
        if way == "subject":
            clause = self._subject_relative(head, gap, tense)
        elif way == "accusative":
            clause = self._accusative_relative(head, gap, tense)
        elif way == "whose":
            clause = self._whose_relative(head, gap, tense)
        else:
            clause = self._oblique_relative(way, head, gap, tense)
        if clause is not None and clause.predicate is None and self.dice.chance(0.2):
            clause = replace(clause, time=self.phrases.time(tense, fixed=True))
        return clause

    def _subject_relative(self, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        if not verbs_of(EVENTS, head.noun.kind) or self.dice.chance(0.15):
            return self.state(head.noun, gap, tense)
        return self.event(tense, actor=Actor(gap, head.noun.kind))

    def _accusative_relative(self, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        verbs = [v for v in verbs_of(("a", "da"), "") if admits(v.objects, head.noun)]
        if not verbs:
            return None
        verb = self.dice.pick(verbs)
        actor = self.phrases.actor(verb.subjects, plain=True)
        # Where the pronoun does not show its case, the other noun must, or only one of the two can be the subject.
        clear = head.agreement == "m" or not admits(verb.subjects, head.noun) or _nominative(actor.phrase)
        if not clear:
            return None
        dative = self.someone(GROUPS["human"], actor.phrase) if verb.frame == "da" else None
        return Clause(verb, actor.phrase, tense, dative=dative, accusative=gap)

    def _whose_relative(self, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        if not head.human:
            return None
        noun = self.dice.pick(
            nouns_of(("vehicle", "animal", "clothing", "instrument", "child", "kin", "Haus", "Garten"))
        )
        plural = noun.kind != "vehicle" and self.dice.chance(0.2)
        return self.state(noun, NounPhrase(noun, "whose", plural, owner=gap), tense)

    def _oblique_relative(self, way: str, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        if way == "dative":
            verb = self.dice.pick(verbs_of(("d", "da"), "person"))
            clause = self.event(tense, verb=verb)
            return (
                replace(clause, dative=gap, place=None)
                if admits(verb.objects, head.noun) or verb.frame == "da"
                else None
            )
        if way == "place":
            verbs = [v for v in verbs_of(("i", "l", "a"), "") if admits(v.places, head.noun) and head.noun.place[0]]
            if not verbs:
                return None
            place = PrepositionalPhrase(head.noun.place[0], "dat", head.noun.place[1], gap)
            return replace(self.event(tense, verb=self.dice.pick(verbs)), place=place)
        verbs = [v for v in verbs_of(("p",), "") if admits(v.objects, head.noun)]
        if not verbs:
            return None
        clause = self.event(tense, verb=self.dice.pick(verbs))
        return replace(clause, target=replace(clause.target, phrase=gap), place=None) if clause.target else None


BE = next(verb for verb in lexicon().verbs if verb.frame == "v")
_ERRANDS = ("besuchen", "treffen", "suchen", "fotografieren", "helfen", "abholen", "kennenlernen", "danken")
_COMPARABLE = ("person", "animal", "vehicle", "furniture", "building", "clothing", "text", "fruit", "show", "room")


def _case(name: str) -> Case:
    return "acc" if name == "acc" else "dat"


def _stative(verb: Verb) -> bool:
    """Whether a verb says how things are: no perfect, no ``already``."""
    return verb.frame in {"l", "v"} or verb.german in {"gehören", "lieben", "brauchen", "vertrauen"}


def _marked(phrase: Phrase | None, *, dative: bool = False) -> bool:
    """Whether an object's form alone says that it is one."""
    if not isinstance(phrase, NounPhrase) or phrase.plural or phrase.determiner not in {"the", "this"}:
        return False
    return dative or phrase.agreement == "m"


def _nominative(phrase: Phrase) -> bool:
    """Whether a subject's form alone says that it is one."""
    if isinstance(phrase, Pronoun):
        return phrase.reference in {"I", "we", "he"}
    if isinstance(phrase, NamePhrase):
        return False
    return (
        isinstance(phrase, NounPhrase)
        and phrase.agreement == "m"
        and phrase.determiner in {"the", "a", "this", "own", "every"}
    )
