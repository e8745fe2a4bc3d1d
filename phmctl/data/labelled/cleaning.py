"""Cleaning of labelled text: which examples are left out, with counts.

An example without a label is dropped from every split: nothing can be learned from it or scored on it. Otherwise valid
and test keep every example; of a text that is too long the first or the last tokens stay. Train loses examples with
an empty text, those that are too long, and those whose text stands in valid or test, whatever their label.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b

from phmctl.data.clean import (
    CUT,
    EMPTY_TEXT,
    HELD_OUT,
    ODD_ROW,
    OVER_LONG,
    UNLABELLED,
    Tally,
    clean_line,
    same_text,
    same_texts,
)
from phmctl.data.labelled.catalog import LabelledCleaning
from phmctl.data.labelled.readers import Example, ExampleSource, Labels, number_of


class HeldOutTexts:
    """The texts of valid and test, to find them again in train; as digests, since a test set may be large.

    Args:
        symmetric: whether the order of a pair's texts means nothing, so that it is found again swapped.
    """

    def __init__(self, *, symmetric: bool = False) -> None:
        self._symmetric = symmetric
        self._digests: set[bytes] = set()

    def add(self, texts: Sequence[str]) -> None:
        """Note the texts of an example."""
        self._digests.add(self._digest(texts))

    def __contains__(self, texts: Sequence[str]) -> bool:
        return self._digest(texts) in self._digests

    def _digest(self, texts: Sequence[str]) -> bytes:
        ordered = sorted(texts, key=same_text) if self._symmetric else texts
        return blake2b(same_texts(ordered), digest_size=12).digest()


class CleanExamples:
    """A split, cleaned and judged. Can be iterated again; the counts are of the last time.

    Args:
        examples: the split as it is read.
        settings: the card's.
        max_tokens: the longest text, in tokens.
        labels: the classes.
        held_out: the texts of valid and test, where the split is train; None for valid and test.

    Attributes:
        tally: what was read, kept, dropped and noted.
        classes: the examples of each class, of those that stay.
        lost: the reasons for which each class lost examples.
    """

    def __init__(
        self,
        examples: ExampleSource,
        settings: LabelledCleaning,
        max_tokens: int,
        labels: Labels,
        held_out: HeldOutTexts | None = None,
    ) -> None:
        self._examples = examples
        self._settings = settings
        self._max_tokens = max_tokens
        self._labels = labels
        self._numbers: Mapping[str | None, int] = {label: number for number, label in enumerate(labels)}
        self._held_out = held_out
        self.tally = Tally()
        self.classes: Counter[str] = Counter()
        self.lost: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def __iter__(self) -> Iterator[Example]:
        """Yield the examples that stay, their lengths not yet judged; raises :class:`DataError` for unknown labels."""
        self.tally = Tally()
        self.classes = Counter()
        self.lost.clear()
        for example in self._examples:
            self.tally.read += 1
            if not example.whole:
                self.tally.dropped[ODD_ROW] += 1
                continue
            if example.label is None:
                self.tally.dropped[UNLABELLED] += 1
                continue
            if example.label not in self._numbers:
                number_of(example, self._labels)
            cleaned = example._replace(texts=tuple(clean_line(text, self._settings) for text in example.texts))
            if self._stays(cleaned):
                yield cleaned

    def number(self, example: Example) -> int:
        """Return the number of an example's class."""
        return self._numbers[example.label]

    def fit(self, example: Example, tokens: Sequence[Sequence[int]]) -> list[Sequence[int]] | None:
        """Judge an example by its texts' tokens, and count the verdict.

        Returns:
            the tokens that are stored; None where the example is left out.
        """
        if max(map(len, tokens)) > self._max_tokens:
            train = self._held_out is not None
            if not self._object(example, OVER_LONG if train else CUT, keep=not train):
                return None
        self.tally.kept += 1
        self.classes[str(example.label)] += 1
        return [cut(each, self._max_tokens, self._settings) for each in tokens]

    def _stays(self, example: Example) -> bool:
        if not all(text.strip() for text in example.texts):
            return self._object(example, EMPTY_TEXT, keep=self._held_out is None)
        if self._held_out is not None and example.texts in self._held_out:
            return self._object(example, HELD_OUT, keep=self._settings.duplicates == "keep")
        return True

    def _object(self, example: Example, reason: str, *, keep: bool) -> bool:
        """Count an objection to an example, and return whether it stays all the same."""
        if not keep:
            self.lost[str(example.label)][reason] += 1
        return self.tally.objection(reason, keep=keep)


def cut(tokens: Sequence[int], longest: int, settings: LabelledCleaning) -> Sequence[int]:
    """Return the tokens of a text that stay if it is too long: the first or, as the card says, the last."""
    return tokens[:longest] if settings.keep == "start" else tokens[-longest:]
