"""English word order: noun phrases, inversion, ``do``, and what follows the verb."""

from phmctl.miniature import english
from phmctl.miniature.english import VerbForms
from phmctl.miniature.german_clause import gap_role
from phmctl.miniature.lexicon import Verb
from phmctl.miniature.structure import (
    Clause,
    Gap,
    NamePhrase,
    NounPhrase,
    Pair,
    Phrase,
    Predicate,
    PrepositionalPhrase,
    Pronoun,
    Sentence,
)

_CONJUNCTIONS = {
    "weil": ["because"],
    "obwohl": ["although"],
    "wenn": ["when"],
    "als": ["when"],
    "während": ["while"],
    "bevor": ["before"],
    "dass": ["that"],
    "ob": ["whether"],
    "zu": [],
    "um": ["in", "order"],
    "und": ["and"],
    "aber": ["but"],
}
_QUESTIONS = {"yes/no": [], "wann": ["when"], "warum": ["why"], "wer": ["who"]}


def render(sentence: Sentence) -> list[str]:
    """Return the words of a sentence, commas as words of their own, without the final mark."""
    if sentence.question:
        words = _question(sentence)
    else:
        words = main_clause(sentence.main, keep_front=not sentence.second_first)
    if sentence.second is None or sentence.conjunction is None:
        return words
    opening = _CONJUNCTIONS[sentence.conjunction]
    if sentence.conjunction in {"und", "aber"}:
        return [*words, ",", *opening, *main_clause(sentence.second)]
    second = _second(sentence.conjunction, sentence.second)
    if sentence.second_first:
        return [*second, ",", *words]
    comma = [","] if sentence.conjunction == "obwohl" else []
    return [*words, *comma, *second]


def _second(conjunction: str, clause: Clause) -> list[str]:
    opening = _CONJUNCTIONS[conjunction]
    if conjunction in {"zu", "um"}:
        return [*opening, "to", clause.verb.english, *_complements(clause, set())]
    return [*opening, *main_clause(clause, keep_front=False)]


def _question(sentence: Sentence) -> list[str]:
    clause, opening = sentence.main, _QUESTIONS[sentence.question]
    if sentence.question == "wer":
        return [*opening, *_verbs_and_rest(clause, set())]
    group = _group(clause, support=True)
    negation = ["not"] if clause.negative else []
    subject = noun_phrase(clause.subject)
    return [
        *opening,
        group.finite,
        *subject,
        *negation,
        *_adverb(clause),
        *group.rest,
        *_complements(clause, set()),
    ]


def main_clause(clause: Clause, *, keep_front: bool = True) -> list[str]:
    """Return a statement. A time or place that stands first in German stands first here; a fronted object does not."""
    front = clause.front if keep_front else "subject"
    subject = noun_phrase(clause.subject)
    if front == "time" and clause.time is not None and clause.time.slot == "time":
        return [*clause.time.english.split(), *subject, *_verbs_and_rest(clause, {"time"})]
    if front == "place" and clause.place is not None:
        return [*prepositional(clause.place), ",", *subject, *_verbs_and_rest(clause, {"place"})]
    return [*subject, *_verbs_and_rest(clause, set())]


def relative_clause(clause: Clause) -> list[str]:
    """Return a restrictive relative clause: ``who sleeps``, ``that he buys``, ``to whom …``, ``whose car is old``."""
    role = gap_role(clause)
    if role == "subject":
        return [*noun_phrase(clause.subject), *_verbs_and_rest(clause, set())]
    rest = [*noun_phrase(clause.subject), *_verbs_and_rest(clause, {role})]
    if role in {"accusative", "dative"}:
        phrase = clause.accusative if role == "accusative" else clause.dative
        preposition = _relative_preposition(clause, role)
        return [*preposition, *_relative_object(phrase, bool(preposition)), *rest]
    phrase = getattr(clause, role)
    return [phrase.english, *_relative_object(phrase.phrase, True), *rest]


def _relative_preposition(clause: Clause, role: str) -> list[str]:
    """Return the preposition that the relative pronoun takes along: ``to whom`` for an indirect object."""
    both = clause.dative is not None and clause.accusative is not None
    if both:
        return ["to"] if role == "dative" else []
    return [clause.verb.preposition] if clause.verb.preposition else []


def _relative_object(phrase: Phrase | None, after_preposition: bool) -> list[str]:
    if not isinstance(phrase, Gap):
        raise ValueError("only a gap can become a relative object")
    if phrase.human:
        return ["whom"]
    return ["which"] if after_preposition else ["that"]


def _forms(verb: Verb) -> VerbForms:
    if verb.english == "be":
        return english.BE
    return VerbForms(verb.english, verb.past, verb.past_participle)


def _group(clause: Clause, *, support: bool) -> english.VerbGroup:
    return english.verb_group(
        _forms(clause.verb), clause.tense, clause.modal, clause.passive, clause.subject.person, support=support
    )


def _adverb(clause: Clause) -> list[str]:
    """Return the adverb that stands before the main verb."""
    return clause.time.english.split() if clause.time and clause.time.slot != "time" else []


def _verbs_and_rest(clause: Clause, taken: set[str]) -> list[str]:
    negated = clause.negative
    group = _group(clause, support=negated)
    negation = ["not"] if negated else []
    if group.finite == "can" and negated:
        verbs = ["cannot", *_adverb(clause), *group.rest]
    elif group.auxiliary:
        verbs = [group.finite, *negation, *_adverb(clause), *group.rest]
    else:
        verbs = [*_adverb(clause), group.finite, *group.rest]
    return [*verbs, *_complements(clause, taken)]


def _complements(clause: Clause, taken: set[str]) -> list[str]:
    """Return what follows the verb: objects, then where to, with what, where and when."""
    words = _objects(clause, taken)
    if clause.predicate is not None:
        words += predicate(clause.predicate)
    for role in ("target", "goal", "means", "manner", "place"):
        value = getattr(clause, role)
        if value is None or role in taken:
            continue
        words += value.english.split() if role == "manner" else prepositional(value)
    if clause.time and clause.time.slot == "time" and "time" not in taken:
        words += clause.time.english.split()
    return words


def _objects(clause: Clause, taken: set[str]) -> list[str]:
    verb = clause.verb
    dative = noun_phrase(clause.dative, objective=True) if clause.dative and "dative" not in taken else []
    accusative = (
        noun_phrase(clause.accusative, objective=True) if clause.accusative and "accusative" not in taken else []
    )
    particle = verb.particle.split()
    link = [verb.preposition] if verb.preposition else []
    if clause.accusative is None:  # helps the man; listens to the man
        only_link = link if dative and clause.target is None else []
        return [*particle, *only_link, *dative]
    if clause.dative is None:  # looks for the key; picks up the child, picks me up
        if isinstance(clause.accusative, Pronoun) and len(particle) == 1:
            return [*link, *accusative, *particle]
        return [*particle, *(link if accusative else []), *accusative]
    if link or not accusative:  # explains the rule to the pupil
        return [*particle, *accusative, *((link or ["to"]) if dative else []), *dative]
    return [*particle, *dative, *accusative]


def prepositional(phrase: PrepositionalPhrase) -> list[str]:
    """Return preposition and noun phrase."""
    return [*phrase.english.split(), *noun_phrase(phrase.phrase, objective=True)]


def predicate(value: Predicate) -> list[str]:
    """Return a predicate adjective, possibly compared."""
    if value.standard is None:
        return value.adjective.english.split()
    standard = noun_phrase(value.standard)
    if value.degree == "than":
        return [*value.adjective.english_comparative.split(), "than", *standard]
    return ["as", *value.adjective.english.split(), "as", *standard]


def noun_phrase(phrase: Phrase, *, objective: bool = False) -> list[str]:
    """Return a phrase with its relative clause; `objective` asks for ``him`` where the subject is ``he``."""
    if isinstance(phrase, Pair):
        return [*noun_phrase(phrase.left), "and", *noun_phrase(phrase.right)]
    if isinstance(phrase, NamePhrase):
        return [phrase.name.english]
    if isinstance(phrase, Pronoun):
        return [english.object_pronoun(phrase.reference) if objective else phrase.reference]
    if isinstance(phrase, Gap):
        return ["who" if phrase.human else "that"]
    tail = relative_clause(phrase.relative) if phrase.relative else []
    return [*_determiner(phrase, objective), *_described(phrase), *tail]


def _described(phrase: NounPhrase) -> list[str]:
    noun = phrase.noun.english_plural if phrase.plural else phrase.noun.english
    number = [english.number_word(phrase.count)] if phrase.count else []
    return [*number, *(word for a in phrase.adjectives for word in a.english.split()), *noun.split()]


def _determiner(phrase: NounPhrase, objective: bool) -> list[str]:
    owner, words = phrase.owner, []
    match phrase.determiner:
        case "a":
            words = [english.article(_described(phrase)[0])]
        case "no" if objective:
            many = phrase.plural or phrase.noun.mass
            words = ["any" if many else english.article(_described(phrase)[0])]
        case "this":
            words = ["these" if phrase.plural else "this"]
        case "all":
            words = ["all", "the"]
        case "own" if owner is not None:
            words = [english.possessive_pronoun(owner.reference)]
        case "genitive" if owner is not None:
            *before, last = noun_phrase(owner)
            words = [*before, english.possessive(last, owner.person == "3pl")]
        case "the" | "every" | "many" | "some" | "several" | "no" | "whose":
            words = [phrase.determiner]
    return words
