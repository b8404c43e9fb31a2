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
from penstock.values.keywords import QueueSettings, SubscriptionChanges
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
        """The message's id: unique across all topics, sortable by time; the same for every delivery."""

    @property
    def ack_id(self) -> str:
        """The id of this delivery."""

    @property
    def data(self) -> bytes:
        """The payload."""

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes. They cannot be changed."""

    @property
    def ordering_key(self) -> str:
        """The ordering key, empty when there is none."""

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
        """0–9, 9 is delivered first."""

    @property
    def length(self) -> int:
        """Bytes of data."""

    @property
    def offset(self) -> int:
        """Its place in its topic's log."""

    @property
    def is_settled(self) -> bool:
        """Whether it was acked or nacked here."""

    def json(self) -> Any:
        """The payload, read as JSON."""

    def begin(self) -> None:
        """Report that work on it starts: if this process dies, the attempt counts. Streams report it themselves."""

    def ack(self) -> None:
        """Acknowledge it."""

    def nack(self) -> None:
        """Requeue it: it is redelivered, at once or after the retry policy's backoff, or becomes a dead letter."""

    def modify_ack_deadline(self, seconds: Duration) -> None:
        """Set the end of the lease to `seconds` from now; 0 requeues the message."""

    def ack_with_response(self) -> AckResponse:
        """Acknowledge it, and return when that is certain; INVALID if the lease was over."""

    def nack_with_response(self) -> AckResponse:
        """Requeue it, and return when that is certain; INVALID if the lease was over."""

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
        """Publish what waits, close every subscription and queue, and disconnect. Safe to call twice.

        With `give_back`, unsettled messages are requeued at once. Leaving `async with` by an error does the same. If this call is
        cancelled, the broker is released at once, whatever is not settled or published.
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
        """Every topic."""

    def subscriptions(self) -> list[SubscriptionMetadata]:
        """Every subscription."""

    def queues(self) -> list[str]:
        """The names of all work queues."""

    def schemas(self) -> list[SchemaInfo]:
        """Every schema, with its newest revision."""

    def validate_schema(self, kind: str, definition: str) -> None:
        """InvalidArgument, which says where, for a definition that could not be a schema."""

    def snapshots(self) -> list[SnapshotInfo]:
        """Every snapshot."""

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot."""

    def trace(self, message_id: str) -> list[TraceEvent]:
        """The whole life of a message, oldest event first."""

    def overview(self) -> Overview:
        """Every topic, subscription and queue with its counters."""

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
        """The headers. They cannot be changed."""

    @property
    def retry_count(self) -> int:
        """How often it was tried before: 0 for the first delivery."""

    @property
    def max_retries(self) -> int:
        """How often it may be tried again before it becomes a dead letter: its own number, or the queue's."""

    def nack(self, requeue: bool = True, error: str | None = None, delay: Duration | None = None) -> None:
        """Requeue it, after `delay` if given; with requeue=False, or when no retries are left, it becomes a dead letter.

        The error is kept with it. Without a delay, the queue's retry policy decides when it is redelivered.
        """

    def give_back(self) -> None:
        """Requeue it without counting the attempt. After `consume` the attempt counts."""

class Schema:
    name: str

    def create(self, kind: str, definition: str, *, exist_ok: bool = False) -> Schema:
        """Create it with its first revision. `kind`: AVRO (the definition is JSON) or PROTOCOL_BUFFER (it is a .proto file).

        With `exist_ok` an existing one stays as it is; AlreadyExists if it has no revision with this definition.
        """

    def get(self, revision: str | None = None) -> SchemaInfo:
        """Its newest revision, or the named one; SchemaNotFound when there is none."""

    def exists(self) -> bool:
        """Whether there is such a schema."""

    def commit(self, definition: str) -> SchemaInfo:
        """Add a revision; InvalidArgument when messages of the one before would not fit it."""

    def revisions(self) -> list[SchemaInfo]:
        """Its revisions, the newest first."""

    def delete(self) -> None:
        """Delete it; topics that use it refuse messages from then on."""

    def validate_message(self, data: bytes, encoding: str = "JSON") -> None:
        """InvalidArgument, which says where, for a message that does not fit. `encoding`: JSON or BINARY."""

class Consumer(Generic[M]):
    name: str

    def on(self, event: str, listener: Listener) -> Self:
        """Call a function, or a coroutine function, for each 'message', each 'error', and the 'close'."""

    def off(self, event: str, listener: Listener) -> Self:
        """Stop calling it."""

    def handler(self, function: F) -> F:
        """As a decorator: call a function for each message."""

    def open(self) -> None:
        """Start to receive. Returns at once; errors are reported to listeners of 'error'."""

    def close(self) -> None:
        """Stop receiving; returns when unsettled messages are settled or requeued, as `close_behavior` says."""

    def pause(self) -> None:
        """Receive nothing until `resume`."""

    def resume(self) -> None:
        """Receive again."""

    @property
    def is_open(self) -> bool:
        """Whether messages are received, or would be."""

    @property
    def stream(self) -> MessageStream:
        """The stream behind it."""

    def set_options(self, **options: Unpack[StreamKeywords]) -> None:
        """Change how messages are received (`flow_control`, `ack_deadline`, …). See `SubscriberOptions`."""

    def __iter__(self) -> Iterator[M]:
        """Every message as it arrives. Opens it; ends when it is closed, and raises the error if one ended it."""

    @property
    def link(self) -> Link:
        """The way to the broker."""

    def emit(self, event: str, *args: Any) -> None:
        """Call listeners. An error without a listener is logged."""

class Subscription(Consumer[IncomingMessage]):
    topic_name: str | None

    def set_options(self, **options: Unpack[SubscriptionKeywords]) -> None:
        """Change how messages are received (`flow_control`, `ack_deadline`, …), or how `create` will make it."""

    def pull(self, max_messages: int = 1, *, wait: float = 0, ack_deadline: float | None = None) -> list[IncomingMessage]:
        """Take up to `max_messages`, waiting up to `wait` seconds for the first. Their leases are not extended."""

    def peek(self, max_messages: int = 1) -> list[IncomingMessage]:
        """The messages that would be delivered next, without taking them; they cannot be settled."""

    def create(self, options: SubscriptionOptions | None = None, *, exist_ok: bool = False) -> Subscription:
        """Create it: it receives what is published from now on. `options` are in place of those given to the object.

        With `exist_ok` an existing one stays as it is; AlreadyExists if its topic, or an option that is given, is another one
        there. Of `options`, those at their defaults do not count as given.
        """

    def update(self, **changes: Unpack[SubscriptionChanges]) -> SubscriptionMetadata:
        """Change options by name; what is not named stays. Order and filter cannot change."""

    def exists(self) -> bool:
        """Whether there is such a subscription."""

    def metadata(self) -> SubscriptionMetadata:
        """Its settings at the broker; SubscriptionNotFound when there is none."""

    def delete(self) -> None:
        """Delete it with everything in it."""

    def stats(self) -> SubscriptionStats:
        """Its counters."""

    def seek(self, *, time: datetime | None = None, offset: int | None = None, snapshot: str | None = None) -> None:
        """Move it to a publish time, an offset of its topic's log, or a snapshot: what lies before is settled, the rest comes."""

    def create_snapshot(self, name: str) -> SnapshotInfo:
        """Keep its position under a name."""

    def explain(self, message_id: str) -> Explanation | None:
        """Why a message is not delivered now; None when it is not in the subscription."""

    def explain_backlog(self, limit: int = 20) -> list[Unsettled]:
        """The oldest unsettled messages, and what keeps each."""

    def pause_delivery(self) -> None:
        """Pause delivery to all consumers, until `resume_delivery`. `pause` concerns this object alone."""

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
        """Create it. `retention`: seconds for which messages stay for a seek, also when everybody has acked them.

        `schema`: the name of the schema that every message must fit, in JSON or in BINARY as `encoding` says. With `exist_ok` an
        existing topic stays as it is; AlreadyExists if an option that is given here is another one there.
        """

    def update(self, **changes: Any) -> TopicSettings:
        """Change `retention`, `schema` or `encoding`; what is not named stays. None removes a retention or a schema."""

    def settings(self) -> TopicSettings:
        """Its retention and schema; TopicNotFound when there is none."""

    def exists(self) -> bool:
        """Whether there is such a topic."""

    def metadata(self) -> TopicMetadata:
        """What the broker knows of it; TopicNotFound when there is none."""

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
        """Publish a message, together with others that are published at the same time; awaiting the result gives its id.

        It is sent whether or not anybody awaits it, and once the id is there it is safe. A message that no broker would take is
        refused here and now, with InvalidArgument. Cancelling what is returned ends the waiting, not the publishing. What the
        arguments mean says `penstock.Message`.
        """

    def publish_json(
        self, value: object, attributes: Mapping[str, str] | None = None, ordering_key: str = "", **options: Any
    ) -> str:
        """Publish a value as JSON; otherwise as `publish_message`."""

    def publish_many(self, messages: Iterable[Message]) -> list[str]:
        """Publish messages in as few requests as may be (1,000 messages or 8 MiB in each); returns their ids in order.

        Of each request all messages are stored, or none. When one fails, its error is raised, and others may have been stored.
        """

    def flush(self) -> None:
        """Send everything now, and return when all that was published so far is confirmed or has failed."""

    def flow_controlled(self) -> None:
        """Return when there is room for a message: await it before publishing, and no more waits in memory than was allowed."""

    def resume_publishing(self, ordering_key: str) -> None:
        """Publish messages of this key again, after one of them failed and stopped those behind it."""

    @property
    def publish_options(self) -> PublishOptions:
        """How messages are gathered into requests."""

    def set_publish_options(self, options: PublishOptions) -> None:
        """Gather messages in another way from now on."""

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
        """Add a message (bytes, str or a JSON value); returns its id when it is safe.

        `priority`: 9 is consumed first, 0 last. `ttl`, `delay`: seconds. `deliver_at`: an aware datetime, or seconds since 1970.
        What is None is as the queue's settings say.
        """

    def publish_message(self, message: NewMessage) -> str:
        """Add a message; returns its id when it is safe. Those that are published at the same time travel together."""

    def publish_many(self, messages: Sequence[NewMessage]) -> list[str]:
        """Add messages together, all or none; returns their ids."""

    def consume(
        self,
        max_messages: int = 1,
        *,
        wait: float = 0,
        ack_deadline: float | None = None,
        prefetch: int | None = None,
        consumer: str | None = None,
    ) -> list[QueueTask]:
        """Take up to `max_messages` tasks, waiting up to `wait` seconds for the first. Their leases are not extended.

        A consumer holds at most `prefetch` unsettled tasks (None: as the queue's settings say). `consumer` names the holder
        them; without it every `WorkQueue` object is one.
        """

    def peek(self) -> QueueMessage | None:
        """The message that would be consumed next; None when none is ready."""

    def create(
        self, config: QueueConfig | None = None, *, exist_ok: bool = False, **settings: Unpack[QueueSettings]
    ) -> WorkQueue:
        """Create it, with a QueueConfig or with its settings by name: `create(max_retries=5, ack_deadline=60)`.

        By name, settings that are not given are as the server's defaults.
        With `exist_ok` an existing one stays as it is; AlreadyExists if a setting that is given is another one there. Of a
        QueueConfig, settings at their defaults do not count as given.
        """

    def update(self, **changes: Unpack[QueueSettings]) -> QueueConfig:
        """Change settings by name; what is not named stays. Returns all settings."""

    def exists(self) -> bool:
        """Whether there is such a queue."""

    def config(self) -> QueueConfig:
        """Its settings; QueueNotFound when there is none."""

    def delete(self) -> None:
        """Delete it with everything in it, its dead letters too."""

    def stats(self) -> QueueStats:
        """Its counters."""

    def consumers(self, max_messages: int = 100) -> list[QueueConsumer]:
        """Who consumes it, and what each holds since when: up to `max_messages` of each, oldest first."""

    def purge(self) -> int:
        """Remove all waiting messages; returns how many."""

    def pause_delivery(self) -> None:
        """Pause delivery to all consumers, until `resume_delivery`. `pause` concerns this object alone."""

    def resume_delivery(self) -> None:
        """Resume delivery."""

    def hold(self) -> None:
        """Deprecated: use `pause_delivery`."""

    def release(self) -> None:
        """Deprecated: use `resume_delivery`."""

    def dead_letters(self, limit: int | None = None) -> list[DeadLetter]:
        """The messages that could not be processed, and why, oldest first."""

    def retry_dead_letter(self, message_id: str) -> None:
        """Put one dead letter back into the queue, as new."""

    def redrive(self, where: Callable[[DeadLetter], bool] | None = None, *, limit: int | None = None) -> int:
        """Put dead letters back, oldest first: all, those for which `where` is true, at most `limit`; returns how many."""

    def purge_dead_letters(self) -> int:
        """Remove all dead letters; returns how many."""
