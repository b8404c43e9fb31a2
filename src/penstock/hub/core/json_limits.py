"""Limits of JSON texts, so that every client can read them: nesting and numbers, checked without building the value."""

from __future__ import annotations

import msgspec

_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_BRACKETS = bytes.maketrans(b"{}", b"[]")
ROUNDS = 8
"""The number of innermost levels that are removed before the depth is computed: most texts have no more levels."""

_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_EXPONENT = b"e000"
_MANY_DIGITS = b"0" * 200
"""A number with fewer digits and an exponent of two digits fits into a double."""

_decode = msgspec.json.Decoder().decode


def is_deeper(data: bytes, limit: int) -> bool:
    """Whether a well-formed JSON text nests lists and objects deeper than `limit`. Only C code runs for each character."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # every remaining quote begins or ends a string
    brackets = data.translate(_BRACKETS, _OTHERS).replace(b'""', b"")
    if b'"' in brackets:
        brackets = b"".join(brackets.split(b'"')[::2])  # the parts between strings
    rounds = min(ROUNDS, limit)
    for _ in range(rounds):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # removes the innermost level
    return _depth(brackets) > limit - rounds


def _depth(brackets: bytes) -> int:
    """The nesting depth of brackets. Each part between two `][` opens some brackets and then closes some."""
    depth = deepest = 0
    for part in brackets.split(b"][") if brackets else ():
        up = part.count(b"[")
        deepest = max(deepest, depth + up)
        depth += 2 * up - len(part)  # the `][` itself closes one and opens one
    return deepest


def has_huge_number(data: bytes) -> bool:
    """Whether a well-formed JSON text has a number beyond what a double holds, or of thousands of digits.

    The grammar allows both. Some parsers read them as infinity and others fail, so one such message could break its readers.
    """
    shape = data.translate(_DIGITS, b"+")
    if _LONG_EXPONENT not in shape and _MANY_DIGITS not in shape:
        return False  # the usual case; a match may still be part of a string, or a smaller number
    try:
        _decode(data)
    except msgspec.DecodeError:
        return True
    return False
