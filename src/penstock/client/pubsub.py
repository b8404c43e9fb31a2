"""PubSub: the entry point. The same code runs on a broker in this process and on a server."""

from __future__ import annotations

import asyncio
import os
import ssl
import threading
from typing import Any, Self, Unpack

import penstock
from penstock import forks
from penstock.client.consumer import Consumer
from penstock.client.link import OPEN_IT, Link, check_loop
from penstock.client.options import CloseBehavior, StreamKeywords, SubscriptionKeywords
from penstock.client.queue import WorkQueue
from penstock.client.schema import Schema
from penstock.client.subscription import Subscription
from penstock.client.topic import Topic
from penstock.clock import Clock
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.values.message import check_string
from penstock.values.subscription import SubscriptionMetadata, TopicMetadata
from penstock.wire.address import Servers
from penstock.wire.operations import Operations
from penstock.wire.results import Overview, SchemaInfo, ServerInfo, SnapshotInfo, TraceEvent


class PubSub:
    """Topics, subscriptions and queues. Use it with `async with`, in one event loop.

    `PubSub()` is a broker in this process, in memory; `PubSub(data_dir="…")` keeps everything on disk; `PubSub("http://host:8085",
    token="…")` is a server, with `tls` for a certificate of your own; `PubSub(["http://a:8085", "http://b:8085"])` are the nodes
    of a cluster. `topic(name)` and the like return the same object each time and create nothing at the broker.

    The client reconnects by itself, to the next node if there are several: a request waits `give_up_seconds` for a connection.
    Every `ping_seconds` (20; 2 with several nodes) it sends a ping; after two without an answer it drops the connection.
    """

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
    ) -> None:
        if server is not None and (data_dir is not None or clock is not None or broker is not None):
            raise InvalidArgument("a server is given together with data_dir, clock or broker, expected one or the other")
        if server is None and (token is not None or tls is not None):
            raise InvalidArgument("a token or tls is given without a server", hint="PubSub('http://host:8085', token=…)")
        if broker is not None and (data_dir is not None or clock is not None):
            raise InvalidArgument("broker is given together with data_dir or clock, expected one or the other")
        self.link: Link
        if server is not None:
            from penstock.client.links.remote import RemoteLink  # noqa: PLC0415  # an embedded broker needs no sockets

            self.link = RemoteLink(
                server, token=token, project=project, tls=tls, give_up_seconds=give_up_seconds, ping_seconds=ping_seconds
            )
        else:
            from penstock.client.links.embedded import EmbeddedLink  # noqa: PLC0415  # a remote client needs no broker

            self.link = EmbeddedLink(data_dir=data_dir, clock=clock, broker=broker, project=project)
        self._topics: dict[str, Topic] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._queues: dict[str, WorkQueue] = {}
        self._schemas: dict[str, Schema] = {}
        self.loop: asyncio.AbstractEventLoop | None = None
        """The loop it belongs to; None while it is not open."""
        self.thread: int | None = None
        """The thread of that loop; None before the first `open`."""
        forks.own(self, "client")

    # ── life ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def open(self) -> Self:
        """Connect to the broker. `async with` does it."""
        if self.loop is not None:
            check_loop(self.loop)
        await self.link.start()
        self.loop, self.thread = asyncio.get_running_loop(), threading.get_ident()
        return self

    async def close(self, *, give_back: bool = False) -> None:
        """Publish pending messages, close every subscription and queue, and disconnect. Can be called twice.

        With `give_back`, unsettled messages are requeued at once. Leaving `async with` by an error does the same. If this call is
        cancelled, the broker is released at once, whatever is unsettled or unpublished.
        """
        if self.loop is None:
            return
        check_loop(self.loop)
        consumers: list[Consumer[Any]] = [*self._subscriptions.values(), *self._queues.values()]
        try:
            if give_back:
                for consumer in consumers:
                    consumer.set_options(close_behavior=CloseBehavior.NACK)
            # Concurrently: each may wait for its handlers. Awaited by this task: a handler that closes does not wait for itself.
            for consumer in consumers:
                consumer.stream.begin_stop()
            for consumer in consumers:
                await consumer.close()
            # After the handlers, which may publish until they end.
            await asyncio.gather(
                *[topic.publisher.close() for topic in self._topics.values()],
                *[queue.publisher.close() for queue in self._queues.values()],
            )
        finally:
            self.loop = None
            await self.link.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        await self.close(give_back=kind is not None)

    def check_open(self) -> asyncio.AbstractEventLoop:
        """Its event loop; FailedPrecondition if it is not open, or open in another one."""
        loop = self.loop
        if loop is None:
            raise FailedPrecondition(f"the client is {'not open' if self.thread is None else 'closed'}", hint=OPEN_IT)
        check_loop(loop)
        return loop

    def check_loop(self) -> None:
        """Raise FailedPrecondition if it is open in another event loop; unlike `check_open`, a closed one is fine."""
        if self.loop is not None:
            self.check_open()

    # ── resources ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def topic(self, name: str) -> Topic:
        """The topic of that name: the same object each time."""
        found = self._topics.get(check_string(name, "topic"))
        if found is None:
            found = self._topics[name] = Topic(self, name)
        return found

    def subscription(self, name: str, *, topic: str | None = None, **options: Unpack[SubscriptionKeywords]) -> Subscription:
        """The subscription of that name: the same object each time; options that are given again change it."""
        found = self._subscriptions.get(check_string(name, "subscription"))
        if found is None:
            found = self._subscriptions[name] = Subscription(self, name, topic, **options)
            return found
        found.topic_name = topic or found.topic_name
        found.set_options(**options)
        return found

    def queue(self, name: str, **options: Unpack[StreamKeywords]) -> WorkQueue:
        """The work queue of that name: the same object each time; options that are given again change it."""
        found = self._queues.get(check_string(name, "queue"))
        if found is None:
            found = self._queues[name] = WorkQueue(self, name, **options)
        elif options:
            found.set_options(**options)
        return found

    def schema(self, name: str) -> Schema:
        """The schema of that name: the same object each time."""
        found = self._schemas.get(check_string(name, "schema"))
        if found is None:
            found = self._schemas[name] = Schema(self, name)
        return found

    # ── inspection ───────────────────────────────────────────────────────────────────────────────────────────────────────

    async def topics(self) -> list[TopicMetadata]:
        """All topics."""
        return await self.link.call(Operations.list_topics)

    async def subscriptions(self) -> list[SubscriptionMetadata]:
        """All subscriptions."""
        return await self.link.call(Operations.list_subscriptions)

    async def queues(self) -> list[str]:
        """The names of all work queues."""
        return await self.link.call(Operations.list_queues)

    async def schemas(self) -> list[SchemaInfo]:
        """All schemas, each with its newest revision."""
        return await self.link.call(Operations.list_schemas)

    async def validate_schema(self, kind: str, definition: str) -> None:
        """Raise InvalidArgument, with the place, for a definition that is not a valid schema."""
        await self.link.call(Operations.validate_schema, kind, definition)

    async def snapshots(self) -> list[SnapshotInfo]:
        """All snapshots."""
        return await self.link.call(Operations.list_snapshots)

    async def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot."""
        await self.link.call(Operations.delete_snapshot, name)

    async def trace(self, message_id: str) -> list[TraceEvent]:
        """The events of a message, oldest first."""
        return await self.link.call(Operations.trace, message_id)

    async def overview(self) -> Overview:
        """All topics, subscriptions and queues with their counters."""
        return await self.link.call(Operations.overview)

    async def info(self) -> ServerInfo:
        """The version and the health of the server."""
        return await self.link.call(Operations.info)
