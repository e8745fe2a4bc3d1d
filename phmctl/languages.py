"""Codes of languages: the form of a code, and the one code of the languages that need their own tokenizer."""

import re

_CODE = re.compile(r"[A-Za-z]{2,3}([-_][A-Za-z0-9]{2,8})*")  # de, pt-BR, zho_Hans
_SHORTEST = {"zho": "zh", "chi": "zh", "cmn": "zh", "jpn": "ja", "kor": "ko", "tha": "th"}


def is_code(text: str) -> bool:
    """Return whether a text has the form of a language's code."""
    return _CODE.fullmatch(text) is not None


def language(code: object) -> str:
    """Return a code without script and region, of Chinese, Japanese, Korean and Thai with two letters."""
    main = re.split("[-_]", str(code).lower())[0]
    return _SHORTEST.get(main, main)
