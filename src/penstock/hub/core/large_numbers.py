"""Numbers in a JSON text that not every client can read, found without building what it says."""

from __future__ import annotations

import msgspec

_ALIKE = bytes.maketrans(b"123456789E", b"000000000e")
_LONG_EXPONENT = b"e000"
_MANY_DIGITS = b"0" * 200
"""Fewer, with an exponent of two digits, are below what a double holds."""

_decode = msgspec.json.Decoder().decode


def has_huge_number(data: bytes) -> bool:
    """Whether a well-formed JSON text has a number beyond what a double holds, or of thousands of digits.

    Grammar allows both. Some parsers make infinity of them and others give up, so that one message would end its readers.
    """
    shape = data.translate(_ALIKE, b"+")
    if _LONG_EXPONENT not in shape and _MANY_DIGITS not in shape:
        return False  # as nearly always; what looks like one may still be a text, or below one
    try:
        _decode(data)
    except msgspec.DecodeError:
        return True
    return False
