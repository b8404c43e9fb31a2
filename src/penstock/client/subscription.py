"""A subscription: its settings at the broker, and its messages as they arrive."""

from __future__ import annotations

import warnings
from dataclasses import fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

from penstock.client.consumer import STREAM_OPTIONS, Consumer
from penstock.client.core.differences import given_options
from penstock.client.link import created, exists
from penstock.client.message import DeliverySettler, IncomingMessage
from penstock.client.options import SubscriptionKeywords
from penstock.client.settlement import NoSettler, PullSettler
from penstock.durations import SECOND, micros
from penstock.errors import InvalidArgument
from penstock.values.keywords import SubscriptionChanges, with_specified_names
from penstock.values.policy import SubscriptionOptions, by_name
from penstock.values.subscription import Explanation, SubscriptionMetadata, SubscriptionStats
from penstock.wire import frames
from penstock.wire.operations import Operations
from penstock.wire.results import Pulled, SnapshotInfo, Unsettled

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub

CREATION_OPTIONS = frozenset(field.name for field in fields(SubscriptionOptions)) - {"flow_control"}
MIN_ACK_DEADLINE = 10
"""The shortest lease of a subscription in seconds, unless a stream requests less."""


class Subscription(Consumer[IncomingMessage]):
    """A subscription by its name. Creating the object creates nothing at the broker: `create` does.

    Consume it with `on("message", handler)` and `open()`, or with `async for message in subscription`. Handlers are called on the
    event loop, in order of arrival; coroutine functions run concurrently. A message is settled by `ack` or `nack`; one whose
    handler raised is requeued, and listeners of 'error' are called with the error.
    """

    kind = frames.TOPIC
    noun = "subscription"
    message_type = IncomingMessage

    def __init__(self, pubsub: PubSub, name: str, topic: str | None = None, **options: Unpack[SubscriptionKeywords]) -> None:
        super().__init__(pubsub, name)
        self.topic_name = topic
        self._creation: dict[str, Any] = {}
        self._implied: dict[str, Any] = {}
        self.set_options(**options)

    # ── consuming ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def set_options(self, **options: Unpack[SubscriptionKeywords]) -> None:
        """Change how messages are received (`flow_control`, `ack_deadline`, …), or how `create` will create it."""
        self._check_known(options, STREAM_OPTIONS | CREATION_OPTIONS)
        self._set_stream_options(options)
        self._creation |= {name: value for name, value in options.items() if name in CREATION_OPTIONS}
        if options.get("ack_deadline") is not None:
            # A stream may request shorter leases than a subscription may have.
            seconds = micros(options["ack_deadline"], "ack_deadline") / SECOND
            self._implied = {"ack_deadline_seconds": max(seconds, MIN_ACK_DEADLINE)}

    async def pull(self, max_messages: int = 1, *, wait: float = 0, ack_deadline: float | None = None) -> list[IncomingMessage]:
        """Lease up to `max_messages`, waiting up to `wait` seconds for the first. Their leases are not extended."""
        pulled = await self.link.call(Operations.pull, self.name, max_messages, wait, ack_deadline)
        if self.name not in self._holders:
            self._holders[self.name] = PullSettler(self.link, self.name)
        return self._made(pulled, self._holders[self.name])

    async def peek(self, max_messages: int = 1) -> list[IncomingMessage]:
        """The messages that would be delivered next, without leasing them; they cannot be settled."""
        return self._made(await self.link.call(Operations.peek, self.name, max_messages), NoSettler())

    # ── at the broker ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create(self, options: SubscriptionOptions | None = None, *, exist_ok: bool = False) -> Subscription:
        """Create it: it receives what is published from now on. `options` replace those given to the object.

        With `exist_ok` an existing subscription stays as it is; AlreadyExists if its topic or a given option differs there.
        Fields of `options` at their defaults do not count as given.
        """
        if self.topic_name is None:
            raise InvalidArgument(
                f"subscription {self.name!r} has no topic", hint="topic.subscription(name), or pubsub.subscription(name, topic=…)"
            )
        named = self._creation if options is None else given_options(options, "options", SubscriptionOptions)
        given = {"topic": self.topic_name} | named
        options = options or SubscriptionOptions(**self._implied | self._creation)
        creation = self.link.call(Operations.create_subscription, self.name, self.topic_name, options)
        await created(creation, exist_ok=exist_ok, given=given, found=self._settings)
        return self

    async def update(self, **changes: Unpack[SubscriptionChanges]) -> SubscriptionMetadata:
        """Change options by name; others stay. Ordering and filter cannot change."""
        specified = with_specified_names(changes, "ack_deadline_seconds")
        self._check_known(specified, CREATION_OPTIONS | {"flow_control"})
        return await self.link.call(Operations.update_subscription, self.name, specified)

    async def _settings(self) -> dict[str, object]:
        metadata = await self.metadata()
        return {"topic": metadata.topic, **by_name(metadata.options)}

    async def exists(self) -> bool:
        """Whether the subscription exists."""
        return await exists(self.metadata())

    async def metadata(self) -> SubscriptionMetadata:
        """Its settings at the broker; SubscriptionNotFound if it does not exist."""
        return await self.link.call(Operations.get_subscription, self.name)

    async def delete(self) -> None:
        """Delete it with its messages."""
        await self.link.call(Operations.delete_subscription, self.name)

    async def stats(self) -> SubscriptionStats:
        """Its counters."""
        return await self.link.call(Operations.subscription_stats, self.name)

    async def seek(self, *, time: datetime | None = None, offset: int | None = None, snapshot: str | None = None) -> None:
        """Move it to a publish time, an offset of its topic's log, or a snapshot: settle what is before, deliver the rest."""
        await self.link.call(Operations.seek, self.name, time=time, offset=offset, snapshot=snapshot)

    async def create_snapshot(self, name: str) -> SnapshotInfo:
        """Save its position as a snapshot."""
        return await self.link.call(Operations.create_snapshot, name, self.name)

    async def explain(self, message_id: str) -> Explanation | None:
        """Why a message is not delivered now; None if it is not in the subscription."""
        return await self.link.call(Operations.explain, self.name, message_id)

    async def explain_backlog(self, limit: int = 20) -> list[Unsettled]:
        """The oldest unsettled messages, and what each waits for."""
        return await self.link.call(Operations.explain_backlog, self.name, limit)

    async def pause_delivery(self) -> None:
        """Pause delivery to all consumers, until `resume_delivery`. `pause` affects only this object."""
        await self.link.call(Operations.pause_subscription, self.name)

    async def resume_delivery(self) -> None:
        """Resume delivery."""
        await self.link.call(Operations.resume_subscription, self.name)

    async def hold(self) -> None:
        """Deprecated: use `pause_delivery`."""
        warnings.warn("hold() is deprecated, use pause_delivery()", DeprecationWarning, stacklevel=2)
        await self.pause_delivery()

    async def release(self) -> None:
        """Deprecated: use `resume_delivery`."""
        warnings.warn("release() is deprecated, use resume_delivery()", DeprecationWarning, stacklevel=2)
        await self.resume_delivery()

    def _made(self, pulled: Pulled, settler: DeliverySettler) -> list[IncomingMessage]:
        now = self.link.clock.now()
        return [
            IncomingMessage(settler, pulled.opened, one, frames.receipt(one.offset, one.attempt, one.epoch), now, now)
            for one in pulled.deliveries
        ]
