"""Text to token ids and back: byte-level BPE and whole words, through the `tokenizers` library.

Both kinds keep the space in front of a word as part of its token (the first word gets one too), so joining tokens and
taking the first space off gives the raw text back. The special tokens of :mod:`phmctl.data.special` hold ids 0 to 3 and
are never made from text: ``<s>`` in a line is punctuation and a letter.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, cast

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from phmctl.data.rows import Row
from phmctl.data.special import SPECIAL_TOKENS, UNK
from phmctl.errors import DataError
from phmctl.files import read_json_object, write_atomic

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


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary, in the order of its ids, and the rule that splits text into it; merges are the pairs BPE joins."""

    kind: Kind
    vocabulary: Sequence[str]
    merges: Sequence[tuple[str, str]] = ()
    lowercase: bool = False

    @cached_property
    def engine(self) -> tokenizers.Tokenizer:
        """The library's pipeline. It knows no special tokens as such, so that none is found in text."""
        ids = {token: index for index, token in enumerate(self.vocabulary)}
        if self.kind == "bpe":
            engine = tokenizers.Tokenizer(models.BPE(ids, list(self.merges)))
            engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            engine.decoder = decoders.ByteLevel()
        else:
            engine = tokenizers.Tokenizer(models.WordLevel(ids, SPECIAL_TOKENS[UNK]))
            engine.pre_tokenizer = pre_tokenizers.Split(tokenizers.Regex(_PIECES), "isolated")
            engine.decoder = decoders.Fuse()
        lower = [normalizers.Lowercase()] if self.lowercase else []
        engine.normalizer = normalizers.Sequence([*lower, normalizers.Prepend(" ")])
        return engine

    @property
    def size(self) -> int:
        return len(self.vocabulary)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text, without BOS or EOS. An empty text gives an empty list."""
        return [encoding.ids for encoding in self.engine.encode_batch_fast(list(texts))]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of a sequence of ids. Special tokens, the unknown word included, leave nothing behind."""
        text: str = self.engine.decode([int(index) for index in ids if index >= len(SPECIAL_TOKENS)])
        return text.removeprefix(" ")

    def engine_json(self) -> str:
        return str(self.engine.to_str())

    def save(self, path: Path) -> None:
        write_atomic(path, self.engine_json() + "\n")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a tokenizer's file; raises DataError for one that phmctl would not have written."""
        content = read_json_object(path, DataError, "restore it or prepare anew")
        try:
            model = content["model"]
            vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
            if vocabulary[: len(SPECIAL_TOKENS)] != [*SPECIAL_TOKENS]:
                raise ValueError("its vocabulary does not begin with the special tokens")
            if [model["vocab"][token] for token in vocabulary] != list(range(len(vocabulary))):
                raise ValueError("its ids are not 0, 1, 2, ...")
            kind = cast("Kind", {"BPE": "bpe", "WordLevel": "word"}[model["type"]])
            lowercase = any(step["type"] == "Lowercase" for step in content["normalizer"]["normalizers"])
            found = cls(kind, vocabulary, _merges(model), lowercase=lowercase)
            if not _alike(json.loads(found.engine_json()), content):
                raise ValueError("it splits text as none of phmctl's does")
            return found
        except Exception as error:  # the library raises bare Exceptions
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise DataError(f"{path} is damaged: {reason}; restore it or prepare anew") from error


def _merges(model: dict[str, Any]) -> list[tuple[str, str]]:
    return [(left, right) for left, right in model.get("merges", ())]


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
    engine = Tokenizer(kind, SPECIAL_TOKENS, lowercase=lowercase).engine
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
    return Tokenizer(kind, tokens, _merges(learned), lowercase=lowercase)


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
