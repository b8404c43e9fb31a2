"""The blocking client, for type checkers. Made by scripts/sync_stub.py from penstock.client: do not edit."""

import asyncio
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, Self, TypeVar, Unpack

import penstock
from penstock.client.handlers import Listener
from penstock.client.link import Link
from penstock.client.message import AckResponse
from penstock.client.options import PublishOptions, StreamKeywords, SubscriptionKeywords
from penstock.client.stream import MessageStream
from penstock.clock import Clock
from penstock.values.keywords import QueueSettings, SubscriptionChanges, TopicChanges
from penstock.values.message import DEFAULT_PRIORITY, Message
from penstock.values.policy import Duration, QueueConfig, SubscriptionOptions
from penstock.values.queue import DeadLetter, NewMessage, QueueConsumer, QueueMessage, QueueStats
from penstock.values.subscription import Explanation, SubscriptionMetadata, SubscriptionStats, TopicMetadata
from penstock.wire.address import Servers
from penstock.wire.results import Overview, SchemaInfo, ServerInfo, SnapshotInfo, TopicSettings, TraceEvent, Unsettled

M = TypeVar("M", bound=IncomingMessage)
F = TypeVar("F", bound=Listener)
__all__ = ["IncomingMessage", "PubSub", "QueueTask", "Schema", "Subscription", "Topic", "WorkQueue"]

class IncomingMessage:
    receipt: int
    received_at: int
    deadline: int
    end_at: int

    @property
    def id(self) -> str:
        """The message's id: unique across all topics, sortable by time, and the same for every delivery."""

    @property
    def ack_id(self) -> str:
        """The id of this delivery."""

    @property
    def data(self) -> bytes:
        """The payload."""

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes, read-only."""

    @property
    def ordering_key(self) -> str:
        """The ordering key, empty if there is none."""

    @property
    def publish_time(self) -> datetime:
        """When it was published; a dead letter keeps the time of its first publication."""

    @property
    def received(self) -> datetime:
        """When it arrived here."""

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery."""

    @property
    def priority(self) -> int:
        """0 to 9; 9 is delivered first."""

    @property
    def length(self) -> int:
        """Bytes of the payload."""

    @property
    def offset(self) -> int:
        """Its offset in its topic's log."""

    @property
    def is_settled(self) -> bool:
        """Whether it was acked or nacked here."""

    def json(self) -> Any:
        """The payload, parsed as JSON."""

    def begin(self) -> None:
        """Report that its handler starts: if this process dies, the attempt counts. Streams report it themselves."""

    def ack(self) -> None:
        """Acknowledge it."""

    def nack(self) -> None:
        """Requeue it: it is redelivered, at once or after the retry policy's backoff, or becomes a dead letter."""

    def modify_ack_deadline(self, seconds: Duration) -> None:
        """Set the end of the lease to `seconds` from now; 0 requeues the message."""

    def ack_with_response(self) -> AckResponse:
        """Acknowledge it, and return once that is certain; INVALID if the lease was over."""

    def nack_with_response(self) -> AckResponse:
        """Requeue it, and return once that is certain; INVALID if the lease was over."""

    def modify_ack_deadline_with_response(self, seconds: Duration) -> AckResponse:
        """As `modify_ack_deadline`; INVALID if the lease was over."""

class PubSub:
    def __init__(
        self,
        server: Servers | None = None,
        *,
        token: str | None = None,
        project: str | None = None,
        tls: ssl.SSLContext | None = None,
        give_up_seconds: float = 60.0,
        ping_seconds: float | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        broker: penstock.Broker | None = None,
    ) -> None: ...
    def open(self) -> Self:
        """Connect to the broker. `async with` does it."""

    def close(self, *, give_back: bool = False) -> None:
        """Publish pending messages, close every subscription and queue, and disconnect. Can be called twice.

        With `give_back`, unsettled messages are requeued at once. Leaving `async with` by an error does the same. If this call is
        cancelled, the broker is released at once, whatever is unsettled or unpublished.
        """

    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...
    def check_open(self) -> asyncio.AbstractEventLoop:
        """Its event loop; FailedPrecondition if it is not open, or open in another one."""

    def check_loop(self) -> None:
        """Raise FailedPrecondition if it is open in another event loop; unlike `check_open`, a closed one is fine."""

    def topic(self, name: str) -> Topic:
        """The topic of that name: the same object each time."""

    def subscription(self, name: str, *, topic: str | None = None, **options: Unpack[SubscriptionKeywords]) -> Subscription:
        """The subscription of that name: the same object each time; options that are given again change it."""

    def queue(self, name: str, **options: Unpack[StreamKeywords]) -> WorkQueue:
        """The work queue of that name: the same object each time; options that are given again change it."""

    def schema(self, name: str) -> Schema:
        """The schema of that name: the same object each time."""

    def topics(self) -> list[TopicMetadata]:
        """All topics."""

    def subscriptions(self) -> list[SubscriptionMetadata]:
        """All subscriptions."""

    def queues(self) -> list[str]:
        """The names of all work queues."""

    def schemas(self) -> list[SchemaInfo]:
        """All schemas, each with its newest revision."""

    def validate_schema(self, kind: str, definition: str) -> None:
        """Raise InvalidArgument, with the place, for a definition that is not a valid schema."""

    def snapshots(self) -> list[SnapshotInfo]:
        """All snapshots."""

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot."""

    def trace(self, message_id: str) -> list[TraceEvent]:
        """The events of a message, oldest first."""

    def overview(self) -> Overview:
        """All topics, subscriptions and queues with their counters."""

    def info(self) -> ServerInfo:
        """The version and the health of the server."""

class QueueTask(IncomingMessage):
    @property
    def message_id(self) -> str:
        """The message's id; the same for every delivery."""

    @property
    def payload(self) -> Any:
        """The payload as it was published: bytes, str or a JSON value."""

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, read-only."""

    @property
    def retry_count(self) -> int:
        """The number of earlier attempts: 0 for the first delivery."""

    @property
    def max_retries(self) -> int:
        """How often it may be retried before it becomes a dead letter: its own number, or the queue's."""

    def nack(self, requeue: bool = True, error: str | None = None, delay: Duration | None = None) -> None:
        """Requeue it, after `delay` if given; with requeue=False, or without retries left, it becomes a dead letter.

        The error is stored with it. Without a delay, the queue's retry policy decides when it is redelivered.
        """

    def give_back(self) -> None:
        """Requeue it without counting the attempt. After `consume` the attempt counts."""

class Schema:
    name: str

    def create(self, kind: str, definition: str, *, exist_ok: bool = False) -> Schema:
        """Create it with its first revision. `kind`: AVRO (the definition is JSON) or PROTOCOL_BUFFER (it is a .proto file).

        With `exist_ok` an existing schema stays as it is; AlreadyExists if it has no revision with this definition.
        """

    def get(self, revision: str | None = None) -> SchemaInfo:
        """Its newest revision, or the named one; SchemaNotFound if it does not exist."""

    def exists(self) -> bool:
        """Whether the schema exists."""

    def commit(self, definition: str) -> SchemaInfo:
        """Add a revision; InvalidArgument if it is incompatible with the newest one."""

    def revisions(self) -> list[SchemaInfo]:
        """Its revisions, the newest first."""

    def delete(self) -> None:
        """Delete it; topics that use it refuse messages from then on."""

    def validate_message(self, data: bytes, encoding: str = "JSON") -> None:
        """Raise InvalidArgument, with the place, for a message that does not match. `encoding`: JSON or BINARY."""

class Consumer(Generic[M]):
    name: str

    def on(self, event: str, listener: Listener) -> Self:
        """Call a function, or a coroutine function, for each 'message', each 'error', and the 'close'."""

    def off(self, event: str, listener: Listener) -> Self:
        """Stop calling it for this event."""

    def handler(self, function: F) -> F:
        """Decorator: call a function for each message."""

    def open(self) -> None:
        """Start receiving. Returns at once; errors are reported to listeners of 'error'."""

    def close(self) -> None:
        """Stop receiving; returns when unsettled messages are settled or requeued, as `close_behavior` says."""

    def pause(self) -> None:
        """Receive nothing until `resume`."""

    def resume(self) -> None:
        """Receive again."""

    @property
    def is_open(self) -> bool:
        """Whether it receives messages, or would if there were any."""

    @property
    def stream(self) -> MessageStream:
        """Its stream."""

    def set_options(self, **options: Unpack[StreamKeywords]) -> None:
        """Change how messages are received (`flow_control`, `ack_deadline`, …). See `SubscriberOptions`."""

    def __iter__(self) -> Iterator[M]:
        """Every message as it arrives. Opens the consumer; ends when it is closed, and raises the error if one ended it."""

    @property
    def link(self) -> Link:
        """The way to the broker."""

    def emit(self, event: str, *args: Any) -> None:
        """Call listeners. An error without a listener is logged."""

class Subscription(Consumer[IncomingMessage]):
    topic_name: str | None

    def set_options(self, **options: Unpack[SubscriptionKeywords]) -> None:
        """Change how messages are received (`flow_control`, `ack_deadline`, …), or how `create` will create it."""

    def pull(self, max_messages: int = 1, *, wait: float = 0, ack_deadline: float | None = None) -> list[IncomingMessage]:
        """Lease up to `max_messages`, waiting up to `wait` seconds for the first. Their leases are not extended."""

    def peek(self, max_messages: int = 1) -> list[IncomingMessage]:
        """The messages that would be delivered next, without leasing them; they cannot be settled."""

    def create(self, options: SubscriptionOptions | None = None, *, exist_ok: bool = False) -> Subscription:
        """Create it: it receives what is published from now on. `options` replace those given to the object.

        With `exist_ok` an existing subscription stays as it is; AlreadyExists if its topic or a given option differs there.
        Fields of `options` at their defaults do not count as given.
        """

    def update(self, **changes: Unpack[SubscriptionChanges]) -> SubscriptionMetadata:
        """Change options by name; others stay. Ordering and filter cannot change."""

    def exists(self) -> bool:
        """Whether the subscription exists."""

    def metadata(self) -> SubscriptionMetadata:
        """Its settings at the broker; SubscriptionNotFound if it does not exist."""

    def delete(self) -> None:
        """Delete it with its messages."""

    def stats(self) -> SubscriptionStats:
        """Its counters."""

    def seek(self, *, time: datetime | None = None, offset: int | None = None, snapshot: str | None = None) -> None:
        """Move it to a publish time, an offset of its topic's log, or a snapshot: settle what is before, deliver the rest."""

    def create_snapshot(self, name: str) -> SnapshotInfo:
        """Save its position as a snapshot."""

    def explain(self, message_id: str) -> Explanation | None:
        """Why a message is not delivered now; None if it is not in the subscription."""

    def explain_backlog(self, limit: int = 20) -> list[Unsettled]:
        """The oldest unsettled messages, and what each waits for."""

    def pause_delivery(self) -> None:
        """Pause delivery to all consumers, until `resume_delivery`. `pause` affects only this object."""

    def resume_delivery(self) -> None:
        """Resume delivery."""

    def hold(self) -> None:
        """Deprecated: use `pause_delivery`."""

    def release(self) -> None:
        """Deprecated: use `resume_delivery`."""

class Topic:
    name: str

    def create(
        self, *, retention: float | None = None, schema: str | None = None, encoding: str = "JSON", exist_ok: bool = False
    ) -> Topic:
        """Create it. `retention`: seconds for which messages are kept for a seek, also when all subscriptions have acked them.

        `schema`: the name of the schema of all messages, in JSON or in BINARY as `encoding` says. With `exist_ok` an existing
        topic stays as it is; AlreadyExists if a given option differs there.
        """

    def update(self, **changes: Unpack[TopicChanges]) -> TopicSettings:
        """Change `retention`, `schema` or `encoding`; others stay. None removes a retention or a schema."""

    def settings(self) -> TopicSettings:
        """Its retention and schema; TopicNotFound if it does not exist."""

    def exists(self) -> bool:
        """Whether the topic exists."""

    def metadata(self) -> TopicMetadata:
        """Its properties at the broker; TopicNotFound if it does not exist."""

    def delete(self) -> None:
        """Delete it; its subscriptions are detached."""

    def subscription(self, name: str, **options: Unpack[SubscriptionKeywords]) -> Subscription:
        """The subscription of that name, of this topic: the same object each time.

        The options are those of `SubscriberOptions`, for receiving, and of `SubscriptionOptions`, for `create`.
        """

    def subscriptions(self) -> list[SubscriptionMetadata]:
        """The subscriptions of this topic."""

    def publish_message(
        self,
        data: bytes = b"",
        attributes: Mapping[str, str] | None = None,
        ordering_key: str = "",
        *,
        priority: int = DEFAULT_PRIORITY,
        ttl: Duration | None = None,
        deliver_at: datetime | float | None = None,
        producer_id: str | None = None,
        sequence: int | None = None,
    ) -> str:
        """Publish a message, together with others that are published at the same time; await the result for its id.

        It is sent whether or not the result is awaited, and is durable once the id is returned. An invalid message is refused
        immediately, with InvalidArgument. Cancelling the result ends the waiting, not the publishing. `penstock.Message`
        documents the arguments.
        """

    def publish_json(
        self, value: object, attributes: Mapping[str, str] | None = None, ordering_key: str = "", **options: Any
    ) -> str:
        """Publish a value as JSON; otherwise as `publish_message`."""

    def publish_many(self, messages: Iterable[Message]) -> list[str]:
        """Publish messages in as few requests as possible (1,000 messages or 8 MiB in each); returns their ids in order.

        Each request is stored as a whole or not at all. If one fails, its error is raised, and others may have been stored.
        """

    def flush(self) -> None:
        """Send everything now, and return once everything published so far is confirmed or has failed."""

    def flow_controlled(self) -> None:
        """Return when there is room for a message. Await it before publishing to keep memory within the limits."""

    def resume_publishing(self, ordering_key: str) -> None:
        """Publish messages of this key again, after a failure has stopped those behind it."""

    @property
    def publish_options(self) -> PublishOptions:
        """How messages are batched into requests."""

    def set_publish_options(self, options: PublishOptions) -> None:
        """Change how messages are batched."""

class WorkQueue(Consumer[QueueTask]):
    def publish(
        self,
        payload: Any,
        *,
        priority: int | None = None,
        ttl: Duration | None = None,
        headers: Mapping[str, str] | None = None,
        max_retries: int | None = None,
        delay: Duration | None = None,
        deliver_at: datetime | float | None = None,
    ) -> str:
        """Publish a message (bytes, str or a JSON value); returns its id once it is durable.

        `priority`: 9 is consumed first, 0 last. `ttl`, `delay`: seconds. `deliver_at`: an aware datetime, or seconds since 1970.
        None means the setting of the queue.
        """

    def publish_message(self, message: NewMessage) -> str:
        """Publish a message; returns its id once it is durable. Messages that are published at the same time share a request."""

    def publish_many(self, messages: Sequence[NewMessage]) -> list[str]:
        """Publish messages together, all or none; returns their ids."""

    def consume(
        self,
        max_messages: int = 1,
        *,
        wait: float = 0,
        ack_deadline: float | None = None,
        prefetch: int | None = None,
        consumer: str | None = None,
    ) -> list[QueueTask]:
        """Lease up to `max_messages` tasks, waiting up to `wait` seconds for the first. Their leases are not extended.

        A consumer holds at most `prefetch` unsettled tasks (None: the queue's setting). `consumer` names the consumer; without it
        each `WorkQueue` object is one.
        """

    def peek(self) -> QueueMessage | None:
        """The message that would be consumed next; None if none is ready."""

    def create(
        self, config: QueueConfig | None = None, *, exist_ok: bool = False, **settings: Unpack[QueueSettings]
    ) -> WorkQueue:
        """Create it, with a QueueConfig or with its settings by name: `create(max_retries=5, ack_deadline=60)`.

        Settings that are not given by name have the server's defaults. With `exist_ok` an existing queue stays as it is;
        AlreadyExists if a given setting differs there. Settings of a QueueConfig at their defaults do not count as given.
        """

    def update(self, **changes: Unpack[QueueSettings]) -> QueueConfig:
        """Change settings by name; others stay. Returns all settings."""

    def exists(self) -> bool:
        """Whether the queue exists."""

    def config(self) -> QueueConfig:
        """Its settings; QueueNotFound if it does not exist."""

    def delete(self) -> None:
        """Delete it with its messages and dead letters."""

    def stats(self) -> QueueStats:
        """Its counters."""

    def consumers(self, max_messages: int = 100) -> list[QueueConsumer]:
        """Its consumers, and what each holds since when: up to `max_messages` of each, oldest first."""

    def purge(self) -> int:
        """Remove all messages that are not leased; returns how many."""

    def pause_delivery(self) -> None:
        """Pause delivery to all consumers, until `resume_delivery`. `pause` affects only this object."""

    def resume_delivery(self) -> None:
        """Resume delivery."""

    def hold(self) -> None:
        """Deprecated: use `pause_delivery`."""

    def release(self) -> None:
        """Deprecated: use `resume_delivery`."""

    def dead_letters(self, limit: int | None = None) -> list[DeadLetter]:
        """The messages that could not be processed, with the reasons, oldest first."""

    def retry_dead_letter(self, message_id: str) -> None:
        """Put one dead letter back into the queue, as new."""

    def redrive(self, where: Callable[[DeadLetter], bool] | None = None, *, limit: int | None = None) -> int:
        """Put dead letters back, oldest first: all or those that match `where`, at most `limit`; returns how many."""

    def purge_dead_letters(self) -> int:
        """Remove all dead letters; returns how many."""
