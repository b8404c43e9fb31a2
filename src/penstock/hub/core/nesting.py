"""How deep a JSON text is nested, without building what it says."""

from __future__ import annotations

import re

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_OTHERS = bytes(set(range(256)) - set(b"[]{}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")


def is_deeper(data: bytes, limit: int) -> bool:
    """Whether a well-formed JSON text nests lists and objects deeper than `limit`."""
    if data.count(b"[") + data.count(b"{") <= limit:
        return False
    brackets = _STRINGS.sub(b"", data).translate(_ALIKE, _OTHERS)
    # Every round takes away the innermost level, at the speed of C.
    for _ in range(limit):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)
