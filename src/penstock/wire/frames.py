"""The native protocol, version 1: what clients and servers say to each other. No sockets here.

    frame        u32 length, little-endian, and a body of that length
    body         MessagePack: an array whose first item is the number of its kind

    client                                              server
    Hello     who I am                            ──>   Done (Welcome) or Refused
    Call      an operation by its name            ──>   Done or Refused
    Publish   messages for a topic or queue       ──>   Done (their ids) or Refused
    Open      a stream of deliveries              ──>   Done (Opened), then Delivered …, and Ended
    Settle    acks, nacks, deadlines of a stream  ──>   Done (what failed) where it was asked for
    Adjust    other limits for a stream
    Close     a stream                            ──>   Ended
    Ping      are you there                       ──>   Done
    Cancel    of a Call: nobody waits for it any more

Requests of one connection run side by side: an answer carries the `call` of its request. Calls, streams and their numbers are the
client's to choose; a stream's number must not be in use. What a server does not understand it refuses, and continues.
A frame that is too large, or is no array with a number in front, ends the connection.

A delivery is known by its *receipt*, one number: the offset of its message, its attempt and the queue's epoch, as far as 64 bits
go. Receipts stay good across connections and restarts for as long as the lease lives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated, Any, Protocol, TypeAlias

import msgspec

from penstock.errors import InvalidArgument, PenstockError, from_wire
from penstock.values.message import Message, StoredMessage
from penstock.values.queue import DeadLetter, NewMessage, QueueMessage

VERSION = 1
HEADER = 4
MAX_PROBLEM = 200
MAX_MESSAGES = 100_000
"""Messages of one Publish. The size of a frame alone is no bound: a small frame may become large in memory."""
MAX_RECEIPTS = 1_000_000
"""Receipts of one Settle or Open."""
MAX_VERDICTS = 100_000
"""Nacks and deadlines of one Settle."""
MAX_ERROR_CHARACTERS = 1_000
"""Characters of the error of a Nack; a longer text is cut."""

JSON_TEXT = 1
"""The extension type of payloads that MessagePack cannot represent."""

TOPIC, QUEUE = 0, 1
"""The kind of name in a Publish or an Open: a topic (in an Open: a subscription), or a work queue."""

_OFFSET_BITS, _ATTEMPT_BITS, _EPOCH_BITS = 40, 12, 12
_ATTEMPT_MASK, _EPOCH_MASK = (1 << _ATTEMPT_BITS) - 1, (1 << _EPOCH_BITS) - 1
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


class Leased(Protocol):
    """A delivery that can be written to the wire."""

    @property
    def offset(self) -> int: ...  # as in `Delivery`
    @property
    def attempt(self) -> int: ...
    @property
    def epoch(self) -> int: ...
    @property
    def message(self) -> StoredMessage: ...


Receipts: TypeAlias = Annotated[list[int], msgspec.Meta(max_length=MAX_RECEIPTS)]


def receipt(offset: int, attempt: int, epoch: int) -> int:
    """The number that identifies a delivery for its consumer."""
    return ((epoch & _EPOCH_MASK) << _ATTEMPT_BITS | attempt & _ATTEMPT_MASK) << _OFFSET_BITS | offset


def offset_of(receipt: int) -> int:
    """The offset of a delivery's message."""
    return receipt & _OFFSET_MASK


class Frame(msgspec.Struct, array_like=True, gc=False):
    """A frame. Later versions may add fields at the end, which older ones ignore."""


# ── what a client says ───────────────────────────────────────────────────────────────────────────────────────────────────


class Hello(Frame, tag=0):
    """The first frame. If `project` is None, it is the project of the token, or the server's default."""

    call: int
    version: int
    token: str | None = None
    project: str | None = None
    client: str = ""
    """The client's name for itself, for logs."""


class Call(Frame, tag=1):
    """Run an operation by its name, with arguments by name."""

    call: int
    operation: str
    arguments: msgspec.Raw


class Publish(Frame, tag=2):
    """Publish to a topic. `origin` makes it idempotent: a repeat returns the first ids and stores nothing."""

    call: int
    topic: str
    messages: Annotated[list[Message], msgspec.Meta(max_length=MAX_MESSAGES)]
    origin: tuple[str, int] | None = None
    """(producer, sequence), which identifies the whole batch."""


class Enqueue(Frame, tag=3):
    """Publish to a work queue, otherwise like Publish."""

    call: int
    queue: str
    messages: Annotated[list[NewMessage], msgspec.Meta(max_length=MAX_MESSAGES)]
    origin: tuple[str, int] | None = None


class Limits(msgspec.Struct, array_like=True, frozen=True):
    """The limits of the unsettled messages of a stream."""

    max_messages: int
    max_bytes: int
    ack_deadline: float
    """Seconds of each lease."""
    allow_excess: bool = False
    """Deliver a batch whole even if it exceeds the limits."""
    is_paused: bool = False
    ordering_window: int = 1
    """Messages of one ordering key that it may hold."""


class Open(Frame, tag=4):
    """Open a stream. `consumer` names the holder of the messages: streams with the same consumer share its limits.

    `held` are the receipts that a reconnecting consumer still holds: everything else that was sent to it, and did not arrive, is
    released at once. None: it was not connected before.
    """

    call: int
    stream: int
    kind: int
    name: str
    consumer: str
    limits: Limits
    held: Receipts | None = None


class Settle(Frame, tag=5):
    """Settle deliveries of a stream, or change their deadlines. With `call` 0 there is no answer."""

    call: int
    stream: int
    acks: Receipts = []
    nacks: Annotated[list[Nack], msgspec.Meta(max_length=MAX_VERDICTS)] = []
    deadlines: Annotated[list[tuple[Receipts, float]], msgspec.Meta(max_length=MAX_VERDICTS)] = []
    """Receipts, and seconds from now; 0 releases."""
    begun: Receipts = []
    """A handler has started on these: if the consumer is lost, the attempt counts."""


class Nack(msgspec.Struct, array_like=True, gc=False):
    """A failed delivery. Without `requeue` it is dead-lettered; `delay` (seconds) replaces the retry policy's."""

    receipt: int
    requeue: bool = True
    error: str | None = None
    delay: float | None = None
    unseen: bool = False
    """No handler has seen it: it is requeued, and the attempt does not count."""


class Adjust(Frame, tag=6):
    """Change the limits of a stream, or pause it."""

    stream: int
    limits: Limits


class Close(Frame, tag=7):
    """Close a stream. When a consumer's last stream is closed, its messages are released, unless `keep` is set."""

    stream: int
    keep: bool = False


class Ping(Frame, tag=8):
    """Request an answer, to see whether the server is alive."""

    call: int


class Cancel(Frame, tag=9):
    """Cancel a call: the client does not wait for its answer any more. Messages that it leases are released.

    There is no answer.
    """

    call: int


class Head(msgspec.Struct, array_like=True, gc=False):
    """The part of a request that can be read if the rest is invalid."""

    kind: int
    number: int = 0
    """Its call; for Adjust and Close, which have none, the stream."""


Request: TypeAlias = Hello | Call | Publish | Enqueue | Open | Settle | Adjust | Close | Ping | Cancel


# ── what a server says ───────────────────────────────────────────────────────────────────────────────────────────────────


class Done(Frame, tag=0):
    """The answer to a request."""

    call: int
    result: msgspec.Raw = msgspec.Raw(b"\xc0")


class Refused(Frame, tag=1):
    """A request failed."""

    call: int
    reason: str
    fields: list[Any] = []
    hint: str | None = None
    text: str = ""


class Body(msgspec.Struct, array_like=True, gc=False):
    """The content of a delivered message."""

    publish_at: int
    data: bytes
    attributes: dict[str, str] | None
    key: str
    priority: int
    content: int
    origin_at: int | None
    max_attempts: int | None


class Delivery(msgspec.Struct, array_like=True, gc=False):
    """One delivery."""

    offset: int
    attempt: int
    epoch: int
    message: Body

    @classmethod
    def of(cls, offset: int, attempt: int, epoch: int, message: StoredMessage) -> Delivery:
        """The content of a stored message."""
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
        return cls(offset, attempt, epoch, body)


class Delivered(Frame, tag=2):
    """Deliveries of a stream."""

    stream: int
    deliveries: list[Delivery]


class Ended(Frame, tag=3):
    """A stream has ended: it was closed or, if there is a reason, it failed. `reason` etc. are as in Refused."""

    stream: int
    reason: str | None = None
    fields: list[Any] = []
    hint: str | None = None
    text: str = ""


class Leaving(Frame, tag=4):
    """The server stops: reconnect in a moment. Running requests are still answered."""


Answer: TypeAlias = Done | Refused | Delivered | Ended | Leaving


class Welcome(msgspec.Struct):
    """The answer to Hello."""

    version: int
    server: str
    project: str
    max_frame_bytes: int
    is_durable: bool


class Opened(msgspec.Struct):
    """The answer to Open."""

    queue: int
    """The number of the subscription or queue; it differs after the resource was deleted and created again."""
    stream: int
    """The number of the topic's or queue's log, which is part of every message's id."""
    max_attempts: int | None
    exactly_once: bool
    ordered: bool


class Settled(msgspec.Struct, array_like=True):
    """The answer to Settle: the receipts that were not leased any more."""

    failed: list[int] = []


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def extension(code: int, data: memoryview) -> object:
    """Decode an extension type of MessagePack."""
    return msgspec.json.decode(data) if code == JSON_TEXT else msgspec.msgpack.Ext(code, bytes(data))


_encoder = msgspec.msgpack.Encoder()
decode_request = msgspec.msgpack.Decoder(Request, ext_hook=extension).decode
_decode_head = msgspec.msgpack.Decoder(Head).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
_CALLLESS = {6, 7}
_NO_JSON = (bytes, bytearray, memoryview, str)
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def encode(value: object) -> bytes:
    """Encode a value; InvalidArgument for values that cannot be represented, such as half a character."""
    try:
        try:
            return _encoder.encode(value)
        except (OverflowError, RecursionError):
            return _encoder.encode(_with_json_text(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"this cannot be sent: {str(error)[:MAX_PROBLEM]}") from None


def _with_json_text(value: Any) -> Any:
    """The same value with JSON payloads as text: integers may have any size, and nesting adds no levels."""
    match value:
        case NewMessage(payload=payload) | QueueMessage(payload=payload) if not isinstance(payload, _NO_JSON):
            return msgspec.structs.replace(value, payload=msgspec.msgpack.Ext(JSON_TEXT, msgspec.json.encode(payload)))
        case DeadLetter():
            return replace(value, message=_with_json_text(value.message))
        case Enqueue():
            return msgspec.structs.replace(value, messages=_with_json_text(value.messages))
        case list():
            return [_with_json_text(one) for one in value]
    return value


def framed(body: object) -> bytes:
    """Encode a frame."""
    data = encode(body)
    return len(data).to_bytes(HEADER, "little") + data


def done(call: int, result: object = None) -> bytes:
    """Encode the answer to a call."""
    return framed(Done(call, msgspec.Raw(encode(result))))


def refused(call: int, error: PenstockError) -> bytes:
    """Encode an error as the answer to a call."""
    return framed(Refused(call, *_error_fields(error)))


def ended(stream: int, error: PenstockError | None) -> bytes:
    """Encode the end of a stream."""
    return framed(Ended(stream) if error is None else Ended(stream, *_error_fields(error)))


def call_in(body: bytes) -> int:
    """The call of an unreadable request, 0 if it has none; InvalidArgument if it is not a frame at all."""
    try:
        head = _decode_head(body)
    except UNREADABLE as error:
        raise InvalidArgument(f"not a frame: {str(error)[:MAX_PROBLEM]}") from None
    return head.number if head.kind not in _CALLLESS else 0


def delivered(stream: int, leases: Iterable[Leased]) -> bytes:
    """Encode deliveries."""
    deliveries = []
    for lease in leases:
        message = lease.message
        body = (
            message.publish_at,
            message.data,
            message.attributes,
            message.key,
            message.priority,
            message.content,
            message.origin_at,
            message.max_attempts,
        )
        deliveries.append((lease.offset, lease.attempt, lease.epoch, body))
    return framed((2, stream, deliveries))


def error_in(frame: Refused | Ended) -> PenstockError:
    """The error in a frame: its class by its `reason` or, if that is unknown here, by its code, with its text."""
    return from_wire(frame.reason or "", frame.fields, frame.text, frame.hint)


def _error_fields(error: PenstockError) -> tuple[str, list[Any], str | None, str]:
    fields, text = list(error.args), str(error)
    try:
        encode((fields, text))
    except InvalidArgument:
        return error.reason, [], error.hint, text.encode(errors="replace").decode()
    return error.reason, fields, error.hint, text


class Inbox:
    """The incoming side of a connection: takes bytes, returns bodies of frames."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._wanted = HEADER
        """The bytes needed for the next whole frame, as far as known."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take the bytes that arrived; returns the complete bodies. InvalidArgument for a frame beyond the limit."""
        buffer = self._buffer
        if buffer:
            buffer += data
            if len(buffer) < self._wanted:
                return
            view = bytes(buffer)
            buffer.clear()
        else:
            view = data
        at, size = 0, len(view)
        self._wanted = HEADER
        while size - at >= HEADER:
            start = at + HEADER
            length = int.from_bytes(view[at:start], "little")
            if length > self.limit:
                raise InvalidArgument(f"a frame of {length} bytes is more than {self.limit}")
            if size - start < length:
                self._wanted = HEADER + length
                break
            at = start + length
            yield view[start:at]
        buffer += view[at:]
