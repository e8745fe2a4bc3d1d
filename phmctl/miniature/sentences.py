"""Random sentences: the patterns of the miniature, each a method that returns one abstract sentence or None."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

from phmctl.miniature.clauses import Clauses, feeling, verbs_of
from phmctl.miniature.dice import Dice
from phmctl.miniature.lexicon import Adjective, Verb, lexicon
from phmctl.miniature.phrases import HE, IT, YOU, Actor, refer
from phmctl.miniature.relatives import Relatives
from phmctl.miniature.structure import Clause, Conjunction, NounPhrase, Phrase, Pronoun, Sentence, Tense

_TENSES: dict[Tense, float] = {"present": 4, "past": 4, "perfect": 2, "future": 1.5}
_TWO_TENSES: dict[Tense, float] = {"present": 1, "past": 1.2}
# In a relative clause, by the tense of the clause around it.
_INNER_TENSES: dict[Tense, dict[Tense, float]] = {
    "present": {"present": 6, "past": 1.5, "perfect": 1.5},
    "past": {"past": 1},
    "perfect": {"present": 1, "past": 1, "perfect": 1},
    "future": {"present": 3, "past": 1, "perfect": 1},
}
# Why people do things, by the frame or a trait of the verb; and what keeps them from it, or does not.
_CAUSES = {
    "g": ("neugierig", "glücklich"),
    "i": ("glücklich", "fröhlich"),
    "a": ("glücklich",),
    "chore": ("fleißig",),
    "curiosity": ("neugierig",),
    "meal": ("hungrig",),
    "d": ("höflich", "freundlich", "glücklich"),
    "da": ("höflich", "freundlich", "glücklich"),
}
_HINDRANCES = ("müde", "krank")
_OBSTACLES = ("müde", "krank", "nervös", "traurig")
_EVERYDAY = ("i", "g", "a", "da")


@cache
def _adjectives(names: tuple[str, ...]) -> tuple[Adjective, ...]:
    return tuple(a for a in lexicon().adjectives if a.german in names)


@cache
def _weather() -> tuple[Verb, ...]:
    return tuple(verb for verb in lexicon().verbs if verb.frame == "e")


class Sentences:
    """Draws sentences with the given dice."""

    def __init__(self, dice: Dice) -> None:
        self.dice = dice
        self.clauses = Clauses(dice)
        self.relatives = Relatives(self.clauses)
        self.patterns: dict[Callable[[], Sentence | None], float] = {
            self.statement: 24.0,
            self.passive: 5.0,
            self.comparison: 3.0,
            self.question: 10.0,
            self.relative: 56.0,
            self.reason: 9.0,
            self.concession: 5.0,
            self.occasion: 9.0,
            self.meanwhile: 4.0,
            self.before: 4.0,
            self.content: 7.0,
            self.attempt: 5.0,
            self.purpose: 6.0,
            self.coordination: 5.0,
        }

    def draw(self) -> Sentence | None:
        """Return a sentence, or None where the drawn parts do not fit each other."""
        return self.dice.weighted(self.patterns)()

    def statement(self) -> Sentence | None:
        """Return one main clause, rich in adjuncts."""
        clause = self.clauses.event(self.dice.weighted(_TENSES), plain=False)
        return Sentence(self.clauses.finish(clause, time=0.7, change=0.35, move=0.55))

    def passive(self) -> Sentence | None:
        """Return a passive main clause."""
        clause = self.clauses.passive(self.dice.weighted(_TENSES))
        return Sentence(self.clauses.finish(clause, time=0.65, change=0.15, move=0.45))

    def comparison(self) -> Sentence | None:
        """``älter als``, ``so alt wie``."""
        clause = self.clauses.comparison(self.dice.weighted(_TWO_TENSES))
        return Sentence(clause) if clause is not None else None

    def question(self) -> Sentence | None:
        """Return a question, with or without a question word."""
        kind = self.dice.weighted({"yes/no": 5.0, "wann": 1.5, "warum": 2.0, "wer": 2.0})
        tense = self.dice.weighted({**_TENSES, "perfect": 0.0} if kind == "wann" else _TENSES)
        if kind == "wer":
            who = self.clauses.event(tense, actor=Actor(HE, "person"), plain=False)
            return Sentence(self.clauses.finish(who, time=0.4, change=0.0), question="wer")
        actor = Actor(YOU, "person") if tense != "past" and self.dice.chance(0.35) else None
        clause = self.clauses.event(tense, actor=actor, willing=True, plain=False)
        if clause.subject.person[0] == "1":
            return None
        if kind == "wann":
            return Sentence(clause, question="wann")
        clause = self.clauses.finish(clause, time=0.35, change=0.3)
        return Sentence(clause, question="warum" if kind == "warum" else "yes/no")

    def relative(self) -> Sentence | None:
        """Return a statement in which the subject, the object or the place has a relative clause."""
        tense = self.dice.weighted(_TENSES)
        clause = self.clauses.event(tense, plain=True)
        role = self.dice.weighted({"subject": 2.0, "accusative": 2.0, "place": 1.0})
        phrase = clause.place.phrase if role == "place" and clause.place else getattr(clause, role)
        if not isinstance(phrase, NounPhrase) or phrase.noun.mass or phrase.noun.kind == "kin":
            return None
        head = self.clauses.phrases.noun_phrase(phrase.noun, "head", plain=True)
        if head.determiner == "every" and role != "subject":
            return None
        described = self.relatives.about(head, self.dice.weighted(_INNER_TENSES[tense]))
        if described is None:
            return None
        if role == "place" and clause.place is not None:
            return Sentence(replace(clause, place=replace(clause.place, phrase=described)))
        if role == "subject":  # what is his stays his: the new subject has the number of the old one
            same = described.plural == phrase.plural
            whole = self.clauses.finish(replace(clause, subject=described), time=0.35, change=0.25)
            return Sentence(whole) if same else None
        return self._described_object(clause, described)

    def _described_object(self, clause: Clause, described: NounPhrase) -> Sentence | None:
        """The relative clause comes last in English, so that nothing after it can be read into it."""
        verb = clause.verb
        if clause.goal is not None or "creation" in verb.traits or (verb.preposition and clause.dative is not None):
            return None
        bare = replace(clause, accusative=described, place=None, means=None, manner=None)
        finished = self.clauses.finish(bare, time=0.4, change=0.2)
        if finished.time is not None and finished.time.slot == "time":
            finished = replace(finished, front="time")
        return Sentence(finished)

    def reason(self) -> Sentence | None:
        """``weil``: people go somewhere for something, and do what they feel like, or leave it."""
        tense = self.dice.weighted(_TWO_TENSES)
        main = self.clauses.event(
            tense, frames=("g",) if self.dice.chance(0.5) else ("i", "a", "d", "da"), willing=True
        )
        main = self._without_adjectives(main)
        actor = _again(main.subject)
        if actor is None or not main.subject.human:
            return None
        if self.dice.chance(0.3):
            main = self.clauses.negate(main)
            return self._because(main, _HINDRANCES) if main.negative else None
        if main.goal is None or self.dice.chance(0.2):
            cause = next((trait for trait in main.verb.traits if trait in _CAUSES), main.verb.frame)
            return self._because(main, _CAUSES[cause])
        wish = replace(self.clauses.aim(main, actor, tense), modal="wollen" if self.dice.chance(0.6) else "müssen")
        if self.dice.chance(0.75):
            return Sentence(main, "weil", wish)
        return Sentence(replace(main, subject=actor.phrase), "weil", replace(wish, subject=main.subject), True)

    @staticmethod
    def _without_adjectives(clause: Clause) -> Clause:
        """A clause about how somebody feels says it once: not the happy man who is sad."""
        if isinstance(clause.subject, NounPhrase):
            return replace(clause, subject=replace(clause.subject, adjectives=()))
        return clause

    def _because(self, main: Clause, names: tuple[str, ...]) -> Sentence | None:
        return self._with_feeling(main, "weil", names, first=self.dice.chance(0.25))

    def _with_feeling(
        self, main: Clause, conjunction: Conjunction, names: tuple[str, ...], *, first: bool
    ) -> Sentence | None:
        """Return the clause with a second one about how its subject feels; whichever comes later has the pronoun."""
        main = self._without_adjectives(main)
        again = refer(main.subject)
        if again is None or not main.subject.human:
            return None
        adjective = self.dice.pick(_adjectives(names))
        if first:
            state = feeling(main.subject, adjective, main.tense)
            return Sentence(replace(main, subject=again), conjunction, state, True)
        return Sentence(main, conjunction, feeling(again, adjective, main.tense))

    def _sky(self, tense: Tense) -> Clause:
        return Clause(self.dice.pick(_weather()), IT, tense)

    def concession(self) -> Sentence | None:
        """``obwohl``: people do things although they are tired, or in the rain."""
        tense = self.dice.weighted(_TWO_TENSES)
        main, first = self.clauses.event(tense, frames=_EVERYDAY, willing=True), self.dice.chance(0.4)
        if main.verb.frame == "g" and self.dice.chance(0.5):
            return Sentence(main, "obwohl", self._sky(tense), first)
        return self._with_feeling(main, "obwohl", _OBSTACLES, first=first)

    def occasion(self) -> Sentence | None:
        """``wenn`` in the present, ``als`` in the past: what people do when something is so."""
        tense = self.dice.weighted(_TWO_TENSES)
        conjunction: Conjunction = "wenn" if tense == "present" else "als"
        first = self.dice.chance(0.65)
        way = self.dice.weighted({"weather": 1.0, "feeling": 1.5, "place": 2.5, "event": 2.0})
        if way == "place":
            return self._on_arrival(conjunction, tense)
        main = self.clauses.event(tense, frames=_EVERYDAY, willing=True)
        if not main.subject.human:
            return None
        if tense == "present" and self.dice.chance(0.3):
            main = self.clauses.habitual(main)
        if way == "feeling":
            return self._with_feeling(main, conjunction, _OBSTACLES, first=first)
        second = self._sky(tense) if way == "weather" else self.clauses.event(tense, frames=("i", "g"), willing=True)
        return Sentence(main, conjunction, second, first)

    def _on_arrival(self, conjunction: Conjunction, tense: Tense) -> Sentence | None:
        """Somebody goes somewhere, and does there what is done there."""
        going = self.clauses.event(tense, frames=("g",), willing=True)
        actor = _again(going.subject)
        if actor is None or not going.subject.human or going.verb.german == "umziehen":
            return None
        return Sentence(self.clauses.aim(going, actor, tense), conjunction, going, True)

    def meanwhile(self) -> Sentence | None:
        """``während``: two people, each at something."""
        tense = self.dice.weighted(_TWO_TENSES)
        main = self.clauses.event(tense, frames=("i", "a", "da"), willing=True)
        second = self.clauses.parallel(main, tense)
        if isinstance(main.subject, Pronoun) or isinstance(second.subject, Pronoun):
            return None
        return Sentence(main, "während", second, self.dice.chance(0.6))

    def before(self) -> Sentence | None:
        """``bevor``: one person does one thing, then another."""
        tense = self.dice.weighted(_TWO_TENSES)
        main = self.clauses.event(tense, frames=("i", "a", "da", "s"), willing=True)
        actor = _again(main.subject)
        if actor is None or not main.subject.human:
            return None
        second = self.clauses.parallel(main, tense, actor)
        if self.dice.chance(0.5):
            return Sentence(main, "bevor", second)
        return Sentence(replace(main, subject=actor.phrase), "bevor", replace(second, subject=main.subject), True)

    def content(self) -> Sentence | None:
        """``dass`` and ``ob``: what someone says or asks."""
        tense, whether = self.dice.weighted(_TWO_TENSES), self.dice.chance(0.3)
        verb = self.dice.pick(verbs_of(("o",) if whether else ("c",), "person"))
        actor = self.clauses.phrases.actor(verb.subjects, plain=True)
        inner: dict[Tense, float] = {"past": 1} if tense == "past" else {"present": 4, "perfect": 3, "future": 3}
        content = self.clauses.event(self.dice.weighted(inner))
        if not isinstance(content.subject, Pronoun):
            content = self.clauses.finish(content, time=0.35, change=0.0 if whether else 0.25)
        return Sentence(Clause(verb, actor.phrase, tense), "ob" if whether else "dass", content)

    def attempt(self) -> Sentence | None:
        """``zu``: what someone tries, promises or decides to do."""
        tense = self.dice.weighted({**_TWO_TENSES, "perfect": 0.5})
        verb = self.dice.pick(verbs_of(("z",), "person"))
        actor = self.clauses.phrases.actor(verb.subjects)
        main = Clause(verb, actor.phrase, tense)
        if tense != "present" and self.dice.chance(0.4):
            main = self.clauses.front(self.clauses.timed(main, fixed=True))
        again = _again(main.subject)
        if again is None:
            return None
        return Sentence(main, "zu", self.clauses.event(tense, actor=again, frames=("a", "da", "d", "s"), willing=True))

    def purpose(self) -> Sentence | None:
        """``um … zu``: where someone goes, and what for."""
        tense = self.dice.weighted(_TENSES)
        main = self.clauses.event(tense, frames=("g",), willing=True)
        actor = _again(main.subject)
        if actor is None or not main.subject.human:
            return None
        main = self.clauses.finish(main, time=0.45, change=0.0, move=0.6)
        return Sentence(main, "um", self.clauses.aim(main, actor, tense))

    def coordination(self) -> Sentence | None:
        """``und``, ``aber``: two clauses of equal rank; ``aber`` denies something."""
        tense = self.dice.weighted(_TENSES)
        main = self.clauses.event(tense, willing=True)
        second = self.clauses.parallel(main, tense)
        if self.dice.chance(0.6):
            return Sentence(main, "und", second)
        second = self.clauses.negate(second)
        return Sentence(main, "aber", second) if second.negative else None


def _again(subject: Phrase) -> Actor | None:
    """Return the same subject as a pronoun, or None where there is no good one."""
    pronoun = refer(subject)
    if pronoun is None:
        return None
    return Actor(pronoun, subject.noun.kind if isinstance(subject, NounPhrase) else "person")
