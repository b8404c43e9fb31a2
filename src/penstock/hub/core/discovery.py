"""Patterns of addresses that cannot hang the server, whoever wrote them.

A regular expression becomes an automaton whose states are sets of the pattern's characters: those that the text read so far may
have ended with. A set is an integer with a bit for each of them. States are made when a text first leads to them and are kept, so
that the second address with the same beginning costs one lookup for a character; nothing is ever tried twice. A pattern that
leads to ever new states is refused when the work that it may cost is done.

    after ──the set of what may come next──> & those that the next character fits ──> the next state
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from typing import assert_never

from penstock.hub.core.pattern_syntax import Anchor, Choice, One, Part, Ranges, Repeat, Row, check_length, parse
from penstock.hub.core.refusal import Refusal

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

    An anchor makes it depend on the place: `^` lets a piece go on only at the beginning, where nothing was read before,
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
        """Whether there is a match anywhere in a text."""
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
            case One(ranges):
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
        """Whether the same is true of all texts that go on from here."""

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
            case One(((first, last),)) if first == last:
                words[-1] += chr(first)
            case Anchor():
                pass
            case _:
                words.append("")
    return max(words, key=len)


def _bits(number: int) -> Iterable[int]:
    """Where a number has ones."""
    while number:
        lowest = number & -number
        yield lowest.bit_length() - 1
        number ^= lowest
