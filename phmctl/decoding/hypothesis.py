"""What a search finds: a finished output and its score. Imported by every engine, so torch is not."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One finished output."""

    tokens: list[int]  # the ids, without beginning and end of sentence
    score: float  # `log_prob` over the length penalty
    log_prob: float  # natural logarithm of the probability of `tokens` and the end of the sentence


def length_penalty(length: Any, alpha: float) -> Any:
    """Return ``((5 + length) / 6) ** alpha`` (Wu et al. 2016, eq. 14); `length`, a tensor or a number, counts EOS."""
    return ((5.0 + length) / 6.0) ** alpha
