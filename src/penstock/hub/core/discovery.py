"""Patterns of addresses for discovery. No pattern, even a malicious one, can block the server.

The regular expressions are a subset of JavaScript's, without the features that need backtracking: no backreferences, no
lookahead or lookbehind. Anything outside the subset is refused and never interpreted as something else, except `*?`, `+?` and
the like: lazy or not, the same addresses match. Every part has a size, so a short pattern that expands to a huge one is refused
during parsing.

A regular expression is compiled to an automaton whose states are sets of characters of the pattern: those at which the text read
so far may have ended. A set is an integer with one bit for each character. States are created when a text first reaches them and
are kept, so the second address with the same prefix costs one lookup for each character; nothing is tried twice. A pattern that
keeps creating new states is refused when its work limit is reached.

    after ──the set of characters that may come next──> & those that fit the next character ──> the next state
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import NoReturn, assert_never

from penstock.errors import short_repr
from penstock.hub.core.refusal import Refusal

MAX_PATTERN = 256
MAX_SIZE = 512
"""The maximum number of characters of a pattern after its counted repetitions are expanded."""
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
)  # what JavaScript counts as white space
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
class CharacterSet:
    """Matches one character of a set."""

    ranges: Ranges
    size: int = 1


@dataclass(frozen=True, slots=True)
class Anchor:
    """Matches the empty text, but only at the beginning of the text, or at its end."""

    is_end: bool
    size: int = 1


@dataclass(frozen=True, slots=True)
class Row:
    """Matches its parts one after the other; without parts, the empty text."""

    parts: tuple[Part, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Choice:
    """Matches any one of the parts."""

    parts: tuple[Part, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Repeat:
    """Matches a part `least` to `most` times; `most` is None for no limit."""

    part: Part
    least: int
    most: int | None
    size: int


Part = CharacterSet | Anchor | Row | Choice | Repeat


def parse(pattern: str) -> Part:
    """Parse a regular expression. Raises a Refusal with the position of what is not supported."""
    check_length(pattern)
    return _Reader(pattern).read()


def check_length(pattern: str) -> None:
    """Refuse a pattern, a regular expression or a glob, that is too long."""
    if len(pattern) > MAX_PATTERN:
        raise Refusal(
            "internal_error",
            f"pattern is {len(pattern)} characters long",
            reason="invalid_pattern",
            resolution=f"send a pattern of at most {MAX_PATTERN} characters",
        )


class _Reader:
    """Parses a pattern from left to right, without backtracking."""

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
        # An empty row has size 1: `(){64}` is work too.
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
                return CharacterSet(self._set(begin))
            case "\\":
                return CharacterSet(self._escape(begin)[1])
            case ".":
                return CharacterSet(_ANY)
            case "^":
                return Anchor(is_end=False)
            case "$":
                return Anchor(is_end=True)
            case "*" | "+" | "?" | "{":
                self._refuse("a repetition of nothing", begin)
        return CharacterSet(_ranges(char))

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
        # An anchor may be repeated in a group, since there it is not a bare anchor.
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
        """A character of a set with its range, or None with the ranges of a class such as digits."""
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


MAX_WORK = 100_000
"""The work limit of one search, lookups excluded, in characters and bits examined: about 50 ms, and about 3 MB of states."""
_STATE_WORK = 8
"""The cost of a new state in addition to its bits."""
_HEAD = 16
"""After this many characters, check whether the rest matters: the kind of the actor has been read, which often decides."""

# The places where a part may match the empty text: in the middle, at the beginning, at the end, and in an empty text (both).
_MIDDLE, _BEGIN, _END, _BOTH = 1, 2, 4, 8
_ANYWHERE = _MIDDLE | _BEGIN | _END | _BOTH


def regex_matcher(pattern: str) -> Callable[[str], bool]:
    """A function that returns whether a regular expression matches anywhere in a text, like JavaScript's `RegExp.test`.

    It may raise a Refusal during a search, with the reason `pattern_too_costly`: the work limit is for all texts together.
    """
    part = parse(pattern)
    matches, literal = _Automaton(part).matches, _literal(part)
    # Most addresses that do not match lack the pattern's longest literal, which `in` checks at the speed of C.
    return (lambda text: literal in text and matches(text)) if literal else matches


def glob_matcher(pattern: str) -> Callable[[str], bool]:
    """A function that returns whether a glob matches a whole text; `*` matches any text."""
    check_length(pattern)
    first, *middle = pattern.split("*")
    if not middle:
        return pattern.__eq__
    *middle, last = middle

    def matches(text: str) -> bool:
        if not (text.startswith(first) and text.endswith(last)):
            return False
        at, stop = len(first), len(text) - len(last)
        # The first place where a part is found leaves the most text for the parts after it.
        for part in middle:
            at = text.find(part, at, stop)
            if at < 0:
                return False
            at += len(part)
        return at <= stop

    return matches


@dataclass(frozen=True, slots=True)
class _Piece:
    """The characters that a part of a pattern may begin and end with, as sets of the pattern's characters.

    With an anchor they depend on the place: after `^` a piece can continue only at the beginning of the text, and `$` lets it end
    only at the end of the text.
    """

    empty: int = 0
    """The places where it matches the empty text."""
    first: int = 0
    first_at_begin: int = 0
    last: int = 0
    last_at_end: int = 0


_NOTHING = _Piece(_ANYWHERE)


class _Automaton:
    """The compiled pattern: which of its characters may follow each one, and which characters of a text fit each one."""

    def __init__(self, part: Part) -> None:
        self._follow: list[int] = []
        self._positions: dict[Ranges, int] = {}
        """For each set of characters, its positions in the pattern."""
        whole = self._build(part)
        self._whole = whole
        self._fitting: dict[str, int] = {}
        self._states: dict[int, _State] = {}
        self._work = MAX_WORK
        self._found = _State(self, 0, ends=True, is_settled=True)
        self._start = _State(self, whole.first_at_begin, ends=bool(whole.empty & _BOTH), is_settled=False)
        if whole.empty & (_BEGIN | _END):
            self._start = self._found  # every text has a beginning and an end

    def matches(self, text: str) -> bool:
        state = reduce(_lookup, text[:_HEAD], self._start)
        return (state if state.is_settled else reduce(_lookup, text[_HEAD:], state)).ends

    def step(self, state: _State, char: str) -> _State:
        """The state after one more character."""
        if state is self._found:
            return state
        self._spend(1)
        fitting = self._fitting.get(char)
        if fitting is None:
            fitting = self._fitting[char] = self._fit(ord(char))
        after = state.reach & fitting
        if after & self._whole.last:
            return self._found
        known = self._states.get(after)
        if known is None:
            known = self._states[after] = self._new_state(after)
        return known

    def _new_state(self, after: int) -> _State:
        self._spend(_STATE_WORK + after.bit_count())
        reach = self._whole.first  # the match may also begin here
        for position in _bits(after):
            reach |= self._follow[position]
        ends = bool(after & self._whole.last_at_end)
        return _State(self, reach, ends=ends, is_settled=not (reach or ends))

    def _spend(self, work: int) -> None:
        self._work -= work
        if self._work < 0:
            raise Refusal(
                "internal_error",
                "pattern needs too much work to be searched for",
                reason="pattern_too_costly",
                resolution="begin it with ^ and what addresses begin with, or leave out counts like .{20} behind frequent ones",
            )

    def _fit(self, code: int) -> int:
        fitting = 0
        for ranges, positions in self._positions.items():
            if any(first <= code <= last for first, last in ranges):
                fitting |= positions
        return fitting

    def _build(self, part: Part) -> _Piece:
        match part:
            case CharacterSet(ranges):
                position = 1 << len(self._follow)
                self._follow.append(0)
                self._positions[ranges] = self._positions.get(ranges, 0) | position
                return _Piece(0, position, position, position, position)
            case Anchor(is_end):
                return _Piece(_BOTH | (_END if is_end else _BEGIN))
            case Row(parts):
                return self._row(map(self._build, parts))
            case Choice(parts):
                return _either(map(self._build, parts))
            case Repeat(inner, least, most):
                return self._repeat(inner, least, most)
            case _:
                assert_never(part)

    def _row(self, pieces: Iterable[_Piece]) -> _Piece:
        whole = _NOTHING
        # From the right: each piece is then linked once to all that follows, so `a?a?a?` does not take quadratic time.
        for piece in reversed([*pieces]):
            self._link(piece, whole)
            whole = _Piece(
                piece.empty & whole.empty,
                piece.first | (whole.first if piece.empty & _MIDDLE else 0),
                piece.first_at_begin | (whole.first_at_begin if piece.empty & _BEGIN else 0),
                whole.last | (piece.last if whole.empty & _MIDDLE else 0),
                whole.last_at_end | (piece.last_at_end if whole.empty & _END else 0),
            )
        return whole

    def _repeat(self, part: Part, least: int, most: int | None) -> _Piece:
        if most is None:
            *needed, last = (self._build(part) for _ in range(max(least, 1)))
            self._link(last, last)
            return self._row([*needed, last if least else replace(last, empty=_ANYWHERE)])
        rest = _NOTHING
        for _ in range(most - least):
            rest = replace(self._row([self._build(part), rest]), empty=_ANYWHERE)
        return self._row([*(self._build(part) for _ in range(least)), rest])

    def _link(self, before: _Piece, behind: _Piece) -> None:
        if behind.first:
            for position in _bits(before.last):
                self._follow[position] |= behind.first


class _State(dict[str, "_State"]):
    """A state of an automaton: the next state for each character, as far as it is known."""

    __slots__ = ("_automaton", "ends", "is_settled", "reach")

    def __init__(self, automaton: _Automaton, reach: int, *, ends: bool, is_settled: bool) -> None:
        super().__init__()
        self._automaton = automaton
        self.reach = reach
        """The characters of the pattern that may come next."""
        self.ends = ends
        """Whether a text that ends here matches."""
        self.is_settled = is_settled
        """Whether `ends` holds for all continuations of the text too."""

    def __missing__(self, char: str) -> _State:
        following = self[char] = self._automaton.step(self, char)
        return following


_lookup: Callable[[_State, str], _State] = dict.__getitem__
"""Faster than `state[char]`, which has to check whether the class has its own `__getitem__`."""


def _either(pieces: Iterable[_Piece]) -> _Piece:
    either = _Piece()
    for piece in pieces:
        either = _Piece(
            either.empty | piece.empty,
            either.first | piece.first,
            either.first_at_begin | piece.first_at_begin,
            either.last | piece.last,
            either.last_at_end | piece.last_at_end,
        )
    return either


def _literal(part: Part) -> str:
    """The longest text that every match contains, as far as it is easy to determine; it may be empty."""
    words = [""]
    for inner in part.parts if isinstance(part, Row) else [part]:
        match inner:
            case CharacterSet(((first, last),)) if first == last:
                words[-1] += chr(first)
            case Anchor():
                pass
            case _:
                words.append("")
    return max(words, key=len)


def _bits(number: int) -> Iterable[int]:
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
