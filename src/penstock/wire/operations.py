"""The operations of the native protocol: what clients may call, and how arguments and results are encoded.

`Operations` is the whole list. A client names one of its methods, `link.call(Operations.pull, "billing", 10)`. The signature is
also the wire format: arguments are a map by name, the result has the return type. `penstock.api.operations` implements the list;
a test compares both, signature by signature.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any, Protocol, get_type_hints

import msgspec

from penstock.errors import Unimplemented
from penstock.values.message import Message
from penstock.values.policy import QueueConfig, SubscriptionOptions
from penstock.values.queue import DeadLetter, NewMessage, QueueConsumer, QueueMessage, QueueStats
from penstock.values.subscription import Explanation, SubscriptionMetadata, SubscriptionStats, TopicMetadata
from penstock.wire.frames import extension
from penstock.wire.results import Overview, Pulled, SchemaInfo, ServerInfo, SnapshotInfo, TopicSettings, TraceEvent, Unsettled

CONSUMING = frozenset({"pull", "consume"})
"""Operations that lease messages."""
QUESTIONS = (
    *("get_", "list_", "peek", "explain", "validate_", "trace", "info", "overview"),
    *("subscription_stats", "queue_stats", "queue_consumers", "dead_letter"),
)
"""Operations with these prefixes change nothing: a client that loses its connection repeats them."""


class Operations(Protocol):
    """The operations of one caller on one project. Names are relative to the project, or `projects/P/topics/N` in full."""

    # ── topics, subscriptions, messages ──────────────────────────────────────────────────────────────────────────────

    async def create_topic(
        self, topic: str, retention: float | None = None, schema: str | None = None, encoding: str = "JSON"
    ) -> TopicMetadata:
        """Create a topic.

        `retention`: seconds for which messages are kept for a seek, also when all subscriptions have acked them.

        `schema`: the schema of all messages, encoded as `encoding` says (JSON or BINARY).
        """

    async def get_topic(self, topic: str) -> TopicMetadata:
        """A topic."""

    async def list_topics(self) -> list[TopicMetadata]:
        """The topics of the project."""

    async def get_topic_settings(self, topic: str) -> TopicSettings:
        """The settings of a topic."""

    async def update_topic(self, topic: str, changes: dict[str, Any]) -> TopicSettings:
        """Change the `retention`, `schema` or `encoding` of a topic; what is not named stays."""

    async def delete_topic(self, topic: str) -> None:
        """Delete a topic; its subscriptions are detached."""

    async def publish(self, topic: str, messages: list[Message], origin: tuple[str, int] | None = None) -> list[str]:
        """Publish messages, all or none; returns their ids once they are durable.

        A repeat with the same `origin` adds nothing.
        """

    async def enqueue(self, queue: str, messages: list[NewMessage], origin: tuple[str, int] | None = None) -> list[str]:
        """Publish messages to a work queue, all or none; otherwise as `publish`."""

    async def create_subscription(self, subscription: str, topic: str, options: SubscriptionOptions) -> SubscriptionMetadata:
        """Create a subscription that receives what is published from now on."""

    async def get_subscription(self, subscription: str) -> SubscriptionMetadata:
        """A subscription."""

    async def list_subscriptions(self, topic: str | None = None) -> list[SubscriptionMetadata]:
        """The subscriptions of the project, or those of one topic."""

    async def update_subscription(self, subscription: str, changes: dict[str, Any]) -> SubscriptionMetadata:
        """Change options of a subscription by name; what is not named stays."""

    async def delete_subscription(self, subscription: str) -> None:
        """Delete a subscription with everything in it."""

    async def pause_subscription(self, subscription: str) -> None:
        """Pause delivery until it is resumed."""

    async def resume_subscription(self, subscription: str) -> None:
        """Resume delivery."""

    async def subscription_stats(self, subscription: str) -> SubscriptionStats:
        """The state of a subscription in numbers."""

    async def seek(
        self, subscription: str, time: datetime | None = None, offset: int | None = None, snapshot: str | None = None
    ) -> None:
        """Move a subscription to a publish time, an offset of its topic's log, or a snapshot."""

    async def pull(self, subscription: str, max_messages: int = 1, wait: float = 0, ack_deadline: float | None = None) -> Pulled:
        """Lease messages, waiting up to `wait` seconds for the first."""

    async def peek(self, subscription: str, max_messages: int = 1) -> Pulled:
        """The messages that would be delivered next, without leasing them."""

    async def acknowledge(self, subscription: str, ack_ids: list[str]) -> list[str]:
        """Acknowledge deliveries; returns the ids that were not leased any more."""

    async def modify_ack_deadline(self, subscription: str, ack_ids: list[str], seconds: float) -> list[str]:
        """Set deadlines to `seconds` from now; 0 requeues the messages. Returns the ids that were not leased any more."""

    async def create_snapshot(self, snapshot: str, subscription: str) -> SnapshotInfo:
        """Create a snapshot of a subscription's position."""

    async def list_snapshots(self) -> list[SnapshotInfo]:
        """The snapshots of the project."""

    async def delete_snapshot(self, snapshot: str) -> None:
        """Delete a snapshot."""

    async def trace(self, message_id: str) -> list[TraceEvent]:
        """The events of a message, oldest first, as far back as the event log reaches.

        It is found by the broker's id, or by the id that it has for a router.
        """

    async def explain(self, subscription: str, message_id: str) -> Explanation | None:
        """Why a message is not delivered now; None if it is not in the subscription."""

    async def explain_backlog(self, subscription: str, limit: int = 20) -> list[Unsettled]:
        """The oldest unsettled messages of a subscription, and what each waits for."""

    async def explain_queue(self, queue: str, limit: int = 20) -> list[Unsettled]:
        """The oldest unsettled messages of a work queue, and what each waits for."""

    async def explain_task(self, queue: str, message_id: str) -> Explanation | None:
        """Why a message of a work queue is not delivered now; None if it is not in the queue."""

    async def overview(self) -> Overview:
        """Every topic, subscription and queue that the caller may read, in numbers."""

    async def info(self) -> ServerInfo:
        """The version and the health of the server."""

    # ── work queues ──────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_queue(self, queue: str, config: QueueConfig | None = None, settings: dict[str, Any] | None = None) -> None:
        """Create a work queue, with all settings, or with some by name and the server's defaults for the others."""

    async def update_queue(self, queue: str, changes: dict[str, Any]) -> QueueConfig:
        """Change settings of a work queue by name; what is not named stays."""

    async def delete_queue(self, queue: str) -> None:
        """Delete a work queue with everything in it, its dead letters too."""

    async def list_queues(self) -> list[str]:
        """The names of the project's work queues."""

    async def get_queue(self, queue: str) -> QueueConfig:
        """The settings of a work queue."""

    async def queue_stats(self, queue: str) -> QueueStats:
        """The state of a work queue in numbers."""

    async def queue_consumers(self, queue: str, max_messages: int = 100) -> list[QueueConsumer]:
        """The consumers of a work queue, and up to `max_messages` of what each holds, oldest first."""

    async def consume(  # noqa: PLR0917  # arguments have names on the wire
        self,
        queue: str,
        consumer: str,
        max_messages: int = 1,
        wait: float = 0,
        ack_deadline: float | None = None,
        prefetch: int | None = None,
    ) -> list[QueueMessage]:
        """Lease messages, waiting up to `wait` seconds for the first."""

    async def ack_messages(self, queue: str, message_ids: list[str], consumer: str | None = None) -> dict[str, str]:
        """Acknowledge messages; returns, by id, why some could not be."""

    async def nack_messages(  # noqa: PLR0917  # arguments have names on the wire
        self,
        queue: str,
        message_ids: list[str],
        requeue: bool = True,
        error: str | None = None,
        consumer: str | None = None,
        delay: float | None = None,
    ) -> dict[str, str]:
        """Requeue messages, or move them to the dead letters; returns, by id, why some could not be.

        `delay` (seconds) replaces the retry policy's.
        """

    async def extend_message(self, queue: str, message_id: str, seconds: float, consumer: str | None = None) -> None:
        """Set the deadline of a leased message to `seconds` from now."""

    async def peek_queue(self, queue: str) -> QueueMessage | None:
        """The message that would be consumed next."""

    async def purge_queue(self, queue: str) -> int:
        """Remove all messages that are not leased; returns how many."""

    async def pause_queue(self, queue: str) -> None:
        """Pause delivery until it is resumed."""

    async def resume_queue(self, queue: str) -> None:
        """Resume delivery."""

    async def dead_letter_ids(self, queue: str) -> list[str]:
        """The ids of the dead letters of a queue, oldest first."""

    async def dead_letters(self, queue: str, message_ids: list[str]) -> list[DeadLetter]:
        """The dead letters with these ids, in this order, as many as fit into an answer: call again for the rest."""

    async def retry_dead_letter(self, queue: str, message_id: str) -> None:
        """Put one dead letter back into its queue."""

    async def redrive_dead_letters(self, queue: str, limit: int | None = None, message_ids: list[str] | None = None) -> int:
        """Put dead letters back into the queue, all or these, oldest first; returns how many."""

    async def purge_dead_letters(self, queue: str, message_ids: list[str] | None = None) -> int:
        """Remove all dead letters of a queue, or these; returns how many."""

    # ── schemas ──────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_schema(self, schema: str, kind: str, definition: str) -> SchemaInfo:
        """Create a schema with its first revision; `kind` is AVRO or PROTOCOL_BUFFER."""

    async def get_schema(self, schema: str, revision: str | None = None) -> SchemaInfo:
        """The newest revision of a schema, or the named one."""

    async def list_schemas(self) -> list[SchemaInfo]:
        """The schemas of the project, each with its newest revision."""

    async def list_schema_revisions(self, schema: str) -> list[SchemaInfo]:
        """The revisions of a schema, the newest first."""

    async def commit_schema(self, schema: str, definition: str) -> SchemaInfo:
        """Add a revision that is compatible with the newest one."""

    async def delete_schema(self, schema: str) -> None:
        """Delete a schema; topics that use it refuse messages from then on."""

    async def validate_schema(self, kind: str, definition: str) -> None:
        """Raise InvalidArgument for an invalid definition."""

    async def validate_message(self, schema: str, data: bytes, encoding: str) -> None:
        """Raise InvalidArgument for a message that does not match the newest revision of a schema."""


@dataclass(frozen=True, slots=True)
class Operation:
    """How one operation is encoded."""

    name: str
    parameters: tuple[str, ...]
    read_arguments: Callable[[bytes], msgspec.Struct]
    read_result: Callable[[bytes], Any]


@cache
def operation(name: str) -> Operation:
    """The operation of that name; Unimplemented if there is none."""
    method = getattr(Operations, name, None) if not name.startswith("_") else None
    if not inspect.iscoroutinefunction(method):
        raise Unimplemented(f"operation {name[:80]!r} is not known here", hint="client and server may be of different versions")
    return _operation(method)


def _operation(method: Callable[..., Awaitable[Any]]) -> Operation:
    hints = get_type_hints(method)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    fields = [
        (one.name, hints[one.name]) if one.default is inspect.Parameter.empty else (one.name, hints[one.name], one.default)
        for one in parameters
    ]
    arguments = msgspec.defstruct(method.__name__, fields, kw_only=True, forbid_unknown_fields=True)
    return Operation(
        method.__name__,
        tuple(one.name for one in parameters),
        msgspec.msgpack.Decoder(arguments, ext_hook=extension).decode,
        msgspec.msgpack.Decoder(hints["return"], ext_hook=extension).decode,
    )
