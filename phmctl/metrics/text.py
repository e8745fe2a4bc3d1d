"""BLEU, chrF and TER by sacrebleu, with signatures.

Hypotheses are detokenised text and references are raw text, because sacrebleu tokenises both.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from phmctl.errors import UserError, nearest
from phmctl.metrics.classification import ItemGroup, Value

if TYPE_CHECKING:  # numpy is imported only if systems are compared
    from phmctl.metrics.significance import Numbers, Scorer

_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")  # a language: de, pt-BR, zho_Hans
_SHORTEST = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko", "tha": "th"}
USUAL = "13a"
CHARACTERS = "char"
# sacrebleu's tokenizers for languages without blanks between words, and for Korean, whose suffixes are words
_TOKENIZERS = {"zh": "zh", "ja": "ja-mecab", "ko": "ko-mecab", "th": CHARACTERS}
_NO_BLANKS = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # kana and Chinese characters
# Ranges of the number of words, by the number below the range
_LENGTHS = {0: "1–10", 10: "11–20", 20: "21–30", 30: "31–40", 40: "41+"}
# From this share of source words in the reference on, both are one language. The share is 0.43 to 0.49 from modern to
# Shakespeare's English, 0.11 from English to Romanian news, less from German to English.
_ONE_LANGUAGE_SHARE = 1 / 3


@dataclass(frozen=True)
class CorpusScore:
    """A corpus score from 0 to 100 (TER can be higher) with sacrebleu's signature."""

    name: str
    value: float
    signature: str


@dataclass(frozen=True)
class Copy:
    """The score of copying the source: the baseline if source and target are the same language."""

    bleu: float
    shared_words: float  # share of the source's words that occur in the reference, ignoring case

    @property
    def one_language(self) -> bool:
        """Whether the share of common words shows that source and target are the same language."""
        return self.shared_words >= _ONE_LANGUAGE_SHARE

    def __str__(self) -> str:
        return f"copying the source scores {self.bleu:.2f} BLEU"


@dataclass(frozen=True)
class Bin:
    """BLEU of the sentences with the same value, or with a value in the same range."""

    value: Value
    sentences: int
    bleu: float


def is_code(text: str) -> bool:
    """Return whether a text has the form of a language's code."""
    return _CODE.fullmatch(text) is not None


def language(code: object) -> str:
    """Return a code without script and region, of Chinese, Japanese, Korean and Thai with two letters."""
    main = re.split("[-_]", str(code).lower())[0]
    return _SHORTEST.get(main, main)


def usual_tokenizer(code: object) -> str:
    """Return sacrebleu's tokenizer for a language's code such as ``zh``, ``zh-TW`` or ``zho_Hans``.

    Japanese and Korean are split into characters if mecab is not installed.
    """
    name = _TOKENIZERS.get(language(code), USUAL)
    if name.endswith("mecab"):
        try:
            check_tokenizer(name)
        except UserError:
            return CHARACTERS
    return name


class ScoreOptions(TypedDict, total=False):
    """Options of text scores."""

    lowercase: bool
    tokenize: str  # sacrebleu's tokenizer for BLEU: ``13a``, ``zh``, ``ja-mecab``, ``flores200`` …
    other_references: Sequence[Sequence[str]]  # additional references, each with one line per hypothesis


def _reference_sets(references: Sequence[str], options: ScoreOptions) -> list[Sequence[str]]:
    return [references, *options.get("other_references", ())]


def bleu(hypotheses: Sequence[str], references: Sequence[str], **options: Unpack[ScoreOptions]) -> CorpusScore:
    """Return BLEU with exponential smoothing."""
    return _score("BLEU", hypotheses, references, **options)


def all_scores(
    hypotheses: Sequence[str], references: Sequence[str], **options: Unpack[ScoreOptions]
) -> list[CorpusScore]:
    """Return BLEU, chrF2 over 1 to 6 characters, and TER (lower is better), which is lower-cased as in tercom."""
    return [_score(name, hypotheses, references, **options) for name in ("BLEU", "chrF", "TER")]


def copy_baseline(sources: Sequence[str], references: Sequence[str], **options: Unpack[ScoreOptions]) -> Copy:
    """Return the BLEU of the sources, and the share of the words that are in the reference with most of them."""
    words = shared = 0
    for source, *alternatives in zip(sources, *_reference_sets(references, options), strict=True):
        counts = _words(source)
        words += counts.total()
        shared += max((counts & _words(alternative)).total() for alternative in alternatives)
    return Copy(bleu(sources, references, **options).value, shared / max(words, 1))


def _words(text: str) -> Counter[str]:
    return Counter(re.findall(r"\w+", text.lower()))


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool) -> list[float]:
    metric = _metric("chrF", None, lowercase=lowercase)
    pairs = zip(hypotheses, references, strict=True)
    return [float(metric.sentence_score(hypothesis, [reference]).score) for hypothesis, reference in pairs]


def looks_tokenised(references: Sequence[str]) -> bool:
    """Return whether most final full stops follow a blank, as in tokenised text."""
    full_stops = [line for line in references if line.endswith(".")]
    return 2 * sum(line.endswith(" .") for line in full_stops) > len(full_stops)


def length_parts(sources: Sequence[str]) -> list[ItemGroup]:
    """Group sentences by the number of words. Each Chinese character and each kana counts as a word."""
    groups: dict[int, list[int]] = {lower: [] for lower in _LENGTHS}
    for row, source in enumerate(sources):
        length = len(re.findall(rf"[{_NO_BLANKS}]|[^\s{_NO_BLANKS}]+", source))
        group = max((lower for lower in _LENGTHS if lower < length), default=0)
        groups[group].append(row)
    return [(_LENGTHS[lower], rows) for lower, rows in groups.items() if rows]


def bleu_by(
    parts: Sequence[ItemGroup], hypotheses: Sequence[str], references: Sequence[str], **options: Unpack[ScoreOptions]
) -> list[Bin]:
    """Return the BLEU of each group of sentences."""
    bins = []
    for value, rows in parts:
        part_hypotheses = [hypotheses[row] for row in rows]
        part_references = [[lines[row] for row in rows] for lines in _reference_sets(references, options)]
        part_options = options.copy()
        part_options["other_references"] = part_references[1:]
        bins.append(Bin(value, len(rows), bleu(part_hypotheses, part_references[0], **part_options).value))
    return bins


def text_scorer(
    name: str, systems: Sequence[Sequence[str]], references: Sequence[str], **options: Unpack[ScoreOptions]
) -> "Scorer":
    """Return the function that scores a model's trainings, one of `systems` each, on samples of the sentences."""
    import numpy as np

    metric = _metric(name.rstrip("0123456789"), references, **options)  # the 2 of chrF2 is its default
    for hypotheses in systems:
        _check(hypotheses, references)
    statistics = [metric._extract_corpus_statistics(list(hypotheses), None) for hypotheses in systems]
    sentence_statistics = np.array(statistics, float)  # (S trainings, N sentences, K)

    def score(counts: "Numbers") -> "Numbers":
        """Return the scores, (B, S), of samples that contain each sentence `counts` times, (B, N)."""
        sums = np.einsum("bn,snk->bsk", counts, sentence_statistics, optimize=True)
        scores = [metric._compute_score_from_stats(list(total)).score for sample in sums for total in sample]
        return np.array(scores).reshape(sums.shape[:2])

    return score


def check_tokenizer(name: str) -> None:
    """Raise UserError if sacrebleu lacks the tokenizer or the tokenizer's library."""
    _metric("BLEU", None, tokenize=name)


def _metric(name: str, references: Sequence[str] | None, **options: Unpack[ScoreOptions]) -> Any:
    """Return a sacrebleu metric, which caches the statistics of `references`."""
    from sacrebleu.metrics import BLEU, CHRF, TER

    streams = None if references is None else [list(lines) for lines in _reference_sets(references, options)]
    lowercase = options.get("lowercase", False)
    tokenize = options.get("tokenize", USUAL)
    if name == "chrF":
        return CHRF(lowercase=lowercase, references=streams)
    if name == "TER":
        text = "".join("".join(references or ()).split())
        no_blanks = 2 * len(re.findall(f"[{_NO_BLANKS}]", text)) > len(text)
        return TER(references=streams, normalized=no_blanks, asian_support=no_blanks)
    if tokenize not in BLEU.TOKENIZERS:
        known = ", ".join(sorted(BLEU.TOKENIZERS))
        raise UserError(f"tokenize={tokenize}: sacrebleu has {known}{nearest(tokenize, BLEU.TOKENIZERS)}")
    try:  # force: `looks_tokenised` replaces sacrebleu's warning
        return BLEU(lowercase=lowercase, references=streams, tokenize=tokenize, force=True)
    except (ImportError, RuntimeError, OSError) as error:  # a missing library, or a model that it cannot download
        reason = " ".join(str(error).split())
        raise UserError(f"tokenize={tokenize}: {reason or type(error).__name__}") from error


def _score(
    name: str, hypotheses: Sequence[str], references: Sequence[str], **options: Unpack[ScoreOptions]
) -> CorpusScore:
    for lines in _reference_sets(references, options):
        _check(hypotheses, lines)
    metric = _metric(name, references, **options)
    result = metric.corpus_score(list(hypotheses), None)
    return CorpusScore(result.name, float(result.score), str(metric.get_signature()))


def _check(hypotheses: Sequence[str], references: Sequence[str]) -> None:
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses do not match {len(references)} references")
    if not references:
        raise ValueError("no sentence to score")
