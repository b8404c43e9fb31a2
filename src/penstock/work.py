"""What `QueueManager` takes and gives back: payloads, messages, dead letters and their state, as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from penstock.broker.core.message import MAX_MESSAGE_BYTES, StoredMessage, check_attributes
from penstock.broker.core.queue import Queue
from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.ids import message_id

_BYTES, _TEXT, _JSON = 0, 1, 2


@dataclass(frozen=True, slots=True)
class PublishResult:
    """Where a message went: its id, and its 1-based place among the messages that are ready."""

    message_id: str
    position: int


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


def stored(payload: object, priority: int, headers: Mapping[str, str] | None, now: int) -> StoredMessage:
    """What the log keeps of a payload."""
    if isinstance(payload, bytes | bytearray | memoryview):
        data, content = bytes(payload), _BYTES
    elif isinstance(payload, str):
        try:
            data, content = payload.encode(), _TEXT
        except UnicodeEncodeError:
            raise InvalidArgument.of("payload", payload, "text that UTF-8 can encode (no lone surrogates)") from None
    else:
        data, content = _json(payload), _JSON
    attributes, extra = check_attributes(headers, "headers") if headers is not None else (None, 0)
    size = len(data) + extra
    if size > MAX_MESSAGE_BYTES:
        raise InvalidArgument(
            f"payload is {size} bytes with headers, wanted at most {MAX_MESSAGE_BYTES}",
            hint="store large bodies elsewhere and send a reference",
        )
    return StoredMessage(now, data, attributes or None, "", priority, size, content=content)


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


def queue_message(entry: Queue, offset: int, message: StoredMessage, retry_count: int) -> QueueMessage:
    """A stored message as its consumer gets it."""
    limit = message.max_attempts or entry.policy.max_attempts or 1
    payload: Any = message.data
    if message.content == _TEXT:
        payload = message.data.decode()
    elif message.content == _JSON:
        payload = msgspec.json.decode(message.data)
    return QueueMessage(
        message_id(message.publish_at, entry.stream, offset),
        payload,
        message.priority,
        retry_count,
        limit - 1,
        dict(message.attributes or {}),
        to_datetime(message.publish_at),
    )
