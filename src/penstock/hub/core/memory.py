"""What the hub keeps in memory, bounded: the positions of topics without a log, and the publishes of the last minute.

A topic without a log has a counter. One that was forgotten and is used again gets another epoch, so that nobody mistakes its new
offsets for the old ones. A publish that is sent again after a broken connection is answered again, but not forwarded again
(decision 64): it has the same id and the same content, in the same session or in one that resumes it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from penstock.hub.core.messages import Envelope, Position, Published


class Positions:
    """The last position of each topic; the one that was used longest ago is forgotten first."""

    __slots__ = ("_epoch", "_known", "_made", "_max")

    def __init__(self, epoch: str, max_topics: int) -> None:
        self._epoch = epoch
        self._max = max_topics
        self._made = 0
        self._known: OrderedDict[str, Position] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def peek(self, topic: str) -> Position | None:
        """The position of the last message, if the topic is known."""
        return self._known.get(topic)

    def last(self, topic: str) -> Position:
        """The position of the last message; before the first it is -1."""
        found = self._known.get(topic)
        if found is None:
            found = self._begin()
        self.note(topic, found)
        return found

    def next(self, topic: str) -> Position:
        last = self.last(topic)
        if not last.epoch.startswith(f"{self._epoch}."):
            last = self._begin()  # the last one has its position from a log, whose numbers continue without this topic
        position = self._known[topic] = Position(last.epoch, last.offset + 1)
        return position

    def note(self, topic: str, position: Position) -> None:
        """The last message has this position, wherever that is from."""
        self._known[topic] = position
        self._known.move_to_end(topic)
        if len(self._known) > self._max:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forget all topics: it is not known which of them had one more message."""
        self._known.clear()

    def _begin(self) -> Position:
        self._made += 1
        return Position(f"{self._epoch}.{self._made}", -1)


Key = tuple[str, str, str, int]
"""What a repeat has in common: the address of the actor, its session, the id that it gave, and a hash of the content."""


@dataclass(slots=True)
class RecentPublish:
    """A publish, and the waiting session as long as there is no answer."""

    at: int
    answer: Published | None = None
    waiting: list[tuple[Any, Envelope]] = field(default_factory=list)  # Any: sessions, which know this module's users


class RecentPublishes:
    """The ids of the last publishes, for a while."""

    __slots__ = ("_heard", "_max", "_span")

    def __init__(self, span: int, most: int) -> None:
        self._span = span
        self._max = most
        self._heard: OrderedDict[Key, RecentPublish] = OrderedDict()

    def __len__(self) -> int:
        return len(self._heard)

    def find(self, key: Key, now: int) -> RecentPublish | None:
        """What became of a publish with this key, if it was heard not long ago."""
        heard = self._heard.get(key)
        return heard if heard is not None and 0 <= now - heard.at < self._span else None

    def note(self, key: Key, now: int, answer: Published | None = None) -> RecentPublish:
        """Remember a publish; the oldest is forgotten for it."""
        heard = self._heard[key] = RecentPublish(now, answer)
        self._heard.move_to_end(key)
        for old in self._old(now):
            del self._heard[old]
        return heard

    def forget(self, key: Key) -> RecentPublish | None:
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
