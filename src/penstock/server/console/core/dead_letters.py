"""Groups of dead letters: those of a queue with the same error, whatever ids and numbers it contains."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Container, Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from penstock.durations import SECOND

MAX_ERROR = 300
"""Characters of an error that its signature uses."""
HOURS = 24
HOUR = 3_600 * SECOND
NEWEST = 3

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"|`[^`]*`|<[^<>]*>")
_WORD = re.compile(r"[^\s,;:()\[\]{}]*[0-9][^\s,;:()\[\]{}]*")
_REPEATED = re.compile(r"…(?:[\s,;:]*…)+")


@lru_cache(maxsize=4096)
def signature(error: str) -> str:
    """An error without the parts that differ between messages: quoted text, and words with digits."""
    shown = _WORD.sub("…", _QUOTED.sub("…", error[:MAX_ERROR]))
    return " ".join(_REPEATED.sub("…", shown).split())


@dataclass(frozen=True, slots=True)
class Letter:
    """The parts of a dead letter that need no read of the log."""

    offset: int
    publish_at: int
    reason: str
    at: int
    attempts: int
    error: str | None


@dataclass(slots=True)
class Group:
    """The letters of a queue with one reason and one signature."""

    reason: str
    signature: str
    example: str
    count: int = 0
    first: int = 0
    last: int = 0
    again: int = 0
    newest: list[Letter] = field(default_factory=list)
    hours: Counter[int] = field(default_factory=Counter)

    @property
    def id(self) -> str:
        """An identifier of the group within its queue."""
        return group_id(self.reason, self.signature)

    def trend(self, now: int) -> list[int]:
        """How many died in each of the last hours, oldest first."""
        this = now // HOUR
        return [self.hours[hour] for hour in range(this - HOURS + 1, this + 1)]


def group_id(reason: str, text: str) -> str:
    """The name of a group within its queue."""
    return hashlib.sha256(f"{reason}\n{text}".encode(errors="surrogatepass")).hexdigest()[:12]


def of_letter(letter: Letter) -> tuple[str, str]:
    """(reason, signature) of a letter."""
    return letter.reason, signature(letter.error or "")


def grouped(letters: Iterable[Letter], moved: Container[int] = ()) -> list[Group]:
    """Letters, oldest first, in groups; the most recently grown group first. `moved` are offsets that were redriven before."""
    groups: dict[tuple[str, str], Group] = {}
    for letter in letters:
        key = of_letter(letter)
        group = groups.get(key)
        if group is None:
            group = groups[key] = Group(*key, letter.error or "", first=letter.at)
        group.count += 1
        group.first, group.last = min(group.first, letter.at), max(group.last, letter.at)
        group.again += letter.offset in moved
        group.newest.append(letter)
        if len(group.newest) > NEWEST:
            del group.newest[0]
        group.hours[letter.at // HOUR] += 1
    for group in groups.values():
        group.example = group.newest[-1].error or ""
    return sorted(groups.values(), key=lambda group: -group.last)


FIRST = 20
"""The first letters of a redrive that are watched: if more than half of them die again, it stops."""


def fails_again(dead_of_first: int, moved: int) -> bool:
    """Whether a redrive should stop by itself."""
    return min(moved, FIRST) >= FIRST and dead_of_first * 2 > FIRST
