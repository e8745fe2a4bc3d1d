"""A translator, by any engine. Torch is imported where its engine is asked: an export's engine does without."""

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from phmctl.decoding.engine import TORCH
from phmctl.decoding.settings import change_decoding
from phmctl.decoding.translator import Translation, Translator, plan
from phmctl.errors import UserError
from phmctl.runs import Run
from phmctl.tasks.model import Model, Texts, check_texts, silent

if TYPE_CHECKING:
    from torch import Tensor

_IRRELEVANT = {"batch_tokens", "execution"}  # settings of the search that change its speed only
_VECTORS = "the mean of the encoder's states over all positions"


class TranslationModel(Model):
    """Translations of texts and lines: the best of each, or several with their scores."""

    verb = "translating"

    def __init__(
        self, translator: Translator, run: Run, checkpoint: str, n_best: int | None = None, *, strict: bool = False
    ) -> None:
        engine: Any = translator.engine  # torch's has a model and a device
        self.translator, self.n_best, self.strict, self.engine = translator, n_best, strict, engine
        about = {"engine": engine.name, "decoding": translator.settings.model_dump(), "device": "cpu"}
        self.answers = ("translate",)
        if engine.name == TORCH:
            self.answers = ("translate", "score", "encode")
            about |= {"device": str(engine.device), "vectors": _VECTORS}
        super().__init__(run, checkpoint, **about)

    @silent
    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        strict: bool = False,
    ) -> list[list[Translation]]:
        settings = change_decoding(self.translator.settings, beam=beam, alpha=alpha)
        if not 1 <= n_best <= settings.beam:
            raise UserError(f"n_best = {n_best} must be between 1 and beam = {settings.beam}")
        return self.translator.with_settings(settings).translate(check_texts(texts), n_best=n_best, strict=strict)

    @property
    def max_tokens(self) -> int | None:
        return self.translator.max_source_tokens

    @silent
    def lengths(self, texts: Texts) -> list[int]:
        translator = self.translator
        if not texts or isinstance(texts, str) or not all(isinstance(text, tuple) for text in texts):
            return translator.lengths(check_texts(texts))
        sources, targets = (check_texts(side) for side in zip(*texts, strict=True))
        return [*map(max, translator.lengths(sources), map(len, translator.encode_targets(targets)))]

    @silent
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        if "score" not in self.answers:
            raise self._lacks("score")
        from phmctl.decoding.scoring import forced_scores
        from phmctl.decoding.torch_engine import pad

        checked, outputs = check_texts(sources, "sources"), check_texts(targets, "targets")
        if len(checked) != len(outputs):
            raise UserError(f"{len(checked)} sources and {len(outputs)} targets: give one target for each source")
        rows, _ = self.translator.encode(checked, strict=True)
        wanted = self.translator.encode_targets(outputs)
        scores = [-float("inf") if ids else 0.0 for ids in wanted]  # of sources without a token
        lengths = [max(len(row), len(ids) + 1) if row else 0 for row, ids in zip(rows, wanted, strict=True)]
        for places in plan(lengths, self.translator.settings.batch_tokens):
            source = pad([rows[place] for place in places]).to(self.engine.device)  # (B, S)
            found = forced_scores(self.engine.model, source, [wanted[place] for place in places], alpha=0.0)
            for place, hypothesis in zip(places, found, strict=True):
                scores[place] = hypothesis.log_prob
        return scores

    @silent
    def encode(self, texts: Sequence[str]) -> "Tensor":
        if "encode" not in self.answers:
            raise self._lacks("encode")
        import torch

        from phmctl.decoding.torch_engine import pad
        from phmctl.nn.layers import mean_pool

        model = self.engine.model
        rows, _ = self.translator.encode(check_texts(texts), strict=False)
        vectors = torch.zeros(len(rows), model.target_embedding.embedding_dim)  # (N, d)
        with torch.no_grad():
            for places in plan([len(row) for row in rows], self.translator.settings.batch_tokens):
                memory = model.encode(pad([rows[place] for place in places]).to(self.engine.device))
                vectors[places] = mean_pool(memory.states, memory.mask[:, 0, 0]).float().cpu()  # (B, d)
        return vectors

    # ------------------------------------------------------------------------------------------------- for decode

    def origin(self) -> dict[str, Any]:
        return {**self.translator.settings.model_dump(exclude=_IRRELEVANT), "n_best": self.n_best}

    def predict(
        self, lines: Sequence[str], *, numbers: Sequence[int] | None = None, advance: Callable[[int], None]
    ) -> list[list[Translation]]:
        wanted = self.n_best or 1
        return self.translator.translate(lines, n_best=wanted, strict=self.strict, numbers=numbers, advance=advance)

    def lines(self, found: Sequence[Sequence[Translation]], *, first_line: int = 1) -> Iterator[str]:
        """Yield the best translation of each line, or its n best with number, rank and score."""
        for number, candidates in enumerate(found, start=first_line):
            if self.n_best is None:
                yield candidates[0].text
                continue
            for rank, each in enumerate(candidates, start=1):
                yield f"{number}\t{rank}\t{each.score:.6f}\t{each.text}"

    def as_json(self, found: Sequence[Sequence[Translation]]) -> Iterator[dict[str, Any]]:
        for candidates in found:
            texts = [{"text": each.text, "score": each.score, "log_prob": each.log_prob} for each in candidates]
            yield {"translations": texts}
