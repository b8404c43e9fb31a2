"""A stored message as it travels to its consumer."""

from __future__ import annotations

from penstock.values.message import StoredMessage
from penstock.wire.frames import Body, Parcel


def parcel(offset: int, attempt: int, epoch: int, message: StoredMessage) -> Parcel:
    """One delivery of a message."""
    body = Body(
        message.publish_at,
        message.data,
        message.attributes,
        message.key,
        message.priority,
        message.content,
        message.origin_at,
        message.max_attempts,
    )
    return Parcel(offset, attempt, epoch, body)
