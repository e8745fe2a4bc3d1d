"""BLEU, chrF and TER by sacrebleu, each with the signature that says how it was computed.

Hypotheses are detokenised text, references are raw text; sacrebleu does its own tokenisation. Empty, equal and looping
answers, which show that a model answers without having read, are counted here too.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from phmctl.errors import UserError, nearest
from phmctl.metrics.classification import Part, Value

if TYPE_CHECKING:
    from phmctl.metrics.significance import Difference, Numbers, Scorer

USUAL, CHARACTERS = "13a", "char"
# What sacrebleu splits by where words have no blanks between them, or endings that are words; all others by 13a.
TOKENIZE = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab"} | dict.fromkeys(("th", "lo", "km", "my"), CHARACTERS)
_NO_BLANKS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # kana and Chinese characters
_LENGTHS = {0: "1–10", 10: "11–20", 20: "21–30", 30: "31–40", 40: "41+"}  # by the lower end, in words
# Of modern English 0.43 to 0.49 stand in Shakespeare's, of English 0.11 in the Romanian of the news, of German less.
_ONE_LANGUAGE = 1 / 3
_LOOP = re.compile(r"(?<!\S)(\S++(?: \S++){0,3}?)(?: \1){3}(?!\S)")
_FEW = 10  # equal answers to fewer lines may be right
_DISTINCT = 10_000  # answers of which so many are distinct are not degenerate


@dataclass(frozen=True)
class Score:
    """A corpus score: its name, its value (0 to 100; a TER may be above) and sacrebleu's signature."""

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Copy:
    """What whoever copies the source would reach: where both sides are one language, a model must be above it."""

    bleu: float  # of the source as the translation
    shared_words: float  # the share of the source's words that stand in their references, whatever their case

    @property
    def one_language(self) -> bool:
        """Whether both sides are evidently one language."""
        return self.shared_words >= _ONE_LANGUAGE

    def __str__(self) -> str:
        return f"copying the source scores {self.bleu:.2f} BLEU"


@dataclass(frozen=True)
class Bin:
    """BLEU over the sentences of which a number has this value, or lies in this range; None: it is not known."""

    value: Value
    sentences: int
    bleu: float


def usual_tokenizer(language: object) -> str:
    """What BLEU splits by in a language (its code, such as ``zh`` or ``zh-TW``; another says nothing).

    Where mecab is not installed, Japanese and Korean are split into characters; the signature says which.
    """
    name = TOKENIZE.get(re.split("[-_]", str(language).lower())[0], USUAL)
    if name.endswith("mecab"):
        try:
            check_tokenizer(name)
        except UserError:
            return CHARACTERS
    return name


class How(TypedDict, total=False):
    """How text is scored."""

    lowercase: bool
    tokenize: str  # BLEU's, of sacrebleu: ``13a``, ``zh``, ``ja-mecab``, ``flores200`` …
    others: Sequence[Sequence[str]]  # further references, each with a line for each hypothesis


def bleu(hypotheses: Sequence[str], references: Sequence[str], **how: Unpack[How]) -> Score:
    """BLEU with exponential smoothing, of detokenised translations and raw references."""
    return _score("BLEU", hypotheses, references, **how)


def all_scores(hypotheses: Sequence[str], references: Sequence[str], **how: Unpack[How]) -> list[Score]:
    """BLEU; chrF2 over characters 1 to 6; TER (lower is better), lower-cased as tercom does."""
    return [_score(name, hypotheses, references, **how) for name in ("BLEU", "chrF", "TER")]


def copy_baseline(sources: Sequence[str], references: Sequence[str], **how: Unpack[How]) -> Copy:
    words = shared = 0
    for source, *right in zip(sources, references, *how.get("others", ()), strict=True):
        own = _words(source)
        words += own.total()
        shared += max((own & _words(one)).total() for one in right)
    return Copy(bleu(sources, references, **how).value, shared / max(words, 1))


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool) -> list[float]:
    metric, pairs = _metric("chrF", None, lowercase=lowercase), zip(hypotheses, references, strict=True)
    return [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis, reference in pairs]


def looks_tokenised(references: Sequence[str]) -> bool:
    """Whether most references that end in a full stop have a blank before it, as tokenised text has."""
    full_stops = [line for line in references if line.endswith(".")]
    return 2 * sum(line.endswith(" .") for line in full_stops) > len(full_stops)


def length_parts(sources: Sequence[str]) -> list[Part]:
    """Return the rows of each length in words, by white space; a Chinese character is one."""
    rows: dict[int, list[int]] = {low: [] for low in _LENGTHS}
    for row, source in enumerate(sources):
        length = len(re.findall(rf"[{_NO_BLANKS}]|[^\s{_NO_BLANKS}]+", source))
        rows[max((low for low in _LENGTHS if low < length), default=0)].append(row)
    return [(_LENGTHS[low], own) for low, own in rows.items() if own]


def bleu_by(
    parts: Sequence[Part], hypotheses: Sequence[str], references: Sequence[str], **how: Unpack[How]
) -> list[Bin]:
    """BLEU over the sentences of each part."""
    found = []
    for value, rows in parts:
        texts = (hypotheses, references, *how.get("others", ()))
        given, right, *more = ([text[row] for row in rows] for text in texts)
        own: How = {**how, "others": more}
        found.append(Bin(value, len(rows), bleu(given, right, **own).value))
    return found


def paired_bootstrap(
    baseline: Sequence[str], system: Sequence[str], references: Sequence[str], **how: Unpack[How]
) -> dict[str, "Difference"]:
    """Compare two systems on the same sentences by paired bootstrap resampling (Koehn 2004), by BLEU and by chrF2.

    It is :func:`phmctl.metrics.significance.difference` of one training each. sacrebleu's own p is one-sided: it counts
    the samples of ``|d| - mean(|d|)``, which reach 5 % at 1.6 standard errors.
    """
    from phmctl.metrics.significance import difference

    found = {}
    for name in ("BLEU", "chrF2"):
        one, other = (text_scorer(name, [each], references, **how) for each in (baseline, system))
        found[name] = difference(one, other, len(references))
    return found


def text_scorer(name: str, systems: Sequence[Sequence[str]], references: Sequence[str], **how: Unpack[How]) -> "Scorer":
    """What scores trainings of one model on samples of the sentences, for :mod:`phmctl.metrics.significance`.

    `name` is as the metric's score has it (``BLEU``, ``chrF2``, ``TER``), `systems` the hypotheses of each training.
    """
    import numpy as np

    metric = _metric(name.rstrip("0123456789"), references, **how)
    for hypotheses in systems:
        _check(hypotheses, references)
    statistics = np.array([metric._extract_corpus_statistics(list(one), None) for one in systems], float)  # (S, N, K)

    def score(counts: "Numbers") -> "Numbers":
        sums = np.einsum("bn,snk->bsk", counts, statistics, optimize=True)
        return np.array([[metric._compute_score_from_stats(list(one)).score for one in sample] for sample in sums])

    return score


def check_tokenizer(name: str) -> None:
    """Refuse (UserError) a tokenizer that sacrebleu does not have, or that cannot be used here."""
    _metric("BLEU", None, tokenize=name)


def _metric(name: str, references: Sequence[str] | None, **how: Unpack[How]) -> Any:
    """The sacrebleu metric, with the references' statistics kept when they are given."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    right = None if references is None else [list(each) for each in (references, *how.get("others", ()))]
    lowercase, tokenize = how.get("lowercase", False), how.get("tokenize", USUAL)
    if name == "chrF":
        return CHRF(lowercase=lowercase, references=right)
    if name == "TER":
        text = "".join("".join(references or ()).split())
        no_blanks = 2 * len(re.findall(f"[{_NO_BLANKS}]", text)) > len(text)  # between words of most of it
        return TER(references=right, normalized=no_blanks, asian_support=no_blanks)
    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise UserError(f"--tokenize {tokenize}: sacrebleu has {known}{nearest(tokenize, BLEU.TOKENIZERS)}")
    try:  # `looks_tokenised` warns once instead of sacrebleu
        return BLEU(lowercase=lowercase, references=right, tokenize=tokenize, force=True)
    except (ImportError, RuntimeError, OSError) as error:  # a library, or a model that it would fetch
        reason = " ".join(str(error).split())
        raise UserError(f"--tokenize {tokenize}: {reason or type(error).__name__}") from error


def _score(name: str, hypotheses: Sequence[str], references: Sequence[str], **how: Unpack[How]) -> Score:
    for each in (references, *how.get("others", ())):
        _check(hypotheses, each)
    metric = _metric(name, references, **how)
    result = metric.corpus_score(list(hypotheses), None)
    return Score(result.name, float(result.score), str(metric.get_signature()))


def _check(texts: Sequence[str], references: Sequence[str]) -> None:
    if len(texts) != len(references):
        raise ValueError(f"{len(texts)} sentences stand against {len(references)} references")
    if not references:
        raise ValueError("no sentence to score")


class Degenerate:
    """Counts empty, equal and looping answers as they come."""

    def __init__(self, equal: float = 1.0) -> None:
        self._equal = equal
        self._asked = self._empty = self._looping = 0
        self._answers: Counter[str] = Counter()
        self._lines: set[str] = set()

    def add(self, lines: Sequence[str], answers: Sequence[str]) -> None:
        """Count the answers to some lines; of an empty line none is expected."""
        for line, answer in zip(lines, answers, strict=True):
            if not line.strip():
                continue
            self._asked += 1
            self._empty += not answer.strip()
            self._looping += loops(answer)
            if len(self._answers) < _DISTINCT:
                self._answers[answer] += 1
            if len(self._lines) < _FEW:
                self._lines.add(line)

    def remarks(self) -> Iterator[str]:
        """Yield what a person must know, in words; nothing of answers that look sound."""
        of = f"of {self._asked:,} answers"
        if self._empty:
            yield f"{self._empty:,} {of} are empty"
        if self._looping * 100 >= max(self._asked, 1):
            yield f"{self._looping:,} {of} repeat themselves: a few words come 4 times in a row or more"
        (answer, times), *_ = self._answers.most_common(1) or [("", 0)]
        if answer.strip() and len(self._lines) == _FEW and times >= self._equal * self._asked:
            shown = answer if len(answer) <= 60 else f"{answer[:59]}…"
            yield f"{times:,} {of} are the same: {shown!r}"


def loops(text: str) -> bool:
    """Return whether one to four words come four times in a row."""
    return _LOOP.search(" ".join(text.split())) is not None


def remarks(lines: Sequence[str], answers: Sequence[str], equal: float = 1.0) -> list[str]:
    """Return what a person must know of the answers to some lines; see :class:`Degenerate`."""
    counted = Degenerate(equal)
    counted.add(lines, answers)
    return list(counted.remarks())
