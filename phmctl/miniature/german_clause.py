"""German word order: noun phrases, the verb second, the verb last, and what stands between."""

from phmctl.miniature import german
from phmctl.miniature.structure import (
    Agreement,
    Case,
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

# The words of a part of the sentence, and the relative clause that belongs to it.
Piece = tuple[list[str], list[str]]
_NOTHING: Piece = ([], [])
_SPECIFIC = {"the", "this", "own", "genitive", "all", "whose"}
_ARTICLES = {"a": "ein", "no": "kein"}
_DETERMINERS = {"this": "dies", "every": "jed", "all": "all", "many": "viel", "some": "einig", "several": "mehrer"}


def render(sentence: Sentence) -> list[str]:
    """Return the words of a sentence, commas as words of their own, without the final mark."""
    if sentence.question:
        return _question(sentence)
    if sentence.second is None or sentence.conjunction is None:
        return main_clause(sentence.main)
    if sentence.conjunction in {"und", "aber"}:
        return [*main_clause(sentence.main), ",", sentence.conjunction, *main_clause(sentence.second)]
    second = subordinate(sentence.conjunction, sentence.second)
    if sentence.second_first:
        return [*second, ",", *main_clause(sentence.main, fronted=[])]
    return [*main_clause(sentence.main), ",", *second]


def _question(sentence: Sentence) -> list[str]:
    if sentence.question == "wer":
        return main_clause(sentence.main, fronted=["wer"], subject=False)
    opening: list[str] = [] if sentence.question == "yes/no" else [sentence.question]
    words = main_clause(sentence.main, fronted=opening)
    if sentence.second is None or sentence.conjunction is None:
        return words
    return [*words, ",", *subordinate(sentence.conjunction, sentence.second)]


def main_clause(clause: Clause, *, fronted: list[str] | None = None, subject: bool = True) -> list[str]:
    """Return a clause with its verb second, after its front or `fronted`; first, if `fronted` is empty."""
    finite, end, _ = german.verb_words(clause.verb, clause.tense, clause.modal, clause.passive, clause.subject.person)
    opening = _front(clause) if fronted is None else fronted
    taken = clause.front if fronted is None else ""
    middle, after = _middle(clause, {taken, "" if subject else "subject"}, extrapose=bool(end))
    return [*opening, finite, *middle, *end, *after]


def subordinate(conjunction: str, clause: Clause) -> list[str]:
    """Return a clause with its verb last, opened by its conjunction; ``zu`` and ``um`` open an infinitive clause."""
    if conjunction in {"zu", "um"}:
        middle, _ = _middle(clause, {"subject"}, extrapose=False)
        opening = ["um"] if conjunction == "um" else []
        return [*opening, *middle, *german.to_infinitive(clause.verb)]
    middle, after = _middle(clause, set(), extrapose=True)
    return [conjunction, *middle, *_verb_last(clause), *after]


def _verb_last(clause: Clause) -> list[str]:
    finite, end, holds_prefix = german.verb_words(
        clause.verb, clause.tense, clause.modal, clause.passive, clause.subject.person
    )
    return [clause.verb.prefix + finite] if holds_prefix else [*end, finite]


def relative_clause(clause: Clause) -> list[str]:
    """Return a relative clause between commas: the phrase that holds the gap comes first, the verb last."""
    role = gap_role(clause)
    middle, after = _middle(clause, {role}, extrapose=True)
    return [",", *_front(clause, role), *middle, *_verb_last(clause), *after, ","]


def gap_role(clause: Clause) -> str:
    """Return the name of the argument that holds the gap."""
    for role in ("subject", "dative", "accusative"):
        if _has_gap(getattr(clause, role)):
            return role
    for role in ("target", "place", "means"):
        phrase = getattr(clause, role)
        if phrase is not None and _has_gap(phrase.phrase):
            return role
    raise ValueError("a relative clause without a gap")


def _has_gap(phrase: Phrase | None) -> bool:
    if isinstance(phrase, NounPhrase):
        return phrase.determiner == "whose"
    return isinstance(phrase, Gap)


def _front(clause: Clause, role: str = "") -> list[str]:
    role = role or clause.front
    match role:
        case "subject":
            return noun_phrase(clause.subject, "nom")
        case "time":
            return clause.time.german.split() if clause.time else []
        case "dative" | "accusative":
            phrase = getattr(clause, role)
            return noun_phrase(phrase, "dat" if role == "dative" else "acc")
        case _:
            return prepositional(getattr(clause, role))


def _middle(clause: Clause, taken: set[str], *, extrapose: bool) -> tuple[list[str], list[str]]:
    """Return the words between the verb's two places, and a relative clause moved behind the second.

    A relative clause at the very end of the middle field moves, as people do: ``ruft die Frau an, die …``.
    """
    pieces = [piece for name, piece in _pieces(clause) if not name or name not in taken]
    words = [word for piece, _ in pieces for word in piece]
    if extrapose and pieces:
        last, tail = pieces[-1]
        if tail:
            return [word for piece, moved in pieces[:-1] for word in piece + moved] + last, tail
    return [word for piece, moved in pieces for word in piece + moved] if words else [], []


def _pieces(clause: Clause) -> list[tuple[str, Piece]]:
    """Return the named pieces of the middle field in order, each with its relative clause apart."""
    dative, accusative = _object(clause.dative, "dat"), _object(clause.accusative, "acc")
    late = _definite(clause.accusative)
    # schon, gerade and nie follow a definite object, unless a relative clause would part them from the verb.
    aspect = clause.time is not None and clause.time.slot == "aspect" and not accusative[1]
    time: tuple[str, Piece] = ("time", (clause.time.german.split() if clause.time else [], []))
    early = [name for name in ("accusative", "dative") if isinstance(getattr(clause, name), Pronoun)]
    objects = {"dative": dative, "accusative": accusative}
    subject = ("subject", _object(clause.subject, "nom"))
    pronouns = [(name, objects.pop(name)) for name in early]
    # mir and uns stand beside the verb, but behind a subject that is a pronoun, a name or known.
    order = [
        *([subject, *pronouns] if _definite(clause.subject) else [*pronouns, subject]),
        time if not (aspect and late) else ("", _NOTHING),
        ("dative", objects.pop("dative", _NOTHING)),
        ("accusative", objects.pop("accusative", _NOTHING)) if late else ("", _NOTHING),
        time if aspect and late else ("", _NOTHING),
        ("", (["nicht"] if clause.negated else [], [])),
        ("means", _preposed(clause.means)),
        ("manner", (clause.manner.german.split() if clause.manner else [], [])),
        ("place", _preposed(clause.place)),
        ("accusative", objects.pop("accusative", _NOTHING)),
        ("target", _preposed(clause.target)),
        ("goal", _preposed(clause.goal)),
        ("predicate", (predicate(clause.predicate) if clause.predicate else [], [])),
    ]
    return [(name, piece) for name, piece in order if piece[0]]


def _definite(phrase: Phrase | None) -> bool:
    """Whether a phrase is about something known: as an object it stands before place and ``nicht``."""
    return not isinstance(phrase, NounPhrase) or phrase.determiner in _SPECIFIC


def _object(phrase: Phrase | None, case: Case) -> Piece:
    if phrase is None:
        return [], []
    if isinstance(phrase, NounPhrase) and phrase.relative is not None:
        return _bare_noun_phrase(phrase, case), relative_clause(phrase.relative)
    return noun_phrase(phrase, case), []


def _preposed(phrase: PrepositionalPhrase | None) -> Piece:
    if phrase is None:
        return [], []
    if isinstance(phrase.phrase, NounPhrase) and phrase.phrase.relative is not None:
        # Before a restrictive clause the article carries weight and does not contract.
        words = [phrase.german, *_bare_noun_phrase(phrase.phrase, phrase.case)]
        return words, relative_clause(phrase.phrase.relative)
    return prepositional(phrase), []


def prepositional(phrase: PrepositionalPhrase) -> list[str]:
    """Return preposition and noun phrase, contracted."""
    words = noun_phrase(phrase.phrase, phrase.case)
    contracts = isinstance(phrase.phrase, NounPhrase) and phrase.phrase.determiner in {"the", "genitive"}
    return german.contract(phrase.german, words) if contracts else [phrase.german, *words]


def predicate(value: Predicate) -> list[str]:
    """Return a predicate adjective, possibly compared."""
    if value.standard is None:
        return [value.adjective.german]
    standard = noun_phrase(value.standard, "nom")
    if value.degree == "than":
        return [value.adjective.comparative, "als", *standard]
    return ["so", value.adjective.german, "wie", *standard]


def noun_phrase(phrase: Phrase, case: Case) -> list[str]:
    """Return a phrase in the given case, with its relative clause."""
    if isinstance(phrase, Pair):
        return [*noun_phrase(phrase.left, case), "und", *noun_phrase(phrase.right, case)]
    if isinstance(phrase, NamePhrase):
        return [phrase.name.german]
    if isinstance(phrase, Pronoun):
        return [german.pronoun(phrase.person, phrase.agreement, case)]
    if isinstance(phrase, Gap):
        return [german.relative_pronoun(phrase.agreement, case)]
    tail = relative_clause(phrase.relative) if phrase.relative else []
    return [*_bare_noun_phrase(phrase, case), *tail]


def _bare_noun_phrase(phrase: NounPhrase, case: Case) -> list[str]:
    opening, endings = _opening(phrase, case)
    agreement = phrase.agreement
    number = [german.number_word(phrase.count)] if phrase.count else []
    adjectives = [german.attributive(a.german, endings[agreement, case]) for a in phrase.adjectives]
    noun = german.noun_form(phrase.noun, phrase.plural, case)
    genitive = noun_phrase(phrase.owner, "gen") if _follows(phrase) and phrase.owner else []
    return [*opening, *number, *adjectives, noun, *genitive]


def _follows(phrase: NounPhrase) -> bool:
    return phrase.determiner == "genitive" and not isinstance(phrase.owner, NamePhrase)


def _opening(phrase: NounPhrase, case: Case) -> tuple[list[str], dict[tuple[Agreement, Case], str]]:
    """Return the words before the adjectives, and the endings that the adjectives take after them."""
    agreement, owner = phrase.agreement, phrase.owner
    words, endings = [], german.STRONG
    match phrase.determiner:
        case "the":
            words, endings = [german.definite(agreement, case)], german.WEAK
        case "a" | "no" as stem:
            words, endings = [german.indefinite(_ARTICLES[stem], agreement, case)], german.MIXED
        case "own" if owner is not None:
            possessive = german.possessive_stem(owner.person, owner.agreement)
            words, endings = [german.indefinite(possessive, agreement, case)], german.MIXED
        case "this" | "every" | "all" as stem:
            words, endings = [german.pronominal(_DETERMINERS[stem], agreement, case)], german.WEAK
        case "many" | "some" | "several" as stem:
            words = [german.pronominal(_DETERMINERS[stem], agreement, case)]
        case "genitive" if isinstance(owner, NamePhrase):
            words = [owner.name.german + "s"]
        case "genitive":
            words, endings = [german.definite(agreement, case)], german.WEAK
        case "whose" if owner is not None:
            words = [german.relative_pronoun(owner.agreement, "gen")]
    return words, endings
