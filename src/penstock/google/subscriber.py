"""`google.pubsub.v1.Subscriber`: subscriptions, snapshots, and all calls of consumers except the stream."""

from __future__ import annotations

import secrets
from typing import Any

from penstock.access import Principal, Right, Verb
from penstock.broker import lookup, positions
from penstock.broker.async_consumer import AsyncConsumer
from penstock.broker.catalog import Catalog
from penstock.broker.settlement import ACK, Refuse, Settled, Settlement, new_deadline, settle_of
from penstock.broker.subscription_rules import SubscriptionRules
from penstock.durations import SECOND
from penstock.errors import AckIdsRefused, AlreadyExists, InvalidArgument
from penstock.google import messages, wire
from penstock.google.core import fields, subscriptions, topics
from penstock.google.core.consumer_requests import acknowledged, modified, pull_limit
from penstock.google.core.fields import instant
from penstock.google.core.push_endpoints import Endpoints
from penstock.google.resources import Message, Resources
from penstock.values import resource_names as names
from penstock.values.descriptions import QueueDescription

PULL_WAIT = SECOND
"""How long a Pull waits for a message, unless it asks to return immediately."""
MAX_CONFIRMED = 50_000
PULL_BYTES = 3 * 1024 * 1024
"""How much one answer holds: with an emulator's address Google's clients keep gRPC's default and refuse more than 4 MiB, ids and
all. A larger message comes alone."""


class ConfirmedAcks:
    """The latest acks that exactly-once subscriptions confirmed.

    An answer may be lost on its way; the client then asks again, and must hear the same: that its ack holds.
    """

    def __init__(self) -> None:
        self._ack_ids: dict[str, None] = {}

    def add(self, ack_ids: list[str]) -> None:
        """Remember acks; at least the latest are kept."""
        self._ack_ids |= dict.fromkeys(ack_ids)
        while len(self._ack_ids) > MAX_CONFIRMED:
            del self._ack_ids[next(iter(self._ack_ids))]

    def unknown(self, ack_ids: list[str]) -> list[str]:
        """Those that were not confirmed before."""
        return [ack_id for ack_id in ack_ids if ack_id not in self._ack_ids]


class Subscriber:
    """The calls of the service, by their names in lower case."""

    def __init__(self, resources: Resources, rules: SubscriptionRules, endpoints: Endpoints | None = None) -> None:
        self._resources = resources
        self._broker = resources.broker
        self._aio = resources.aio
        self._rules = rules
        self._confirmed = ConfirmedAcks()
        self._endpoints = endpoints or Endpoints()

    # ── consuming ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def pull(self, request: Any, caller: Principal) -> Message:
        """Lease messages: at once if there are any, otherwise wait a moment for one."""
        return messages.PullResponse.FromString(await self.pull_bytes(request, caller))

    async def pull_bytes(self, request: Any, caller: Principal) -> bytes:
        """The same, with the answer as bytes."""
        key = self._consumed(request, caller)
        want = pull_limit(request)
        wait = 0 if request.return_immediately else PULL_WAIT
        consumer = AsyncConsumer(self._aio, Catalog.subscription, key, rules=self._rules)
        ready = await consumer.next(want, wait, PULL_BYTES)
        queue = consumer.queue
        self._resources.touch(queue.number)
        with_attempt = queue.policy.dead_letter_topic is not None
        return b"".join(wire.received(queue.number, queue.stream, ready, with_attempt=with_attempt))

    async def acknowledge(self, request: Any, caller: Principal) -> Message:
        """Ack deliveries."""
        await self.settle(self._consumed(request, caller), acknowledged(request), ACK)
        return messages.Empty()

    async def modify_ack_deadline(self, request: Any, caller: Principal) -> Message:
        """Set the deadline of deliveries to this long from now; 0 nacks them."""
        key = self._consumed(request, caller)
        ack_ids, span = modified(request)
        await self.settle(key, ack_ids, new_deadline(span))
        return messages.Empty()

    async def settle(self, key: str, ack_ids: list[str], verb: Settlement) -> None:
        """Settle deliveries of a subscription; an exactly-once subscription refuses those that are not leased any more."""
        settled = self.settle_now(key, ack_ids, verb, self._refuse_stale)
        if verb is ACK:
            self.confirmed(settled.queue, ack_ids, settled.failed)
        if settled.has_forwards or settled.queue.policy.exactly_once:
            # Dead letters arrive with the next commit. And only what is on disk cannot come back after a crash, which is
            # what the confirmation of an exactly-once subscription promises.
            await self._aio.durable()

    def confirmed(self, queue: QueueDescription, ack_ids: list[str], failed: list[str]) -> list[str]:
        """The acks of these that failed and were not confirmed before; remembers the others of an exactly-once subscription."""
        if not queue.policy.exactly_once:
            return failed
        failed = self._confirmed.unknown(failed)
        refused = set(failed)
        self._confirmed.add([ack_id for ack_id in ack_ids if ack_id not in refused])
        return failed

    def _refuse_stale(self, stale: list[str], ack_ids: list[str], verb: Settlement) -> None:
        """Refuse a whole request to an exactly-once subscription if one of its deliveries is not leased any more.

        A client takes the error as the answer for every id that it does not name. So none is settled, and the live ones are named
        as retriable, which the client does by itself.
        """
        if verb is ACK:
            stale = self._confirmed.unknown(stale)
        if stale:
            failures = dict.fromkeys(stale, "PERMANENT_FAILURE_INVALID_ACK_ID")
            raise AckIdsRefused(failures | dict.fromkeys(set(ack_ids) - failures.keys(), "TRANSIENT_FAILURE_SERVICE_UNAVAILABLE"))

    def settle_now(self, key: str, ack_ids: list[str], verb: Settlement, refuse: Refuse | None = None) -> Settled:
        """The same without waiting."""
        settled = settle_of(self._broker, key, ack_ids, verb, self._aio.advance(), honours_late=True, refuse=refuse)
        self._resources.touch(settled.queue.number)
        return settled

    # ── subscriptions ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_subscription(self, request: Any, caller: Principal) -> Message:
        """Create a subscription that receives what is published from now on; without a name it gets a generated one."""
        if not request.name:
            topic = names.parse(request.topic, names.TOPICS, "topic")
            request.name = str(names.assigned(topic.project, names.SUBSCRIPTIONS, secrets.token_bytes(10)))
        name = self._resources.admit(caller, Verb.MANAGE, request.name, names.SUBSCRIPTIONS, "name")
        subscription = subscriptions.new_subscription(request)
        if subscription.push_config.push_endpoint:
            caller.check(Right.PUSH, name.project, name.id, kind="subscription")
        self._endpoints.check(subscription)
        topic = self._resources.admit(caller, Verb.READ, request.topic, names.TOPICS, "topic")
        self._check_letters(caller, subscription)
        await self._resources.check_rules(subscription)
        key, topic_key = self._resources.key(name), self._resources.key(topic)
        policy, spec = self._resources.settings(subscription, topic_key)

        fields.check_subscription_size(subscription)

        def create(catalog: Catalog, now: int) -> Any:
            self._resources.projects.check_room("subscriptions", key, catalog.subscriptions)
            if policy.dead_letter_topic is not None:
                catalog.topic(policy.dead_letter_topic)
            return catalog.create_subscription(key, topic_key, policy, spec, now)

        await self._resources.change(create, tell=key)
        return self._shown(key)

    async def get_subscription(self, request: Any, caller: Principal) -> Message:
        """A subscription."""
        name = self._resources.admit(caller, Verb.READ, request.subscription, names.SUBSCRIPTIONS, "subscription")
        return self._shown(self._resources.key(name))

    async def update_subscription(self, request: Any, caller: Principal) -> Message:
        """Change the fields of a subscription that the mask names."""
        name = self._resources.admit(caller, Verb.MANAGE, request.subscription.name, names.SUBSCRIPTIONS, "subscription.name")
        self._check_letters(caller, request.subscription)
        await self._update(name, request.subscription, request.update_mask.paths, caller)
        return self._shown(self._resources.key(name))

    async def modify_push_config(self, request: Any, caller: Principal) -> Message:
        """Push to another endpoint or, with an empty configuration, switch to pull."""
        name = self._resources.admit(caller, Verb.MANAGE, request.subscription, names.SUBSCRIPTIONS, "subscription")
        await self._update(name, messages.Subscription(push_config=request.push_config), ["push_config"], caller)
        return messages.Empty()

    async def list_subscriptions(self, request: Any, caller: Principal) -> Message:
        """The subscriptions of a project."""
        project = names.parse_project(request.project, "project")
        caller.check(Verb.READ, project)
        found = {queue.name: queue for queue in lookup.subscriptions(self._broker)}
        keys, token = self._resources.listed(caller, found, request, listing=f"subscriptions of {project}", project=project)
        shown = [self._resources.subscription(found[key]) for key in keys]
        return messages.ListSubscriptionsResponse(subscriptions=shown, next_page_token=token)

    async def delete_subscription(self, request: Any, caller: Principal) -> Message:
        """Delete a subscription with everything in it."""
        name = self._resources.admit(caller, Verb.MANAGE, request.subscription, names.SUBSCRIPTIONS, "subscription")
        key = self._resources.key(name)
        await self._resources.delete(name, lambda catalog, now: catalog.delete_queue(catalog.subscription(key), now), tell=key)
        return messages.Empty()

    async def seek(self, request: Any, caller: Principal) -> Message:
        """Move a subscription to a time or a snapshot."""
        name = self._resources.admit(caller, Verb.MANAGE, request.subscription, names.SUBSCRIPTIONS, "subscription")
        key = self._resources.key(name)
        match request.WhichOneof("target"):
            case "time":
                await self._aio.call(positions.seek, self._broker, key, at=instant(request.time, "time"))
            case "snapshot":
                snapshot = self._resources.admit(caller, Verb.READ, request.snapshot, names.SNAPSHOTS, "snapshot")
                await self._aio.call(positions.seek, self._broker, key, snapshot=self._resources.key(snapshot))
            case _:
                raise InvalidArgument("the request names no target, expected time or snapshot")
        return messages.SeekResponse()

    # ── snapshots ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def create_snapshot(self, request: Any, caller: Principal) -> Message:
        """Create a snapshot of a subscription's position; without a name it gets a generated one."""
        # A snapshot keeps the messages that it may restore in the log, whatever the retention.
        source = self._resources.admit(caller, Right.HOLD, request.subscription, names.SUBSCRIPTIONS, "subscription")
        if not request.name:
            request.name = str(names.assigned(source.project, names.SNAPSHOTS, secrets.token_bytes(10)))
        name = self._resources.admit(caller, Verb.MANAGE, request.name, names.SNAPSHOTS, "name")
        key, source_key = self._resources.key(name), self._resources.key(source)

        def take(catalog: Catalog, now: int) -> Any:
            if key in catalog.snapshots:
                raise AlreadyExists("Snapshot", str(name))
            self._resources.projects.check_room("snapshots", key, catalog.snapshots)
            queue, stream = positions.attached(catalog, source_key)
            age = self._broker.oldest_age(queue, now)
            oldest = now - int(age * SECOND) if age else None
            topic = str(self._resources.name(names.TOPICS, stream.name))
            snapshot = topics.new_snapshot(str(name), topic, request.labels, oldest=oldest, now=now)
            expires_at = instant(snapshot.expire_time, "expire_time")
            return positions.take_snapshot(
                catalog, key, source_key, now, spec=snapshot.SerializeToString(), expires_at=expires_at
            )

        await self._resources.change(take)
        return self._snapshot(key)

    async def get_snapshot(self, request: Any, caller: Principal) -> Message:
        """A snapshot."""
        name = self._resources.admit(caller, Verb.READ, request.snapshot, names.SNAPSHOTS, "snapshot")
        return self._snapshot(self._resources.key(name))

    async def update_snapshot(self, request: Any, caller: Principal) -> Message:
        """Change the fields of a snapshot that the mask names."""
        name = self._resources.admit(caller, Verb.MANAGE, request.snapshot.name, names.SNAPSHOTS, "snapshot.name")
        key = self._resources.key(name)

        def update(catalog: Catalog, now: int) -> Any:
            old = self._resources.snapshot(lookup.snapshot(self._broker, key))
            new = topics.update_snapshot(old, request.snapshot, request.update_mask.paths, now=now)
            expires_at = instant(new.expire_time, "snapshot.expire_time")
            return catalog.update_snapshot(key, new.SerializeToString(), expires_at, now)

        await self._resources.change(update)
        return self._snapshot(key)

    async def list_snapshots(self, request: Any, caller: Principal) -> Message:
        """The snapshots of a project."""
        project = names.parse_project(request.project, "project")
        caller.check(Verb.READ, project)
        taken = {one.name: one for one in lookup.snapshots(self._broker)}
        keys, token = self._resources.listed(caller, taken, request, listing=f"snapshots of {project}", project=project)
        shown = [self._resources.snapshot(taken[key]) for key in keys]
        return messages.ListSnapshotsResponse(snapshots=shown, next_page_token=token)

    async def delete_snapshot(self, request: Any, caller: Principal) -> Message:
        """Delete a snapshot."""
        name = self._resources.admit(caller, Verb.MANAGE, request.snapshot, names.SNAPSHOTS, "snapshot")
        key = self._resources.key(name)
        await self._resources.delete(name, lambda catalog, now: catalog.delete_snapshot(key, now))
        return messages.Empty()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _consumed(self, request: Any, caller: Principal) -> str:
        """The broker's name of the subscription that a request consumes."""
        resources = self._resources
        return resources.key(resources.admit(caller, Verb.CONSUME, request.subscription, names.SUBSCRIPTIONS, "subscription"))

    def _check_letters(self, caller: Principal, subscription: Message) -> None:
        """Dead letters are published to their topic, so a caller that names it needs the permission to publish."""
        topic = subscription.dead_letter_policy.dead_letter_topic
        if topic and topic != names.DELETED_TOPIC:
            self._resources.admit(caller, Verb.PUBLISH, topic, names.TOPICS, "dead_letter_policy.dead_letter_topic")

    async def _update(self, name: names.Name, patch: Any, paths: Any, caller: Principal) -> None:
        key = self._resources.key(name)
        queue = lookup.subscription(self._broker, key)
        wanted, known = self._updated(queue, patch, paths), self._resources.form_of(queue)
        if wanted.push_config.push_endpoint and wanted.push_config != known.push_config:
            caller.check(Right.PUSH, name.project, name.id, kind="subscription")
        self._endpoints.check(wanted)
        await self._resources.check_rules(wanted)

        def update(catalog: Catalog, now: int) -> Any:
            # Check again, with the current state: another update may have happened in between.
            queue = catalog.subscription(key)
            new = self._updated(queue.description, patch, paths)
            stream = catalog.streams.get(queue.stream)
            policy, spec = self._resources.settings(new, stream.name if stream is not None else names.DELETED_TOPIC)
            if policy.dead_letter_topic is not None and policy.dead_letter_topic != queue.policy.dead_letter_topic:
                catalog.topic(policy.dead_letter_topic)
            return catalog.update_queue(queue, policy, spec, now)

        await self._resources.change(update, tell=key)

    def _updated(self, queue: QueueDescription, patch: Any, paths: Any) -> Message:
        """A subscription's stored form with the masked fields of a patch: fields that are only shown must not be stored."""
        new = subscriptions.update_subscription(self._resources.form_of(queue), patch, paths)
        fields.check_subscription_size(new)
        return new

    def _shown(self, key: str) -> Message:
        return self._resources.subscription(lookup.subscription(self._broker, key))

    def _snapshot(self, key: str) -> Message:
        return self._resources.snapshot(lookup.snapshot(self._broker, key))
