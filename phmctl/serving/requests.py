"""What clients may ask: the JSON of a request, read and checked before anything of it is queued.

::

    /translate   {"text": "…"} or {"texts": ["…", …]}, with "beam", "alpha", "n_best", "cut"
    /classify    the same without a translator's options; a classifier of pairs takes ["…", "…"] for a text
    /score       {"source": "…", "target": "…"} or {"sources": […], "targets": […]}
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from phmctl.errors import RequestError, UserError, check_known

Text = str | tuple[str, ...]


@dataclass(frozen=True)
class Limits:
    """What a request may be."""

    body_bytes: int = 1 << 20  # its body
    texts: int = 128  # of a request
    characters: int = 10_000  # of a text
    beam: int = 16  # the widest search
    seconds: float = 10.0  # until its head, and again its body, has come
    connections: int = 256  # open at a time


@dataclass(frozen=True)
class Asked:
    """A request that was read."""

    texts: Sequence[Text]  # what to answer, one answer each
    options: Mapping[str, Any]  # a translator's: beam, alpha, n_best
    cut: bool | None = None  # whether texts longer than the model knows are cut; None leaves it to the server


def read_json(body: bytes) -> dict[str, Any]:
    """Return the JSON object of a body."""
    try:
        value = json.loads(body.decode("utf-8"), object_pairs_hook=_once, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise RequestError(f"the body is not UTF-8: byte {body[error.start]:#04x} at {error.start}") from None
    except RecursionError:
        raise RequestError("the body is nested too deeply") from None
    except ValueError as error:
        raise RequestError(f"the body is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise RequestError(f"the body must be a JSON object, not {_kind(value)}")
    return value


def read_translate(body: Mapping[str, Any], limits: Limits, defaults: Mapping[str, Any]) -> Asked:
    """Return what a ``/translate`` request asks; raises RequestError."""
    _check_keys(body, ("text", "texts", "beam", "alpha", "n_best", "cut"))
    beam = _integer(body, "beam", defaults["beam"], 1, max(limits.beam, defaults["beam"]))
    alpha = _number(body, "alpha", defaults["alpha"], 0.0, 100.0)
    n_best = _integer(body, "n_best", 1, 1, max(limits.beam, defaults["beam"]))
    if n_best > beam:
        raise RequestError(f"n_best = {n_best} is more than beam = {beam}; ask for a wider beam too")
    return Asked(_texts(body, limits, 1), {"beam": beam, "alpha": alpha, "n_best": n_best}, _flag(body, "cut"))


def read_classify(body: Mapping[str, Any], limits: Limits, texts: int) -> Asked:
    """Return what a ``/classify`` request asks, of a model that reads so many texts an example; raises RequestError."""
    _check_keys(body, ("text", "texts", "cut"))
    return Asked(_texts(body, limits, texts), {}, _flag(body, "cut"))


def read_score(body: Mapping[str, Any], limits: Limits) -> Asked:
    """Return what a ``/score`` request asks: its texts are pairs of a source and a target; raises RequestError."""
    _check_keys(body, ("source", "target", "sources", "targets"))
    if set(body) == {"source", "target"}:
        return Asked([tuple(_line(body[key], key, limits) for key in ("source", "target"))], {})
    if set(body) != {"sources", "targets"}:
        raise RequestError('give "source" and "target", or "sources" and "targets"')
    sources, targets = (_lines(body[key], key, limits) for key in ("sources", "targets"))
    if len(sources) != len(targets):
        raise RequestError(f"there are {len(sources)} sources and {len(targets)} targets; each source needs one")
    return Asked(list(zip(sources, targets, strict=True)), {})


# --------------------------------------------------------------------------------------------- keys and values


def _check_keys(body: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in body:
        try:
            check_known("key", key, known)
        except UserError as error:
            raise RequestError(str(error)) from None


def _texts(body: Mapping[str, Any], limits: Limits, number: int) -> list[Text]:
    """Return the texts of ``text`` or ``texts``; an example of two texts is a list of two."""
    if ("text" in body) == ("texts" in body):
        raise RequestError('give either "text" or "texts"')
    if "text" in body:
        return [_example(body["text"], "text", limits, number)]
    found = _list(body["texts"], "texts", limits)
    return [_example(value, f"texts[{place}]", limits, number) for place, value in enumerate(found)]


def _list(value: Any, name: str, limits: Limits) -> list[Any]:
    if not isinstance(value, list):
        raise RequestError(f"{name} must be a list of texts, not {_kind(value)}")
    if len(value) > limits.texts:
        raise RequestError(f"{name} has {len(value)} texts, more than the {limits.texts} of a request; send fewer", 413)
    return value


def _lines(value: Any, name: str, limits: Limits) -> list[str]:
    return [_line(text, f"{name}[{place}]", limits) for place, text in enumerate(_list(value, name, limits))]


def _example(value: Any, name: str, limits: Limits, number: int) -> Text:
    if number == 1:
        return _line(value, name, limits)
    if not isinstance(value, list) or len(value) != number:
        raise RequestError(f"{name} must be a list of {number} texts: this model reads so many together")
    return tuple(_line(each, f"{name}[{place}]", limits) for place, each in enumerate(value))


def _line(value: Any, name: str, limits: Limits) -> str:
    """Return a text as one line, as ``decode`` would read it: a line break within it is a blank."""
    if not isinstance(value, str):
        raise RequestError(f"{name} must be a text, not {_kind(value)}")
    if len(value) > limits.characters:
        raise RequestError(f"{name} has {len(value)} characters, more than the {limits.characters} of a text", 413)
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} is no Unicode text: half of a surrogate pair stands at character {error.start}"
        ) from None
    return value.replace("\r\n", " ").replace("\n", " ").replace("\r", " ")


def _integer(body: Mapping[str, Any], key: str, default: int, low: int, high: int) -> int:
    value = body.get(key, default)
    if not _is_integer(value) or not low <= value <= high:
        raise RequestError(f"{key} must be a whole number from {low} to {high}, not {_shown(value)}")
    return int(value)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(body: Mapping[str, Any], key: str, default: float, low: float, high: float) -> float:
    value = body.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise RequestError(f"{key} must be a number from {low:g} to {high:g}, not {_shown(value)}")
    return float(value)


def _flag(body: Mapping[str, Any], key: str) -> bool | None:
    value = body.get(key)
    if key in body and not isinstance(value, bool):
        raise RequestError(f"{key} must be true or false, not {_shown(value)}")
    return value


_KINDS: Sequence[tuple[type | tuple[type, ...], str]] = (
    (bool, "true or false"),
    ((int, float), "a number"),
    (str, "a text"),
    (list, "a list"),
    (dict, "an object"),
)


def _kind(value: Any) -> str:
    """Return the JSON name of a value's type."""
    return next((name for types, name in _KINDS if isinstance(value, types)), "null")


def _shown(value: Any) -> str:
    """Return a value for a message: a small one as it is, another by its type."""
    small = isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 10**9)
    return json.dumps(value) if small and (not isinstance(value, float) or math.isfinite(value)) else _kind(value)


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object's pairs as a dict."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise RequestError(f"the key {key!r} stands twice in an object")
        found[key] = value
    return found


def _no_number(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")
