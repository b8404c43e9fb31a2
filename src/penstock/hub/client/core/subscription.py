"""The progress of a subscription: where to resume it, which messages are duplicates, and whether some may be missing.

A position is an offset in a history that an epoch names. A topic with a log shares the history of its log with other topics; a
topic without one has its own history, of which the hub only knows the current position. Within an epoch offsets only grow, so one
number for each epoch is enough to know what was received. A subscription can be resumed in one epoch only: if it has seen
several, messages of the others may be missing, and a `Gap` reports that.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from penstock.hub.core.messages import Position
from penstock.hub.core.names import has_wildcard

MAX_EPOCHS = 10_000
"""The number of histories whose last offset is remembered. Forgetting one can only cause duplicates."""


@dataclass(frozen=True, slots=True)
class Gap:
    """A place in the messages of a subscription where some may be missing."""

    pattern: str
    since: Position | None
    """The last position before it, if one is known."""

    def __str__(self) -> str:
        if self.since is None:
            return f"messages of {self.pattern!r} may be missing: those that were published while there was no connection"
        place = f"offset {self.since.offset} of {self.since.epoch}"
        return f"messages of {self.pattern!r} may be missing: the hub could not bring everything that came after {place}"


class SubscriptionProgress:
    """The progress of one subscription over all its connections."""

    __slots__ = ("_asked", "_has_begun", "_history", "_is_pattern", "_seen", "is_subscribed", "pattern")

    def __init__(self, pattern: str, since: Position | None = None) -> None:
        self.pattern = pattern
        self._is_pattern = has_wildcard(pattern)
        self.is_subscribed = False
        """Whether the hub has confirmed it on this connection. Messages before that are for other subscriptions."""
        self._seen: OrderedDict[str, int] = OrderedDict()
        self._history: str | None = None
        """The epoch of the whole topic or pattern, as the hub reported it."""
        self._asked: Position | None = None
        self._has_begun = False
        if since is not None:
            self._seen[since.epoch] = since.offset

    @property
    def position(self) -> Position | None:
        """The last position that was seen, or the start position."""
        if not self._seen:
            return None
        whole = self._history
        epoch = whole if whole is not None and whole in self._seen else next(reversed(self._seen))
        return Position(epoch, self._seen[epoch])

    def ask(self) -> Position | None:
        self.is_subscribed = False
        self._asked = self.position
        return self._asked

    def subscribed(self, position: Position | None, *, recovered: bool) -> Gap | None:
        """Handle a confirmation: `position` is the topic's current position, `recovered` whether all missed messages follow."""
        asked, others = self._asked, len(self._seen) > 1
        is_return = self._has_begun or asked is not None
        self.is_subscribed = self._has_begun = True
        self._history = None if position is None else position.epoch
        if recovered and asked is not None:
            # Not the hub's position: until all missed messages have arrived, a new connection must resume at the last one seen.
            self._seen = OrderedDict({asked.epoch: asked.offset})
        else:
            self._seen = OrderedDict() if position is None else OrderedDict({position.epoch: position.offset})
        return Gap(self.pattern, asked) if is_return and (others or not recovered) else None

    def broke(self) -> None:
        """The connection is gone."""
        self.is_subscribed = False

    def takes(self, position: Position | None) -> bool:
        """Whether a message is new to this subscription. If so, it counts as seen."""
        if not self.is_subscribed:
            return False
        if position is None:
            return True
        epoch, offset = position.epoch, position.offset
        if offset <= self._seen.get(epoch, -2):
            return False
        if not self._is_pattern and epoch not in self._seen:
            self._seen.clear()  # a topic has one history: the new one has replaced the last
        self._seen[epoch] = offset
        self._seen.move_to_end(epoch)
        if len(self._seen) > MAX_EPOCHS:
            self._seen.popitem(last=False)
        return True
