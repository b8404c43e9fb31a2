"""A topic: what it is at the broker, and publishing to it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from penstock.api.operations import Operations
from penstock.broker.core.message import DEFAULT_PRIORITY, Message
from penstock.client.subscription import Subscription
from penstock.errors import AlreadyExists, NotFound
from penstock.subscription import SubscriptionMetadata, TopicMetadata

if TYPE_CHECKING:
    from penstock.client.pubsub import PubSub


class Topic:
    """A topic by its name. Making the object makes nothing at the broker: `create` does."""

    def __init__(self, pubsub: PubSub, name: str) -> None:
        self._pubsub = pubsub
        self.name = name

    async def create(self, *, retention: float | None = None, exist_ok: bool = False) -> Topic:
        """Create it. `retention`: seconds for which messages stay for a seek, also when everybody has acked them."""
        try:
            await self._pubsub.link.call(Operations.create_topic, self.name, retention)
        except AlreadyExists:
            if not exist_ok:
                raise
        return self

    async def exists(self) -> bool:
        """Whether there is such a topic."""
        try:
            await self.metadata()
        except NotFound:
            return False
        return True

    async def metadata(self) -> TopicMetadata:
        """What the broker knows of it; TopicNotFound when there is none."""
        return await self._pubsub.link.call(Operations.get_topic, self.name)

    async def delete(self) -> None:
        """Delete it; its subscriptions are detached."""
        await self._pubsub.link.call(Operations.delete_topic, self.name)

    def subscription(self, name: str, **options: Any) -> Subscription:
        """The subscription of that name, of this topic: the same object each time. See `SubscriberOptions` for the options."""
        return self._pubsub.subscription(name, topic=self.name, **options)

    async def subscriptions(self) -> list[SubscriptionMetadata]:
        """The subscriptions of this topic."""
        return await self._pubsub.link.call(Operations.list_subscriptions, self.name)

    async def publish_message(
        self,
        data: bytes = b"",
        attributes: Mapping[str, str] | None = None,
        ordering_key: str = "",
        *,
        priority: int = DEFAULT_PRIORITY,
    ) -> str:
        """Publish a message; returns its id."""
        message = Message(data, attributes or {}, ordering_key, priority)
        return (await self._pubsub.link.publish(self.name, [message]))[0]
