"""The arguments and results of `QueueManager`: payloads, messages, dead letters and numbers, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, make_dataclass
from datetime import datetime
from typing import Any, ClassVar

import msgspec

from penstock.durations import instant, micros, to_datetime
from penstock.errors import InvalidArgument, InvalidPriority
from penstock.values.message import (
    MAX_MESSAGE_BYTES,
    Batch,
    StoredMessage,
    check_priority,
    check_producer,
    check_text,
    plain_text,
)
from penstock.values.policy import Duration, QueueConfig, check_count

BYTES, TEXT, JSON = 0, 1, 2
"""The type of a stored payload."""
MAX_HEADER_BYTES = 64 * 1024
"""Bytes of the names and values of all headers of a message."""
MAX_RETRIES_EXCEEDED, EXPLICIT_NACK, TTL_EXPIRED = "max_retries_exceeded", "explicit_nack", "ttl_expired"
"""Why a message became a dead letter."""


class NewMessage(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A message to publish to a work queue; its fields are the arguments of `QueueManager.publish`."""

    payload: Any
    priority: int | None = None
    ttl: Duration | None = None
    headers: Mapping[str, str] | None = None
    max_retries: int | None = None
    delay: Duration | None = None
    deliver_at: datetime | float | None = None
    producer_id: str | None = None
    sequence: int | None = None


class PublishResult(msgspec.Struct, frozen=True):
    """The id of a published message, and its 1-based place among the ready messages; None while it is delayed."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    message_id: str
    position: int | None


@dataclass(frozen=True, slots=True)
class NackResult:
    """The outcome of a nack: `action` is 'requeued' or 'dead_lettered'."""

    action: str
    success: bool = True


class QueueMessage(msgspec.Struct, frozen=True):
    """A message of a work queue. The payload has its original type: bytes, str or a JSON value."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    message_id: str
    payload: Any
    priority: int
    retry_count: int
    max_retries: int
    headers: dict[str, str]
    created_at: datetime


def _dataclass_fields(kind: type[msgspec.Struct]) -> dict[str, Field[Any]]:
    """Makes `fields`, `asdict` and `replace` of `dataclasses` work with a Struct as with the other results.

    There is one for each message, and a frozen dataclass takes seven times as long to create.
    """
    twin: Any = make_dataclass(kind.__name__, kind.__struct_fields__)
    found: dict[str, Field[Any]] = twin.__dataclass_fields__
    return found


PublishResult.__dataclass_fields__ = _dataclass_fields(PublishResult)
QueueMessage.__dataclass_fields__ = _dataclass_fields(QueueMessage)


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message on its way to its consumer, with its payload as stored: code that only passes it on need not decode it."""

    message_id: str
    data: bytes
    content: int
    priority: int
    retry_count: int
    max_retries: int
    headers: dict[str, str] | None
    published_at: int

    @property
    def payload(self) -> Any:
        """The payload in its original type: bytes, str or a JSON value."""
        return opened_payload(self.data, self.content)

    @property
    def is_json(self) -> bool:
        """Whether `data` is the text of a JSON value."""
        return self.content == JSON

    def opened(self) -> QueueMessage:
        """The message with its payload decoded."""
        return QueueMessage(
            self.message_id,
            self.payload,
            self.priority,
            self.retry_count,
            self.max_retries,
            dict(self.headers or {}),
            to_datetime(self.published_at),
        )


def opened_payload(data: bytes, content: int) -> Any:
    """A stored payload in its original type: bytes, str or a JSON value."""
    if content == TEXT:
        return data.decode()
    return msgspec.json.decode(data) if content == JSON else data


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be processed, with the reason."""

    message: QueueMessage
    reason: str
    original_queue: str
    dead_lettered_at: datetime
    attempts: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The numbers of a work queue, as specification 003 lists them, and more."""

    queue: str
    depth: int
    consumers: int
    published_total: int
    consumed_total: int
    acked_total: int
    nacked_total: int
    dead_lettered_total: int
    avg_wait_time_ms: float
    oldest_message_age_secs: float
    delayed: int
    in_flight: int
    in_flight_bytes: int
    backlog_bytes: int
    expired_total: int
    dead_letters: int
    dead_letters_evicted_total: int
    ttl_expired_total: int
    discarded_total: int
    paused: bool


@dataclass(frozen=True, slots=True)
class HeldMessage:
    """A message that a consumer holds: delivered at (None after a restart of the broker), and held until."""

    message_id: str
    retry_count: int
    delivered_at: datetime | None
    ack_deadline: datetime


@dataclass(frozen=True, slots=True)
class QueueConsumer:
    """A consumer of a work queue.

    `connection_id` is the address of its client while that has a stream open, None otherwise. `current_messages` is how many
    messages it holds, `messages` the oldest of them.
    """

    consumer_id: str
    connection_id: str | None
    prefetch: int | None
    current_messages: int
    messages: list[HeldMessage]


def accept(messages: Sequence[NewMessage], config: QueueConfig, now: int) -> Batch:
    """Check every message and convert them to the form of the log; one bad message refuses them all."""
    stored: list[StoredMessage] = []
    total, index, common, is_plain = 0, 0, -1, True
    producers: list[tuple[str, int] | None] | None = None
    try:
        for index, message in enumerate(messages):
            payload, content = message.payload, BYTES
            if type(payload) is bytes:
                data = payload
            elif isinstance(payload, str):
                data, content = _text(payload), TEXT
            elif isinstance(payload, bytes | bytearray | memoryview):
                data = bytes(payload)
            else:
                data, content = _json(payload), JSON
            priority = config.default_priority if message.priority is None else check_priority(message.priority)
            if common != priority:
                is_plain, common = is_plain and common < 0, priority
            size, attributes = len(data), None
            if message.headers is not None:
                attributes, extra = _check_headers(message.headers)
                size += extra
            if size > MAX_MESSAGE_BYTES:
                raise InvalidArgument(
                    f"payload is {size} bytes with headers, expected at most {MAX_MESSAGE_BYTES}",
                    hint="store large bodies elsewhere and send a reference",
                )
            record = StoredMessage(now, data, attributes or None, "", priority, size, None, None, None, content)
            if message.max_retries is not None:
                record.max_attempts = check_count(message.max_retries, "max_retries", 0, 1_000_000) + 1
            life = config.message_ttl if message.ttl is None else message.ttl
            if life is not None:
                record.expires_at, is_plain = now + micros(life, "ttl", minimum=1e-6), False
            if message.delay is not None or message.deliver_at is not None:
                record.deliver_at, is_plain = _deliver_at(message, now), False
            if message.producer_id is not None or message.sequence is not None:
                producers = producers or [None] * len(messages)
                producers[index] = check_producer(message.producer_id, message.sequence, "publish")
            total += size
            stored.append(record)
    except InvalidArgument as error:
        if len(messages) == 1:
            raise
        if isinstance(error, InvalidPriority):
            error.add_note(f"it is messages[{index}]")
            raise  # the text shows the value, and programs recognize it by its type
        raise InvalidArgument(f"messages[{index}]: {error}", hint=error.hint) from None
    return Batch(stored, total, common if is_plain else None, False, producers)


def _deliver_at(message: NewMessage, now: int) -> int:
    """The time before which a message with a delay or a delivery time is not delivered."""
    if message.delay is None:
        return instant(message.deliver_at, "deliver_at")
    if message.deliver_at is not None:
        raise InvalidArgument("delay and deliver_at are both given, expected at most one of them")
    return now + micros(message.delay, "delay")


def _text(payload: str) -> bytes:
    try:
        return payload.encode()
    except UnicodeEncodeError:
        raise InvalidArgument.of("payload", payload, "text that UTF-8 can encode (no lone surrogates)") from None


def _check_headers(headers: object) -> tuple[dict[str, str], int]:
    """A copy of the headers and their size in bytes. Any names and values are allowed, other than in Google's attributes."""
    if not isinstance(headers, Mapping):
        raise InvalidArgument.of("headers", headers, "a mapping of str to str")
    size, copy = 0, dict[str, str]()
    for name, value in headers.items():
        if not isinstance(name, str) or not name:
            raise InvalidArgument.of("a name in headers", name, "a non-empty string")
        size += check_text(name, "a name in headers", MAX_HEADER_BYTES)
        size += check_text(value, f"headers[{name[:80]!r}]", MAX_HEADER_BYTES)
        copy[plain_text(name)] = plain_text(value)
    if size > MAX_HEADER_BYTES:
        raise InvalidArgument(
            f"headers are {size} bytes with their names, expected at most {MAX_HEADER_BYTES}",
            hint="put large values into the payload",
        )
    return copy, size


def _json(payload: object) -> bytes:
    """The payload as JSON, only if decoding returns the same value."""
    wanted = "bytes, str, or a JSON value (None, bool, int, float, list, dict with str keys)"
    try:
        data = msgspec.json.encode(payload)
        is_same = msgspec.json.decode(data) == payload
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        raise InvalidArgument.of("payload", payload, wanted) from None
    if not is_same:
        raise InvalidArgument.of("payload", payload, wanted)
    return data


def task_name(payload: object) -> str:
    """The name of the task that a payload calls; empty if it is not a call of a task."""
    name = payload.get("task") if isinstance(payload, dict) and "v" in payload else None
    return name if isinstance(name, str) else ""
