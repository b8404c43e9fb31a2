"""A lease: one delivery of a message to one consumer, until a deadline."""

from __future__ import annotations

import msgspec

from penstock.values.message import StoredMessage


class ConsumerHoldings(msgspec.Struct):
    """What somebody who consumes under a name holds. Only the broker changes it."""

    consumer_id: str
    held: set[int] = msgspec.field(default_factory=set)
    """The offsets of what is in flight."""
    size: int = 0
    """Bytes in flight."""
    prefetch: int | None = None
    """How many it could hold at most when it took something last; None: there was no limit, or that is not known."""


class Lease(msgspec.Struct, frozen=True, gc=False):
    """One delivery. Ordered by deadline; the same message delivered or extended again is another lease."""

    deadline: int
    offset: int
    attempt: int
    epoch: int
    message: StoredMessage
    consumer: ConsumerHoldings | None = None
    leased_at: int = 0
    """When it was delivered; 0 where a restart lies between."""

    def __lt__(self, other: Lease) -> bool:
        return self.deadline < other.deadline
