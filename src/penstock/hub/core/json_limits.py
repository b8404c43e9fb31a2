"""What a JSON text may contain so that every client can read it: nesting and numbers, checked without building its value."""

from __future__ import annotations

import msgspec

_OTHERS = bytes(set(range(256)) - set(b'[]{}"'))
_BRACKETS = bytes.maketrans(b"{}", b"[]")
ROUNDS = 8
"""How many of the innermost levels are taken away before valleys are counted: most texts have no more."""

_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_EXPONENT = b"e000"
_MANY_DIGITS = b"0" * 200
"""Fewer digits, with an exponent of two digits, are below what a double holds."""

_decode = msgspec.json.Decoder().decode


def is_deeper(data: bytes, limit: int) -> bool:
    """Whether a well-formed JSON text nests lists and objects deeper than `limit`. All that is done for each character is C."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # every quote that is left begins or ends a text
    brackets = data.translate(_BRACKETS, _OTHERS).replace(b'""', b"")
    if b'"' in brackets:
        brackets = b"".join(brackets.split(b'"')[::2])  # what is between texts
    rounds = min(ROUNDS, limit)
    for _ in range(rounds):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")  # takes away the innermost level
    return _depth(brackets) > limit - rounds


def _depth(brackets: bytes) -> int:
    """How deep they nest. Each part between two valleys goes up and then down."""
    depth = deepest = 0
    for part in brackets.split(b"][") if brackets else ():
        up = part.count(b"[")
        deepest = max(deepest, depth + up)
        depth += 2 * up - len(part)  # the valley itself goes down and up again
    return deepest


def has_huge_number(data: bytes) -> bool:
    """Whether a well-formed JSON text has a number beyond what a double holds, or of thousands of digits.

    Grammar allows both. Some parsers make infinity of them and others give up, so that one message would end its readers.
    """
    shape = data.translate(_DIGITS, b"+")
    if _LONG_EXPONENT not in shape and _MANY_DIGITS not in shape:
        return False  # as nearly always; what looks like one may still be a text, or below one
    try:
        _decode(data)
    except msgspec.DecodeError:
        return True
    return False
