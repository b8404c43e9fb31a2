"""The two ways to say the same: as the specification writes it, and as the original implementation's clients speak.

A dialect reads the payload of a request and writes replies and forwarded messages. Everything between is the specification's. A
client that connects with `metadata.protocolVersion` is spoken to in the original's dialect (`original.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from penstock.hub.core.address import HUB
from penstock.hub.core.message import Message
from penstock.hub.core.messages import COMMANDS, REPLIES, Command, Envelope, Reply

MakeId = Callable[[], str]
Parts = tuple[bytes, bytes]
"""A forwarded message before and after its recipient."""

encode = msgspec.json.Encoder().encode


class Dialect(Protocol):
    """How one kind of client is spoken to."""

    has_globs: bool
    """Whether a pattern of hub:discover is a glob instead of a regular expression."""

    def read(self, request: Envelope) -> Command:
        """The command of a request whose type is in COMMANDS; msgspec.DecodeError when it is not well-formed."""

    def write(
        self, reply: Reply, to: str, *, request: Envelope | None, command: Command | None, now: int, make_id: MakeId
    ) -> bytes:
        """A reply as it is sent; empty when this dialect has no reply of that kind."""

    def parts(self, message: Message, make_id: MakeId) -> Parts:
        """A forwarded message, to be completed by the recipient as JSON."""


class _Out(msgspec.Struct, omit_defaults=True, rename={"sender": "from", "correlation_id": "correlationId"}):
    """The envelope of a reply."""

    type: str
    sender: str
    to: str
    payload: Reply
    correlation_id: str | None = None
    timestamp: int = 0


class Specified:
    """The specification's dialect."""

    has_globs = False

    def __init__(self) -> None:
        self._readers: dict[str, Callable[[bytes], Command]] = {
            name: msgspec.json.Decoder(kind).decode for name, kind in COMMANDS.items()
        }

    def read(self, request: Envelope) -> Command:
        """The command of a request."""
        return self._readers[request.type](payload_of(request))

    def write(
        self, reply: Reply, to: str, *, request: Envelope | None, command: Command | None, now: int, make_id: MakeId
    ) -> bytes:
        """Type, sender, recipient and payload, and to which request it belongs."""
        asked = None if request is None else request.message_id
        return encode(_Out(REPLIES[type(reply)], HUB, to, reply, asked, now // 1000))

    def parts(self, message: Message, make_id: MakeId) -> Parts:
        """The flat message: the data is the payload."""
        return head_of(message), b',"payload":%b,"timestamp":%d,"metadata":{%b}}' % (
            message.data,
            message.published_at // 1000,
            metadata_of(message, b'"forwarded":true,"via":"%b"' % HUB.encode()),
        )


def payload_of(request: Envelope) -> bytes:
    """The payload of a request; null is an empty one."""
    payload = bytes(request.payload)
    return b"{}" if payload == b"null" else payload


def head_of(message: Message) -> bytes:
    """A forwarded message up to its recipient."""
    return b'{"type":%b,"from":%b,"to":' % (encode(message.type), encode(message.sender))


def metadata_of(message: Message, said: bytes) -> bytes:
    """The inside of a forwarded message's metadata: what its sender said, what the hub says, and where it is."""
    parts = [said] if message.metadata is None else [message.metadata, said]
    if message.topic is None:
        parts.append(b'"originalMessageId":%b' % encode(message.message_id))
    else:
        parts.append(b'"topic":%b,"messageId":%b' % (encode(message.topic), encode(message.message_id)))
    if message.ack_id is not None:
        parts.append(b'"ackId":%b' % encode(message.ack_id))
    if message.position is not None:
        parts.append(b'"offset":%d,"epoch":%b' % (message.position.offset, encode(message.position.epoch)))
    return b",".join(parts)


SPECIFIED = Specified()
