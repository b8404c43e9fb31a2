"""What a JSON text may contain so that every client can read it: nesting and numbers, checked without building its value."""

from __future__ import annotations

import re

import msgspec

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_BRACKETS = bytes.maketrans(b"{}", b"[]")

_DIGITS = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_EXPONENT = b"e000"
_MANY_DIGITS = b"0" * 200
"""Fewer digits, with an exponent of two digits, are below what a double holds."""

_decode = msgspec.json.Decoder().decode


def is_deeper(data: bytes, limit: int) -> bool:
    """Whether a well-formed JSON text nests lists and objects deeper than `limit`."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    brackets = _STRINGS.sub(b"", data).translate(_BRACKETS, _OTHERS)
    # Every round takes away the innermost level, at the speed of C.
    for _ in range(limit):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


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
