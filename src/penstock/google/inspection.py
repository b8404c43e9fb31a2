"""What messages pass on their way in and out: a topic's schema, and the JavaScript of topics and subscriptions.

Where a topic or a subscription has neither, it costs one look into a dictionary. Otherwise the work is done in a thread: a schema
may be large and a script slow, and other clients must not wait for them. Each topic and subscription has a lane of its own: only
its own messages wait for a slow one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.api.rules import has_form
from penstock.broker.settlement import ACK, GIVE_BACK, NACK, live_leases, settle_leases
from penstock.clock import monotonic
from penstock.durations import SECOND, to_datetime
from penstock.errors import FailedPrecondition, InvalidArgument, ResourceExhausted, TransformFailed
from penstock.google import messages
from penstock.google.core import names
from penstock.google.core.publishing import MAX_REQUEST_BYTES
from penstock.google.core.schemas import accepted_revisions
from penstock.google.resources import Message, Resources
from penstock.google.schema_service import SchemaService, compiled, encoding_of
from penstock.google.user_threads import Lanes
from penstock.ids import message_id
from penstock.transforms import Chain, Step, compile_chain
from penstock.values.descriptions import QueueDescription
from penstock.values.lease import Lease
from penstock.values.message import StoredMessage

MAX_CHAINS = 1_000
MAX_SPENT = 10 * SECOND
"""How long the messages of one request may take together."""
MAX_WAIT = 10.0
"""Seconds that a request may wait for earlier ones of its topic."""
MAX_SCRIPTS = 32
MAX_CHECKS = 4
"""How many topics and subscriptions are served at a time; those with scripts mostly wait for the sandbox, which is fair."""


class Inspection:
    """Looks at messages where that was asked for."""

    def __init__(self, resources: Resources, schemas: SchemaService) -> None:
        self._resources = resources
        self._schemas = schemas
        # Scripts and schemas get threads of their own: a slow one must not hold up what the broker needs threads for.
        self._scripts = Lanes("penstock-scripts", MAX_SCRIPTS)
        self._checks = Lanes("penstock-schemas", MAX_CHECKS)
        self._chains: dict[bytes, Chain | None] = {}
        """The transforms of a subscription, by its stored settings."""

    async def check(self, resource: Message) -> None:
        """Refuse a Topic or Subscription whose schema does not exist or whose transforms do not compile."""
        settings = getattr(resource, "schema_settings", None)
        if settings is not None and resource.HasField("schema_settings"):
            self._revisions(settings)
        if resource.message_transforms:
            # Of a project one at a time: what was never run before may well be slow.
            await self._scripts.run(names.parse_any(resource.name, "name").project, MAX_WAIT, _chain, resource)

    @staticmethod
    def is_needed(topic: Message) -> bool:
        """Whether messages that are published to this topic have to be looked at."""
        return bool(topic.message_transforms) or topic.HasField("schema_settings")

    async def publish(self, topic: Message, given: list[StoredMessage]) -> list[StoredMessage | None]:
        """What is published of each message, None for one that is dropped; an error refuses them all."""
        revisions = self._revisions(topic.schema_settings) if topic.HasField("schema_settings") else []
        lanes = self._scripts if topic.message_transforms else self._checks
        return await lanes.run(topic.name, MAX_WAIT, _passed, topic, revisions, given)

    # ── the rules of deliveries (`penstock.broker.consumer.DeliveryRules`) ───────────────────────────────────────────────────

    def check_pulled(self, queue: QueueDescription) -> None:
        """Refuse a subscription that pushes."""
        if has_form(queue.spec):
            self._resources.check_pulled(queue)

    def transforms(self, queue: QueueDescription) -> bool:
        """Whether a subscription has transforms, or may have: only one that has been looked at is known to have none."""
        return has_form(queue.spec) and self._chains.get(queue.spec, ...) is not None

    def in_use(self, number: int) -> AbstractContextManager[None]:
        """While it is entered, a subscription does not expire."""
        return self._resources.in_use(number)

    async def ready(self, queue: QueueDescription, leases: list[Lease], max_bytes: int) -> list[Lease]:
        """What is delivered of these leases, `max_bytes` at most (but one message in any case).

        One whose message is dropped is acked, one whose transform fails is nacked, and what has no room or could not be looked at
        goes back as if it had not been delivered.
        """
        chain = self._chains.get(queue.spec, ...)
        if chain is None:
            return leases
        try:
            if chain is ...:
                chain = await self._learn(queue)
                if chain is None:
                    return leases
            done = await self._scripts.run(queue.number, None, _transformed, chain, queue, leases, max_bytes)
        except BaseException:
            settle_leases(self._resources.broker, queue.number, leases, GIVE_BACK)
            raise
        for verb, ended in ((ACK, done.dropped), (NACK, done.failed), (GIVE_BACK, done.rest)):
            settle_leases(self._resources.broker, queue.number, ended, verb)
        if queue.policy.ordered:
            # A message after one that is redelivered is redelivered after it.
            return live_leases(self._resources.broker, queue.number, done.ready)
        return done.ready

    def close(self) -> None:
        """Take no more work; what runs finishes by itself."""
        self._scripts.close()
        self._checks.close()

    async def _learn(self, queue: QueueDescription) -> Chain | None:
        form = self._resources.form_of(queue)
        chain = await self._scripts.run(queue.number, None, _chain, form) if form.message_transforms else None
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
    until, size = monotonic() + MAX_SPENT, 0
    for message in given:
        if monotonic() > until:
            raise ResourceExhausted(
                f"schema and transforms of the topic took more than {MAX_SPENT // SECOND} s for this request",
                hint="publish fewer messages at once, or make the transforms faster",
            )
        made: StoredMessage | None = message
        if chain:
            known = {"ordering_key": message.key} if message.key else {}
            changed = chain.apply(message.data, message.attributes or {}, known)
            made = _replaced(message, changed.data, changed.attributes) if changed is not None else None
        if made is not None and revisions:
            made = _marked(made, _fitting(made.data, topic.schema_settings, revisions), topic.schema_settings)
        size += made.size if made is not None else 0
        if size > MAX_REQUEST_BYTES:
            raise InvalidArgument(f"the topic's transforms made more than {MAX_REQUEST_BYTES} bytes of this request")
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


@dataclass(slots=True)
class _Outcome:
    """What transforms made of deliveries."""

    ready: list[Lease] = field(default_factory=list)
    dropped: list[Lease] = field(default_factory=list)
    failed: list[Lease] = field(default_factory=list)
    rest: list[Lease] = field(default_factory=list)


def _transformed(chain: Chain, queue: QueueDescription, leases: list[Lease], max_bytes: int) -> _Outcome:
    """Put deliveries through a subscription's transforms, as far as room and time allow. Blocks."""
    done, until = _Outcome(), monotonic() + MAX_SPENT
    for index, lease in enumerate(leases):
        if index and monotonic() > until:
            done.rest += leases[index:]
            break
        message = lease.message
        known = {
            "message_id": message_id(message.publish_at, queue.stream, lease.offset),
            "publish_time": to_datetime(message.publish_at).isoformat().replace("+00:00", "Z"),
            "ordering_key": message.key,
        }
        try:
            changed = chain.apply(message.data, message.attributes or {}, known)
        except TransformFailed:
            done.failed.append(lease)
            continue
        if changed is None:
            done.dropped.append(lease)
            continue
        replaced = _replaced(message, changed.data, changed.attributes)
        if replaced.size > max_bytes and done.ready:
            done.rest += leases[index:]
            break
        max_bytes -= replaced.size
        done.ready.append(msgspec.structs.replace(lease, message=replaced))
    return done


def _replaced(message: StoredMessage, data: bytes, attributes: dict[str, str]) -> StoredMessage:
    size = len(data) + len(message.key.encode())
    size += sum(len(key.encode()) + len(value.encode()) for key, value in attributes.items())
    changes: dict[str, Any] = {"data": data, "attributes": attributes or None, "size": size}
    return msgspec.structs.replace(message, **changes)
