"""A lease: one delivery of a message to one consumer, until a deadline."""

from __future__ import annotations

import msgspec

from penstock.values.message import StoredMessage


class ConsumerHoldings(msgspec.Struct):
    """The messages that one named consumer holds. Only the broker changes it."""

    consumer_id: str
    held: set[int] = msgspec.field(default_factory=set)
    """The offsets of the messages in flight."""
    size: int = 0
    """Bytes in flight."""
    prefetch: int | None = None
    """The limit of messages at its last delivery; None if there was no limit, or it is not known."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One delivery. Ordered by deadline; a redelivery or an extension is another lease."""

    deadline: int
    offset: int
    attempt: int
    epoch: int
    message: StoredMessage
    consumer: ConsumerHoldings | None = None
    leased_at: int = 0
    """When it was delivered; 0 if the broker was restarted since."""

    def __lt__(self, other: Lease) -> bool:
        return self.deadline < other.deadline
