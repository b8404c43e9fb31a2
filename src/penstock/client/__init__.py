"""The client: publish, subscribe and work, on a broker in this process or on a server, with the same code.

pubsub         where everything begins
topic          publishing              subscription   receiving: handlers or an iterator
queue          both, for work queues   consumer       what subscriptions and queues share
stream         MessageStream: streaming pull, leases, recovery
hub            HubClient: publish and subscribe in real time over a hub's WebSocket
core/          the rules               link, links/   the way to a broker: embedded or remote
"""

from penstock.client.message import AckResponse, IncomingMessage
from penstock.client.options import CloseBehavior, SubscriberOptions
from penstock.client.publish_options import OnLimit, PublisherFlowControl, PublishOptions
from penstock.client.pubsub import PubSub
from penstock.client.queue import QueueTask, WorkQueue
from penstock.client.schema import Schema
from penstock.client.stream import MessageStream
from penstock.client.subscription import Subscription
from penstock.client.topic import Topic
from penstock.hub.client.client import HubClient
from penstock.hub.client.core.following import Gap
from penstock.hub.client.message import ConnectionNews, HubActor, HubMessage, HubTopic, HubTopicInfo, Presence, Published
from penstock.hub.client.messages import HubMessages
from penstock.hub.core.messages import Position

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
