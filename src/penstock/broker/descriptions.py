"""Converts topics, queues and their messages to the values of the public API."""

from __future__ import annotations

import msgspec

from penstock.durations import to_datetime
from penstock.ids import message_id
from penstock.values.descriptions import QueueDescription, StreamDescription
from penstock.values.message import StoredMessage
from penstock.values.queue import Delivery, QueueMessage, opened_payload
from penstock.values.subscription import SubscriptionMetadata, SubscriptionSpec, TopicMetadata


def topic_metadata(stream: StreamDescription) -> TopicMetadata:
    return TopicMetadata(stream.name, to_datetime(stream.created_at))


def subscription_metadata(queue: QueueDescription) -> SubscriptionMetadata:
    spec = subscription_spec(queue)
    return SubscriptionMetadata(queue.name, spec.topic, to_datetime(queue.created_at), spec.options, queue.detached)


def subscription_spec(queue: QueueDescription) -> SubscriptionSpec:
    """The settings of a subscription, as the log stores them."""
    return msgspec.msgpack.decode(queue.spec, type=SubscriptionSpec)


def delivery(queue: QueueDescription, offset: int, message: StoredMessage, retry_count: int) -> Delivery:
    """A stored message as APIs pass it on."""
    return Delivery(
        message_id(message.publish_at, queue.stream, offset),
        message.data,
        message.content,
        message.priority,
        retry_count,
        (message.max_attempts or queue.policy.max_attempts or 1) - 1,
        message.attributes,
        message.publish_at,
    )


def queue_message(queue: QueueDescription, offset: int, message: StoredMessage, retry_count: int) -> QueueMessage:
    """A stored message as a consumer gets it."""
    data, content = message.data, message.content
    return QueueMessage(
        message_id(message.publish_at, queue.stream, offset),
        opened_payload(data, content) if content else data,
        message.priority,
        retry_count,
        (message.max_attempts or queue.policy.max_attempts or 1) - 1,
        dict(message.attributes or {}),
        to_datetime(message.publish_at),
    )
