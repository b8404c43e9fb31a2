"""The rules of this door for what reaches the broker by another way: the native port, and clients in the same process."""

from __future__ import annotations

from penstock.broker.aio import AsyncBroker
from penstock.google.inspection import Inspection
from penstock.google.publisher import Publisher
from penstock.google.resources import Resources
from penstock.google.schema_service import SchemaService
from penstock.google.schemas import PubSubSchemas
from penstock.values.projects import Projects


class PubSubRules:
    """`penstock.api.rules.Rules`, as this door keeps them."""

    def __init__(self, inspection: Inspection, schemas: PubSubSchemas) -> None:
        self.schemas = schemas
        self.check_pulled, self.transforms = inspection.check_pulled, inspection.transforms
        self.ready, self.in_use = inspection.ready, inspection.in_use


def pubsub_rules(aio: AsyncBroker, projects: Projects) -> PubSubRules:
    """The rules without the door, for a broker in somebody's own process."""
    resources = Resources(aio, projects)
    service = SchemaService(resources)
    inspection = Inspection(resources, service)
    return PubSubRules(inspection, PubSubSchemas(service, Publisher(resources, inspection)))
