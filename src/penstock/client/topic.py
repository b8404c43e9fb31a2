"""A topic: its settings at the broker, and publishing to it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from penstock.client.link import created, exists
from penstock.client.options import PublishOptions, SubscriptionKeywords
from penstock.client.publishing import Publisher, json_bytes, outgoing
from penstock.client.subscription import Subscription
from penstock.values.keywords import TopicChanges
from penstock.values.message import DEFAULT_PRIORITY, Message
from penstock.values.policy import Duration
from penstock.values.subscription import SubscriptionMetadata, TopicMetadata
from penstock.wire.operations import Operations
from penstock.wire.results import TopicSettings

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub


class Topic:
    """A topic by its name. Creating the object creates nothing at the broker: `create` does.

    Publishing batches: messages of the same turn of the event loop share a request, and a single one is sent at once.

    >>> import asyncio
    >>> from penstock import PubSub
    >>> async def main() -> None:
    ...     async with PubSub() as pubsub:
    ...         topic = await pubsub.topic("orders").create()
    ...         first = await topic.publish_message(b"paid", {"region": "eu"}, ordering_key="customer-7")
    ...         ids = await asyncio.gather(*[topic.publish_json({"number": number}) for number in range(1000)])
    ...         print(len(ids), first < ids[0])
    >>> asyncio.run(main())
    1000 True
    """

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self.name = name
        self.publisher = Publisher(pubsub, name)

    async def create(
        self,
        *,
        retention: float | None = None,
        schema: str | None = None,
        encoding: str = "JSON",
        exist_ok: bool = False,
    ) -> Topic:
        """Create it. `retention`: seconds for which messages are kept for a seek, also when all subscriptions have acked them.

        `schema`: the name of the schema of all messages, in JSON or in BINARY as `encoding` says. With `exist_ok` an existing
        topic stays as it is; AlreadyExists if a given option differs there.
        """
        creation = self._pubsub.link.call(Operations.create_topic, self.name, retention, schema, encoding)
        given: dict[str, object] = {} if retention is None else {"retention": retention}
        if schema is not None:
            given |= {"schema": schema, "encoding": encoding}
        await created(creation, exist_ok=exist_ok, given=given, found=self._settings)
        return self

    async def update(self, **changes: Unpack[TopicChanges]) -> TopicSettings:
        """Change `retention`, `schema` or `encoding`; others stay. None removes a retention or a schema."""
        return await self._pubsub.link.call(Operations.update_topic, self.name, dict(changes))

    async def settings(self) -> TopicSettings:
        """Its retention and schema; TopicNotFound if it does not exist."""
        return await self._pubsub.link.call(Operations.get_topic_settings, self.name)

    async def _settings(self) -> dict[str, object]:
        return msgspec.structs.asdict(await self.settings())

    async def exists(self) -> bool:
        """Whether the topic exists."""
        return await exists(self.metadata())

    async def metadata(self) -> TopicMetadata:
        """Its properties at the broker; TopicNotFound if it does not exist."""
        return await self._pubsub.link.call(Operations.get_topic, self.name)

    async def delete(self) -> None:
        """Delete it; its subscriptions are detached."""
        await self._pubsub.link.call(Operations.delete_topic, self.name)

    def subscription(self, name: str, **options: Unpack[SubscriptionKeywords]) -> Subscription:
        """The subscription of that name, of this topic: the same object each time.

        The options are those of `SubscriberOptions`, for receiving, and of `SubscriptionOptions`, for `create`.
        """
        return self._pubsub.subscription(name, topic=self.name, **options)

    async def subscriptions(self) -> list[SubscriptionMetadata]:
        """The subscriptions of this topic."""
        return await self._pubsub.link.call(Operations.list_subscriptions, self.name)

    # ── publishing ───────────────────────────────────────────────────────────────────────────────────────────────────────

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
    ) -> asyncio.Future[str]:
        """Publish a message, together with others that are published at the same time; await the result for its id.

        It is sent whether or not the result is awaited, and is durable once the id is returned. An invalid message is refused
        immediately, with InvalidArgument. Cancelling the result ends the waiting, not the publishing. `penstock.Message`
        documents the arguments.
        """
        publisher = self.publisher
        message, size = outgoing(
            data, attributes, ordering_key, priority, ttl, deliver_at, producer_id, sequence, publisher.clock
        )
        return publisher.publish(ordering_key, message, size, producer_id is not None)

    def publish_json(
        self, value: object, attributes: Mapping[str, str] | None = None, ordering_key: str = "", **options: Any
    ) -> asyncio.Future[str]:
        """Publish a value as JSON; otherwise as `publish_message`."""
        return self.publish_message(json_bytes(value), attributes, ordering_key, **options)

    async def publish_many(self, messages: Iterable[Message]) -> list[str]:
        """Publish messages in as few requests as possible (1,000 messages or 8 MiB in each); returns their ids in order.

        Each request is stored as a whole or not at all. If one fails, its error is raised, and others may have been stored.
        """
        return await self.publisher.publish_many(messages)

    async def flush(self) -> None:
        """Send everything now, and return once everything published so far is confirmed or has failed."""
        await self.publisher.flush()

    async def flow_controlled(self) -> None:
        """Return when there is room for a message. Await it before publishing to keep memory within the limits."""
        await self.publisher.flow_controlled()

    def resume_publishing(self, ordering_key: str) -> None:
        """Publish messages of this key again, after a failure has stopped those behind it."""
        self.publisher.resume(ordering_key)

    @property
    def publish_options(self) -> PublishOptions:
        """How messages are batched into requests."""
        return self.publisher.options

    def set_publish_options(self, options: PublishOptions) -> None:
        """Change how messages are batched."""
        self.publisher.set_options(options)
