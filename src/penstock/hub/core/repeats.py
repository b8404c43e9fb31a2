"""Publishes that were heard before: one that is sent again after a break is answered again, and not forwarded again.

Decision 64: a repeat has the same id and the same content, in the same session or in one that resumes it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from penstock.hub.core.messages import Envelope, Published

Key = tuple[str, str, str, int]
"""What a repeat has in common: the address of the actor, its session, the id that it gave, and a hash of the content."""


@dataclass(slots=True)
class Heard:
    """A publish, and who waits for its answer as long as there is none."""

    at: int
    answer: Published | None = None
    waiting: list[tuple[Any, Envelope]] = field(default_factory=list)  # Any: sessions, which know this module's users


class Seen:
    """The ids of the last publishes, for a while."""

    __slots__ = ("_heard", "_max", "_span")

    def __init__(self, span: int, most: int) -> None:
        self._span = span
        self._max = most
        self._heard: OrderedDict[Key, Heard] = OrderedDict()

    def __len__(self) -> int:
        return len(self._heard)

    def find(self, key: Key, now: int) -> Heard | None:
        """What became of a publish with this key, if it was heard not long ago."""
        heard = self._heard.get(key)
        return heard if heard is not None and 0 <= now - heard.at < self._span else None

    def note(self, key: Key, now: int, answer: Published | None = None) -> Heard:
        """Remember a publish; the oldest is forgotten for it."""
        heard = self._heard[key] = Heard(now, answer)
        self._heard.move_to_end(key)
        for old in self._old(now):
            del self._heard[old]
        return heard

    def forget(self, key: Key) -> Heard | None:
        """A publish failed: sent again, it is a new one."""
        return self._heard.pop(key, None)

    def _old(self, now: int) -> list[Key]:
        surplus = len(self._heard) - self._max
        found: list[Key] = []
        for key, heard in self._heard.items():
            if surplus <= len(found) and 0 <= now - heard.at < self._span:
                break
            found.append(key)
        return found
