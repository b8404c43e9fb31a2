"""The blocking client, for type checkers. Made by scripts/sync_stub.py from penstock.client: do not edit."""

import os
import ssl
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Any, Generic, Self, TypeVar

from penstock.api.values import Overview, SchemaInfo, ServerInfo, SnapshotInfo, TraceEvent, Unsettled
from penstock.broker.broker import Broker
from penstock.broker.core.message import DEFAULT_PRIORITY, Message
from penstock.broker.core.policy import Duration, SubscriptionOptions
from penstock.client.events import Listener
from penstock.client.link import Link
from penstock.client.message import AckResponse
from penstock.client.publish_options import PublishOptions
from penstock.client.queue import WorkQueue
from penstock.client.schema import Schema
from penstock.client.stream import MessageStream
from penstock.clock import Clock
from penstock.subscription import Explanation, SubscriptionMetadata, SubscriptionStats, TopicMetadata

M = TypeVar("M", bound=IncomingMessage)
F = TypeVar("F", bound=Listener)
__all__ = ["IncomingMessage", "PubSub", "Subscription", "Topic"]

class IncomingMessage:
    receipt: int
    received_at: int
    deadline: int

    @property
    def id(self) -> str:
        """The message's id: unique across all topics, sortable by time; the same for every delivery."""
        ...

    @property
    def ack_id(self) -> str:
        """The id of this delivery."""
        ...

    @property
    def data(self) -> bytes:
        """The payload."""
        ...

    @property
    def attributes(self) -> Mapping[str, str]:
        """The attributes. They cannot be changed."""
        ...

    @property
    def ordering_key(self) -> str:
        """The ordering key, empty when there is none."""
        ...

    @property
    def publish_time(self) -> datetime:
        """When it was published; a dead letter keeps the time of its first publication."""
        ...

    @property
    def received(self) -> datetime:
        """When it arrived here."""
        ...

    @property
    def delivery_attempt(self) -> int:
        """1 for the first delivery."""
        ...

    @property
    def priority(self) -> int:
        """0–9, 9 is delivered first."""
        ...

    @property
    def length(self) -> int:
        """Bytes of data."""
        ...

    @property
    def offset(self) -> int:
        """Its place in its topic's log."""
        ...

    @property
    def is_settled(self) -> bool:
        """Whether it was acked or nacked here."""
        ...

    def json(self) -> Any:
        """The payload, read as JSON."""
        ...

    def ack(self) -> None:
        """Settle it for good."""
        ...

    def nack(self) -> None:
        """Give it back: it is delivered again, at once or after the retry policy's backoff, or becomes a dead letter."""
        ...

    def modify_ack_deadline(self, seconds: float) -> None:
        """Let the lease last so many seconds from now; 0 gives the message back."""
        ...

    def ack_with_response(self) -> AckResponse:
        """Settle it for good, and return when that is certain; INVALID when it came too late."""
        ...

    def nack_with_response(self) -> AckResponse:
        """Give it back, and return when that is certain; INVALID when it came too late."""
        ...

    def modify_ack_deadline_with_response(self, seconds: float) -> AckResponse:
        """As `modify_ack_deadline`, and say whether it came in time."""
        ...

class PubSub:
    def __init__(
        self,
        server: str | None = None,
        *,
        token: str | None = None,
        project: str | None = None,
        tls: ssl.SSLContext | None = None,
        give_up_seconds: float = 60.0,
        ping_seconds: float = 20.0,
        data_dir: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        broker: Broker | None = None,
    ) -> None: ...
    def open(self) -> Self:
        """Reach the broker. `async with` does it."""
        ...

    def close(self) -> None:
        """Publish what waits, close every subscription and queue, and let go of the broker. Safe to call twice."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...
    def check_open(self) -> None:
        """Raise when it is not open."""
        ...

    def topic(self, name: str) -> Topic:
        """The topic of that name: the same object each time."""
        ...

    def subscription(self, name: str, *, topic: str | None = None, **options: Any) -> Subscription:
        """The subscription of that name: the same object each time; options that are given again change it."""
        ...

    def queue(self, name: str, **options: Any) -> WorkQueue:
        """The work queue of that name: the same object each time; options that are given again change it."""
        ...

    def schema(self, name: str) -> Schema:
        """The schema of that name: the same object each time."""
        ...

    def topics(self) -> list[TopicMetadata]:
        """Every topic."""
        ...

    def subscriptions(self) -> list[SubscriptionMetadata]:
        """Every subscription."""
        ...

    def queues(self) -> list[str]:
        """The names of all work queues."""
        ...

    def schemas(self) -> list[SchemaInfo]:
        """Every schema, with its newest revision."""
        ...

    def validate_schema(self, kind: str, definition: str) -> None:
        """InvalidArgument, which says where, for a definition that could not be a schema."""
        ...

    def snapshots(self) -> list[SnapshotInfo]:
        """Every snapshot."""
        ...

    def delete_snapshot(self, name: str) -> None:
        """Forget a snapshot."""
        ...

    def trace(self, message_id: str) -> list[TraceEvent]:
        """The whole life of a message, oldest event first."""
        ...

    def overview(self) -> Overview:
        """Everything in numbers."""
        ...

    def info(self) -> ServerInfo:
        """What answers, and whether it is well."""
        ...

class Consumer(Generic[M]):
    name: str

    def on(self, event: str, listener: Listener) -> Self:
        """Have a function, or a coroutine function, called for each 'message', each 'error', and the 'close'."""
        ...

    def off(self, event: str, listener: Listener) -> Self:
        """Have it called no longer."""
        ...

    def handler(self, function: F) -> F:
        """As a decorator: have a function called for each message."""
        ...

    def open(self) -> None:
        """Begin to receive. Returns at once; whatever goes wrong is told as 'error'."""
        ...

    def close(self) -> None:
        """Receive no more; returns when what is out is settled, or was given back, as `close_behavior` says."""
        ...

    def pause(self) -> None:
        """Receive nothing until `resume`."""
        ...

    def resume(self) -> None:
        """Receive again."""
        ...

    @property
    def is_open(self) -> bool:
        """Whether messages are received, or would be."""
        ...

    @property
    def stream(self) -> MessageStream:
        """The stream behind it."""
        ...

    def set_options(self, **options: Any) -> None:
        """Change how messages are received (`flow_control`, `ack_deadline`, …). See `SubscriberOptions`."""
        ...

    def __iter__(self) -> Iterator[M]:
        """Every message as it comes. Opens it; ends when it is closed, raises what ends it otherwise."""
        ...

    @property
    def link(self) -> Link:
        """The way to the broker."""
        ...

    def emit(self, event: str, *args: Any) -> None:
        """Tell listeners. An error that nobody listens to is logged."""
        ...

class Subscription(Consumer[IncomingMessage]):
    topic_name: str | None

    def set_options(self, **options: Any) -> None:
        """Change how messages are received (`flow_control`, `ack_deadline`, …), or how `create` will make it."""
        ...

    def pull(self, max_messages: int = 1, *, wait: float = 0, ack_deadline: float | None = None) -> list[IncomingMessage]:
        """Take up to so many messages, waiting up to `wait` seconds for the first. Their leases are not extended."""
        ...

    def peek(self, max_messages: int = 1) -> list[IncomingMessage]:
        """The messages that would be delivered next, without taking them; they cannot be settled."""
        ...

    def create(self, options: SubscriptionOptions | None = None, *, exist_ok: bool = False) -> Subscription:
        """Create it: it receives what is published from now on. `options` are in place of those given to the object."""
        ...

    def exists(self) -> bool:
        """Whether there is such a subscription."""
        ...

    def metadata(self) -> SubscriptionMetadata:
        """Its settings at the broker; SubscriptionNotFound when there is none."""
        ...

    def delete(self) -> None:
        """Delete it with everything in it."""
        ...

    def stats(self) -> SubscriptionStats:
        """Its state in numbers."""
        ...

    def seek(self, *, time: datetime | None = None, offset: int | None = None, snapshot: str | None = None) -> None:
        """Move it to a publish time, an offset of its topic's log, or a snapshot: what lies before is settled, the rest comes."""
        ...

    def create_snapshot(self, name: str) -> SnapshotInfo:
        """Keep its position under a name."""
        ...

    def explain(self, message_id: str) -> Explanation | None:
        """Why a message is not delivered now; None when it is not in the subscription."""
        ...

    def explain_backlog(self, limit: int = 20) -> list[Unsettled]:
        """The oldest unsettled messages, and what keeps each."""
        ...

    def hold(self) -> None:
        """Have the broker hand out nothing, to anybody, until `release`."""
        ...

    def release(self) -> None:
        """Have the broker hand out again."""
        ...

class Topic:
    name: str

    def create(
        self, *, retention: float | None = None, schema: str | None = None, encoding: str = "JSON", exist_ok: bool = False
    ) -> Topic:
        """Create it. `retention`: seconds for which messages stay for a seek, also when everybody has acked them.

        `schema`: the name of the schema that every message must fit, in JSON or in BINARY as `encoding` says."""
        ...

    def exists(self) -> bool:
        """Whether there is such a topic."""
        ...

    def metadata(self) -> TopicMetadata:
        """What the broker knows of it; TopicNotFound when there is none."""
        ...

    def delete(self) -> None:
        """Delete it; its subscriptions are detached."""
        ...

    def subscription(self, name: str, **options: Any) -> Subscription:
        """The subscription of that name, of this topic: the same object each time. See `SubscriberOptions` for the options."""
        ...

    def subscriptions(self) -> list[SubscriptionMetadata]:
        """The subscriptions of this topic."""
        ...

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
        arguments mean says `penstock.Message`."""
        ...

    def publish_json(
        self, value: object, attributes: Mapping[str, str] | None = None, ordering_key: str = "", **options: Any
    ) -> str:
        """Publish a value as JSON; otherwise as `publish_message`."""
        ...

    def publish_many(self, messages: Iterable[Message]) -> list[str]:
        """Publish messages in as few requests as may be (1,000 messages or 8 MiB in each); returns their ids in order.

        Of each request all messages are stored, or none. When one fails, its error is raised, and others may have been stored."""
        ...

    def flush(self) -> None:
        """Send everything now, and return when all that was published so far is confirmed or has failed."""
        ...

    def flow_controlled(self) -> None:
        """Return when there is room for a message: await it before publishing, and no more waits in memory than was allowed."""
        ...

    def resume_publishing(self, ordering_key: str) -> None:
        """Publish messages of this key again, after one of them failed and stopped those behind it."""
        ...

    @property
    def publish_options(self) -> PublishOptions:
        """How messages are gathered into requests."""
        ...

    def set_publish_options(self, options: PublishOptions) -> None:
        """Gather messages in another way from now on."""
        ...
