"""The answers of the commands of the queue API, as types, and how messages are written into them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, get_type_hints

import msgspec

from penstock.broker.work_queues import Failures
from penstock.durations import SECOND, to_datetime
from penstock.errors import PenstockError
from penstock.values.queue import DeadLetter, Delivery, QueueConsumer, QueueMessage, QueueStats


class Answer(msgspec.Struct, kw_only=True, gc=False):
    """The fields of an answer."""


class Done(Answer, kw_only=True):
    """The command was executed."""

    success: bool = True


class Created(Done, kw_only=True):
    """The queue exists now; `created` is false if it existed before."""

    queue: str
    created: bool


class Deleted(Done, kw_only=True):
    """The queue does not exist now; `deleted` is false if it did not exist before."""

    deleted: bool


class QueueNames(Answer, kw_only=True):
    """Names, in the order of creation."""

    queues: list[str]


class Exists(Answer, kw_only=True):
    """Whether it exists."""

    exists: bool


class Published(Answer, kw_only=True):
    """The id of the message, and its place among the ready messages, from 1; null while it is delayed."""

    message_id: str
    position: int | None


class PublishedBatch(Answer, kw_only=True):
    """The ids, in the order of the messages."""

    message_ids: list[str]
    count: int


class Consumed(Answer, kw_only=True):
    """A message in the form of specification 003; every field is null if there was none.

    `message` is the JSON value that was published; a payload of bytes is a list of byte values.
    """

    message_id: str | None = None
    message: Any = None
    priority: int | None = None
    retry_count: int | None = None
    max_retries: int | None = None
    headers: dict[str, str] | None = None
    created_at: datetime | None = None


class SdkMessage(Answer, kw_only=True):
    """A message in the form of the SDKs: its payload is a list of byte values, of JSON and text in UTF-8."""

    id: str
    payload: list[int]
    priority: int
    retry_count: int
    max_retries: int
    timestamp: int
    headers: dict[str, str]


class SdkConsumed(Answer, kw_only=True):
    """A message for the SDKs, or null if there was none."""

    message: SdkMessage | None = None


class ConsumedBatch(Answer, kw_only=True):
    """Messages; an empty list if there were none."""

    messages: list[Consumed]
    count: int


class Consumers(Answer, kw_only=True):
    """The consumers of a queue and what each holds, the oldest messages first; `current_messages` counts all of them."""

    consumers: list[QueueConsumer]
    count: int


class Failure(Answer, kw_only=True):
    """Why one message could not be settled."""

    error: str
    code: str


class Acked(Done, kw_only=True):
    """How many were acked, and by id why the others failed; `success` is true if none failed."""

    acked: int
    failed: dict[str, Failure]


class NackedBatch(Done, kw_only=True):
    """How many were released, and by id why the others failed; `success` is true if none failed."""

    nacked: int
    failed: dict[str, Failure]


class Nacked(Done, kw_only=True):
    """The outcome of the nack: requeued or dead_lettered."""

    action: str


class Purged(Done, kw_only=True):
    """How many messages were removed."""

    purged: int


class Released(Done, kw_only=True):
    """How many messages were requeued."""

    released: int


class Redriven(Done, kw_only=True):
    """How many dead letters were put back."""

    redriven: int


class DeadLetterReply(Consumed, kw_only=True):
    """A dead letter."""

    reason: str
    original_queue: str
    dead_lettered_at: datetime
    attempts: int
    last_error: str | None


class DeadLettersReply(Answer, kw_only=True):
    """Dead letters, oldest first."""

    dead_letters: list[DeadLetterReply]
    count: int


_TOTALS = ("published", "consumed", "acked", "nacked", "dead_lettered")
Stats = msgspec.defstruct(
    "Stats",
    [*get_type_hints(QueueStats).items(), *((name, int) for name in _TOTALS)],
    bases=(Answer,),
    kw_only=True,
    module=__name__,
    namespace={"__doc__": "The state of a queue in numbers. Totals have the names of specification 003 and of the SDKs."},
)


class PublishedToTopic(Answer, kw_only=True):
    """The id of the message, and how many subscriptions the topic has (filters are not applied)."""

    message_id: str
    topic: str
    subscribers_matched: int


class TopicNames(Answer, kw_only=True):
    """Names of topics."""

    topics: list[str]
    count: int


class RoomCreated(Done, kw_only=True):
    """The room exists now; `created` is false if it existed before."""

    room: str
    created: bool


class RoomNames(Answer, kw_only=True):
    """Names of rooms."""

    rooms: list[str]
    count: int


class EventPublished(Answer, kw_only=True):
    """The offset of the event."""

    offset: int
    room: str


class RoomEvent(Answer, kw_only=True):
    """An event; `timestamp` is in seconds since 1970."""

    offset: int
    event: str
    data: Any
    timestamp: int
    room: str


class Events(Answer, kw_only=True):
    """Events in their order, and the offset to continue from."""

    events: list[RoomEvent]
    next_offset: int


class RoomStats(Answer, kw_only=True):
    """The numbers of a room."""

    room: str
    first_offset: int
    next_offset: int
    event_count: int
    subscribers: int


def consumed(message: Delivery) -> Consumed:
    """A message in the form of specification 003."""
    data: Any = message.data
    return Consumed(
        message_id=message.message_id,
        message=msgspec.Raw(data) if message.is_json else _plain(message.payload),
        priority=message.priority,
        retry_count=message.retry_count,
        max_retries=message.max_retries,
        headers=message.headers or {},
        created_at=to_datetime(message.published_at),
    )


def sdk_message(message: Delivery) -> SdkMessage:
    """A message in the form of the SDKs."""
    return SdkMessage(
        id=message.message_id,
        payload=list(message.data),
        priority=message.priority,
        retry_count=message.retry_count,
        max_retries=message.max_retries,
        timestamp=message.published_at // SECOND,
        headers=message.headers or {},
    )


def peeked(message: QueueMessage | None) -> Consumed:
    """A peeked message."""
    return Consumed() if message is None else Consumed(**_fields(message))


def letter(dead: DeadLetter) -> DeadLetterReply:
    """A dead letter."""
    return DeadLetterReply(
        **_fields(dead.message),
        reason=dead.reason,
        original_queue=dead.original_queue,
        dead_lettered_at=dead.dead_lettered_at,
        attempts=dead.attempts,
        last_error=dead.last_error,
    )


def stats(numbers: QueueStats) -> msgspec.Struct:
    """The state of a queue in numbers."""
    given = {name: getattr(numbers, name) for name in QueueStats.__dataclass_fields__}
    totals = {name: given[f"{name}_total"] for name in _TOTALS}
    return Stats(**given, **totals)


def failures(failed: Failures) -> dict[str, Failure]:
    """Why messages could not be settled."""
    return {one: failure(error) for one, error in failed.items()}


def failure(error: PenstockError) -> Failure:
    """An error inside a successful answer."""
    return Failure(error=error.message, code=error.reason)


def _fields(message: QueueMessage) -> dict[str, Any]:
    return {
        "message_id": message.message_id,
        "message": _plain(message.payload),
        "priority": message.priority,
        "retry_count": message.retry_count,
        "max_retries": message.max_retries,
        "headers": message.headers,
        "created_at": message.created_at,
    }


def _plain(payload: object) -> object:
    """A payload in JSON."""
    return list(payload) if isinstance(payload, bytes) else payload
