"""What clients may ask: the JSON of a request.

::

    /translate   {"text": "…"} or {"texts": ["…", …]}, with "beam", "alpha", "n_best", "cut"
    /classify    the same without a translator's options; a classifier of pairs takes ["…", "…"] for a text
    /score       {"source": "…", "target": "…"} or {"sources": […], "targets": […]}
"""

from dataclasses import dataclass
from typing import Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from phmctl.errors import RequestError


@dataclass(frozen=True)
class Limits:
    """How much a request may ask, how much is answered at once, and how much may wait."""

    body: int = 1 << 20  # bytes
    texts: int = 128  # of a request
    characters: int = 10_000  # of a text
    beam: int = 16  # the widest search
    seconds: float = 10.0  # until its body has come; a connection may be idle for as long
    connections: int = 256  # open at a time
    batch: int = 64  # texts that are answered together
    batch_tokens: int = 2048  # of them; a text that has more gets a batch of its own
    queue: int = 1024  # texts that may wait; a request that would make them more is refused
    # milliseconds that a batch waits, at most, to become as large as the one before it. A lone client never waits.
    wait: float = 5.0


def _one_line(text: str) -> str:
    """A text as ``decode`` would read it: a line break within it is a blank."""
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


Line = Annotated[str, AfterValidator(_one_line)]
T = TypeVar("T")


class Body(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)

    def asked(self) -> list[Any]:
        """Return the texts. Raises RequestError."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Return what texts must share to be answered together."""
        return {}


class Classify(Body, Generic[T]):
    text: T | None = None
    texts: list[T] | None = None
    cut: bool | None = None  # whether texts longer than the model knows are cut; None leaves it to the server

    def asked(self) -> list[T]:
        if (self.text is None) == (self.texts is None):
            raise RequestError('give either "text" or "texts"')
        return self.texts if self.text is None else [self.text]  # type: ignore[return-value]


class Translate(Classify[Line]):
    beam: int | None = None
    alpha: float | None = None
    n_best: int = 1

    def options(self) -> dict[str, Any]:
        return {"beam": self.beam, "alpha": self.alpha, "n_best": self.n_best}


class Score(Body):
    source: Line = ""
    target: Line = ""
    sources: list[Line] = []
    targets: list[Line] = []

    def asked(self) -> list[tuple[str, str]]:
        if self.model_fields_set == {"source", "target"}:
            return [(self.source, self.target)]
        if self.model_fields_set != {"sources", "targets"} or len(self.sources) != len(self.targets):
            raise RequestError('give "source" and "target", or "sources" and "targets", as many of both')
        return list(zip(self.sources, self.targets, strict=True))


def read_body(content: bytes, kind: type[Body]) -> Body:
    """Read a request. RequestError: it is no JSON of this kind."""
    try:
        return kind.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise RequestError(f"{place}: {first['msg']}" if place else first["msg"]) from None
