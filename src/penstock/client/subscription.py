"""A subscription: what it is at the broker, and its messages as they come."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import fields, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from penstock.api import frames
from penstock.api.operations import Operations
from penstock.api.values import Pulled, SnapshotInfo, Unsettled
from penstock.broker.core.policy import SubscriptionOptions
from penstock.client.events import Events, Listener
from penstock.client.inflow import Inflow
from penstock.client.link import Link
from penstock.client.message import IncomingMessage
from penstock.client.options import SubscriberOptions
from penstock.client.pulled import PullHolder
from penstock.client.stream import MessageStream
from penstock.errors import AlreadyExists, InvalidArgument, NotFound
from penstock.subscription import Explanation, SubscriptionMetadata, SubscriptionStats

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub

log = logging.getLogger("penstock.client")

F = TypeVar("F", bound=Listener)

STREAM_OPTIONS = frozenset(field.name for field in fields(SubscriberOptions))
CREATION_OPTIONS = frozenset(field.name for field in fields(SubscriptionOptions)) - {"flow_control"}


class Subscription:
    """A subscription by its name. Making the object makes nothing at the broker: `create` does.

    Consume it with `on("message", handler)` and `open()`, or with `async for message in subscription`. Handlers are called on the
    event loop, in order of arrival; a coroutine function runs beside others. A message is settled by `ack` or `nack`; one whose
    handler raised is given back, and the error is told to the listeners of 'error'.
    """

    kind = frames.TOPIC
    message_type = IncomingMessage

    def __init__(self, pubsub: PubSub, name: str, topic: str | None = None, **options: Any) -> None:
        self._pubsub = pubsub
        self.name = name
        self.topic_name = topic
        self._events = Events("message", "error", "close")
        self._inflow: Inflow[IncomingMessage] = Inflow(self._events, self._handler_failed)
        self._creation: dict[str, Any] = {}
        self._stream = MessageStream(self, SubscriberOptions())
        self.set_options(**options)

    # ── consuming ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def on(self, event: str, listener: Listener) -> Subscription:
        """Have a function, or a coroutine function, called for each 'message', each 'error', and the 'close'."""
        self._events.add(event, listener)
        if event == "message":
            self._inflow.attend()
        return self

    def off(self, event: str, listener: Listener) -> Subscription:
        """Have it called no longer."""
        self._events.remove(event, listener)
        return self

    def handler(self, function: F) -> F:
        """As a decorator: have a function called for each message."""
        self.on("message", function)
        return function

    def open(self) -> None:
        """Begin to receive. Returns at once; whatever goes wrong is told as 'error'."""
        self._pubsub.check_open()
        self._inflow.begin()
        self._stream.start()

    async def close(self) -> None:
        """Receive no more; returns when what is out is settled, or was given back, as `close_behavior` says."""
        await self._stream.stop()

    def pause(self) -> None:
        """Receive nothing until `resume`."""
        self._stream.pause()

    def resume(self) -> None:
        """Receive again."""
        self._stream.resume()

    @property
    def is_open(self) -> bool:
        """Whether messages are received, or would be."""
        return self._stream.is_open

    @property
    def stream(self) -> MessageStream:
        """The stream behind it."""
        return self._stream

    def set_options(self, **options: Any) -> None:
        """Change how messages are received (`flow_control`, `ack_deadline`, …), or how `create` will make it."""
        unknown = options.keys() - STREAM_OPTIONS - CREATION_OPTIONS
        if unknown:
            known = ", ".join(sorted(STREAM_OPTIONS | CREATION_OPTIONS))
            raise InvalidArgument(f"unknown option {min(unknown)!r} of a subscription, wanted one of {known}")
        stream = {name: value for name, value in options.items() if name in STREAM_OPTIONS and value is not None}
        if stream:
            self._stream.set_options(replace(self._stream.options, **stream))
        self._creation |= {name: value for name, value in options.items() if name in CREATION_OPTIONS}
        if options.get("ack_deadline") is not None:
            self._creation.setdefault("ack_deadline_seconds", min(max(options["ack_deadline"], 10), 600))

    async def __aiter__(self) -> AsyncIterator[IncomingMessage]:
        """Every message as it comes. Opens the subscription; ends when it is closed, raises what ends it otherwise."""
        if not self.is_open:
            self.open()
        while (message := await self._inflow.next()) is not None:
            yield message
        if self._stream.failure is not None:
            raise self._stream.failure

    async def pull(self, max_messages: int = 1, *, wait: float = 0, ack_deadline: float | None = None) -> list[IncomingMessage]:
        """Take up to so many messages, waiting up to `wait` seconds for the first. Their leases are not extended."""
        pulled = await self.link.call(Operations.pull, self.name, max_messages, wait, ack_deadline)
        return self._made(pulled)

    async def peek(self, max_messages: int = 1) -> list[IncomingMessage]:
        """The messages that would be delivered next, without taking them; they cannot be settled."""
        return self._made(await self.link.call(Operations.peek, self.name, max_messages))

    # ── at the broker ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, options: SubscriptionOptions | None = None, *, exist_ok: bool = False) -> Subscription:
        """Create it: it receives what is published from now on. `options` are in place of those given to the object."""
        if self.topic_name is None:
            raise InvalidArgument(
                f"subscription {self.name!r} has no topic", hint="topic.subscription(name), or pubsub.subscription(name, topic=…)"
            )
        try:
            await self.link.call(
                Operations.create_subscription, self.name, self.topic_name, options or SubscriptionOptions(**self._creation)
            )
        except AlreadyExists:
            if not exist_ok:
                raise
        return self

    async def exists(self) -> bool:
        """Whether there is such a subscription."""
        try:
            await self.metadata()
        except NotFound:
            return False
        return True

    async def metadata(self) -> SubscriptionMetadata:
        """Its settings at the broker; SubscriptionNotFound when there is none."""
        return await self.link.call(Operations.get_subscription, self.name)

    async def delete(self) -> None:
        """Delete it with everything in it."""
        await self.link.call(Operations.delete_subscription, self.name)

    async def stats(self) -> SubscriptionStats:
        """Its state in numbers."""
        return await self.link.call(Operations.subscription_stats, self.name)

    async def seek(self, *, time: datetime | None = None, offset: int | None = None, snapshot: str | None = None) -> None:
        """Move it to a publish time, an offset of its topic's log, or a snapshot: what lies before is settled, the rest comes."""
        await self.link.call(Operations.seek, self.name, time=time, offset=offset, snapshot=snapshot)

    async def create_snapshot(self, name: str) -> SnapshotInfo:
        """Keep its position under a name."""
        return await self.link.call(Operations.create_snapshot, name, self.name)

    async def explain(self, message_id: str) -> Explanation | None:
        """Why a message is not delivered now; None when it is not in the subscription."""
        return await self.link.call(Operations.explain, self.name, message_id)

    async def explain_backlog(self, limit: int = 20) -> list[Unsettled]:
        """The oldest unsettled messages, and what keeps each."""
        return await self.link.call(Operations.explain_backlog, self.name, limit)

    async def hold(self) -> None:
        """Have the broker hand out nothing, to anybody, until `release`."""
        await self.link.call(Operations.pause_subscription, self.name)

    async def release(self) -> None:
        """Have the broker hand out again."""
        await self.link.call(Operations.resume_subscription, self.name)

    # ── for the stream ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def link(self) -> Link:
        """The way to the broker."""
        return self._pubsub.link

    @property
    def take(self) -> Callable[[IncomingMessage], None]:
        """Where messages go."""
        return self._inflow.take

    def take_back(self) -> list[IncomingMessage]:
        """What nobody has asked for."""
        return self._inflow.drain()

    async def finish(self) -> None:
        """Return when no handler runs."""
        await self._events.finish()

    def emit(self, event: str, *args: Any) -> None:
        """Tell listeners. An error that nobody listens to is logged."""
        if event == "close":
            self._inflow.end()
        if not self._events.emit(event, *args) and event == "error":
            log.warning("subscription %r: %s", self.name, args[0])

    def _handler_failed(self, error: Exception, message: IncomingMessage) -> None:
        message.nack()
        if not self._events.emit("error", error):
            log.error("the handler of subscription %r failed for message %s", self.name, message.id, exc_info=error)

    def _made(self, pulled: Pulled) -> list[IncomingMessage]:
        holder = PullHolder(self.link, self.name)
        now = self.link.clock.now()
        return [
            IncomingMessage(holder, pulled.opened, one, frames.receipt(one.offset, one.attempt, one.epoch), now, now)
            for one in pulled.parcels
        ]
