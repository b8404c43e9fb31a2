"""Penstock: publish once, and pull, queue, stream, push or process it from one durable log."""

from penstock.broker.broker import Broker
from penstock.broker.core.message import Message
from penstock.broker.core.policy import DeadLetterPolicy, FlowControl, QueueConfig, RetryPolicy, SubscriptionOptions
from penstock.message_queue import MessageQueue
from penstock.queue_manager import QueueManager
from penstock.subscription import Explanation, ReceivedMessage, SubscriptionMetadata, SubscriptionStats, TopicMetadata
from penstock.work import DeadLetter, NackResult, PublishResult, QueueMessage, QueueStats

__version__ = "0.1.0"

__all__ = [
    "Broker",
    "DeadLetter",
    "DeadLetterPolicy",
    "Explanation",
    "FlowControl",
    "Message",
    "MessageQueue",
    "NackResult",
    "PublishResult",
    "QueueConfig",
    "QueueManager",
    "QueueMessage",
    "QueueStats",
    "ReceivedMessage",
    "RetryPolicy",
    "SubscriptionMetadata",
    "SubscriptionOptions",
    "SubscriptionStats",
    "TopicMetadata",
    "__version__",
]
