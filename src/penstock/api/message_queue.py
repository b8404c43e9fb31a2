"""`MessageQueue`: topics and subscriptions in this process (specification 000)."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Unpack

import msgspec

from penstock.api.in_process import InProcessApi
from penstock.broker import backlog, lookup
from penstock.broker.catalog import Catalog
from penstock.broker.consumer import take_blocking
from penstock.broker.descriptions import subscription_metadata, subscription_spec, topic_metadata
from penstock.broker.positions import seek, take_snapshot
from penstock.broker.publish import publish
from penstock.broker.settlement import ACK, NACK, Settlement, extension, new_deadline, settle_any, settle_one
from penstock.durations import instant, micros
from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.ids import ack_prefix
from penstock.journal.core.events import Event
from penstock.values.keywords import SubscriptionChanges, with_specified_names
from penstock.values.message import Message, check_name, check_string
from penstock.values.policy import MAX_COUNT, Policy, SubscriptionOptions, as_plain, changed, check_count, subscription_policy
from penstock.values.subscription import (
    Explanation,
    ReceivedMessage,
    SubscriptionMetadata,
    SubscriptionSpec,
    SubscriptionStats,
    TopicMetadata,
)

MAX_EXTENSION_SECONDS = 86_400
FIXED_OPTIONS = frozenset({"message_ordering", "filter"})
"""The options that cannot change after creation."""


class MessageQueue(InProcessApi):
    """Topics, subscriptions, publish, pull, ack: a message broker in this process.

    `MessageQueue()` is in memory; `data_dir` makes it durable; `broker` shares one with a `QueueManager`. All methods are
    thread-safe. A pulled message must be acked, nacked or extended before its deadline, or it is delivered again.
    """

    _instance: MessageQueue | None = None
    _instance_lock = threading.Lock()

    @classmethod
    def get_instance(cls) -> MessageQueue:
        """The instance of this process, in memory: created on first use, and again after it was closed."""
        with cls._instance_lock:
            if cls._instance is None or cls._instance.broker.is_closed:
                cls._instance = cls()
            return cls._instance

    @classmethod
    def reset_instance(cls) -> None:
        """Close and remove the instance of this process; for tests."""
        with cls._instance_lock:
            instance, cls._instance = cls._instance, None
        if instance is not None:
            instance.close()

    @classmethod
    def _after_fork(cls) -> None:
        """A child process creates its own on first use."""
        cls._instance, cls._instance_lock = None, threading.Lock()

    def register_topic(self, topic_name: str, metadata: TopicMetadata | None = None) -> None:
        """Create a topic; AlreadyExists if it exists. `metadata`, for a copy of another topic, keeps its `created`."""
        name = check_name(topic_name, "topic_name")
        if metadata is not None and not isinstance(metadata, TopicMetadata):
            raise InvalidArgument.of("metadata", metadata, "a TopicMetadata or None")
        created = instant(metadata.created, "metadata.created") if metadata is not None else None
        self.broker.change(lambda catalog, now: catalog.create_topic(name, now, created))

    def unregister_topic(self, topic_name: str) -> None:
        """Delete a topic. Its subscriptions stay, detached: they are emptied, and get no more messages."""
        check_name(topic_name, "topic_name")
        self.broker.change(lambda catalog, now: catalog.delete_topic(topic_name, now))

    def topic_exists(self, topic_name: str) -> bool:
        """Whether there is a topic of that name."""
        return self.get_topic(topic_name) is not None

    def get_topic(self, topic_name: str) -> TopicMetadata | None:
        """The topic of that name, or None."""
        found = lookup.find_topic(self._current(), check_string(topic_name, "topic_name"))
        return topic_metadata(found) if found is not None else None

    def get_all_topics(self) -> list[TopicMetadata]:
        """All topics."""
        return [topic_metadata(topic) for topic in lookup.topics(self._current())]

    def register_subscription(self, subscription_name: str, topic_name: str, options: SubscriptionOptions | None = None) -> None:
        """Create a subscription that receives what is published from now on."""
        name = check_name(subscription_name, "subscription_name")
        topic = check_name(topic_name, "topic_name")
        policy, spec = subscription_settings(topic, options, durable=self.broker.is_durable)
        self.broker.change(lambda catalog, now: catalog.create_subscription(name, topic, policy, spec, now))

    def update_subscription(self, subscription_name: str, **changes: Unpack[SubscriptionChanges]) -> None:
        """Change options of `SubscriptionOptions` by name; others stay. Leases keep their deadlines.

        Ordering and filter cannot change. Settings from the Google Pub/Sub API can only be changed by that API.
        """

        def update(catalog: Catalog, now: int) -> Event:
            queue = catalog.subscription(subscription_name)
            spec = subscription_spec(queue.description)
            if spec.form:
                raise FailedPrecondition(
                    f"subscription {subscription_name!r} has settings of the Google Pub/Sub API",
                    hint="change it with UpdateSubscription of that API",
                )
            options = changed(spec.options, with_specified_names(changes, "ack_deadline_seconds"), fixed=FIXED_OPTIONS)
            policy, stored = subscription_settings(spec.topic, options, durable=self.broker.is_durable)
            return catalog.update_queue(queue, policy, stored, now)

        self.broker.change(update)

    def unregister_subscription(self, subscription_name: str) -> None:
        """Delete a subscription with all its messages, also leased ones."""
        self.broker.change(lambda catalog, now: catalog.delete_queue(catalog.subscription(subscription_name), now))

    def subscription_exists(self, subscription_name: str) -> bool:
        """Whether there is a subscription of that name."""
        return self.get_subscription(subscription_name) is not None

    def get_subscription(self, subscription_name: str) -> SubscriptionMetadata | None:
        """The subscription of that name, or None."""
        found = lookup.find_subscription(self._current(), check_string(subscription_name, "subscription_name"))
        return subscription_metadata(found) if found is not None else None

    def get_subscriptions_for_topic(self, topic_name: str) -> list[SubscriptionMetadata]:
        """The subscriptions attached to a topic."""
        check_string(topic_name, "topic_name")
        return [subscription_metadata(found) for found in lookup.subscriptions(self._current(), topic_name)]

    def get_all_subscriptions(self) -> list[SubscriptionMetadata]:
        """All subscriptions, detached ones too."""
        return [subscription_metadata(found) for found in lookup.subscriptions(self._current())]

    def publish(self, topic_name: str, messages: Sequence[Message]) -> list[str]:
        """Publish messages, all or none, and return their ids. With a data directory they are on disk when it returns."""
        return publish(self.broker, Catalog.topic, topic_name, messages).message_ids()

    def pull(self, subscription_name: str, max_messages: int = 1) -> list[ReceivedMessage]:
        """Lease up to `max_messages` messages: oldest first, within the limits of ordering keys and flow control. Never waits."""
        if type(max_messages) is not int or not 1 <= max_messages <= MAX_COUNT:
            check_count(max_messages, "max_messages", 1)
        queue, leases = take_blocking(self.broker, Catalog.subscription, subscription_name, max_messages)
        received: list[ReceivedMessage] = []
        number, stream, attempt, epoch, prefix = queue.number, queue.stream, -1, -1, ""
        for lease in leases:
            if lease.attempt != attempt or lease.epoch != epoch:
                attempt, epoch = lease.attempt, lease.epoch
                prefix = ack_prefix(number, epoch, attempt)
            offset = lease.offset
            received.append(ReceivedMessage(prefix + offset.to_bytes(5).hex(), attempt, lease.message, stream, offset))
        return received

    def ack(self, ack_id: str) -> None:
        """Ack a delivery. InvalidArgument if it is settled, expired or redelivered."""
        settle_one(self.broker, ack_id, ACK)

    def nack(self, ack_id: str) -> None:
        """Nack a delivery: redeliver it at once or after the retry policy's backoff, or dead-letter it after the last attempt."""
        settle_one(self.broker, ack_id, NACK)

    def ack_many(self, ack_ids: Iterable[str]) -> list[str]:
        """Ack all valid ones; returns the ids that were not valid."""
        return self._settle_many(ack_ids, ACK)

    def nack_many(self, ack_ids: Iterable[str]) -> list[str]:
        """Nack all valid ones; returns the ids that were not valid."""
        return self._settle_many(ack_ids, NACK)

    def modify_ack_deadline(self, ack_id: str, seconds: float) -> None:
        """Extend a delivery's deadline by this many seconds. It can be called again."""
        settle_one(self.broker, ack_id, extension(micros(seconds, "seconds", maximum=MAX_EXTENSION_SECONDS)))

    def set_ack_deadline(self, ack_id: str, seconds: float) -> None:
        """Set a delivery's deadline to now + seconds; 0 releases it at once, as Google's API does."""
        settle_one(self.broker, ack_id, new_deadline(micros(seconds, "seconds", maximum=MAX_EXTENSION_SECONDS)))

    def seek(
        self,
        subscription: str,
        *,
        time: datetime | float | None = None,
        offset: int | None = None,
        snapshot: str | None = None,
    ) -> None:
        """Move a subscription: messages before the position are settled, those after it are available again. Ends every lease.

        The position is a publish `time`, an `offset` of the topic's stream, or a `snapshot`.
        """
        if sum(value is not None for value in (time, offset, snapshot)) != 1:
            raise InvalidArgument("seek needs exactly one of time, offset and snapshot")
        at = instant(time, "time") if time is not None else None
        if offset is not None:
            offset = check_count(offset, "offset", 0)
        seek(self.broker, subscription, at=at, offset=offset, snapshot=snapshot)

    def create_snapshot(self, name: str, subscription: str) -> None:
        """Create a snapshot of a subscription. `seek` to it restores the messages that were unsettled then, or came since."""
        name = check_name(name, "name")
        self.broker.change(lambda catalog, now: take_snapshot(catalog, name, subscription, now))

    def delete_snapshot(self, name: str) -> None:
        """Delete a snapshot."""
        self.broker.change(lambda catalog, now: catalog.delete_snapshot(name, now))

    def pause(self, subscription: str) -> None:
        """Pause delivery until `resume`; leases, deadlines and publishing continue."""
        self.broker.change(lambda catalog, now: catalog.subscription(subscription).pause(True, now))

    def resume(self, subscription: str) -> None:
        """Resume delivery."""
        self.broker.change(lambda catalog, now: catalog.subscription(subscription).pause(False, now))

    def peek(self, subscription: str, max_messages: int = 1) -> list[ReceivedMessage]:
        """The messages that would be delivered next, without leasing them."""
        check_count(max_messages, "max_messages", 1)
        queue, waiting = backlog.upcoming(self.broker, Catalog.subscription, subscription, max_messages)
        return [ReceivedMessage("", one.attempts + 1, one.message, queue.stream, one.offset) for one in waiting]

    def stats(self, subscription: str) -> SubscriptionStats:
        """The state of a subscription in numbers."""
        return backlog.subscription_stats(self.broker, subscription)

    def explain(self, subscription: str, message_id: str) -> Explanation | None:
        """Why a message is not delivered now (`.reason` None: nothing prevents it); None if the subscription does not have it."""
        return backlog.explain(self.broker, Catalog.subscription, subscription, message_id)

    def _settle_many(self, ack_ids: Iterable[str], settle: Settlement) -> list[str]:
        if isinstance(ack_ids, str | bytes) or not isinstance(ack_ids, Iterable):
            raise InvalidArgument.of("ack_ids", ack_ids, "a list of ack ids")
        return settle_any(self.broker, ack_ids, settle)


os.register_at_fork(after_in_child=MessageQueue._after_fork)


def subscription_settings(topic: str, options: SubscriptionOptions | None, *, durable: bool) -> tuple[Policy, bytes]:
    """The stored form of a subscription's options: its policy, and the settings as they were given."""
    options = SubscriptionOptions() if options is None else options
    if not isinstance(options, SubscriptionOptions):
        raise InvalidArgument.of("options", options, "a SubscriptionOptions")
    options = as_plain(options)
    return subscription_policy(options, durable=durable), msgspec.msgpack.encode(SubscriptionSpec(topic, options))
