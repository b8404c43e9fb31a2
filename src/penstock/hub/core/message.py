"""A message that the hub passes on: published to a topic, sent to one actor, or to all."""

from __future__ import annotations

import msgspec

from penstock.hub.core.messages import Position

_AROUND = 512
"""What a forwarded message has beside its data and its names, in bytes, at most."""


class Message(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One message. `data` is JSON text, already checked: it travels as it came."""

    type: str
    sender: str
    """The address of the actor that sent it, stamped by the hub."""
    data: bytes
    message_id: str
    """Of the request that brought it; of a message that a service published, the broker's own."""
    published_at: int
    expires_at: int | None = None
    topic: str | None = None
    """None of a direct message."""
    ack_id: str | None = None
    """By which this one delivery is acknowledged, if it is one of a durable subscription."""
    position: Position | None = None
    metadata: bytes | None = None
    """What the sender of a direct message said beside it: the inside of a JSON object, or None."""

    @property
    def weight(self) -> int:
        """About how many bytes it takes in an outbox."""
        return len(self.data) + len(self.type) + len(self.sender) + len(self.message_id) + len(self.topic or "") + _AROUND
