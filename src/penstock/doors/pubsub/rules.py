"""The rules of this door for what reaches the broker by another way: the native port, and clients in the same process."""

from __future__ import annotations

from contextlib import AbstractContextManager

from penstock.api.rules import has_form
from penstock.broker.aio import AsyncBroker
from penstock.broker.core.leases import Lease
from penstock.broker.core.message import StoredMessage
from penstock.broker.core.queue import Queue
from penstock.broker.core.stream import Stream
from penstock.doors.pubsub.inspection import Inspection
from penstock.doors.pubsub.publisher import Publisher
from penstock.doors.pubsub.resources import Resources
from penstock.doors.pubsub.schema_service import SchemaService
from penstock.doors.pubsub.schemas import PubSubSchemas
from penstock.projects import Projects


class PubSubRules:
    """`penstock.api.rules.Rules`, as this door keeps them."""

    def __init__(self, resources: Resources, inspection: Inspection, schemas: PubSubSchemas) -> None:
        self._resources = resources
        self._inspection = inspection
        self.schemas = schemas

    def inspects(self, stream: Stream) -> bool:
        """Whether what is published to a topic must be looked at first."""
        return bool(stream.spec) and self._inspection.is_needed(self._resources.topic(stream))

    async def passed(self, stream: Stream, given: list[StoredMessage]) -> list[StoredMessage | None]:
        """What is published of each message, None for one that is dropped."""
        with self._resources.broker.lock:
            topic = self._resources.topic(stream)
        return await self._inspection.publish(topic, given)

    def check_pulled(self, queue: Queue) -> None:
        """Refuse a subscription that pushes."""
        if has_form(queue.spec):
            self._resources.check_pulled(queue)

    def transforms(self, queue: Queue) -> bool:
        """Whether deliveries of a subscription must be looked at first."""
        return has_form(queue.spec) and self._inspection.may_transform(queue)

    async def ready(self, queue: Queue, leases: list[Lease], max_bytes: int) -> list[Lease]:
        """What is delivered of these leases."""
        return await self._inspection.deliver(queue, leases, max_bytes)

    def in_use(self, number: int) -> AbstractContextManager[None]:
        """As long as it is entered, a subscription does not expire."""
        return self._resources.in_use(number)

    def close(self) -> None:
        """Take no more work."""
        self._inspection.close()


def pubsub_rules(aio: AsyncBroker, projects: Projects) -> PubSubRules:
    """The rules without the door, for a broker in somebody's own process."""
    resources = Resources(aio, projects)
    service = SchemaService(resources)
    inspection = Inspection(resources, service)
    return PubSubRules(resources, inspection, PubSubSchemas(service, Publisher(resources, inspection)))
