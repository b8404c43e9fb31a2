"""`google.pubsub.v1.Publisher`: topics, and publishing to them."""

from __future__ import annotations

from typing import Any

from penstock.access import Principal, Verb
from penstock.broker import lookup
from penstock.broker.catalog import Catalog
from penstock.broker.publish import publish_async
from penstock.google import messages
from penstock.google.core import fields, topics
from penstock.google.resources import Message, Resources
from penstock.values import resource_names as names
from penstock.values.message import PublishLimits, accept_typed

PUBLISH = PublishLimits(
    max_messages=1000,
    # So that a message of 10 MiB fits, with its topic and the encoding.
    max_request_bytes=10 * 1024 * 1024 + 64 * 1024,
    max_attributes=100,
    # Google's own clients write attributes with this prefix (a trace's context, for example).
    open_prefix="googclient_",
    one_key=True,
)
"""The limits of one Publish request."""


class Publisher:
    """The calls of the service, by their names in lower case."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._broker = resources.broker

    async def publish(self, request: Any, caller: Principal) -> Message:
        """Publish messages, all or none; returns when they are durable."""
        return messages.PublishResponse(message_ids=await self.publish_ids(request, caller, request.ByteSize()))

    async def publish_ids(self, request: Any, caller: Principal, size: int) -> list[str]:
        """The same, if the size of the request is known, with only the ids as the answer."""
        resources = self._resources
        name = resources.admit(caller, Verb.PUBLISH, request.topic, names.TOPICS, "topic")
        batch = accept_typed(request.messages, 0, PUBLISH, size)  # the commit sets the time
        placed = await publish_async(resources.aio, Catalog.topic, resources.key(name), batch)
        return placed.message_ids()

    async def create_topic(self, request: Any, caller: Principal) -> Message:
        """Create a topic."""
        name = self._resources.admit(caller, Verb.MANAGE, request.name, names.TOPICS, "name")
        topic = topics.new_topic(request)
        self._check_schema(caller, topic)
        await self._resources.check_rules(topic)
        fields.check_topic_size(topic)
        spec, retention = topic.SerializeToString(), topics.retention(topic)
        key = self._resources.key(name)

        def create(catalog: Catalog, now: int) -> Any:
            self._resources.projects.check_room("topics", key, catalog.topics)
            return catalog.create_topic(key, now, spec=spec, retention=retention)

        await self._resources.change(create)
        return topic

    async def update_topic(self, request: Any, caller: Principal) -> Message:
        """Change the fields of a topic that the mask names."""
        name = self._resources.admit(caller, Verb.MANAGE, request.topic.name, names.TOPICS, "topic.name")
        key = self._resources.key(name)
        wanted = topics.update_topic(self._topic(key), request.topic, request.update_mask.paths)
        self._check_schema(caller, wanted)
        await self._resources.check_rules(wanted)
        made: list[Message] = []

        def update(catalog: Catalog, now: int) -> Any:
            # Check again, with the current state: another update may have happened in between.
            topic = topics.update_topic(self._resources.topic(catalog.topic(key)), request.topic, request.update_mask.paths)
            fields.check_topic_size(topic)
            made.append(topic)
            return catalog.update_topic(key, topic.SerializeToString(), topics.retention(topic), now)

        await self._resources.change(update)
        return made[0]

    async def get_topic(self, request: Any, caller: Principal) -> Message:
        """A topic."""
        name = self._resources.admit(caller, Verb.READ, request.topic, names.TOPICS, "topic")
        return self._topic(self._resources.key(name))

    async def list_topics(self, request: Any, caller: Principal) -> Message:
        """The topics of a project."""
        project = names.parse_project(request.project, "project")
        caller.check(Verb.READ, project)
        found = {topic.name: topic for topic in lookup.topics(self._broker)}
        keys, token = self._resources.listed(caller, found, request, listing=f"topics of {project}", project=project)
        shown = [self._resources.topic(found[key]) for key in keys]
        return messages.ListTopicsResponse(topics=shown, next_page_token=token)

    async def list_topic_subscriptions(self, request: Any, caller: Principal) -> Message:
        """The names of the subscriptions attached to a topic."""
        name = self._resources.admit(caller, Verb.READ, request.topic, names.TOPICS, "topic")
        topic = lookup.topic(self._broker, self._resources.key(name)).name
        attached = [queue.name for queue in lookup.subscriptions(self._broker, topic)]
        keys, token = self._resources.listed(caller, attached, request, listing=f"subscriptions of {name}")
        shown = [str(self._resources.name(names.SUBSCRIPTIONS, key)) for key in keys]
        return messages.ListTopicSubscriptionsResponse(subscriptions=shown, next_page_token=token)

    async def list_topic_snapshots(self, request: Any, caller: Principal) -> Message:
        """The names of the snapshots of a topic."""
        name = self._resources.admit(caller, Verb.READ, request.topic, names.TOPICS, "topic")
        topic = lookup.topic(self._broker, self._resources.key(name)).name
        of_topic = [snapshot.name for snapshot in lookup.snapshots(self._broker) if snapshot.topic == topic]
        keys, token = self._resources.listed(caller, of_topic, request, listing=f"snapshots of {name}")
        shown = [str(self._resources.name(names.SNAPSHOTS, key)) for key in keys]
        return messages.ListTopicSnapshotsResponse(snapshots=shown, next_page_token=token)

    async def delete_topic(self, request: Any, caller: Principal) -> Message:
        """Delete a topic; its subscriptions stay and show `_deleted-topic_`."""
        name = self._resources.admit(caller, Verb.MANAGE, request.topic, names.TOPICS, "topic")
        key = self._resources.key(name)
        await self._resources.delete(name, lambda catalog, now: catalog.delete_topic(key, now))
        return messages.Empty()

    async def detach_subscription(self, request: Any, caller: Principal) -> Message:
        """Detach a subscription from its topic: its messages are removed, and it gets no more."""
        name = self._resources.admit(caller, Verb.MANAGE, request.subscription, names.SUBSCRIPTIONS, "subscription")
        key = self._resources.key(name)
        await self._resources.change(lambda catalog, now: catalog.detach_subscription(key, now), tell=key)
        return messages.DetachSubscriptionResponse()

    def _check_schema(self, caller: Principal, topic: Message) -> None:
        """A schema's errors reveal its content, so a caller that names it must be allowed to read it."""
        schema = topic.schema_settings.schema
        if schema and schema != names.DELETED_SCHEMA:
            self._resources.admit(caller, Verb.READ, schema, names.SCHEMAS, "schema_settings.schema")

    def _topic(self, key: str) -> Message:
        return self._resources.topic(lookup.topic(self._broker, key))
