"""The rules of this door for what reaches the broker by another way: the native port, and clients in the same process."""

from __future__ import annotations

from penstock.broker.aio import AsyncBroker
from penstock.google.inspection import Inspection
from penstock.google.publisher import Publisher
from penstock.google.resources import Resources
from penstock.google.schema_service import SchemaService
from penstock.google.schemas import PubSubSchemas
from penstock.values.descriptions import TopicSettings
from penstock.values.message import StoredMessage
from penstock.values.projects import Projects


class PubSubRules:
    """`penstock.api.rules.Rules`, as this door keeps them."""

    def __init__(self, resources: Resources, inspection: Inspection, schemas: PubSubSchemas) -> None:
        self._resources = resources
        self._inspection = inspection
        self.schemas = schemas
        self.check_pulled, self.transforms = inspection.check_pulled, inspection.transforms
        self.ready, self.in_use = inspection.ready, inspection.in_use

    def inspects(self, stream: TopicSettings) -> bool:
        """Whether what is published to a topic must be looked at first."""
        return bool(stream.spec) and self._inspection.is_needed(self._resources.topic(stream))

    async def passed(self, stream: TopicSettings, given: list[StoredMessage]) -> list[StoredMessage | None]:
        """What is published of each message, None for one that is dropped."""
        with self._resources.broker.lock:
            topic = self._resources.topic(stream)
        return await self._inspection.publish(topic, given)

    def close(self) -> None:
        """Take no more work."""
        self._inspection.close()


def pubsub_rules(aio: AsyncBroker, projects: Projects) -> PubSubRules:
    """The rules without the door, for a broker in somebody's own process."""
    resources = Resources(aio, projects)
    service = SchemaService(resources)
    inspection = Inspection(resources, service)
    return PubSubRules(resources, inspection, PubSubSchemas(service, Publisher(resources, inspection)))
