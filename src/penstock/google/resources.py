"""The broker's topics, subscriptions and snapshots in the form of Google's API.

The broker stores its own settings and, beside them, the resource as the API received it: a serialized `Topic`, `Subscription` or
`Snapshot`. Resources of other APIs have no such form; it is made from their settings.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import msgspec

from penstock.access import Action, Principal, Verb
from penstock.broker import lookup
from penstock.broker.aio import AsyncBroker
from penstock.broker.catalog import Catalog
from penstock.broker.descriptions import subscription_spec
from penstock.durations import micros
from penstock.errors import SchemaNotFound
from penstock.google import messages
from penstock.google.core import push, subscriptions
from penstock.google.core.fields import timestamp
from penstock.google.core.paging import page
from penstock.google.core.subscriptions import destination
from penstock.journal.core.events import Event
from penstock.values import resource_names as names
from penstock.values.descriptions import QueueDescription, SnapshotDescription, TopicSettings
from penstock.values.policy import Policy, SubscriptionOptions, subscription_policy
from penstock.values.projects import Projects
from penstock.values.stored_forms import IAM_PREFIX, SCHEMA_PREFIX, scripts_of, topic_form
from penstock.values.subscription import SubscriptionSpec

PACE = 30_000
"""The delay of a redelivery without a retry policy: a client that fails at once must not loop quickly."""

MAX_FORMS = 10_000
"""The number of parsed resources in the cache."""

KINDS = {names.TOPICS: "topic", names.SUBSCRIPTIONS: "subscription", names.SNAPSHOTS: "snapshot", names.SCHEMAS: "schema"}

T = TypeVar("T")

Message = Any
"""A raw protobuf message: its classes are made at run time, so it has no static type."""


class Resources:
    """The resources by Google's names. Reading needs no await; changes return once they are durable."""

    def __init__(self, aio: AsyncBroker, projects: Projects) -> None:
        self.aio = aio
        self.broker = aio.broker
        self.projects = projects
        self._forms: dict[tuple[Any, bytes], Message] = {}
        self.changed: list[Callable[[str], None]] = []
        """Called with the broker's name of a subscription that was created, changed or deleted."""
        self._pushed: dict[bytes, bool] = {}
        self._started_at = self.broker.clock.now()
        self._used: dict[int, int] = {}
        self._max_used = 1_000
        """With more subscriptions than this in `_used`, the deleted ones are removed."""
        self._running: set[asyncio.Future[Any]] = set()
        self._users: Counter[int] = Counter()

    # ── names and who may use them ───────────────────────────────────────────────────────────────────────────────────────

    def admit(self, caller: Principal, verb: Action, text: str, kind: str, field: str) -> names.Name:
        """The name in a request's field, if the caller may do this to it."""
        name = names.parse(text, kind, field)
        caller.check(verb, name.project, name.id, kind=KINDS[kind])
        return name

    def key(self, name: names.Name) -> str:
        """The broker's own name of a resource."""
        return self.projects.scoped(name.project, name.id)

    def name(self, kind: str, key: str) -> names.Name:
        """Google's name of the broker's `key`."""
        project, plain = self.projects.split(key)
        return names.Name(project, kind, plain)

    def listed(
        self, caller: Principal, keys: Iterable[str], request: Message, *, listing: str, project: str | None = None
    ) -> tuple[list[str], str]:
        """One page of the broker's names that the caller may read, sorted, and the next page's token."""
        shown = sorted(keys if project is None else self.projects.of(project, keys))
        if not caller.may_everywhere(Verb.READ):
            split = self.projects.split
            shown = [key for key in shown if caller.may(Verb.READ, *split(key))]
        part, token = page(shown, request.page_size, request.page_token, listing)
        return shown[part], token

    # ── use, which keeps a subscription from expiring ────────────────────────────────────────────────────────────────────

    def touch(self, queue: int) -> None:
        """Note that a subscription, by its number, is used now."""
        if len(self._used) > self._max_used:
            numbers = lookup.queue_names(self.broker)
            self._used = {number: at for number, at in self._used.items() if number in numbers}
            self._max_used = 2 * len(numbers) + 1_000
        self._used[queue] = self.broker.clock.now()

    @contextmanager
    def in_use(self, queue: int) -> Iterator[None]:
        """Mark a subscription, by its number, as used during the context."""
        self._users[queue] += 1
        try:
            yield
        finally:
            self._users[queue] -= 1
            if not self._users[queue]:
                del self._users[queue]
            self.touch(queue)

    def last_use(self, queue: QueueDescription) -> int:
        """When a subscription was used last; use before the server's start is unknown, so it counts from the start."""
        if queue.number in self._users:
            return self.broker.clock.now()
        return max(queue.created_at, self._used.get(queue.number, self._started_at))

    # ── how the broker's own look here ───────────────────────────────────────────────────────────────────────────────────

    def topic(self, stream: TopicSettings) -> Message:
        """A topic. Treat it as immutable."""
        topic = self.parsed(messages.Topic, stream.spec)
        if not topic.name:
            return messages.Topic(name=str(self.name(names.TOPICS, stream.name)), state=messages.Topic.State.ACTIVE)
        schema = topic.schema_settings.schema
        if schema and lookup.document(self.broker, f"{SCHEMA_PREFIX}{schema}") is None:
            orphan = messages.Topic()
            orphan.CopyFrom(topic)
            orphan.schema_settings.schema = names.DELETED_SCHEMA
            return orphan
        return topic

    def subscription(self, queue: QueueDescription) -> Message:
        """A subscription, with the fields that only the server sets."""
        spec = subscription_spec(queue)
        shown = messages.Subscription()
        if spec.form:
            shown.CopyFrom(self.parsed(messages.Subscription, spec.form))
        else:
            shown.CopyFrom(self._foreign(queue, spec))
        stream = lookup.find_stream(self.broker, queue.stream)
        shown.detached = queue.detached and stream is not None
        if stream is None:
            shown.topic = names.DELETED_TOPIC
        elif stream.retention is not None:
            shown.topic_message_retention_duration.FromMicroseconds(stream.retention)
        letters, target = shown.dead_letter_policy.dead_letter_topic, queue.policy.dead_letter_topic
        is_known = target is not None and lookup.find_topic(self.broker, target) is not None
        if letters and letters != names.DELETED_TOPIC and not is_known:
            shown.dead_letter_policy.dead_letter_topic = names.DELETED_TOPIC
        return shown

    def snapshot(self, found: SnapshotDescription) -> Message:
        shown = messages.Snapshot()
        shown.CopyFrom(self.parsed(messages.Snapshot, found.spec))
        shown.name = str(self.name(names.SNAPSHOTS, found.name))
        shown.topic = str(self.name(names.TOPICS, found.topic)) if found.topic is not None else names.DELETED_TOPIC
        if found.expires_at is not None:
            shown.expire_time.CopyFrom(timestamp(found.expires_at))
        return shown

    def form_of(self, queue: QueueDescription) -> Message:
        """The subscription as it was received, cached. Treat it as immutable."""
        spec = subscription_spec(queue)
        return self.parsed(messages.Subscription, spec.form) if spec.form else self.subscription(queue)

    def pushes(self, queue: QueueDescription) -> bool:
        """Whether the messages of a subscription are pushed. Cheap: called for every pull."""
        pushed = self._pushed.get(queue.spec)
        if pushed is None:
            if len(self._pushed) >= MAX_FORMS:
                self._pushed.clear()
            pushed = self._pushed[queue.spec] = is_pushed(self.form_of(queue))
        return pushed

    async def check_rules(self, resource: Message) -> None:
        """Refuse a Topic or Subscription whose schema does not exist or whose transforms do not compile."""
        schema = resource.schema_settings.schema if "schema_settings" in resource.DESCRIPTOR.fields_by_name else ""
        if schema:
            if schema != names.DELETED_SCHEMA and lookup.document(self.broker, f"{SCHEMA_PREFIX}{schema}") is None:
                raise SchemaNotFound(schema)
            use = topic_form(resource.SerializeToString()).schema
            assert use is not None, "it names a schema"
            self.broker.rules.accepted_revisions(use)
        scripts = scripts_of(one.SerializeToString() for one in resource.message_transforms)
        await self.broker.rules.check_scripts(names.parse_any(resource.name, "name").project, scripts)

    # ── changes ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def change(self, change: Callable[[Catalog, int], Event | None], *, tell: str | None = None) -> Event | None:
        """Change what exists, and notify about the affected subscription; returns once it is durable.

        Both are completed even if the caller is cancelled: a client that disconnects or times out must not leave half a change.
        """
        return await self._finish(self._change(change, tell))

    async def delete(self, name: names.Name, change: Callable[[Catalog, int], Event | None], *, tell: str | None = None) -> None:
        """Delete a resource and its access policy."""

        async def both() -> None:
            await self._change(change, tell)
            await self._change(lambda catalog, now: catalog.drop_document(f"{IAM_PREFIX}{name}", now), None)

        await self._finish(both())

    async def _change(self, change: Callable[[Catalog, int], Event | None], tell: str | None) -> Event | None:
        event = await self.aio.call(self.broker.change, change)
        if tell is not None:
            for listener in self.changed:
                listener(tell)
        return event

    async def _finish(self, work: Coroutine[None, None, T]) -> T:
        """Run something to its end, also if its caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # the waiting caller gets the error; without one, it is dropped

    def settings(self, subscription: Message, topic: str) -> tuple[Policy, bytes]:
        """The stored settings of a subscription: its policy, and the settings as they were given."""
        name = names.parse(subscription.name, names.SUBSCRIPTIONS, "name")
        letters = subscription.dead_letter_policy.dead_letter_topic
        target = None
        if letters and letters != names.DELETED_TOPIC:
            target = self.key(names.parse(letters, names.TOPICS, "dead_letter_policy.dead_letter_topic"))
        options = subscriptions.options(subscription, target)
        policy = subscription_policy(options, durable=True)
        policy = msgspec.structs.replace(
            policy,
            backoff=policy.backoff or ((push.MIN_BACKOFF, push.MAX_BACKOFF) if is_pushed(subscription) else (PACE, PACE)),
            letter=(name.id, name.project),
            exactly_once=subscription.enable_exactly_once_delivery,
        )
        return policy, msgspec.msgpack.encode(SubscriptionSpec(topic, options, subscription.SerializeToString()))

    def parsed(self, kind: Any, body: bytes) -> Message:
        """The stored form, parsed once. Treat it as immutable."""
        form = self._forms.get((kind, body))
        if form is None:
            if len(self._forms) >= MAX_FORMS:
                self._forms.clear()
            form = self._forms[kind, body] = kind.FromString(body)
        return form

    def _foreign(self, queue: QueueDescription, spec: SubscriptionSpec) -> Message:
        """A subscription of another API, as far as this API can represent it."""
        options: SubscriptionOptions = spec.options
        shown = messages.Subscription(
            name=str(self.name(names.SUBSCRIPTIONS, queue.name)),
            topic=str(self.name(names.TOPICS, spec.topic)),
            ack_deadline_seconds=max(1, queue.policy.ack_deadline // 1_000_000),
            retain_acked_messages=options.retain_acked_messages,
            enable_message_ordering=options.message_ordering,
            filter=options.filter,
            state=messages.Subscription.State.ACTIVE,
        )
        shown.message_retention_duration.FromMicroseconds(micros(options.message_retention_duration, "retention"))
        shown.expiration_policy.SetInParent()
        shown.push_config.SetInParent()
        if queue.policy.backoff is not None:
            shown.retry_policy.minimum_backoff.FromMicroseconds(queue.policy.backoff[0])
            shown.retry_policy.maximum_backoff.FromMicroseconds(queue.policy.backoff[1])
        if options.dead_letter_policy is not None:
            letters = options.dead_letter_policy
            shown.dead_letter_policy.dead_letter_topic = str(self.name(names.TOPICS, letters.dead_letter_topic))
            shown.dead_letter_policy.max_delivery_attempts = letters.max_delivery_attempts
        return shown


def is_pushed(subscription: Message) -> bool:
    """Whether the messages of a subscription are pushed."""
    return destination(subscription) == "push_config"
