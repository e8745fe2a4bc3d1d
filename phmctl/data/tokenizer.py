"""Text to token ids and back: byte-level BPE and whole words, through the `tokenizers` library.

Both kinds keep the space in front of a word as part of its token (the first word gets one too), so joining tokens and
taking the first space off gives the raw text back. The special tokens of :mod:`phmctl.data.special` hold ids 0 to 3 and
are never made from text: ``<s>`` in a line is punctuation and a letter.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, model_validator

from phmctl.data.rows import Row
from phmctl.data.special import SPECIAL_TOKENS, UNK
from phmctl.errors import DataError
from phmctl.files import read_json_object, write_atomic

if TYPE_CHECKING:
    import tokenizers

Kind = Literal["bpe", "word"]

BYTES = 256
SMALLEST_BPE = BYTES + len(SPECIAL_TOKENS)

_MIN_PAIRS = 2  # a merge seen once memorises a line; subword-nmt stops there too
# With the space before it: a word with its apostrophes, a run of one punctuation mark, another kind of space.
_WORD = r"[\p{L}\p{M}\p{N}_]+"
_PIECES = rf" ?(?:{_WORD}(?:['’]{_WORD})*|['’]{_WORD}|([^\p{{L}}\p{{M}}\p{{N}}_\s])\1*|[^\S ])| "

_LONGEST_WORD = 1000
_LONG_WORD = re.compile(rf"(\S{{{_LONGEST_WORD}}})(?=\S)")

JOINT_FILE = "tokenizer.json"
SIDE_FILES = ("tokenizer.source.json", "tokenizer.target.json")


class Tokenizer:
    """A vocabulary, in the order of its ids, and the rule that splits text into it; merges are the pairs BPE joins."""

    def __init__(
        self, kind: Kind, vocabulary: Sequence[str], merges: Sequence[tuple[str, str]] = (), *, lowercase: bool = False
    ) -> None:
        self.kind: Kind = kind
        self.lowercase = lowercase
        self.vocabulary = list(vocabulary)
        self.merges = list(merges)
        self._engine = _engine(kind, vocabulary, merges, lowercase)

    def __eq__(self, other: object) -> bool:
        """Whether the other makes the same ids of every text."""
        return isinstance(other, Tokenizer) and self.engine_json() == other.engine_json()

    def __hash__(self) -> int:
        return hash((self.kind, self.lowercase, self.size))

    @property
    def size(self) -> int:
        return len(self.vocabulary)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without BOS or EOS. An empty text gives an empty list."""
        return [encoding.ids for encoding in self._engine.encode_batch_fast(list(texts))]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of a sequence of ids. Special tokens, the unknown word included, leave nothing behind."""
        text: str = self._engine.decode([int(index) for index in ids if index >= len(SPECIAL_TOKENS)])
        return text.removeprefix(" ")

    def engine_json(self) -> str:
        return str(self._engine.to_str())

    def save(self, path: Path) -> None:
        write_atomic(path, self.engine_json() + "\n")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        content = read_json_object(path, DataError, "restore it or prepare anew")
        if "model" not in content:
            raise DataError(f"{path} is no tokenizer that this version of phmctl can read; prepare anew")
        try:
            stored = _Stored.model_validate(_parts_of(content))
            found = cls(stored.kind, stored.vocabulary, stored.merges, lowercase=stored.lowercase)
            if not _alike(json.loads(found.engine_json()), content):
                raise ValueError("it splits text as none of phmctl's does")
            return found
        except Exception as error:  # the library raises bare Exceptions
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise DataError(f"{path} is damaged: {reason}; restore it or prepare anew") from error


class _Stored(BaseModel):
    """What a tokenizer's file holds. What the library does not check would end in a panic, or in wrong ids."""

    kind: Kind
    vocabulary: Annotated[list[str], Field(max_length=10**7)]
    merges: list[tuple[str, str]]
    lowercase: Annotated[bool, Field(strict=True)]

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        known = set(self.vocabulary)
        if len(known) < len(self.vocabulary) or self.vocabulary[: len(SPECIAL_TOKENS)] != [*SPECIAL_TOKENS]:
            raise ValueError("the vocabulary is not that of special tokens and different others")
        if any(not {left, right, left + right} <= known for left, right in self.merges):
            raise ValueError("a merge is of what is no token")
        return self


def _parts_of(content: dict[str, Any]) -> dict[str, Any]:
    model = content["model"]
    ids: dict[str, int] = model["vocab"]
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError("its ids are not 0, 1, 2, ...")
    return {
        "kind": {"BPE": "bpe", "WordLevel": "word"}[model["type"]],
        "vocabulary": sorted(ids, key=ids.__getitem__),
        "merges": _pairs(model),
        "lowercase": any(step["type"] == "Lowercase" for step in content["normalizer"]["normalizers"]),
    }


def _alike(ours: Any, theirs: Any) -> bool:
    """Whether two pipelines are the same in all that both name: versions of the library name more or less."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(_alike(ours[key], theirs[key]) for key in ours.keys() & theirs.keys() - {"vocab", "merges"})
    return bool(ours == theirs)


def train_tokenizer(
    texts: Iterable[str], kind: Kind, vocabulary: int, *, lowercase: bool = False, min_count: int | None = None
) -> Tokenizer:
    """Learn a vocabulary of at most so many token types. The same texts, in any order, give the same tokenizer.

    BPE after Sennrich et al. (2016), on bytes; pairs with equal counts are merged in the order of their parts' ids.
    Words: the most frequent ones, those with equal counts in alphabetical order. A word must occur `min_count` times,
    by default once; a pair that BPE joins, twice.
    """
    if kind == "bpe" and vocabulary < SMALLEST_BPE:
        raise DataError(
            f"a BPE vocabulary of {vocabulary} does not hold the {BYTES} bytes and {len(SPECIAL_TOKENS)} special "
            f"tokens; set the vocabulary to {SMALLEST_BPE} or more"
        )
    from tokenizers import pre_tokenizers, trainers

    engine = _engine(kind, SPECIAL_TOKENS, (), lowercase)
    how: dict[str, Any] = {"vocab_size": vocabulary - len(SPECIAL_TOKENS), "show_progress": False}
    if kind == "word":
        trainer: Any = trainers.WordLevelTrainer(min_frequency=min_count or 1, **how)
    else:
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        trainer = trainers.BpeTrainer(min_frequency=min_count or _MIN_PAIRS, initial_alphabet=alphabet, **how)
    # Words of 1,000 characters at most: learning BPE takes the square of a word's length.
    short = (_LONG_WORD.sub(r"\1 ", text) if len(text) > _LONGEST_WORD else text for text in texts)
    engine.train_from_iterator(short, trainer)
    learned = json.loads(engine.to_str())["model"]
    tokens = [*SPECIAL_TOKENS, *sorted(learned["vocab"], key=learned["vocab"].__getitem__)]
    return Tokenizer(kind, tokens, _pairs(learned), lowercase=lowercase)


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of both sides; one object twice when the vocabulary is joint."""

    source: Tokenizer
    target: Tokenizer

    @property
    def joint(self) -> bool:
        return self.source is self.target

    def save(self, folder: Path) -> None:
        if self.joint:
            self.source.save(folder / JOINT_FILE)
            return
        for name, tokenizer in zip(SIDE_FILES, (self.source, self.target), strict=True):
            tokenizer.save(folder / name)

    @classmethod
    def load(cls, folder: Path) -> "TokenizerPair":
        if (folder / JOINT_FILE).is_file() or not (folder / SIDE_FILES[0]).is_file():
            joint = Tokenizer.load(folder / JOINT_FILE)
            return cls(joint, joint)
        source, target = (Tokenizer.load(folder / name) for name in SIDE_FILES)
        return cls(source, target)


def train_pair(rows: Iterable[Row], kind: Kind, vocabulary: int, *, joint: bool, **how: Any) -> TokenizerPair:
    """Learn the tokenizers of rows' texts, which are gone through once a vocabulary: one if `joint`, or one a side."""

    def learn(texts: Iterable[str]) -> Tokenizer:
        return train_tokenizer(texts, kind, vocabulary, **how)

    if joint:
        both = learn(text for row in rows for text in row.texts)
        return TokenizerPair(both, both)
    return TokenizerPair(learn(row.texts[0] for row in rows), learn(row.texts[1] for row in rows))


def _engine(
    kind: Kind, vocabulary: Sequence[str], merges: Sequence[tuple[str, str]], lowercase: bool
) -> "tokenizers.Tokenizer":
    """Build the library's pipeline. It knows no special tokens as such, so that none is found in text."""
    import tokenizers
    from tokenizers import decoders, models, normalizers, pre_tokenizers

    ids = {token: index for index, token in enumerate(vocabulary)}
    if kind == "bpe":
        engine = tokenizers.Tokenizer(models.BPE(ids, list(merges)))
        engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        engine.decoder = decoders.ByteLevel()
    elif kind == "word":
        engine = tokenizers.Tokenizer(models.WordLevel(ids, SPECIAL_TOKENS[UNK]))
        engine.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(_PIECES), "isolated")
        engine.decoder = decoders.Fuse()
    else:
        raise DataError(f"no tokenizer is called {kind!r}; choose bpe or word")
    lower = [normalizers.Lowercase()] if lowercase else []
    engine.normalizer = normalizers.Sequence([*lower, normalizers.Prepend(" ")])
    return engine


def _pairs(learned: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the merges of a serialised model; older libraries wrote a pair as one string with a space."""
    merges = (pair.split(" ") if isinstance(pair, str) else pair for pair in learned.get("merges", ()))
    return [(left, right) for left, right in merges]
