"""Values that the state machine takes and returns, besides events."""

from __future__ import annotations

import msgspec

from penstock.journal.core.events import Event
from penstock.values.message import StoredMessage


class PendingDeadLetter(msgspec.Struct, gc=False):
    """A dead letter to forward to its topic; the shell publishes it together with the event."""

    offset: int
    message: StoredMessage
    reason: str
    attempts: int
    error: str | None


class Outcome:
    """The result of a command that ends leases."""

    __slots__ = ("events", "pending_dead_letters")

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.pending_dead_letters: list[PendingDeadLetter] = []


class RestorePart(msgspec.Struct, gc=False):
    """Part of what a queue is restored from: messages, or only their number if they were never delivered and have no options."""

    first: int
    count: int
    published_at: int
    """When its first message was published, or one soon after it."""
    priority: int = 0
    size: int = 0
    messages: list[StoredMessage] | None = None


class WaitReason(msgspec.Struct, gc=False, frozen=True):
    """Why a message cannot be delivered now."""

    reason: str
    until: int | None = None
    by: int | None = None
    """The offset of the message that leads its key."""
