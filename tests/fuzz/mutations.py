"""Valid files made invalid: by bytes, by tokens that parsers trip over, and by the values in them."""

import copy
import json
from collections.abc import Sequence
from random import Random
from typing import Any

# Words of YAML, JSON, XML and tables, numbers at the edges, and characters that are none.
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

# Values that a key may be given instead of its own.
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 10**9, 2**31, 2**63, 10**20, 10**40),
    *(0.5, -0.0, 1e308, float("inf"), float("nan")),
    *("", " ", "a", "..", "../../x", "/etc/passwd", "x\x1b[31m", "\ud800", "a" * 300, "1:30", "true", "€", "\x00"),
    *([], [[]], [None], [0, 1], ["a", "a"], {}, {"a": 1}, {"": {}}, {"name": "../x", "bytes": 1, "sha256": ""}),
)


def changed_bytes(seed: bytes, others: Sequence[bytes], random: Random) -> bytes:
    """Return a file with up to six places flipped, cut, doubled, nested, or replaced by a token or another's part."""
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
                other = random.choice(others)
                start = random.randint(0, len(other))
                content[begin:end] = other[start : start + random.choice((1, 8, 64, 512))]
            case _:
                content[begin : random.choice((begin, end))] = random.choice(TOKENS)
    return bytes(content)


def changed_values(seed: Any, random: Random) -> Any:
    """Return plain values with up to four of them, or their keys, replaced, removed, moved or nested."""
    whole = [copy.deepcopy(seed)]
    for _ in range(random.choice((1, 1, 2, 4))):
        _change_one(*random.choice(_places(whole)), whole, random)
    return whole[0]


def _change_one(holder: Any, key: Any, whole: list[Any], random: Random) -> None:
    match random.randrange(6):
        case 0 if holder is not whole:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[random.choice(("a", "", "\x1b", "name", str(key) + "x", 1, None))] = holder.pop(key)
        case 2:
            other, where = random.choice(_places(whole))
            holder[key] = copy.deepcopy(other[where])
        case 3:
            for _ in range(random.choice((1, 3, 40))):
                holder[key] = random.choice(([holder[key]], {"a": holder[key]}))
        case _:
            holder[key] = copy.deepcopy(random.choice(VALUES))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return where each value stands: what holds it, and its key or number there."""
    keys = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    found = [(value, key) for key in keys]
    return found + [place for key in keys for place in _places(value[key])][:2000]


def as_json(value: Any) -> bytes:
    """Return values as JSON, whatever they are."""
    return json.dumps(value, default=str, skipkeys=True).encode("utf-8")
