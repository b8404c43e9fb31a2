"""The client of the hub: publish and subscribe over a WebSocket that reconnects automatically."""

from penstock.hub.client.client import HubClient
from penstock.hub.client.core.subscription import Gap
from penstock.hub.client.messages import (
    ConnectionNews,
    HubActor,
    HubMessage,
    HubMessages,
    HubTopic,
    HubTopicInfo,
    Presence,
    Published,
)
from penstock.hub.core.messages import Position

__all__ = [
    "ConnectionNews",
    "Gap",
    "HubActor",
    "HubClient",
    "HubMessage",
    "HubMessages",
    "HubTopic",
    "HubTopicInfo",
    "Position",
    "Presence",
    "Published",
]
