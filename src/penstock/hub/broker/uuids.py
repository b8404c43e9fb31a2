"""Random UUIDs by the thousand: the system is asked for randomness once for many of them."""

from __future__ import annotations

import secrets

TOGETHER = 256
_DIGITS = 32
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}


class Uuids:
    """Makes UUIDs of version 4. They cannot be guessed, so they serve as secrets too."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: list[str] = []

    def __call__(self) -> str:
        """A new one."""
        if not self._left:
            text = secrets.token_hex(TOGETHER * _DIGITS // 2)
            self._left = [text[at : at + _DIGITS] for at in range(0, len(text), _DIGITS)]
        digits = self._left.pop()
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{_VARIANT[digits[16]]}{digits[17:20]}-{digits[20:]}"
