"""The interface of a loaded model, which ``decode``, ``serve`` and :func:`phmctl.load` use."""

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
Advance = Callable[[int], None]  # called with the number of lines that were answered since the last call
Line = tuple[str, dict[str, Any]]  # an answer of ``decode``: its text, and its JSON object


def ignore(count: int) -> None:
    """Do not report progress."""


@dataclass(frozen=True, slots=True)
class Classified:
    """A classifier's answer to one example."""

    label: str  # the most probable class; empty for an empty text
    probabilities: Mapping[str, float]  # class -> probability, in the order of the model's labels; empty for no text
    cut: bool = False  # True if a text exceeded the model's limit and only a part of it was read

    @property
    def probability(self) -> float:
        """The probability of the label; 0 for an empty text."""
        return self.probabilities.get(self.label, 0.0)


class Model:
    """A trained model that is ready to answer; :func:`phmctl.load` returns one.

    The methods print nothing and change no global state. Several threads may call them at once, because a loaded model
    never changes. A method that the task lacks raises a :class:`~phmctl.errors.UserError` that lists the available
    methods.

    Attributes:
        name: ``<recipe>/<variant>/<version>`` of the model's run.
        task: ``translation`` or ``classification``.
        max_tokens: maximum length of a text in tokens, as counted by :meth:`lengths`; None: no limit.
    """

    answers: Sequence[str] = ()  # names of the available methods
    max_tokens: int | None = None
    verb = "answering"  # label of the progress bar of ``decode``

    def __init__(self, about: Mapping[str, Any]) -> None:
        self._about = about
        self.name = str(about["name"])
        self.task = str(about["task"])

    def __repr__(self) -> str:
        return f"<phmctl model {self.name}: {', '.join(self.answers)}>"

    def about(self) -> dict[str, Any]:
        """Return a description as JSON values: name, task, folder, checkpoint, engine, device, settings.

        ``methods`` lists the available methods; ``vectors`` describes the result of :meth:`encode`. A translator adds
        its ``decoding`` settings, a classifier its ``labels`` and the number of ``texts`` in an example.
        """
        return {**self._about, "methods": list(self.answers)}

    def lengths(self, texts: Texts) -> list[int]:
        """Return the number of tokens of each text, without EOS; the longer text counts in a pair."""
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
        """Return the translations of each text, best first, by beam search.

        Args:
            texts: N texts of one line each; they are cleaned like the training text.
            beam: live prefixes of each sentence; 1 is greedy search; None: the recipe's value.
            alpha: exponent of the length penalty; None: the recipe's value.
            n_best: number of translations of each text, at most `beam`.
            strict: raise an error if a text is longer than `max_tokens`. By default its beginning is translated, and
                the translations have ``cut`` set.

        Returns:
            N lists of at most `n_best` translations, best first. A text without tokens has one empty translation.

        Raises:
            UserError: the model is not a translator, `texts` is not a list of strings, or `n_best` exceeds the beam.
            RecipeError: `beam` or `alpha` is out of range.
            DataError: a text is too long and `strict` is set, or a text is not valid Unicode.
        """
        raise self._lacks("translate")

    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Return the log-probability of each target as the translation of its source (forced decoding).

        It is the sum of the natural logarithms over the target's tokens and EOS, like ``log_prob`` of a translation.
        The only translation of an empty source is the empty text: its score is 0, and any other text scores −∞.

        Args:
            sources: N texts.
            targets: N texts. A word outside the target vocabulary is scored as the unknown word.

        Raises:
            UserError: the model is not a translator, its engine cannot score, or the lists differ in length.
            DataError: a source is longer than `max_tokens`.
        """
        raise self._lacks("score")

    def classify(self, texts: Texts, *, strict: bool = False) -> list[Classified]:
        """Return the label of each text, or of each pair of texts.

        Args:
            texts: N texts, or N pairs if the classifier reads pairs: ``[("one", "two"), …]``.
            strict: raise an error if a text is longer than `max_tokens`. By default a part of it is read, and the
                answer has ``cut`` set.

        Raises:
            UserError: the model is not a classifier, or an example has the wrong number of texts.
            DataError: a text is too long and `strict` is set, or a text is not valid Unicode.
        """
        raise self._lacks("classify")

    def encode(self, texts: Sequence[str]) -> "Tensor":
        """Return a vector for each text, (N, d) float32 on the CPU.

        A translator returns the mean of the encoder's states over all positions, including EOS. An encoder classifier
        returns the input of its output layer (the recipe's ``pooling``). A pair classifier concatenates the maximum
        and the mean of the LSTM's states over time. A text without tokens gives zeros. Long texts are truncated to
        their beginning (by a classifier to the part that its card keeps).

        Raises UserError if the engine cannot return encoder states.
        """
        raise self._lacks("encode")

    def answer(self, lines: Sequence[str], *, first: int = 1, advance: Advance = ignore) -> list[Line]:
        """Return the answer to each line, for ``decode``. Warnings count lines from `first`."""
        raise self._lacks("answer")

    def _lacks(self, method: str) -> UserError:
        methods = ", ".join(self.answers) or "none"
        return UserError(f"{self.name} (task {self.task!r}) has no method {method!r}; available methods: {methods}")


def about_run(run: "Run", checkpoint: str) -> dict[str, Any]:
    """Return the run's part of :meth:`Model.about`."""
    weights = run.weights(checkpoint)
    return {"name": run.name, "task": run.recipe.task, "folder": str(run.folder), "checkpoint": weights.name}


def check_export(run: "Export", checkpoint: str, device: str, precision: str | None = None) -> None:
    """Verify an export's files. Raises UserError if an option does not apply to the export."""
    run.checkpoint(checkpoint)
    if precision is not None:
        raise UserError(f"--precision {precision}: {run.folder} has a fixed precision; leave it out, or use the run")
    if run.engine != "torch" and device not in ("auto", "cpu"):
        raise UserError(f"--device {device}: an export to {run.to} runs on the CPU; leave it out")
    run.verify()


def check_texts(texts: Texts, name: str = "texts") -> list[str]:
    """Return `texts` as a list. Raises UserError if it is not a list of strings, DataError for invalid Unicode."""
    strings = [text for text in texts if isinstance(text, str)]
    if isinstance(texts, str) or len(strings) != len(texts):
        raise UserError(f"{name} must be a list of strings; pass a single text as [text]")
    try:
        "".join(strings).encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{name}: a text contains a lone surrogate, which is half of a character") from error
    return strings
