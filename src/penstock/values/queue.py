"""What `QueueManager` takes and gives back: payloads, messages, dead letters and their state, as values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from penstock.durations import instant, micros, to_datetime
from penstock.errors import InvalidArgument, InvalidPriority
from penstock.values.message import (
    MAX_MESSAGE_BYTES,
    Batch,
    StoredMessage,
    check_attributes,
    check_priority,
    check_producer,
    summarize,
)
from penstock.values.policy import Duration, QueueConfig, check_count

BYTES, TEXT, JSON = 0, 1, 2
"""What the bytes of a stored payload are."""


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


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Where a message went: its id, and its 1-based place among the messages that are ready, None while it is delayed."""

    message_id: str
    position: int | None


@dataclass(frozen=True, slots=True)
class NackResult:
    """What became of a message that was given back: `action` is 'requeued' or 'dead_lettered'."""

    action: str
    success: bool = True


@dataclass(frozen=True, slots=True)
class QueueMessage:
    """A message of a work queue. The payload comes back as it was given: bytes, str or a JSON value."""

    message_id: str
    payload: Any
    priority: int
    retry_count: int
    max_retries: int
    headers: dict[str, str]
    created_at: datetime


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """A message on its way to its consumer, its payload still as it is stored: what only passes it on need not open it."""

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
        """The payload as it was given: bytes, str or a JSON value."""
        if self.content == TEXT:
            return self.data.decode()
        return msgspec.json.decode(self.data) if self.content == JSON else self.data

    @property
    def is_json(self) -> bool:
        """Whether `data` is the text of a JSON value."""
        return self.content == JSON

    def opened(self) -> QueueMessage:
        """The message with its payload as it was given."""
        return QueueMessage(
            self.message_id,
            self.payload,
            self.priority,
            self.retry_count,
            self.max_retries,
            dict(self.headers or {}),
            to_datetime(self.published_at),
        )


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that could not be processed, and why."""

    message: QueueMessage
    reason: str
    original_queue: str
    dead_lettered_at: datetime
    attempts: int
    last_error: str | None


@dataclass(frozen=True, slots=True)
class QueueStats:
    """The state of a work queue in numbers, as specification 003 lists them, and more."""

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


def accept(messages: Sequence[NewMessage], config: QueueConfig, now: int) -> Batch:
    """Check every message and turn them into what the log keeps; the first bad one refuses them all."""
    stored: list[StoredMessage] = []
    producers: list[tuple[str, int] | None] | None = None
    for index, message in enumerate(messages):
        try:
            stored.append(_stored(message, config, now))
            if message.producer_id is not None or message.sequence is not None:
                producers = producers or [None] * len(messages)
                producers[index] = check_producer(message.producer_id, message.sequence, "publish")
        except InvalidPriority:
            raise  # it shows the value, and programs know it by its type
        except InvalidArgument as error:
            if len(messages) == 1:
                raise
            raise InvalidArgument(f"messages[{index}]: {error}", hint=error.hint) from None
    batch = summarize(stored)
    return batch if producers is None else Batch(batch.messages, batch.size, batch.priority, False, producers)


def _stored(message: NewMessage, config: QueueConfig, now: int) -> StoredMessage:
    """What the log keeps of a message."""
    payload = message.payload
    if isinstance(payload, bytes | bytearray | memoryview):
        data, content = bytes(payload), BYTES
    elif isinstance(payload, str):
        try:
            data, content = payload.encode(), TEXT
        except UnicodeEncodeError:
            raise InvalidArgument.of("payload", payload, "text that UTF-8 can encode (no lone surrogates)") from None
    else:
        data, content = _json(payload), JSON
    priority = config.default_priority if message.priority is None else check_priority(message.priority)
    attributes, extra = check_attributes(message.headers, "headers") if message.headers is not None else (None, 0)
    size = len(data) + extra
    if size > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"payload is {size} bytes with headers, wanted at most {MAX_MESSAGE_BYTES}",
            hint="store large bodies elsewhere and send a reference",
        )
    record = StoredMessage(now, data, attributes or None, "", priority, size, content=content)
    if message.max_retries is not None:
        record.max_attempts = check_count(message.max_retries, "max_retries", 0, 1_000_000) + 1
    life = config.message_ttl if message.ttl is None else message.ttl
    if life is not None:
        record.expires_at = now + micros(life, "ttl", minimum=1e-6)
    if message.delay is not None and message.deliver_at is not None:
        raise InvalidArgument("delay and deliver_at are both given, wanted at most one of them")
    if message.delay is not None:
        record.deliver_at = now + micros(message.delay, "delay")
    elif message.deliver_at is not None:
        record.deliver_at = instant(message.deliver_at, "deliver_at")
    return record


def _json(payload: object) -> bytes:
    """The payload as JSON, only if it comes back the same."""
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
    """The task that a payload calls; empty if it is no call of a task."""
    name = payload.get("task") if isinstance(payload, dict) and "v" in payload else None
    return name if isinstance(name, str) else ""
