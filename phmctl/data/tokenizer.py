"""Text to token ids and back: byte-level BPE and whole words, with the `tokenizers` library.

Tokens include the space before a word, and the first word gets one too, so that the concatenated tokens without the
first space are the raw text. The special tokens of :mod:`phmctl.data` have the ids 0 to 3 and never result from
text: ``<s>`` in a line is punctuation and a letter.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, cast

import tokenizers
from pydantic import BaseModel
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from phmctl.data import SPECIAL_TOKENS, UNK, Row
from phmctl.data.card import Cleaning
from phmctl.errors import DataError
from phmctl.storage import read_json_object, sha256_text, write_atomic

Algorithm = Literal["bpe", "word"]

BYTES = 256
SMALLEST_BPE = BYTES + len(SPECIAL_TOKENS)

_MIN_PAIRS = 2  # least occurrences of a pair that is merged, as in subword-nmt. Single occurrences memorise lines
# Each with the space before it: words with apostrophes, repetitions of a punctuation mark, other white space.
_WORD = r"[\p{L}\p{M}\p{N}_]+"
_PIECES = rf" ?(?:{_WORD}(?:['’]{_WORD})*|['’]{_WORD}|([^\p{{L}}\p{{M}}\p{{N}}_\s])\1*|[^\S ])| "

_LONGEST_WORD = 1000  # characters, because BPE training takes quadratic time in the length of a word
_LONG_WORD = re.compile(rf"(\S{{{_LONGEST_WORD}}})(?=\S)")

JOINT_FILE = "tokenizer.json"
SIDE_FILES = ("tokenizer.source.json", "tokenizer.target.json")


@dataclass(frozen=True)
class Tokenizer:
    """A vocabulary in the order of its ids, and the algorithm that splits text into its tokens."""

    algorithm: Algorithm
    vocabulary: Sequence[str]
    merges: Sequence[tuple[str, str]] = ()  # pairs of tokens that BPE joins, in the order of their application
    lowercase: bool = False

    @cached_property
    def engine(self) -> tokenizers.Tokenizer:
        """The library's pipeline. Special tokens are not registered in it, so that it never finds them in text."""
        ids = {token: index for index, token in enumerate(self.vocabulary)}
        if self.algorithm == "bpe":
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
        """Return the token ids of each text, without BOS or EOS, and [] for an empty text."""
        return [encoding.ids for encoding in self.engine.encode_batch_fast(list(texts))]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of token ids, without special tokens (unknown words are special tokens)."""
        text: str = self.engine.decode([int(index) for index in ids if index >= len(SPECIAL_TOKENS)])
        return text.removeprefix(" ")

    def engine_json(self) -> str:
        return str(self.engine.to_str())

    def save(self, path: Path) -> None:
        write_atomic(path, self.engine_json() + "\n")

    @classmethod
    def load(cls, path: Path) -> "Tokenizer":
        """Read a tokenizer's file. Raises DataError if it is damaged."""
        content = read_json_object(path, DataError, "restore it or prepare the data again")
        try:
            model = content["model"]
            vocabulary = sorted(model["vocab"], key=model["vocab"].__getitem__)
            if vocabulary[: len(SPECIAL_TOKENS)] != [*SPECIAL_TOKENS]:
                raise ValueError("its vocabulary does not begin with the special tokens")
            algorithm = cast("Algorithm", {"BPE": "bpe", "WordLevel": "word"}[model["type"]])
            lowercase = any(step["type"] == "Lowercase" for step in content["normalizer"]["normalizers"])
            tokenizer = cls(algorithm, vocabulary, _merges(model), lowercase=lowercase)
            tokenizer.encode([""])  # the library checks the merges
            return tokenizer
        except Exception as error:  # the library raises bare Exceptions
            reason = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
            raise DataError(f"{path} is damaged: {reason}. Restore it or prepare the data again") from error


def _merges(model: dict[str, Any]) -> list[tuple[str, str]]:
    return [(first, second) for first, second in model.get("merges", ())]


def train_tokenizer(
    texts: Iterable[str],
    algorithm: Algorithm,
    vocabulary: int,
    *,
    lowercase: bool = False,
    min_count: int | None = None,
) -> Tokenizer:
    """Learn a vocabulary of at most `vocabulary` token types. The order of the texts does not matter.

    BPE follows Sennrich et al. (2016), on bytes. Pairs with equal counts are merged in the order of their parts' ids.
    A word vocabulary has the most frequent words, those with equal counts in alphabetical order. Words need
    `min_count` occurrences (default 1), pairs that BPE joins as well (default 2).
    """
    if algorithm == "bpe" and vocabulary < SMALLEST_BPE:
        raise DataError(
            f"a BPE vocabulary of {vocabulary} is too small for {BYTES} bytes and {len(SPECIAL_TOKENS)} special "
            f"tokens. Set the vocabulary to {SMALLEST_BPE} or more"
        )
    engine = Tokenizer(algorithm, SPECIAL_TOKENS, lowercase=lowercase).engine
    size = vocabulary - len(SPECIAL_TOKENS)
    trainer: Any
    if algorithm == "word":
        trainer = trainers.WordLevelTrainer(vocab_size=size, min_frequency=min_count or 1, show_progress=False)
    else:
        trainer = trainers.BpeTrainer(
            vocab_size=size,
            min_frequency=min_count or _MIN_PAIRS,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
    shortened = (_LONG_WORD.sub(r"\1 ", text) if len(text) > _LONGEST_WORD else text for text in texts)
    engine.train_from_iterator(shortened, trainer)
    learned = json.loads(engine.to_str())["model"]
    tokens = [*SPECIAL_TOKENS, *sorted(learned["vocab"], key=learned["vocab"].__getitem__)]
    return Tokenizer(algorithm, tokens, _merges(learned), lowercase=lowercase)


@dataclass(frozen=True)
class TokenizerPair:
    """The tokenizers of source and target, the same object if the vocabulary is joint."""

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


def train_pair(
    rows: Iterable[Row],
    algorithm: Algorithm,
    vocabulary: int,
    *,
    joint: bool,
    lowercase: bool = False,
    min_count: int | None = None,
) -> TokenizerPair:
    """Learn a joint tokenizer, or one for each side. Each takes a pass over the rows."""
    learn = partial(
        train_tokenizer, algorithm=algorithm, vocabulary=vocabulary, lowercase=lowercase, min_count=min_count
    )
    if joint:
        tokenizer = learn(text for row in rows for text in row.texts)
        return TokenizerPair(tokenizer, tokenizer)
    return TokenizerPair(learn(row.texts[0] for row in rows), learn(row.texts[1] for row in rows))


_VOCABULARY_SETTINGS = ("tokenizer", "vocabulary", "joint")  # data settings that determine a vocabulary
OF_VOCABULARY = ("lowercase", "normalise", "min_count")  # cleaning settings that determine a vocabulary


@dataclass(frozen=True)
class Vocabulary:
    """The tokenizers of prepared data or of a run, with the settings by which they were learned."""

    origin: str  # the folder or the run's name
    tokenizers: TokenizerPair
    cleaning: Cleaning
    settings: Mapping[str, Any]

    @property
    def sha256(self) -> str:
        return sha256_text([self.tokenizers.source.engine_json(), self.tokenizers.target.engine_json()])

    def settings_for(self, section: type[BaseModel]) -> dict[str, Any]:
        """Return the vocabulary's settings and the longest text as keys of a data section."""
        settings = {"joint": self.tokenizers.joint, **self.settings}  # the settings of labelled text lack "joint"
        return {key: settings[key] for key in (*_VOCABULARY_SETTINGS, "max_tokens") if key in section.model_fields}

    def pair(self, data: BaseModel) -> TokenizerPair:
        """Return the tokenizers of the data's source and target, exchanged if the data has the opposite direction."""
        pair = self.tokenizers
        reversed_sides = self.settings.get("direction", "forward") != getattr(data, "direction", "forward")
        return TokenizerPair(pair.target, pair.source) if reversed_sides and not pair.joint else pair

    def check(self, data: BaseModel, cleaning: Cleaning) -> None:
        """Raise DataError if settings of the data contradict the vocabulary."""
        if not hasattr(data, "joint") and not self.tokenizers.joint:
            raise DataError(f"{self.origin} has one vocabulary for each side, but labelled text needs a joint one")
        learned = {**self.settings_for(type(data)), **self.cleaning.model_dump(include={*OF_VOCABULARY})}
        chosen = {**data.model_dump(), **cleaning.model_dump()}
        for key, expected in learned.items():
            if key != "max_tokens" and chosen[key] != expected:
                raise DataError(
                    f"{key}: the vocabulary of {self.origin} was learned with {expected!r}, not "
                    f"{chosen[key]!r}. Leave it out, or set this value in the recipe"
                )
