"""Mutations of valid files: changed bytes, tokens that confuse parsers, and changed values."""

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

# Syntax of YAML, JSON, XML and tables, extreme numbers, and invalid characters.
TOKENS: tuple[bytes, ...] = tuple(
    text.encode("utf-8", "surrogatepass")
    for text in (
        *("&a ", "*a", "<<: ", "!!int ", "- ", ": ", "? ", "{", "}", "[", "]", "|\n", ">\n", "---\n", "...\n", "#"),
        *"\"'\t\n\r\x00\ufeff",
        *('""', "\\u0000", "\\ud800", '"\\U00110000"', "\r\n", "\x1b[31m"),
        *("0", "-1", "1:30", "0x10", "010", "1e400", ".nan", "-.inf", "9" * 19, "9" * 5000, "2001-13-45", "yes", "~"),
        *("<seg", "<seg>", "</seg>", "&#9;", "&#99999999;", "&amp;", "<title>", "@@ ", ",", ";", " ", "a" * 2000),
        *("\ufeff", "../", "/etc/passwd", "\ud800", "\u2028", "\u202e", "ß", "漢", "%YAML 1.1\n", "null"),
    )
)

# Replacements for values.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 10**9, 2**31, 2**63, 10**20, 10**40),
    *(0.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", " ", "a", "..", "../../x", "/etc/passwd", "x\x1b[31m", "\ud800", "a" * 300, "1:30", "true", "€", "\x00"),
    *([], [[]], [None], [0, 1], ["a", "a"], {}, {"a": 1}, {"": {}}, {"name": "../x", "bytes": 1, "sha256": ""}),
)


def changed_bytes(seed: bytes, sources: Sequence[bytes], random: Random) -> bytes:
    """Return a file in which up to six places are flipped, cut, repeated, nested, or replaced by a token or a fragment.

    Fragments are taken from the sources.
    """
    content = bytearray(seed)
    for _ in range(random.choice((1, 1, 2, 3, 6))):
        begin = random.randint(0, len(content))
        end = min(len(content), begin + random.choice((0, 1, 1, 2, 8, 64, len(content))))
        match random.randrange(7):
            case 6:
                content[begin:begin] = random.choice((b"[", b"{a: ", b"- ", b'"', b"a")) * random.choice((99, 9999))
            case 0 if begin < len(content):
                content[begin] ^= 1 << random.randrange(8)
            case 1:
                del content[begin:end]
            case 2:
                content[begin:begin] = content[begin:end] * random.choice((1, 2, 50))
            case 3:
                source = random.choice(sources)
                start = random.randint(0, len(source))
                content[begin:end] = source[start : start + random.choice((1, 8, 64, 512))]
            case _:
                content[begin : random.choice((begin, end))] = random.choice(TOKENS)
    return bytes(content)


def changed_values(seed: Any, random: Random) -> Any:
    """Return a document in which up to four values or their keys are replaced, removed, moved or nested."""
    root = [copy.deepcopy(seed)]
    for _ in range(random.choice((1, 1, 2, 4))):
        container, key = random.choice(_places(root))
        _change_value(container, key, root, random)
    return root[0]


def _change_value(container: Any, key: Any, root: list[Any], random: Random) -> None:
    match random.randrange(6):
        case 0 if container is not root:
            del container[key]
        case 1 if isinstance(container, dict):
            container[random.choice(("a", "", "\x1b", "name", str(key) + "x", 1, None))] = container.pop(key)
        case 2:
            source, source_key = random.choice(_places(root))
            container[key] = copy.deepcopy(source[source_key])
        case 3:
            for _ in range(random.choice((1, 3, 40))):
                container[key] = random.choice(([container[key]], {"a": container[key]}))
        case _:
            container[key] = copy.deepcopy(random.choice(VALUES))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return the container and the key or index of each value in a document."""
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    else:
        return []
    nested = [place for key in keys for place in _places(value[key])]
    return [(value, key) for key in keys] + nested[:2000]


def as_json(value: Any) -> bytes:
    """Return a value as JSON; objects of other types become strings."""
    return json.dumps(value, default=str, skipkeys=True).encode("utf-8")
