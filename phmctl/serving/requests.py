"""What clients may ask: the JSON of a request, read and checked before anything of it is queued.

::

    /translate   {"text": "…"} or {"texts": ["…", …]}, with "beam", "alpha", "n_best", "cut"
    /classify    the same without a translator's options; a classifier of pairs takes ["…", "…"] for a text
    /score       {"source": "…", "target": "…"} or {"sources": […], "targets": […]}
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import GenericAlias
from typing import Annotated, Any, NoReturn, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator

from phmctl.errors import RequestError, nearest

Text = str | tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 1 << 20
    texts: int = 128
    characters: int = 10_000  # of a text
    beam: int = 16  # the widest search
    seconds: float = 10.0  # until its body has come; a connection may be idle for as long
    connections: int = 256  # open at a time


class Body(BaseModel):
    """A request's JSON. The types of its texts are put in by :func:`body_types`: the limits are a server's own."""

    model_config = ConfigDict(strict=True, extra="forbid")

    def asked(self) -> list[Text]:
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """What texts must share to be answered together."""
        return {}


class _Classify(Body):
    text: Any = None
    texts: Any = None
    cut: bool | None = None  # whether texts longer than the model knows are cut; None leaves it to the server

    @model_validator(mode="after")
    def _either(self) -> Self:
        if ("text" in self.model_fields_set) == ("texts" in self.model_fields_set):
            raise ValueError('give either "text" or "texts"')
        return self

    def asked(self) -> list[Text]:
        return [self.text] if self.texts is None else self.texts


class _Translate(_Classify):
    beam: int
    alpha: float
    n_best: Annotated[int, Field(ge=1)] = 1

    @model_validator(mode="after")
    def _wide_enough(self) -> Self:
        if self.n_best > self.beam:
            raise ValueError(f"n_best = {self.n_best} is more than beam = {self.beam}; ask for a wider beam too")
        return self

    def options(self) -> dict[str, Any]:
        return {"beam": self.beam, "alpha": self.alpha, "n_best": self.n_best}


class _Score(Body):
    source: Any = None
    target: Any = None
    sources: Any = None
    targets: Any = None

    @model_validator(mode="after")
    def _paired(self) -> Self:
        if self.model_fields_set not in ({"source", "target"}, {"sources", "targets"}):
            raise ValueError('give "source" and "target", or "sources" and "targets"')
        if self.sources is not None and len(self.sources) != len(self.targets):
            raise ValueError(f"there are {len(self.sources)} sources and {len(self.targets)} targets")
        return self

    def asked(self) -> list[Text]:
        if self.sources is None:
            return [(self.source, self.target)]
        return list(zip(self.sources, self.targets, strict=True))


def body_types(limits: Limits, about: Mapping[str, Any]) -> dict[str, type[Body]]:
    """The body of each verb, for a model that says this about itself."""
    line: Any = Annotated[str, Field(max_length=limits.characters), AfterValidator(_one_line)]
    count = about.get("texts", 1)
    together = (Field(min_length=count, max_length=count), AfterValidator(tuple))
    text: Any = line if count == 1 else Annotated[GenericAlias(list, (line,)), *together]

    def several(kind: Any) -> Any:
        return (Annotated[GenericAlias(list, (kind,)), Field(max_length=limits.texts)], None)

    texts: dict[str, Any] = {"text": (text, None), "texts": several(text)}
    types = {
        "classify": create_model("Classify", __base__=_Classify, **texts),
        "score": create_model(
            "Score",
            __base__=_Score,
            **{"source": (line, None), "target": (line, None), "sources": several(line), "targets": several(line)},
        ),
    }
    if "decoding" in about:
        beam, alpha = about["decoding"]["beam"], about["decoding"]["alpha"]
        options: dict[str, Any] = {
            "beam": (Annotated[int, Field(ge=1, le=max(limits.beam, beam))], beam),
            "alpha": (Annotated[float, Field(ge=0, le=100)], alpha),
        }
        types["translate"] = create_model("Translate", __base__=_Translate, **texts, **options)
    return types


def _one_line(text: str) -> str:
    """A text as ``decode`` would read it: a line break within it is a blank."""
    return text.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def read_body(content: bytes, kind: type[Body]) -> Body:
    """Read a request. RequestError: it is no JSON of this kind (400), or exceeds a limit (413)."""
    try:
        value = json.loads(content.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: byte {content[error.start]:#04x} at {error.start}") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {json.dumps(value)[:20]}")
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise _refused(kind, error.errors(include_url=False)[0]) from None


def _refused(kind: type[Body], found: Any) -> RequestError:
    place = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        known = ", ".join(kind.model_fields)
        return RequestError(f"no key {place!r}{nearest(place, kind.model_fields)}; there are {known}")
    plural = found["loc"] and found["loc"][-1] in ("texts", "sources", "targets")
    too_long = found["type"] == "string_too_long" or (found["type"] == "too_long" and plural)
    reason = found["msg"].removeprefix("Value error, ")
    return RequestError(f"{place}: {reason}" if place else reason, 413 if too_long else 400)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RequestError(f"the key {key!r} stands twice in an object")
        found[key] = value
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
