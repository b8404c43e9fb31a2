"""What messages pass on their way in and out: a topic's schema, and the JavaScript of topics and subscriptions.

Where a topic or a subscription has neither, it costs one look into a dictionary. Otherwise the work is done in a thread: a schema
may be large and a script slow, and other clients must not wait for them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.broker.core.leases import Lease
from penstock.broker.core.message import StoredMessage
from penstock.broker.core.queue import Queue
from penstock.doors.pubsub import messages
from penstock.doors.pubsub.core import names
from penstock.doors.pubsub.core.schemas import accepted_revisions
from penstock.doors.pubsub.resources import Message, Resources
from penstock.doors.pubsub.schema_service import SchemaService, compiled, encoding_of
from penstock.durations import to_datetime
from penstock.errors import FailedPrecondition, InvalidArgument, PenstockError
from penstock.ids import message_id
from penstock.transforms import Chain, Step, compile_chain

MAX_CHAINS = 1_000


class Inspection:
    """Looks at messages where that was asked for."""

    def __init__(self, resources: Resources, schemas: SchemaService) -> None:
        self._resources = resources
        self._schemas = schemas
        self._chains: dict[bytes, Chain | None] = {}
        """The transforms of a subscription, by its stored settings."""

    async def check(self, resource: Message) -> None:
        """Refuse a Topic or Subscription whose schema does not exist or whose transforms do not compile."""
        settings = getattr(resource, "schema_settings", None)
        if settings is not None and resource.HasField("schema_settings"):
            self._revisions(settings)
        if resource.message_transforms:
            await self._resources.aio.call(_chain, resource)

    @staticmethod
    def is_needed(topic: Message) -> bool:
        """Whether messages that are published to this topic have to be looked at."""
        return bool(topic.message_transforms) or topic.HasField("schema_settings")

    async def publish(self, topic: Message, given: list[StoredMessage]) -> list[StoredMessage | None]:
        """What is published of each message, None for one that is dropped; an error refuses them all."""
        revisions = self._revisions(topic.schema_settings) if topic.HasField("schema_settings") else []
        return await self._resources.aio.call(_passed, topic, revisions, given)

    async def deliver(self, queue: Queue, leases: list[Lease]) -> list[Lease]:
        """What is delivered of these leases; one whose message is dropped is acked, one whose transform fails is nacked."""
        chain = self._chains.get(queue.spec, ...)
        if chain is ...:
            chain = await self._learn(queue)
        if chain is None:
            return leases
        ready, dropped, failed = await self._resources.aio.call(_transformed, chain, queue, leases)
        broker = self._resources.broker
        with broker.lock:
            now = broker.clock.now()
            for verb, ended in ((Queue.ack, dropped), (Queue.nack, failed)):
                live = [lease for lease in ended if queue.find(lease.offset, lease.attempt, lease.epoch) is lease]
                if live:
                    broker.settle(queue, live, now, verb)
        return ready

    async def _learn(self, queue: Queue) -> Chain | None:
        form = self._resources.form_of(queue)
        chain = await self._resources.aio.call(_chain, form) if form.message_transforms else None
        if len(self._chains) >= MAX_CHAINS:
            self._chains.clear()
        self._chains[queue.spec] = chain or None
        return self._chains[queue.spec]

    def _revisions(self, settings: Message) -> list[Message]:
        """The revisions of its schema that a topic accepts, the newest first."""
        if settings.schema == names.DELETED_SCHEMA:
            raise FailedPrecondition("the topic's schema was deleted", hint="give the topic another schema, or none")
        stored = {
            schema.revision_id: schema
            for schema in self._schemas.revisions(names.parse(settings.schema, names.SCHEMAS, "schema_settings.schema"))
        }
        accepted = accepted_revisions(list(stored), settings.first_revision_id, settings.last_revision_id)
        return [stored[revision] for revision in accepted]


def _chain(resource: Message) -> Chain:
    """The JavaScript of a topic or subscription; other transforms are kept and shown, and do nothing."""
    return compile_chain(
        [
            Step(one.javascript_udf.code, one.javascript_udf.function_name, one.disabled)
            for one in resource.message_transforms
            if one.WhichOneof("transform") == "javascript_udf"
        ]
    )


def _passed(topic: Message, revisions: list[Message], given: list[StoredMessage]) -> list[StoredMessage | None]:
    """Transform messages, then check them against the topic's schema. Blocks."""
    chain = _chain(topic) if topic.message_transforms else None
    passed: list[StoredMessage | None] = []
    for message in given:
        made: StoredMessage | None = message
        if chain:
            known = {"ordering_key": message.key} if message.key else {}
            changed = chain.apply(message.data, message.attributes or {}, known)
            made = _replaced(message, changed.data, changed.attributes) if changed is not None else None
        if made is not None and revisions:
            made = _marked(made, _fitting(made.data, topic.schema_settings, revisions), topic.schema_settings)
        passed.append(made)
    return passed


def _fitting(data: bytes, settings: Message, revisions: list[Message]) -> Message:
    """The newest revision that a message fits."""
    problem: InvalidArgument | None = None
    for schema in revisions:
        try:
            compiled(schema).validate(data, encoding_of(settings.encoding, "schema_settings.encoding"))
        except InvalidArgument as error:
            problem = problem or error
        else:
            return schema
    raise problem or InvalidArgument("the topic accepts no revision of its schema")


def _marked(message: StoredMessage, schema: Message, settings: Message) -> StoredMessage:
    """A message that says which schema it fits, as Google's clients look for it."""
    return _replaced(
        message,
        message.data,
        {
            **(message.attributes or {}),
            "googclient_schemaencoding": messages.Encoding.Name(settings.encoding),
            "googclient_schemaname": schema.name,
            "googclient_schemarevisionid": schema.revision_id,
        },
    )


def _transformed(chain: Chain, queue: Queue, leases: list[Lease]) -> tuple[list[Lease], list[Lease], list[Lease]]:
    """(to deliver, dropped, failed) of deliveries that go through a subscription's transforms. Blocks."""
    ready: list[Lease] = []
    dropped: list[Lease] = []
    failed: list[Lease] = []
    for lease in leases:
        message = lease.message
        known = {
            "message_id": message_id(message.publish_at, queue.stream, lease.offset),
            "publish_time": to_datetime(message.publish_at).isoformat().replace("+00:00", "Z"),
            "ordering_key": message.key,
        }
        try:
            changed = chain.apply(message.data, message.attributes or {}, known)
        except PenstockError:
            failed.append(lease)
            continue
        if changed is None:
            dropped.append(lease)
        else:
            replaced = _replaced(message, changed.data, changed.attributes)
            ready.append(msgspec.structs.replace(lease, message=replaced))
    return ready, dropped, failed


def _replaced(message: StoredMessage, data: bytes, attributes: dict[str, str]) -> StoredMessage:
    size = len(data) + len(message.key.encode())
    size += sum(len(key.encode()) + len(value.encode()) for key, value in attributes.items())
    changes: dict[str, Any] = {"data": data, "attributes": attributes or None, "size": size}
    return msgspec.structs.replace(message, **changes)
