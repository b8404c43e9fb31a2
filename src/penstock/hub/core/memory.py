"""The bounded memory of the hub: the positions of topics without a log, and the publishes of the last minute.

A topic without a log has a counter. If it was forgotten and is used again, it gets another epoch, so that its new offsets are
not mistaken for the old ones. A publish that is sent again after a broken connection is answered again, but not forwarded again
(decision 64). It is recognised by the same id and content, in the same session or in one that resumes it.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any

from penstock.hub.core.messages import Envelope, Position, Published


class Positions:
    """The last position of each topic; the least recently used topic is forgotten first."""

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
        """The position of the last message; the offset is -1 before the first message."""
        found = self._known.get(topic)
        if found is None:
            found = self._begin()
        self.note(topic, found)
        return found

    def next(self, topic: str) -> Position:
        last = self.last(topic)
        if not last.epoch.startswith(f"{self._epoch}."):
            last = self._begin()  # the last position is from a log, whose offsets other topics use too
        position = self._known[topic] = Position(last.epoch, last.offset + 1)
        return position

    def note(self, topic: str, position: Position) -> None:
        """Store the position of the last message, from a counter or a log."""
        self._known[topic] = position
        self._known.move_to_end(topic)
        if len(self._known) > self._max:
            self._known.popitem(last=False)

    def clear(self) -> None:
        """Forget all topics, since it is unknown which of them had further messages."""
        self._known.clear()

    def _begin(self) -> Position:
        self._made += 1
        return Position(f"{self._epoch}.{self._made}", -1)


Key = tuple[str, str, str, int]
"""Identifies a repeated publish: the address of the actor, its session, the id of the request, and a hash of the content."""


@dataclass(slots=True)
class RecentPublish:
    """A publish, and the requests that wait until there is an answer."""

    at: int
    answer: Published | None = None
    waiting: list[tuple[Any, Envelope]] = field(default_factory=list)  # Any: sessions; importing them would be circular


class RecentPublishes:
    """The most recent publishes, for a limited time and up to a limited number."""

    __slots__ = ("_heard", "_max", "_span")

    def __init__(self, span: int, most: int) -> None:
        self._span = span
        self._max = most
        self._heard: OrderedDict[Key, RecentPublish] = OrderedDict()

    def __len__(self) -> int:
        return len(self._heard)

    def find(self, key: Key, now: int) -> RecentPublish | None:
        """The recent publish with this key, if there is one."""
        heard = self._heard.get(key)
        return heard if heard is not None and 0 <= now - heard.at < self._span else None

    def note(self, key: Key, now: int, answer: Published | None = None) -> RecentPublish:
        """Remember a publish, and forget the old ones."""
        heard = self._heard[key] = RecentPublish(now, answer)
        self._heard.move_to_end(key)
        for old in self._old(now):
            del self._heard[old]
        return heard

    def forget(self, key: Key) -> RecentPublish | None:
        """Forget a publish that failed: if it is sent again, it is a new one."""
        return self._heard.pop(key, None)

    def _old(self, now: int) -> list[Key]:
        surplus = len(self._heard) - self._max
        found: list[Key] = []
        for key, heard in self._heard.items():
            if surplus <= len(found) and 0 <= now - heard.at < self._span:
                break
            found.append(key)
        return found
