"""Patterns of addresses for discovery. No pattern can block the server, whoever wrote it.

The regular expressions are a subset of JavaScript's, without what only backtracking can decide: no backreferences, no lookahead
or lookbehind. Anything outside the subset is refused and never interpreted as something else, except `*?`, `+?` and the like:
lazy or not, the same addresses match. Every part knows its size, so a short pattern that stands for a huge one is refused while
it is parsed.

A regular expression becomes an automaton whose states are sets of the pattern's characters: those that the text read so far may
have ended with. A set is an integer with a bit for each of them. States are created when a text first leads to them and are kept,
so the second address with the same beginning costs one lookup for each character; nothing is tried twice. A pattern that leads to
ever new states is refused when its work limit is reached.

    after ──the set of what may come next──> & those that the next character fits ──> the next state
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
class CharacterSet:
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
    """A part, this many times; `most` is None for any number."""

    part: Part
    least: int
    most: int | None
    size: int


Part = CharacterSet | Anchor | Row | Choice | Repeat


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


MAX_WORK = 100_000
"""What one search may cost beside lookups, in characters and bits looked at: some 50 ms, and some 3 MB of states."""
_STATE_WORK = 8
"""What a new state costs beside its bits."""
_HEAD = 16
"""After how many characters to look whether the rest matters: by then the kind of an actor is read, and often decides."""

# Where in a text nothing may match: in its middle, at its beginning, at its end, and in an empty text, which is both.
_MIDDLE, _BEGIN, _END, _BOTH = 1, 2, 4, 8
_ANYWHERE = _MIDDLE | _BEGIN | _END | _BOTH


def regex_matcher(pattern: str) -> Callable[[str], bool]:
    """Says of a text whether a regular expression matches anywhere in it, as JavaScript's `RegExp.test` does.

    It may refuse in the middle of a search, with the reason `pattern_too_costly`: what it may cost is for all texts together.
    """
    part = parse(pattern)
    matches, literal = _Automaton(part).matches, _literal(part)
    # Most addresses that do not match lack the pattern's longest word, which is found out at the speed of C.
    return (lambda text: literal in text and matches(text)) if literal else matches


def glob_matcher(pattern: str) -> Callable[[str], bool]:
    """Says of a text whether it is, from end to end, what a pattern says; `*` in it stands for anything."""
    check_length(pattern)
    first, *middle = pattern.split("*")
    if not middle:
        return pattern.__eq__
    *middle, last = middle

    def matches(text: str) -> bool:
        if not (text.startswith(first) and text.endswith(last)):
            return False
        at, stop = len(first), len(text) - len(last)
        # The first place where a part is found leaves the most for the parts behind it.
        for part in middle:
            at = text.find(part, at, stop)
            if at < 0:
                return False
            at += len(part)
        return at <= stop

    return matches


@dataclass(frozen=True, slots=True)
class _Piece:
    """What a part of a pattern may begin and end with, as sets of the pattern's characters.

    An anchor makes it depend on the place: `^` lets a piece continue only at the beginning, where nothing was read before,
    `$` lets it end only where nothing follows.
    """

    empty: int = 0
    """In which places it matches nothing at all."""
    first: int = 0
    first_at_begin: int = 0
    last: int = 0
    last_at_end: int = 0


_NOTHING = _Piece(_ANYWHERE)


class _Automaton:
    """All the pieces put together: what may follow each character of the pattern, and which characters of a text fit it."""

    def __init__(self, part: Part) -> None:
        self._follow: list[int] = []
        self._positions: dict[Ranges, int] = {}
        """Of each set of characters, where in the pattern it stands."""
        whole = self._build(part)
        self._whole = whole
        self._fitting: dict[str, int] = {}
        self._states: dict[int, _State] = {}
        self._work = MAX_WORK
        self._found = _State(self, 0, ends=True, is_settled=True)
        self._start = _State(self, whole.first_at_begin, ends=bool(whole.empty & _BOTH), is_settled=False)
        if whole.empty & (_BEGIN | _END):
            self._start = self._found  # there is a beginning and an end in every text

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
        # From the right: each piece then meets what follows once, and `a?a?a?` is no square.
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
    """A state of an automaton: where each character leads, as far as it is known."""

    __slots__ = ("_automaton", "ends", "is_settled", "reach")

    def __init__(self, automaton: _Automaton, reach: int, *, ends: bool, is_settled: bool) -> None:
        super().__init__()
        self._automaton = automaton
        self.reach = reach
        """Which of the pattern's characters may come next."""
        self.ends = ends
        """Whether a text that ends here matches."""
        self.is_settled = is_settled
        """Whether the same is true of all texts that continue from here."""

    def __missing__(self, char: str) -> _State:
        following = self[char] = self._automaton.step(self, char)
        return following


_lookup: Callable[[_State, str], _State] = dict.__getitem__
"""Faster than `state[char]`, which has to find out whether the class has a `__getitem__` of its own."""


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
    """The longest text that every match contains, as far as that is easily seen; it may be empty."""
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
