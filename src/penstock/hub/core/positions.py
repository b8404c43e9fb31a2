"""Where topics are that have no log: a counter each, in memory, for as many topics as fit.

A topic that is forgotten and comes again has another epoch, so nobody takes its new numbers for the old ones.
"""

from __future__ import annotations

from collections import OrderedDict

from penstock.hub.core.messages import Position


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
        """The position of one more message."""
        last = self.last(topic)
        if not last.epoch.startswith(f"{self._epoch}."):
            last = self._begin()  # the last one has its position from a log, whose numbers go on without this topic
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
