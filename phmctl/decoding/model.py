"""A trained model that answers: what ``decode``, ``serve`` and :func:`phmctl.load` ask."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from phmctl.errors import DataError, UserError

if TYPE_CHECKING:
    from torch import Tensor

    from phmctl.decoding.translator import Translation
    from phmctl.exports import Export
    from phmctl.runs import Run

Texts = Sequence[str | Sequence[str]]
Advance = Callable[[int], None]  # is told how many more lines are done
Line = tuple[str, dict[str, Any]]  # an answer as ``decode`` writes it: its text, and what ``--json`` says of it


def ignore(count: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Classified:
    """What a classifier answers to one example."""

    label: str  # the most probable class; empty for an empty text
    # that of each class, 0 to 1, in the order of the model's labels; they sum to 1. An empty text has none
    probabilities: Mapping[str, float]
    cut: bool = False  # whether a text was longer than the model knows, so that only a part of it was read

    @property
    def probability(self) -> float:
        """That of the label; 0 for an empty text."""
        return self.probabilities.get(self.label, 0.0)


class Model:
    """A trained model, ready to answer; :func:`phmctl.load` makes one.

    What a program asks prints nothing and changes nothing global. It may be used by many threads at once: nothing that
    an answer depends on changes after loading. A method that the task does not have is a
    :class:`~phmctl.errors.UserError` that names those it has.

    Attributes:
        name: ``<recipe>/<variant>/<version>`` of the run that it comes from.
        task: ``translation`` or ``classification``.
        max_tokens: the longest text that the model knows, as :meth:`lengths` counts; None is no limit.
    """

    answers: Sequence[str] = ()  # the methods that this model has
    max_tokens: int | None = None
    verb = "answering"  # what ``decode`` does to lines, for the progress bar

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = about
        self.name, self.task = str(about["name"]), str(about["task"])

    def __repr__(self) -> str:
        return f"<phmctl model {self.name}: {', '.join(self.answers)}>"

    def about(self) -> dict[str, Any]:
        """Return what the model is, as JSON values: name, task, folder, checkpoint, engine, device, settings.

        ``methods`` names what can be asked of it, ``vectors`` says what :meth:`encode` returns. A translator has its
        ``decoding``; a classifier ``labels``, and ``texts``, how many an example has.
        """
        return {**self._about, "methods": list(self.answers)}

    def lengths(self, texts: Texts) -> list[int]:
        """Return the tokens of each text, without an end of sentence; of a pair those of the longer one."""
        raise self._lacks("lengths")

    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        strict: bool = False,
    ) -> "list[list[Translation]]":
        """Translate texts by beam search.

        Args:
            texts: N texts, each one line; they are cleaned as the training text was.
            beam: live prefixes a sentence; 1 is greedy. The recipe's where None.
            alpha: exponent of the length penalty. The recipe's where None.
            n_best: translations wanted a text, at most `beam`.
            strict: refuse a text that is longer than the model knows; otherwise its beginning is translated, and
                ``cut`` of the translations says so.

        Returns:
            N lists of at most `n_best` translations, best first. A text without a token has one empty translation.

        Raises:
            UserError: this is no translator, `texts` is no list of strings, or `n_best` is larger than the beam.
            RecipeError: `beam` or `alpha` is out of range.
            DataError: a text is too long and `strict` is set, or it is no Unicode text.
        """
        raise self._lacks("translate")

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Return the log-probability that the model gives each target as the translation of its source.

        It is the sum over the target's tokens and its end, in natural logarithms (forced decoding): what
        ``log_prob`` is of a translation that the model finds itself. An empty source has one translation, the empty
        one: its score is 0, that of any other text −∞.

        Args:
            sources: N texts.
            targets: N texts. A word that the target's vocabulary does not have is scored as the unknown word.

        Raises:
            UserError: this is no translator, its engine gives no scores, or the lists are not of one length.
            DataError: a source is longer than the model knows.
        """
        raise self._lacks("score")

    def classify(self, texts: Texts, *, strict: bool = False) -> list[Classified]:
        """Return the label of each text, or of each pair of texts.

        Args:
            texts: N texts, or N pairs where the classifier reads pairs: ``[("one", "two"), …]``.
            strict: refuse a text that is longer than the model knows; otherwise a part of it is read, and ``cut`` says
                so.

        Raises:
            UserError: this is no classifier, or it reads pairs where texts are given, or the other way round.
            DataError: a text is too long and `strict` is set, or it is no Unicode text.
        """
        raise self._lacks("classify")

    def encode(self, texts: Sequence[str]) -> "Tensor":
        """Return a vector for each text, (N, d) float32 on the CPU.

        Of a translator it is the mean of the encoder's states over all positions, the end of sentence among them; of
        an encoder classifier the vector that the label is read from (the recipe's ``pooling``); of a pair classifier
        the maximum and the mean over time of the LSTM's states, side by side. A text without a token gives zeros.
        The beginning of a text that is longer than the model knows is encoded (of a classifier: what its card keeps).

        Raises UserError where the model's engine gives no states.
        """
        raise self._lacks("encode")

    def answer(self, lines: Sequence[str], *, first: int = 1, advance: Advance = ignore) -> list[Line]:
        """Return the answer to each line, for ``decode``; `first` is the first one's number. What is cut is told."""
        raise self._lacks("answer")

    def _lacks(self, method: str) -> UserError:
        has = ", ".join(self.answers) or "none of them"
        return UserError(f"{method}: {self.name}, a model of task {self.task!r}, does not have it; it has {has}")


def about_run(run: "Run", checkpoint: str) -> dict[str, Any]:
    """Return what every model says of the run that it comes from; see :meth:`Model.about`."""
    weights = run.weights(checkpoint)
    return {"name": run.name, "task": run.recipe.task, "folder": str(run.folder), "checkpoint": weights.name}


def check_export(run: "Export", checkpoint: str, device: str, **own: str | None) -> None:
    """Verify an export's files; refuse (UserError) what it cannot do, and options that it has settled by itself."""
    run.checkpoint(checkpoint)
    for option, value in own.items():
        if value is not None:
            raise UserError(f"--{option} {value}: {run.folder} has its own; leave it out, or answer with the run")
    if run.engine != "torch" and device not in ("auto", "cpu"):
        raise UserError(f"--device {device}: an export to {run.to} runs on the CPU here; leave it out")
    run.verify()


def check_texts(texts: Texts, name: str = "texts") -> list[str]:
    """Return texts as a list. Raises UserError: they are no list of strings; DataError: one is no Unicode text."""
    found = [text for text in texts if isinstance(text, str)]
    if isinstance(texts, str) or len(found) != len(texts):
        raise UserError(f"{name}: want a list of strings; of one text write [text]")
    try:
        "".join(found).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{name}: one has a lone surrogate in it, half of a character") from error
    return found
