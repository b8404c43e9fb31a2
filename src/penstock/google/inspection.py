"""What messages pass on their way in and out: a topic's schema, and the JavaScript of topics and subscriptions.

Where a topic or a subscription has neither, it costs one look into a dictionary. Otherwise the work is done in a thread: a schema
may be large and a script slow, and other clients must not wait for them. Each topic and subscription has a lane of its own: only
its own messages wait for a slow one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import msgspec

from penstock.api.rules import has_form
from penstock.broker.core.leases import Lease
from penstock.broker.core.queue import Queue
from penstock.broker.core.stored_forms import Script
from penstock.broker.settlement import Settlement
from penstock.broker.topic_rules import MAX_SPENT, MAX_WAIT, chain_of, replaced
from penstock.clock import monotonic
from penstock.durations import to_datetime
from penstock.errors import FailedPrecondition, TransformFailed
from penstock.google.core import names
from penstock.google.core.schemas import accepted_revisions
from penstock.google.resources import Message, Resources
from penstock.google.schema_service import SchemaService
from penstock.ids import message_id
from penstock.transforms import Chain

MAX_CHAINS = 1_000


class Inspection:
    """Looks at messages where that was asked for."""

    def __init__(self, resources: Resources, schemas: SchemaService) -> None:
        self._resources = resources
        self._schemas = schemas
        with resources.broker.lock:
            self._scripts = resources.broker.rules.scripts
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

    # ── the rules of deliveries (`penstock.broker.consumer.DeliveryRules`) ───────────────────────────────────────────────────

    def check_pulled(self, queue: Queue) -> None:
        """Refuse a subscription that pushes."""
        if has_form(queue.spec):
            self._resources.check_pulled(queue)

    def transforms(self, queue: Queue) -> bool:
        """Whether a subscription has transforms, or may have: only one that has been looked at is known to have none."""
        return has_form(queue.spec) and self._chains.get(queue.spec, ...) is not None

    def in_use(self, number: int) -> AbstractContextManager[None]:
        """While it is entered, a subscription does not expire."""
        return self._resources.in_use(number)

    async def ready(self, queue: Queue, leases: list[Lease], max_bytes: int) -> list[Lease]:
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
            self._settle(queue, leases, Queue.give_back)
            raise
        for verb, ended in ((Queue.ack, done.dropped), (Queue.nack, done.failed), (Queue.give_back, done.rest)):
            self._settle(queue, ended, verb)
        return done.ready

    def _settle(self, queue: Queue, leases: list[Lease], verb: Settlement) -> None:
        broker = self._resources.broker
        with broker.lock:
            live = [lease for lease in leases if queue.find(lease.offset, lease.attempt, lease.epoch) is lease]
            if live:
                broker.settle(queue, live, broker.clock.now(), verb)

    async def _learn(self, queue: Queue) -> Chain | None:
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
    return chain_of(
        tuple(
            Script(one.javascript_udf.code, one.javascript_udf.function_name, one.disabled)
            for one in resource.message_transforms
            if one.WhichOneof("transform") == "javascript_udf"
        )
    )


@dataclass(slots=True)
class _Outcome:
    """What transforms made of deliveries."""

    ready: list[Lease] = field(default_factory=list)
    dropped: list[Lease] = field(default_factory=list)
    failed: list[Lease] = field(default_factory=list)
    rest: list[Lease] = field(default_factory=list)


def _transformed(chain: Chain, queue: Queue, leases: list[Lease], max_bytes: int) -> _Outcome:
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
        made = replaced(message, changed.data, changed.attributes)
        if made.size > max_bytes and done.ready:
            done.rest += leases[index:]
            break
        max_bytes -= made.size
        done.ready.append(msgspec.structs.replace(lease, message=made))
    return done
