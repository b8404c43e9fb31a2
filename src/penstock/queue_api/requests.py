"""The fields of the commands of the queue API, as types: they are decoded, and shown in the documentation.

Their schemas show limits to readers; `QueueManager` checks them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, UnsetType
from msgspec.structs import asdict

from penstock.api.queues import MAX_NAME
from penstock.errors import InvalidArgument
from penstock.values.message import UNPRINTABLE
from penstock.values.policy import QueueConfig
from penstock.values.queue import NewMessage

MAX_BATCH = 10_000
"""Messages or ids in one command."""


def _limits(description: str, **schema: object) -> Meta:
    """The limits of a field, for its schema."""
    return Meta(description=description, extra_json_schema=schema)


_NO_CONTROL = "^[^\\u0000-\\u001f\\u007f]+$"
_NAME = f"^[^{UNPRINTABLE}/]+$"

Name = Annotated[str, _limits("The name of a queue.", minLength=1, maxLength=MAX_NAME, pattern=_NAME)]
ConsumerId = Annotated[str, Meta(max_length=MAX_NAME), _limits("Who consumes.", minLength=1, pattern=_NO_CONTROL)]
MessageId = Annotated[str, _limits("The id that publish and consume returned.", minLength=1, maxLength=64)]
Priority = Annotated[int, _limits("9 is consumed first, 0 last.", minimum=0, maximum=9)]
Retries = Annotated[int, _limits("How often a failed message is retried.", minimum=0, maximum=1_000_000)]
Count = Annotated[int, Meta(le=MAX_BATCH), _limits("A number of messages.", minimum=1)]
MostHeld = Annotated[int, Meta(le=MAX_BATCH), _limits("How many messages are listed of each.", minimum=0)]
Prefetch = Annotated[int, _limits("How many messages a consumer may hold.", minimum=1, maximum=1_000)]
AckDeadline = Annotated[float, _limits("The ack deadline in seconds.", minimum=0.001, maximum=86_400)]
Wait = Annotated[float, _limits("Seconds to wait for a message.", minimum=0, maximum=86_400)]
Seconds = Annotated[float, _limits("Seconds.", minimum=0.000001, maximum=3_155_760_000)]
Delay = Annotated[float, _limits("Seconds.", minimum=0, maximum=3_155_760_000)]
_Backoff = Annotated[float, _limits("Seconds.", minimum=0, maximum=604_800)]
DeliverAt = Annotated[datetime | float, _limits("A time: RFC 3339 with a zone, or seconds since 1970.")]
Text = Annotated[str, Meta(description="A text.", max_length=16_000)]
Headers = Annotated[dict[str, str], Meta(description="Strings by name, at most 64 KiB together.")]
Body = Annotated[Any, _limits("Any JSON value.")]
Wire = Annotated[Any, _limits("A list of byte values from 0 to 255, or any other JSON value.")]


class Fields(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The fields of a command."""


class NoFields(Fields, kw_only=True):
    """No fields."""


class QueueRequest(Fields, kw_only=True):
    """A command about one queue."""

    queue: Name


class MessageRequest(QueueRequest, kw_only=True):
    """A command about one leased message."""

    message_id: MessageId
    consumer_id: ConsumerId | None = None


class MessagesRequest(QueueRequest, kw_only=True):
    """A command about leased messages."""

    message_ids: Annotated[list[MessageId], Meta(min_length=1, max_length=MAX_BATCH)]
    consumer_id: ConsumerId | None = None


class MessageFields(Fields, kw_only=True):
    """A message to publish: `message` is any JSON value; the SDKs send `payload` instead, a list of byte values."""

    message: Body | UnsetType = UNSET
    payload: Wire | UnsetType = UNSET
    priority: Priority | None = None
    ttl: Seconds | None = None
    headers: Headers | None = None
    max_retries: Retries | None = None
    delay: Delay | None = None
    deliver_at: DeliverAt | None = None
    producer_id: Annotated[str, Meta(max_length=64), _limits("Who publishes.", minLength=1)] | None = None
    sequence: Annotated[int, _limits("The producer's number of this message.", minimum=0, maximum=2**63 - 1)] | None = None

    def new_message(self) -> NewMessage:
        """The message for the queue."""
        body, wire = self.message, self.payload
        if (body is UNSET) == (wire is UNSET):
            found = "missing" if body is UNSET else "given together with payload"
            raise InvalidArgument(f"message is {found}, expected either message (any JSON) or payload (a list of bytes)")
        return NewMessage(
            body if wire is UNSET else from_wire(wire),
            self.priority,
            self.ttl,
            self.headers,
            self.max_retries,
            self.delay,
            self.deliver_at,
            self.producer_id,
            self.sequence,
        )


ONE_PAYLOAD = Meta(extra_json_schema={"oneOf": [{"required": ["message"]}, {"required": ["payload"]}]})


class Publish(MessageFields, kw_only=True):
    """Publish a message to a queue."""

    queue: Name


class PublishBatch(QueueRequest, kw_only=True):
    """Publish messages to a queue together: all of them or none."""

    messages: Annotated[list[Annotated[MessageFields, ONE_PAYLOAD]], Meta(min_length=1, max_length=MAX_BATCH)]


class Consume(QueueRequest, kw_only=True):
    """Lease the message with the highest priority. With `consumer_id` the answer has the form of the SDKs."""

    consumer_id: ConsumerId | None = None
    timeout: Wait = 0
    ack_deadline: AckDeadline | None = None
    prefetch: Prefetch | None = None


class ConsumeBatch(Consume, kw_only=True):
    """Lease several messages, never more than the prefetch allows."""

    max_messages: Count = 100


class Nack(MessageRequest, kw_only=True):
    """Nack a message."""

    requeue: bool = True
    error: Text | None = None


class NackBatch(MessagesRequest, kw_only=True):
    """Nack messages."""

    requeue: bool = True
    error: Text | None = None


class Extend(MessageRequest, kw_only=True):
    """Extend the lease of a message."""

    seconds: AckDeadline


class ReleaseConsumer(QueueRequest, kw_only=True):
    """Requeue everything that a consumer holds."""

    consumer_id: ConsumerId


class ListConsumers(QueueRequest, kw_only=True):
    """List the consumers of a queue and what they hold."""

    max_messages: MostHeld = 100


class DeadLetters(QueueRequest, kw_only=True):
    """List dead letters, oldest first."""

    limit: Annotated[int, Meta(le=1_000), _limits("At most this many.", minimum=1)] = 100


class Redrive(QueueRequest, kw_only=True):
    """Put dead letters back, oldest first."""

    limit: Count | None = None


class DeadLetterRequest(QueueRequest, kw_only=True):
    """A command about one dead letter."""

    message_id: MessageId


class Backoff(Fields, kw_only=True):
    """Seconds to wait before a retry: min(minimum * 2^(attempt - 1), maximum). Omitted fields stay, or are 10 and 600."""

    minimum_backoff: _Backoff | UnsetType = UNSET
    maximum_backoff: _Backoff | UnsetType = UNSET


class Settings(Fields, kw_only=True):
    """The settings of a queue. `default_max_retries` and `prefetch_limit` (0: no limit) are the names of other servers."""

    max_depth: Annotated[int, _limits("Messages that it holds at most.", minimum=1, maximum=2**40)] | None = None
    ack_deadline_secs: AckDeadline | None = None
    max_retries: Retries | None = None
    default_max_retries: Retries | None = None
    default_priority: Priority | None = None
    default_prefetch: Prefetch | None = None
    max_prefetch: Annotated[int, _limits("The largest prefetch.", minimum=1, maximum=1_000_000)] | None = None
    prefetch_limit: Annotated[int, _limits("0: no limit.", minimum=0, maximum=1_000)] | None = None
    message_ttl: Seconds | UnsetType | None = None
    dead_letter_enabled: bool | None = None
    dead_letter_max_size: Annotated[int, _limits("Dead letters that it lists at most.", minimum=0, maximum=2**40)] | None = None
    retry_policy: Backoff | UnsetType | None = None
    overflow: Annotated[str, _limits("What happens when the queue is full.", enum=["discard", "reject", "spill"])] | None = None

    def given(self) -> dict[str, Any]:
        """The given settings, by the queue's names for them."""
        names = QueueConfig.__dataclass_fields__
        given: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) not in (None, UNSET)}
        if isinstance(self.retry_policy, Backoff):
            given["retry_policy"] = {name: value for name, value in asdict(self.retry_policy).items() if value is not UNSET}
        if self.default_max_retries is not None:
            given.setdefault("max_retries", self.default_max_retries)
        if self.prefetch_limit is not None:
            given.setdefault("default_prefetch", self.prefetch_limit or _NO_LIMIT)
            if not self.prefetch_limit:
                given.setdefault("max_prefetch", _NO_LIMIT)
        return given


_NO_LIMIT = 1_000_000


class Create(Settings, kw_only=True):
    """Create a queue. The settings are beside its name, or in `config`."""

    name: Name | None = None
    queue: Name | None = None
    config: Settings | None = None

    def target(self) -> str:
        """The name of the queue, under either of its keys."""
        name = self.name if self.queue is None else self.queue
        if name is None:
            raise InvalidArgument("queue is missing, expected the name of the queue to create")
        return name

    def settings(self) -> dict[str, Any]:
        """The given settings, beside the name or in `config`."""
        return (self if self.config is None else self.config).given()


class Update(Settings, kw_only=True):
    """Change settings of a queue; omitted ones stay. With null, `message_ttl` and `retry_policy` are removed."""

    queue: Name
    message_ttl: Seconds | UnsetType | None = UNSET
    retry_policy: Backoff | UnsetType | None = UNSET

    def given(self) -> dict[str, Any]:
        """The given settings, by the queue's names for them; None for those to remove."""
        removed = {name: None for name in ("message_ttl", "retry_policy") if getattr(self, name) is None}
        return super().given() | removed


class TopicPublishRequest(Fields, kw_only=True):
    """A message for a topic."""

    topic: Name
    payload: Body


class Room(Fields, kw_only=True):
    """A command about one room: an event stream."""

    room: Name


class NewRoom(Room, kw_only=True):
    """Create a room. `max_events` is accepted and ignored: events are removed by the retention of the log."""

    max_events: int | None = None


class Event(Room, kw_only=True):
    """An event for a room."""

    event: Annotated[str, Meta(description="The kind of event.", min_length=1, max_length=MAX_NAME)]
    data: Body


class ReadRoom(Room, kw_only=True):
    """Read events by offset."""

    from_offset: Annotated[int, _limits("The first offset.", minimum=0, maximum=2**40)] = 0
    limit: Annotated[int, Meta(le=1_000), _limits("At most this many.", minimum=1)] = 100
    subscriber_id: str | None = None


def from_wire(payload: object) -> object:
    """A payload from the SDKs: a list of byte values becomes bytes, everything else stays."""
    if type(payload) is list and {int}.issuperset(map(type, payload)):
        try:
            return bytes(payload)
        except ValueError:  # numbers that are not bytes
            return payload
    return payload
