"""Random sentences: the patterns of the miniature, each as a method that returns one abstract sentence or None."""

from dataclasses import replace
from functools import cache

from phmctl.data.miniature.clauses import BE, Clauses, verbs_of
from phmctl.data.miniature.dice import Dice
from phmctl.data.miniature.lexicon import Adjective, Verb, lexicon
from phmctl.data.miniature.phrases import HE, IT, YOU, Actor, nouns_of, refer
from phmctl.data.miniature.structure import (
    Clause,
    Conjunction,
    NounPhrase,
    Phrase,
    Predicate,
    Pronoun,
    Sentence,
    Tense,
)

_TENSES: dict[Tense, float] = {"present": 4, "past": 4, "perfect": 2, "future": 1.5}
_TWO_TENSES: dict[Tense, float] = {"present": 1, "past": 1.2}
_PATTERNS = {
    "statement": 27.0,
    "passive": 5.0,
    "comparison": 3.0,
    "question": 10.0,
    "relative": 21.0,
    "reason": 8.0,
    "concession": 5.0,
    "condition": 5.0,
    "moment": 5.0,
    "meanwhile": 4.0,
    "before": 4.0,
    "content": 7.0,
    "attempt": 5.0,
    "purpose": 6.0,
    "coordination": 5.0,
}
_CAUSES = ("neugierig", "fleißig", "höflich", "freundlich", "mutig", "glücklich")
_OBSTACLES = ("müde", "krank", "nervös", "traurig", "hungrig", "faul")
_EVERYDAY = ("i", "l", "g", "a", "da")


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
        self.patterns = {name: getattr(self, f"_{name}") for name in _PATTERNS}

    def draw(self) -> Sentence | None:
        """Return a sentence, or None where the drawn parts do not fit each other."""
        sentence: Sentence | None = self.patterns[self.dice.weighted(_PATTERNS)]()
        return sentence

    def _statement(self) -> Sentence:
        tense = self.dice.weighted(_TENSES)
        clause = self.clauses.event(tense, plain=False)
        return Sentence(self.clauses.finish(clause, time=0.65, change=0.35, move=0.5))

    def _passive(self) -> Sentence:
        clause = self.clauses.passive(self.dice.weighted(_TENSES))
        return Sentence(self.clauses.finish(clause, time=0.6, change=0.1, move=0.4))

    def _comparison(self) -> Sentence:
        return Sentence(self.clauses.comparison(self.dice.weighted(_TWO_TENSES)))

    def _question(self) -> Sentence | None:
        kind = self.dice.weighted({"yes/no": 5.0, "wann": 1.5, "warum": 2.0, "wer": 2.0})
        if kind == "wer":
            clause = self.clauses.event(self.dice.weighted(_TENSES), actor=Actor(HE, "person"), plain=False)
            return Sentence(clause, question="wer")
        tense = self.dice.weighted({**_TENSES, "perfect": 0.0} if kind == "wann" else _TENSES)
        actor = Actor(YOU, "person") if tense != "past" and self.dice.chance(0.35) else None
        clause = self.clauses.event(tense, actor=actor, willing=True, plain=False)
        if kind == "wann":
            return Sentence(clause, question="wann")
        finished = self.clauses.finish(clause, time=0.3, change=0.3)
        return Sentence(finished, question="warum" if kind == "warum" else "yes/no")

    def _relative(self) -> Sentence | None:
        """A statement in which the subject, the object or the place is described by a relative clause."""
        tense = self.dice.weighted(_TENSES)
        clause = self.clauses.event(tense, plain=True)
        roles = [r for r in ("subject", "subject", "accusative", "accusative", "place") if self._describable(clause, r)]
        if not roles:
            return None
        role = self.dice.pick(roles)
        phrase = clause.place.phrase if role == "place" and clause.place else getattr(clause, role)
        head = self.clauses.phrases.noun_phrase(phrase.noun, "head", plain=True)
        inner = self.clauses.relative(head, self._inner_tense(tense))
        if inner is None:
            return None
        head = replace(head, relative=inner)
        if role == "place" and clause.place:
            return Sentence(replace(clause, place=replace(clause.place, phrase=head)))
        if role == "accusative":
            return Sentence(self.clauses.finish(replace(clause, accusative=head, place=None), time=0.3, change=0.15))
        return Sentence(self.clauses.finish(_with_subject(clause, head), time=0.3, change=0.25))

    @staticmethod
    def _describable(clause: Clause, role: str) -> bool:
        if role == "place":
            return clause.place is not None and isinstance(clause.place.phrase, NounPhrase)
        phrase = getattr(clause, role)
        return isinstance(phrase, NounPhrase) and not phrase.noun.mass and phrase.noun.kind != "kin"

    def _inner_tense(self, tense: Tense) -> Tense:
        options: dict[Tense, dict[Tense, float]] = {
            "present": {"present": 6, "past": 1.5, "perfect": 1.5},
            "past": {"past": 1},
            "perfect": {"present": 1, "past": 1, "perfect": 1},
            "future": {"present": 3, "past": 1, "perfect": 1},
        }
        return self.dice.weighted(options[tense])

    def _reason(self) -> Sentence | None:
        """``weil``: people do things because they want or have to, and leave them because something is the matter."""
        tense = self.dice.weighted(_TWO_TENSES)
        frames = ("g",) if self.dice.chance(0.5) else ("a", "da", "i", "d")
        main = self.clauses.event(tense, frames=frames, willing=True)
        actor = _again(main.subject)
        if actor is None or not main.subject.human:
            return None
        if self.dice.chance(0.35):
            main = self.clauses.negate(main)
            if _is_negated(main):
                return Sentence(main, "weil", self._feeling(actor.phrase, _OBSTACLES, tense))
            return None
        if self.dice.chance(0.3):
            return Sentence(main, "weil", self._feeling(actor.phrase, _CAUSES, tense))
        if main.goal is None:
            return Sentence(main, "weil", self._sky(tense)) if main.goal or main.place else None
        wish = self.clauses.aim(main.goal, actor, tense)
        wish = replace(wish, modal="wollen" if self.dice.chance(0.6) else "müssen")
        if not self.dice.chance(0.25):
            return Sentence(main, "weil", wish)
        return Sentence(replace(main, subject=actor.phrase), "weil", replace(wish, subject=main.subject), True)

    def _feeling(self, subject: Phrase, names: tuple[str, ...], tense: Tense) -> Clause:
        return Clause(BE, subject, tense, predicate=Predicate(self.dice.pick(_adjectives(names))))

    def _sky(self, tense: Tense) -> Clause:
        return Clause(self.dice.pick(_weather()), IT, tense)

    def _concession(self) -> Sentence | None:
        """``obwohl``: tired, ill or in the rain."""
        tense = self.dice.weighted(_TWO_TENSES)
        main = self.clauses.event(tense, frames=_EVERYDAY, willing=True)
        actor = _again(main.subject)
        if actor is None or not main.subject.human:
            return None
        first = self.dice.chance(0.4)
        if self.dice.chance(0.3):
            return Sentence(main, "obwohl", self._sky(tense), first)
        if first:
            feeling = self._feeling(main.subject, _OBSTACLES, tense)
            return Sentence(replace(main, subject=actor.phrase), "obwohl", feeling, True)
        return Sentence(main, "obwohl", self._feeling(actor.phrase, _OBSTACLES, tense))

    def _condition(self) -> Sentence | None:
        """``wenn`` in the present: what people do when something is so."""
        main = self.clauses.event("present", frames=_EVERYDAY, willing=True)
        if not main.subject.human:
            return None
        main = self.clauses.finish(main, time=0.2, change=0.0)
        return self._when(main, "wenn", "present")

    def _moment(self) -> Sentence | None:
        """``als`` in the past: what happened when something happened."""
        main = self.clauses.event("past", frames=_EVERYDAY)
        return self._when(main, "als", "past")

    def _when(self, main: Clause, conjunction: Conjunction, tense: Tense) -> Sentence | None:
        way = self.dice.weighted({"weather": 1.0, "feeling": 1.5, "event": 3.0})
        first = self.dice.chance(0.65)
        if way == "weather":
            return Sentence(main, conjunction, self._sky(tense), first)
        if way == "event":
            return Sentence(
                main, conjunction, self.clauses.event(tense, frames=("i", "g", "a"), willing=tense == "present"), first
            )
        actor = _again(main.subject)
        if actor is None or not main.subject.human:
            return None
        feeling = (
            (*_OBSTACLES, "glücklich") if conjunction == "wenn" else ("müde", "krank", "nervös", "traurig", "hungrig")
        )
        if first:
            second = self._feeling(main.subject, feeling, tense)
            return Sentence(replace(main, subject=actor.phrase), conjunction, second, True)
        return Sentence(main, conjunction, self._feeling(actor.phrase, feeling, tense))

    def _meanwhile(self) -> Sentence | None:
        """``während``: two people, each at something."""
        tense = self.dice.weighted(_TWO_TENSES)
        main = self.clauses.event(tense, frames=("i", "a", "da"), willing=True)
        second = self.clauses.parallel(main, tense)
        if isinstance(main.subject, Pronoun) or isinstance(second.subject, Pronoun):
            return None
        return Sentence(main, "während", second, self.dice.chance(0.6))

    def _before(self) -> Sentence | None:
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

    def _content(self) -> Sentence | None:
        """``dass`` and ``ob``: what someone says or asks."""
        tense = self.dice.weighted(_TWO_TENSES)
        whether = self.dice.chance(0.3)
        verb = self.dice.pick(verbs_of(("o",) if whether else ("c",), "person"))
        actor = self.clauses.phrases.actor(verb.subjects, plain=True)
        inner: dict[Tense, float] = {"past": 1} if tense == "past" else {"present": 4, "perfect": 3, "future": 3}
        content = self.clauses.event(self.dice.weighted(inner))
        if not isinstance(content.subject, Pronoun):
            content = self.clauses.finish(content, time=0.35, change=0.25)
        return Sentence(Clause(verb, actor.phrase, tense), "ob" if whether else "dass", content)

    def _attempt(self) -> Sentence | None:
        """``zu``: what someone tries, promises or decides to do."""
        tense = self.dice.weighted({**_TWO_TENSES, "perfect": 0.5})
        verb = self.dice.pick(verbs_of(("z",), "person"))
        actor = self.clauses.phrases.actor(verb.subjects)
        main = self.clauses.finish(Clause(verb, actor.phrase, tense), time=0.3, change=0.0, move=0.5)
        aim = self.clauses.event(tense, actor=actor, frames=("a", "da", "d", "s"), willing=True)
        return Sentence(main, "zu", aim)

    def _purpose(self) -> Sentence | None:
        """``um … zu``: where someone goes, and what for."""
        tense = self.dice.weighted(_TENSES)
        main = self.clauses.event(tense, frames=("g",), willing=True)
        if not main.subject.human:
            return None
        main = self.clauses.finish(main, time=0.4, change=0.0, move=0.5)
        actor = Actor(main.subject, "person")
        return Sentence(main, "um", self.clauses.aim(main.goal, actor, tense)) if main.goal else None

    def _coordination(self) -> Sentence | None:
        """``und``, ``aber``: two clauses of equal rank; ``aber`` denies something."""
        tense = self.dice.weighted(_TENSES)
        main = self.clauses.event(tense, willing=True)
        second = self.clauses.parallel(main, tense)
        if self.dice.chance(0.6):
            return Sentence(main, "und", second)
        second = self.clauses.negate(second)
        return Sentence(main, "aber", second) if _is_negated(second) else None


def _is_negated(clause: Clause) -> bool:
    phrase = clause.accusative
    return clause.negated or (isinstance(phrase, NounPhrase) and phrase.determiner == "no")


def _again(subject: Phrase) -> Actor | None:
    """Return the same subject as a pronoun."""
    pronoun = refer(subject)
    if pronoun is None:
        return None
    return Actor(pronoun, subject.noun.kind if isinstance(subject, NounPhrase) else "person")


def _with_subject(clause: Clause, subject: NounPhrase) -> Clause:
    return replace(clause, subject=subject)


__all__ = ["Sentences", "nouns_of"]
