"""What the commands of the queue API answer, as types, and how messages are written into them."""

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
    """It was done."""

    success: bool = True


class Created(Done, kw_only=True):
    """There is such a queue now; `created` is false when there was one before."""

    queue: str
    created: bool


class Deleted(Done, kw_only=True):
    """There is no such queue now; `deleted` is false when there was none before."""

    deleted: bool


class QueueNames(Answer, kw_only=True):
    """Names, in the order of creation."""

    queues: list[str]


class Exists(Answer, kw_only=True):
    """Whether there is one."""

    exists: bool


class Published(Answer, kw_only=True):
    """The id of the message, and its place among those that are ready, from 1; null while it is delayed."""

    message_id: str
    position: int | None


class PublishedBatch(Answer, kw_only=True):
    """The ids, in the order of the messages."""

    message_ids: list[str]
    count: int


class Consumed(Answer, kw_only=True):
    """A message as specification 003 writes it; every field is null when there was none.

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
    """A message as the SDKs read it: its payload is a list of byte values, JSON and text in UTF-8."""

    id: str
    payload: list[int]
    priority: int
    retry_count: int
    max_retries: int
    timestamp: int
    headers: dict[str, str]


class SdkConsumed(Answer, kw_only=True):
    """A message for the SDKs, or null when there was none."""

    message: SdkMessage | None = None


class ConsumedBatch(Answer, kw_only=True):
    """Messages; none when there were none."""

    messages: list[Consumed]
    count: int


class Consumers(Answer, kw_only=True):
    """Who consumes a queue and what each holds, the oldest messages first; `current_messages` counts all that it holds."""

    consumers: list[QueueConsumer]
    count: int


class Failure(Answer, kw_only=True):
    """Why one message could not be settled."""

    error: str
    code: str


class Acked(Done, kw_only=True):
    """How many were settled, and by id why the others could not be; `success` says whether all were."""

    acked: int
    failed: dict[str, Failure]


class NackedBatch(Done, kw_only=True):
    """How many were released, and by id why the others could not be; `success` says whether all were."""

    nacked: int
    failed: dict[str, Failure]


class Nacked(Done, kw_only=True):
    """What became of the message: requeued or dead_lettered."""

    action: str


class Purged(Done, kw_only=True):
    """How many messages were removed."""

    purged: int


class Released(Done, kw_only=True):
    """How many messages returned."""

    released: int


class Redriven(Done, kw_only=True):
    """How many dead letters returned."""

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
    namespace={
        "__doc__": "The state of a queue in numbers. The totals stand twice: as specification 003 and as the SDKs call them."
    },
)


class PublishedToTopic(Answer, kw_only=True):
    """The id of the message, and how many subscriptions get it (their filters not asked)."""

    message_id: str
    topic: str
    subscribers_matched: int


class TopicNames(Answer, kw_only=True):
    """Names of topics."""

    topics: list[str]
    count: int


class RoomCreated(Done, kw_only=True):
    """There is such a room now; `created` is false when there was one before."""

    room: str
    created: bool


class RoomNames(Answer, kw_only=True):
    """Names of rooms."""

    rooms: list[str]
    count: int


class EventPublished(Answer, kw_only=True):
    """Where the event is."""

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
    """What a room holds."""

    room: str
    first_offset: int
    next_offset: int
    event_count: int
    subscribers: int


def consumed(message: Delivery) -> Consumed:
    """A message as specification 003 writes it."""
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
    """A message as the SDKs read it."""
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
    """A message that was only looked at."""
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
    """An error in an answer that is otherwise good."""
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
    """A payload as JSON has it."""
    return list(payload) if isinstance(payload, bytes) else payload
