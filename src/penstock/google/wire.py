"""Deliveries and publish answers as protobuf bytes, written directly.

A broker's deliveries become `ReceivedMessage`s without one protobuf object for each: the pieces that do not change from
message to message (publish time, most of the ids) are made once for a run, the rest is joined. The field numbers are those of
`google.pubsub.v1`; `tests/unit/google/test_wire.py` compares every shape with what protobuf itself writes.
"""

from __future__ import annotations

from collections.abc import Iterable

from penstock.durations import SECOND
from penstock.ids import ack_prefix
from penstock.values.lease import Lease

_SMALL = [bytes([n]) if n < 128 else bytes([n & 127 | 128, n >> 7]) for n in range(16_384)]


def varint(number: int) -> bytes:
    if number < 16_384:
        return _SMALL[number]
    parts = bytearray()
    while number > 127:
        parts.append(number & 127 | 128)
        number >>= 7
    parts.append(number)
    return bytes(parts)


def field(tag: bytes, body: bytes) -> bytes:
    return tag + varint(len(body)) + body


def received(queue: int, stream: int, leases: Iterable[Lease], *, with_attempt: bool) -> list[bytes]:
    """The `received_messages` of these deliveries, one piece each: field 1 in the answers of Pull and StreamingPull."""
    pieces: list[bytes] = []
    published = attempt = epoch = -1
    origin: int | None = None
    common = when = prefix = tail = b""
    for lease in leases:
        message = lease.message
        if message.publish_at != published or message.origin_at != origin:
            published, origin = message.publish_at, message.origin_at
            shown = origin or published
            common = b"\x1a\x1e" + b"%014x%06x" % (published, stream)
            when = field(b'"', timestamp(shown))
        if lease.attempt != attempt or lease.epoch != epoch:
            attempt, epoch = lease.attempt, lease.epoch
            prefix = b"\x0a\x20" + ack_prefix(queue, epoch, attempt).encode()
            tail = b"\x18" + varint(attempt) if with_attempt else b""
        offset = b"%010x" % lease.offset
        data = message.data
        size = len(data)
        body = (b"\x0a" + (_SMALL[size] if size < 16_384 else varint(size)) + data if size else b"") + common + offset + when
        if message.attributes:
            body += attributes_of(message.attributes)
        if message.key:
            body += field(b"*", message.key.encode())
        size = len(body)
        delivery = prefix + offset + b"\x12" + (_SMALL[size] if size < 16_384 else varint(size)) + body + tail
        pieces.append(b"\x0a" + varint(len(delivery)) + delivery)
    return pieces


def attributes_of(attributes: dict[str, str]) -> bytes:
    """A message's attributes: one map entry for each."""
    return b"".join(
        [field(b"\x12", field(b"\x0a", key.encode()) + field(b"\x12", value.encode())) for key, value in attributes.items()]
    )


def timestamp(instant: int) -> bytes:
    """A time in microseconds as a `google.protobuf.Timestamp`."""
    seconds, micros = divmod(instant, SECOND)
    return b"\x08" + varint(seconds) + (b"\x10" + varint(micros * 1000) if micros else b"")


def published(message_ids: Iterable[str]) -> bytes:
    """A `PublishResponse`."""
    return b"".join([b"\x0a\x1e" + message_id.encode() for message_id in message_ids])
