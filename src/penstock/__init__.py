"""Penstock: publish once, and pull, queue, stream, push or process it from one durable log.

The public names are imported when they are first used: the command line and the clients need few of them, and start faster.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.api.message_queue import MessageQueue
    from penstock.api.queue_manager import QueueManager
    from penstock.broker.broker import Broker
    from penstock.client.message import AckResponse, IncomingMessage
    from penstock.client.options import CloseBehavior, PublisherFlowControl, PublishOptions, SubscriberOptions
    from penstock.client.pubsub import PubSub
    from penstock.client.queue import QueueTask, WorkQueue
    from penstock.client.schema import Schema
    from penstock.client.stream import MessageStream
    from penstock.client.subscription import Subscription
    from penstock.client.topic import Topic
    from penstock.errors import (
        AckDeadlineExceeded,
        AlreadyExists,
        ConsumerNotFound,
        FailedPrecondition,
        InvalidArgument,
        InvalidPriority,
        MessageNotFound,
        NotFound,
        PenstockError,
        PermissionDenied,
        QueueFull,
        QueueNotFound,
        ResourceExhausted,
        ServerUnreachable,
        SubscriptionFull,
        SubscriptionNotFound,
        TopicNotFound,
        Unauthenticated,
        Unavailable,
    )
    from penstock.values.message import Message
    from penstock.values.policy import DeadLetterPolicy, FlowControl, QueueConfig, RetryPolicy, SubscriptionOptions
    from penstock.values.queue import DeadLetter, NackResult, NewMessage, PublishResult, QueueMessage, QueueStats
    from penstock.values.subscription import Explanation, ReceivedMessage, SubscriptionMetadata, SubscriptionStats, TopicMetadata
    from penstock.worker import Worker

__version__ = "0.2.0"

__all__ = [
    "AckDeadlineExceeded",
    "AckResponse",
    "AlreadyExists",
    "Broker",
    "CloseBehavior",
    "ConsumerNotFound",
    "DeadLetter",
    "DeadLetterPolicy",
    "Explanation",
    "FailedPrecondition",
    "FlowControl",
    "IncomingMessage",
    "InvalidArgument",
    "InvalidPriority",
    "Message",
    "MessageNotFound",
    "MessageQueue",
    "MessageStream",
    "NackResult",
    "NewMessage",
    "NotFound",
    "PenstockError",
    "PermissionDenied",
    "PubSub",
    "PublishOptions",
    "PublishResult",
    "PublisherFlowControl",
    "QueueConfig",
    "QueueFull",
    "QueueManager",
    "QueueMessage",
    "QueueNotFound",
    "QueueStats",
    "QueueTask",
    "ReceivedMessage",
    "ResourceExhausted",
    "RetryPolicy",
    "Schema",
    "ServerUnreachable",
    "SubscriberOptions",
    "Subscription",
    "SubscriptionFull",
    "SubscriptionMetadata",
    "SubscriptionNotFound",
    "SubscriptionOptions",
    "SubscriptionStats",
    "Topic",
    "TopicMetadata",
    "TopicNotFound",
    "Unauthenticated",
    "Unavailable",
    "WorkQueue",
    "Worker",
    "__version__",
]

_HOMES = {
    "penstock.errors": (
        "AckDeadlineExceeded",
        "AlreadyExists",
        "ConsumerNotFound",
        "FailedPrecondition",
        "InvalidArgument",
        "InvalidPriority",
        "MessageNotFound",
        "NotFound",
        "PenstockError",
        "PermissionDenied",
        "QueueFull",
        "QueueNotFound",
        "ResourceExhausted",
        "ServerUnreachable",
        "SubscriptionFull",
        "SubscriptionNotFound",
        "TopicNotFound",
        "Unauthenticated",
        "Unavailable",
    ),
    "penstock.broker.broker": ("Broker",),
    "penstock.values.message": ("Message",),
    "penstock.values.policy": ("DeadLetterPolicy", "FlowControl", "QueueConfig", "RetryPolicy", "SubscriptionOptions"),
    "penstock.client.message": ("AckResponse", "IncomingMessage"),
    "penstock.client.options": ("CloseBehavior", "PublishOptions", "PublisherFlowControl", "SubscriberOptions"),
    "penstock.client.pubsub": ("PubSub",),
    "penstock.client.stream": ("MessageStream",),
    "penstock.client.subscription": ("Subscription",),
    "penstock.client.topic": ("Topic",),
    "penstock.api.message_queue": ("MessageQueue",),
    "penstock.api.queue_manager": ("QueueManager",),
    "penstock.values.subscription": (
        "Explanation",
        "ReceivedMessage",
        "SubscriptionMetadata",
        "SubscriptionStats",
        "TopicMetadata",
    ),
    "penstock.client.queue": ("QueueTask", "WorkQueue"),
    "penstock.client.schema": ("Schema",),
    "penstock.worker": ("Worker",),
    "penstock.values.queue": ("DeadLetter", "NackResult", "NewMessage", "PublishResult", "QueueMessage", "QueueStats"),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would take every name for an existing one

    def __getattr__(name: str) -> object:
        if name not in _HOME_OF:
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF[name]), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
