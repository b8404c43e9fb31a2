"""The client: publish, subscribe and work, on a broker in this process or on a server, with the same code.

pubsub         where everything begins
topic          publishing              subscription   receiving: handlers or an iterator
stream         MessageStream: streaming pull, leases, recovery
core/          the rules               link, links/   the way to a broker: embedded or remote
"""

from penstock.client.message import AckResponse, IncomingMessage
from penstock.client.options import CloseBehavior, SubscriberOptions
from penstock.client.pubsub import PubSub
from penstock.client.stream import MessageStream
from penstock.client.subscription import Subscription
from penstock.client.topic import Topic

__all__ = [
    "AckResponse",
    "CloseBehavior",
    "IncomingMessage",
    "MessageStream",
    "PubSub",
    "SubscriberOptions",
    "Subscription",
    "Topic",
]
