"""Random relative clauses. Whatever German leaves open (``die Frau, die Anna sieht``) is not drawn."""

from dataclasses import replace

from phmctl.miniature.clauses import EVENTS, Clauses, admits, nominative, verbs_of
from phmctl.miniature.lexicon import GROUPS
from phmctl.miniature.phrases import Actor, nouns_of
from phmctl.miniature.structure import Clause, Gap, NounPhrase, PrepositionalPhrase, Tense

_WAYS = {"subject": 5.0, "accusative": 4.0, "dative": 2.0, "place": 3.0, "whose": 1.5, "target": 1.0}
_POSSESSIONS = ("vehicle", "clothing", "instrument", "Sohn", "Tochter", "Bruder", "Schwester", "Hund", "Katze", "Haus")


class Relatives:
    """Draws relative clauses with the dice of `clauses`."""

    def __init__(self, clauses: Clauses) -> None:
        self.clauses = clauses
        self.dice = clauses.dice
        self.phrases = clauses.phrases

    def about(self, head: NounPhrase, tense: Tense) -> NounPhrase | None:
        """Return `head` with a relative clause, or None where the dice found none that fits."""
        gap = Gap(head.person, head.agreement, head.reference, head.human)
        ways = {
            "subject": self._subject,
            "accusative": self._accusative,
            "dative": self._dative,
            "place": self._place,
            "whose": self._whose,
            "target": self._target,
        }
        clause = ways[self.dice.weighted(_WAYS)](head, gap, tense)
        if clause is None:
            return None
        if clause.predicate is not None:  # the tired man who is happy: one of the two is enough
            return replace(head, adjectives=(), relative=clause)
        return replace(head, relative=self.clauses.timed(clause, fixed=True) if self.dice.chance(0.2) else clause)

    def _subject(self, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        """``der Mann, der schläft``; ``die Lampe, die kaputt ist``."""
        if not verbs_of(EVENTS, head.noun.kind) or self.dice.chance(0.12):
            return self.clauses.state(head.noun, gap, tense)
        return self.clauses.event(tense, actor=Actor(gap, head.noun.kind))

    def _accusative(self, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        """``der Hut, den Anna trägt``."""
        verbs = [v for v in verbs_of(("a", "da"), "") if admits(v.objects, head.noun)]
        if not verbs:
            return None
        verb = self.dice.pick(verbs)
        actor = self.phrases.actor(verb.subjects, plain=True)
        # Where the pronoun does not show its case, the other noun must, or only one of the two can be the subject.
        if head.agreement != "m" and admits(verb.subjects, head.noun) and not nominative(actor.phrase):
            return None
        dative = self.clauses.someone(GROUPS["human"], actor.phrase) if verb.frame == "da" else None
        return Clause(verb, actor.phrase, tense, dative=dative, accusative=gap)

    def _dative(self, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        """``der Mann, dem Anna hilft``."""
        if not head.human:
            return None
        verb = self.dice.pick(verbs_of(("d", "da"), "person"))
        if verb.frame == "d" and not admits(verb.objects, head.noun):
            return None
        return replace(self.clauses.event(tense, verb=verb), dative=gap, place=None)

    def _place(self, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        """``das Haus, in dem Anna wohnt``."""
        german, english = head.noun.place
        verbs = [v for v in verbs_of(("i", "l", "a"), "") if admits(v.places, head.noun)]
        if not german or not verbs:
            return None
        place = PrepositionalPhrase(german, "dat", english, gap)
        return replace(self.clauses.event(tense, verb=self.dice.pick(verbs)), place=place)

    def _whose(self, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        """``der Mann, dessen Auto kaputt ist``."""
        if not head.human:
            return None
        noun = self.dice.pick(nouns_of(_POSSESSIONS))
        return self.clauses.state(noun, NounPhrase(noun, "whose", owner=gap), tense)

    def _target(self, head: NounPhrase, gap: Gap, tense: Tense) -> Clause | None:
        """``der Bus, auf den Anna wartet``."""
        verbs = [v for v in verbs_of(("p",), "") if admits(v.objects, head.noun)]
        if not verbs:
            return None
        clause = self.clauses.event(tense, verb=self.dice.pick(verbs))
        return replace(clause, target=replace(clause.target, phrase=gap), place=None) if clause.target else None
