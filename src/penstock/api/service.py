"""The state that the operations of one broker share."""

from __future__ import annotations

from penstock import __version__
from penstock.api.feed import Feeds
from penstock.api.message_queue import MessageQueue
from penstock.api.queues import Queues
from penstock.api.schemas import Schemas
from penstock.broker.aio import AsyncBroker
from penstock.broker.broker import Broker
from penstock.broker.consumer import DeliveryRules
from penstock.broker.subscription_rules import SubscriptionRules
from penstock.values.projects import Projects


class Service:
    """A broker, its projects and its open feeds, for one event loop."""

    def __init__(
        self,
        aio: AsyncBroker,
        projects: Projects | None = None,
        rules: DeliveryRules | None = None,
        *,
        queues: Queues | None = None,
        version: str,
        log_api: bool | None = None,
    ) -> None:
        self.aio = aio
        self.projects = projects or Projects()
        self.rules = rules or SubscriptionRules(aio.broker)
        self.schemas = Schemas(aio)
        self.queues = queues or Queues(aio, self.projects)
        self.topics = MessageQueue(broker=aio.broker)
        self.feeds = Feeds(aio, self.rules)
        self.version = version
        self.log_api = log_api
        self.started_at = aio.broker.clock.now()

    def close(self) -> None:
        self.feeds.stop()
        self.queues.close()


def embedded_service(broker: Broker) -> Service:
    """The operations of a broker, for the running event loop. Close the service, then its `aio`, then the broker."""
    return Service(AsyncBroker(broker), version=__version__)
