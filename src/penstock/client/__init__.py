"""The client: publish, subscribe and work, on a broker in this process or on a server, with the same code.

pubsub       PubSub: start here
topic        Topic: publishing to it                publishing   checks, batches and retries of what is published
subscription Subscription: receiving from it        queue        WorkQueue: both
consumer     their common part for receiving        handlers     calls of handlers and listeners, iterators
stream       MessageStream: streaming pull          settlement   acks, nacks and deadlines
message      IncomingMessage: one delivery          options      of subscribers and publishers
link         the way to a broker; links/ has the embedded and the remote one
core/        rules without I/O                      loop_thread  the event loop of the blocking client

Names are imported when they are first used: a program that needs only the hub's client loads nothing else.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.client.message import AckResponse, IncomingMessage
    from penstock.client.options import CloseBehavior, OnLimit, PublisherFlowControl, PublishOptions, SubscriberOptions
    from penstock.client.pubsub import PubSub
    from penstock.client.queue import QueueTask, WorkQueue
    from penstock.client.schema import Schema
    from penstock.client.stream import MessageStream
    from penstock.client.subscription import Subscription
    from penstock.client.topic import Topic
    from penstock.hub.client import (
        ConnectionNews,
        Gap,
        HubActor,
        HubClient,
        HubMessage,
        HubMessages,
        HubTopic,
        HubTopicInfo,
        Position,
        Presence,
        Published,
    )

__all__ = [
    "AckResponse",
    "CloseBehavior",
    "ConnectionNews",
    "Gap",
    "HubActor",
    "HubClient",
    "HubMessage",
    "HubMessages",
    "HubTopic",
    "HubTopicInfo",
    "IncomingMessage",
    "MessageStream",
    "OnLimit",
    "Position",
    "Presence",
    "PubSub",
    "PublishOptions",
    "Published",
    "PublisherFlowControl",
    "QueueTask",
    "Schema",
    "SubscriberOptions",
    "Subscription",
    "Topic",
    "WorkQueue",
]

_HOMES = {
    "penstock.client.message": ("AckResponse", "IncomingMessage"),
    "penstock.client.options": ("CloseBehavior", "OnLimit", "PublishOptions", "PublisherFlowControl", "SubscriberOptions"),
    "penstock.client.pubsub": ("PubSub",),
    "penstock.client.queue": ("QueueTask", "WorkQueue"),
    "penstock.client.schema": ("Schema",),
    "penstock.client.stream": ("MessageStream",),
    "penstock.client.subscription": ("Subscription",),
    "penstock.client.topic": ("Topic",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'penstock.client' has no attribute {name!r}")
        value = getattr(import_module(_HOME_OF.get(name, "penstock.hub.client")), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
