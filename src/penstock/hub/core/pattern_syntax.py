"""The regular expressions that discovery understands, and what they are made of.

A subset of JavaScript's, without what only trying every way can decide: no backreferences, no looking ahead or behind. What is
not in the subset is refused and never taken for something else, but for `*?`, `+?` and their like: lazy or not, the same
addresses match. Every part knows its size, so that a short pattern which stands for a huge one is refused while it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

from penstock.errors import short_repr
from penstock.hub.core.refusal import Refusal

MAX_PATTERN = 256
MAX_SIZE = 512
"""Characters of a pattern once its counted repetitions are written out."""
MAX_NESTING = 32
MAX_COUNT = 64

SUPPORTED = (
    "supported are characters, . [a-z] [^a-z] \\d \\w \\s \\D \\W \\S, groups ( ) and (?: ), |, repetitions * + ? {2} {2,} {2,5} "
    f"with counts up to {MAX_COUNT}, and the anchors ^ $; before any other character put \\ to mean it literally"
)

Ranges = tuple[tuple[int, int], ...]
"""A set of characters: first and last code points, both included."""

_LAST = 0x10FFFF


def _complement(ranges: Ranges) -> Ranges:
    outside: list[tuple[int, int]] = []
    begin = 0
    for first, last in sorted(ranges):
        if begin < first:
            outside.append((begin, first - 1))
        begin = max(begin, last + 1)
    if begin <= _LAST:
        outside.append((begin, _LAST))
    return tuple(outside)


def _ranges(*pairs: str) -> Ranges:
    return tuple((ord(pair[0]), ord(pair[-1])) for pair in pairs)


_DIGIT = _ranges("09")
_WORD = _ranges("09", "AZ", "__", "az")
_SPACE = _ranges(
    "\t\r", " ", "\u00a0", "\u1680", "\u2000\u200a", "\u2028\u2029", "\u202f", "\u205f", "\u3000", "\ufeff"
)  # what JavaScript takes for space
_ANY = _complement(_ranges("\n", "\r", "\u2028\u2029"))
_CLASSES = {
    "d": _DIGIT,
    "w": _WORD,
    "s": _SPACE,
    "D": _complement(_DIGIT),
    "W": _complement(_WORD),
    "S": _complement(_SPACE),
}


@dataclass(frozen=True, slots=True)
class One:
    """One character of a set."""

    ranges: Ranges
    size: int = 1


@dataclass(frozen=True, slots=True)
class Anchor:
    """Nothing, but only at the beginning of the text, or at its end."""

    is_end: bool
    size: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """One part after the other; without parts, nothing."""

    parts: tuple[Part, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Any one of the parts."""

    parts: tuple[Part, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part, so many times; `most` is None for any number."""

    part: Part
    least: int
    most: int | None
    size: int


Part = One | Anchor | Row | Choice | Repeat


def parse(pattern: str) -> Part:
    """What a regular expression is made of, or a refusal that says where it was not understood."""
    check_length(pattern)
    return _Reader(pattern).read()


def check_length(pattern: str) -> None:
    """Refuse what is too long to be a pattern, of either kind."""
    if len(pattern) > MAX_PATTERN:
        raise Refusal(
            "internal_error",
            f"pattern is {len(pattern)} characters long",
            reason="invalid_pattern",
            resolution=f"send a pattern of at most {MAX_PATTERN} characters",
        )


class _Reader:
    """Reads a pattern from left to right, never back."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._nesting = 0

    def read(self) -> Part:
        part = self._choice()
        if self._at < len(self._pattern):
            self._refuse("a ) without its (")
        return part

    def _choice(self) -> Part:
        parts = [self._row()]
        while self._take("|"):
            parts.append(self._row())
        return parts[0] if len(parts) == 1 else Choice(tuple(parts), self._sized(sum(part.size for part in parts)))

    def _row(self) -> Part:
        parts: list[Part] = []
        while self._at < len(self._pattern) and self._peek() not in "|)":
            begin = self._at
            parts.append(self._repeated(self._atom(), begin))
        # Nothing counts as something: `(){64}` is work too.
        return parts[0] if len(parts) == 1 else Row(tuple(parts), self._sized(sum(part.size for part in parts) or 1))

    def _repeated(self, part: Part, begin: int) -> Part:
        counts = self._counts()
        if counts is None:
            return part
        if isinstance(part, Anchor):
            self._refuse("a repetition of an anchor", begin)
        least, most = counts
        self._take("?")
        copies = least + 1 if most is None else most
        size = self._sized(max(part.size * copies, 1), begin)
        if self._peek() in {"*", "+", "?", "{"}:
            self._refuse("a repetition of a repetition; put the inner one into ( )")
        return Repeat(part, least, most, size)

    def _counts(self) -> tuple[int, int | None] | None:
        if self._take("*"):
            return 0, None
        if self._take("+"):
            return 1, None
        if self._take("?"):
            return 0, 1
        begin = self._at
        if not self._take("{"):
            return None
        least = self._number(begin)
        most: int | None = least
        if self._take(","):
            most = None if self._peek() == "}" else self._number(begin)
        if not self._take("}"):
            self._refuse("a { that is no count like {2}, {2,} or {2,5}", begin)
        if most is not None and most < least:
            self._refuse("a count whose second number is below its first", begin)
        return least, most

    def _number(self, begin: int) -> int:
        digits = ""
        while self._peek() in set("0123456789") and len(digits) < 4:
            digits += self._next()
        if not digits:
            self._refuse("a { that is no count like {2}, {2,} or {2,5}", begin)
        if int(digits) > MAX_COUNT:
            self._refuse(f"a count beyond {MAX_COUNT}", begin)
        return int(digits)

    def _atom(self) -> Part:
        begin = self._at
        match char := self._next():
            case "(":
                return self._group(begin)
            case "[":
                return One(self._set(begin))
            case "\\":
                return One(self._escape(begin)[1])
            case ".":
                return One(_ANY)
            case "^":
                return Anchor(is_end=False)
            case "$":
                return Anchor(is_end=True)
            case "*" | "+" | "?" | "{":
                self._refuse("a repetition of nothing", begin)
        return One(_ranges(char))

    def _group(self, begin: int) -> Part:
        if self._take("?") and not self._take(":"):
            self._refuse("a group that looks around or has a name", begin)
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self._refuse(f"groups more than {MAX_NESTING} deep", begin)
        part = self._choice()
        self._nesting -= 1
        if not self._take(")"):
            self._refuse("a ( without its )", begin)
        # An anchor may be repeated in a group, where it is no anchor alone.
        return Row((part,), part.size) if isinstance(part, Anchor) else part

    def _set(self, begin: int) -> Ranges:
        is_negated = self._take("^")
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]":
            start = self._at
            char, found = self._member(begin)
            if self._peek() == "-" and self._pattern[self._at + 1 : self._at + 2] != "]":
                self._next()
                last, _ = self._member(begin)
                if char is None or last is None or last < char:
                    self._refuse("a range that does not go from one character up to another; write \\- for the character", start)
                found = ((ord(char), ord(last)),)
            ranges += found
        self._next()
        if not ranges:
            self._refuse("an empty set of characters", begin)
        return _complement(tuple(ranges)) if is_negated else tuple(ranges)

    def _member(self, begin: int) -> tuple[str | None, Ranges]:
        """A character of a set, or None and the characters of a class in it."""
        at = self._at
        char = self._next()
        if not char:
            self._refuse("a [ without its ]", begin)
        return self._escape(at) if char == "\\" else (char, _ranges(char))

    def _escape(self, begin: int) -> tuple[str | None, Ranges]:
        char = self._next()
        if char in _CLASSES:
            return None, _CLASSES[char]
        if not char or char.isalnum() or char == "_":
            self._refuse("a \\ before nothing" if not char else f"\\{char}", begin)
        return char, _ranges(char)

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _next(self) -> str:
        char = self._peek()
        self._at += 1
        return char

    def _take(self, char: str) -> bool:
        if self._peek() != char:
            return False
        self._at += 1
        return True

    def _sized(self, size: int, begin: int = 0) -> int:
        if size > MAX_SIZE:
            self._refuse(f"more than {MAX_SIZE} characters once its counts are written out", begin)
        return size

    def _refuse(self, what: str, at: int | None = None) -> NoReturn:
        at = min(self._at if at is None else at, len(self._pattern))
        raise Refusal(
            "internal_error",
            f"pattern {short_repr(self._pattern)} has {what}, at character {at + 1}",
            reason="invalid_pattern",
            resolution=SUPPORTED,
            details={"position": at},
        )
