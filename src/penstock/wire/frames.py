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
"""Of one Publish. A frame's size alone is no bound: what is small on the wire may be large in memory."""
MAX_RECEIPTS = 1_000_000
"""Of one Settle or Open."""
MAX_VERDICTS = 100_000
"""Nacks and deadlines of one Settle."""
MAX_ERROR_CHARACTERS = 1_000
"""Of the error of a Nack; a longer text is cut."""

JSON_TEXT = 1
"""The extension type of a payload that MessagePack has no form for."""

TOPIC, QUEUE = 0, 1
"""What a Publish or an Open names: a topic (an Open: a subscription), or a work queue."""

_OFFSET_BITS, _ATTEMPT_BITS, _EPOCH_BITS = 40, 12, 12
_ATTEMPT_MASK, _EPOCH_MASK = (1 << _ATTEMPT_BITS) - 1, (1 << _EPOCH_BITS) - 1
_OFFSET_MASK = (1 << _OFFSET_BITS) - 1


class Leased(Protocol):
    """A delivery that is written to the wire."""

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
    """The number of one delivery, for its consumer."""
    return ((epoch & _EPOCH_MASK) << _ATTEMPT_BITS | attempt & _ATTEMPT_MASK) << _OFFSET_BITS | offset


def offset_of(receipt: int) -> int:
    """The offset of the message of a delivery."""
    return receipt & _OFFSET_MASK


class Frame(msgspec.Struct, array_like=True, gc=False):
    """Anything on the wire. Later versions may add fields at the end, which are then ignored here."""


# ── what a client says ───────────────────────────────────────────────────────────────────────────────────────────────────


class Hello(Frame, tag=0):
    """The first frame. `project` None: that of the token, or the server's default."""

    call: int
    version: int
    token: str | None = None
    project: str | None = None
    client: str = ""
    """What the client calls itself, for logs."""


class Call(Frame, tag=1):
    """Run an operation by its name; the arguments by theirs."""

    call: int
    operation: str
    arguments: msgspec.Raw


class Publish(Frame, tag=2):
    """Publish to a topic. `origin` makes it idempotent: the same again returns the first ids and adds nothing."""

    call: int
    topic: str
    messages: Annotated[list[Message], msgspec.Meta(max_length=MAX_MESSAGES)]
    origin: tuple[str, int] | None = None
    """(producer, sequence); the batch as a whole is known by it."""


class Enqueue(Frame, tag=3):
    """Publish to a work queue; otherwise as Publish."""

    call: int
    queue: str
    messages: Annotated[list[NewMessage], msgspec.Meta(max_length=MAX_MESSAGES)]
    origin: tuple[str, int] | None = None


class Limits(msgspec.Struct, array_like=True, frozen=True):
    """How much a stream may hold unsettled, and for how long."""

    max_messages: int
    max_bytes: int
    ack_deadline: float
    """Seconds of each lease."""
    allow_excess: bool = False
    """Finish a batch that goes beyond the limits, instead of cutting it."""
    is_paused: bool = False
    ordering_window: int = 1
    """How many messages of one ordering key it may hold."""


class Open(Frame, tag=4):
    """Begin a stream. `consumer` names the holder of the messages: streams that share it share its limits.

    `held` are receipts that the consumer still holds from before, when it comes back: everything else that it was sent, and
    did not get, is released at once. None: it has not been here before.
    """

    call: int
    stream: int
    kind: int
    name: str
    consumer: str
    limits: Limits
    held: Receipts | None = None


class Settle(Frame, tag=5):
    """End deliveries of a stream, or give them another deadline. `call` 0 asks for no answer."""

    call: int
    stream: int
    acks: Receipts = []
    nacks: Annotated[list[Nack], msgspec.Meta(max_length=MAX_VERDICTS)] = []
    deadlines: Annotated[list[tuple[Receipts, float]], msgspec.Meta(max_length=MAX_VERDICTS)] = []
    """Receipts, and seconds from now; 0 releases."""
    begun: Receipts = []
    """Somebody has started to work on these: should the consumer be lost, the try counts."""


class Nack(msgspec.Struct, array_like=True, gc=False):
    """A delivery that failed. Without `requeue` it goes to the dead letters; `delay` (seconds) replaces the retry policy's."""

    receipt: int
    requeue: bool = True
    error: str | None = None
    delay: float | None = None
    unseen: bool = False
    """Nobody has seen it: it returns as if it had not been delivered, and the attempt does not count."""


class Adjust(Frame, tag=6):
    """Give a stream other limits, or pause it."""

    stream: int
    limits: Limits


class Close(Frame, tag=7):
    """End a stream. What its consumer still holds returns when its last stream is closed, unless `keep`."""

    stream: int
    keep: bool = False


class Ping(Frame, tag=8):
    """Ask for a sign of life."""

    call: int


class Cancel(Frame, tag=9):
    """Nobody waits for the answer to a call any more. What it leased, or leases, is released. There is no answer to this."""

    call: int


class Head(msgspec.Struct, array_like=True, gc=False):
    """As much of a request as can be read where the rest cannot."""

    kind: int
    number: int = 0
    """Its call; of Adjust and Close, which have none, the stream."""


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
    """A message as it is delivered."""

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
        """A stored message as it is delivered."""
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
    """A stream is over: it was closed, or, with a reason, it failed. `reason` etc. are as in Refused."""

    stream: int
    reason: str | None = None
    fields: list[Any] = []
    hint: str | None = None
    text: str = ""


class Leaving(Frame, tag=4):
    """The server stops: come back in a moment. What runs is still answered."""


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
    """The number of the subscription or queue: another one after it was deleted and made again."""
    stream: int
    """The number of the topic's or queue's log, which is part of every message's id."""
    max_attempts: int | None
    exactly_once: bool
    ordered: bool


class Settled(msgspec.Struct, array_like=True):
    """The answer to Settle: receipts that were not live any more."""

    failed: list[int] = []


# ── bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────────────


def extension(code: int, data: memoryview) -> object:
    """What an extension type of MessagePack stands for."""
    return msgspec.json.decode(data) if code == JSON_TEXT else msgspec.msgpack.Ext(code, bytes(data))


_encoder = msgspec.msgpack.Encoder()
decode_request = msgspec.msgpack.Decoder(Request, ext_hook=extension).decode
_decode_head = msgspec.msgpack.Decoder(Head).decode
decode_answer = msgspec.msgpack.Decoder(Answer).decode
_CALLLESS = {6, 7}
_NO_JSON = (bytes, bytearray, memoryview, str)
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError)


def encode(value: object) -> bytes:
    """A value as bytes; InvalidArgument for what the wire has no form for, such as half a character."""
    try:
        try:
            return _encoder.encode(value)
        except (OverflowError, RecursionError):
            return _encoder.encode(_with_json_text(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidArgument(f"this cannot be sent: {str(error)[:MAX_PROBLEM]}") from None


def _with_json_text(value: Any) -> Any:
    """A value whose JSON payloads are text, in which integers may have any size, and which adds no levels of nesting."""
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
    """A frame on the wire."""
    data = encode(body)
    return len(data).to_bytes(HEADER, "little") + data


def done(call: int, result: object = None) -> bytes:
    """An answer on the wire."""
    return framed(Done(call, msgspec.Raw(encode(result))))


def refused(call: int, error: PenstockError) -> bytes:
    """An error as the answer to a call."""
    return framed(Refused(call, *_error_fields(error)))


def ended(stream: int, error: PenstockError | None) -> bytes:
    """The end of a stream."""
    return framed(Ended(stream) if error is None else Ended(stream, *_error_fields(error)))


def call_in(body: bytes) -> int:
    """The call of a request that cannot be read, 0 where it has none; InvalidArgument for what is no frame at all."""
    try:
        head = _decode_head(body)
    except UNREADABLE as error:
        raise InvalidArgument(f"this is no frame: {str(error)[:MAX_PROBLEM]}") from None
    return head.number if head.kind not in _CALLLESS else 0


def delivered(stream: int, leases: Iterable[Leased]) -> bytes:
    """Deliveries on the wire."""
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
    """The error that a frame carries: its type by its `reason`, or, where that is not known here, its text."""
    return from_wire(frame.reason or "", frame.fields, frame.text, frame.hint)


def _error_fields(error: PenstockError) -> tuple[str, list[Any], str | None, str]:
    fields, text = list(error.args), str(error)
    try:
        encode((fields, text))
    except InvalidArgument:
        return error.reason, [], error.hint, text.encode(errors="replace").decode()
    return error.reason, fields, error.hint, text


class Inbox:
    """What arrived on a connection: bytes in, bodies of frames out."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._buffer = bytearray()
        self._wanted = HEADER
        """How much must be there for the next frame to be whole, as far as that is known."""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take what arrived; gives every body that is complete. InvalidArgument for a frame beyond the limit."""
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
