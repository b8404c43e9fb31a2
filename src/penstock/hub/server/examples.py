"""One payload of every message, as it is on the wire: shown in the AsyncAPI document and on the page of the protocol."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.hub.core import messages as m
from penstock.hub.core.names import HUB

_UUID = "0b7e6a52-5c1c-4f4e-9d0a-6f2f6f3f8a11"
_AGENT = "@(agent/billing)"
_POSITION = {"epoch": "6f1d2c9e", "offset": 41}

NOW = 1_767_266_435_616
CLIENT = "@(browser/client-ui)"
REQUEST_ID = "5b3d6c1e-2f0a-4a7e-8f57-0c8f7f1f0c11"
"""The id of the request that each reply in the examples answers."""

EXAMPLES: dict[type[msgspec.Struct], dict[str, Any]] = {
    m.Connect: {"version": "1.0"},
    m.Heartbeat: {"timestamp": NOW},
    m.Disconnect: {"reason": "client_requested"},
    m.RefreshToken: {"token": "<JWT>"},
    m.Register: {"actorAddress": CLIENT, "capabilities": ["ui"], "metadata": {"room": "7"}, "ttl": 300_000},
    m.Renew: {"actorAddress": CLIENT, "renewalToken": f"renewal-{_UUID}", "ttl": 300_000},
    m.Unregister: {"actorAddress": CLIENT},
    m.Discover: {"pattern": "agent/.*", "capabilities": ["billing"], "limit": 10},
    m.ListActors: {"limit": 100, "offset": 0},
    m.Subscribe: {"topic": "orders/#", "since": _POSITION},
    m.Unsubscribe: {"topic": "orders/#"},
    m.Publish: {"topic": "orders/eu", "type": "order:placed", "data": {"id": 1}},
    m.Ack: {"ackIds": [f"ack-{_UUID}"]},
    m.ListTopics: {"prefix": "orders/", "limit": 10},
    m.TopicInfo: {"topic": "orders/eu"},
    m.Presence: {"topic": "orders/#"},
    m.Send: {"to": _AGENT, "type": "invoice:wanted", "data": {"order": 1}},
    m.Broadcast: {"type": "notice", "data": "lunch", "targetCapability": "ui"},
    m.Pause: {"reason": "the page is in the background"},
    m.Resume: {},
    m.QueueStats: {},
    m.Metrics: {},
    m.Connected: {
        "sessionId": f"session-{_UUID}",
        "actorIdentity": None,
        "capabilities": ["registration", "messaging", "pubsub", "wildcards", "durable", "recovery", "presence", "flow-control"],
        "serverTime": NOW,
        "serverVersion": "0.1.0",
        "maxMessageSize": 1_048_576,
        "heartbeatInterval": 300_000,
        "maxActors": 50_000,
    },
    m.HeartbeatAck: {"timestamp": NOW, "serverTime": NOW + 1},
    m.DisconnectAck: {"sessionId": f"session-{_UUID}", "cleanedUp": True},
    m.Disconnecting: {"reason": "server_shutdown", "message": "the server stops; connect again in a moment"},
    m.TokenRefreshed: {"expiresAt": NOW + 3_600_000},
    m.Registered: {"actorAddress": CLIENT, "renewalToken": f"renewal-{_UUID}", "expiresAt": NOW + 300_000, "version": 1},
    m.Renewed: {"actorAddress": CLIENT, "expiresAt": NOW + 300_000, "newRenewalToken": f"renewal-{_UUID}"},
    m.Unregistered: {"actorAddress": CLIENT, "unregisteredAt": NOW},
    m.DiscoveryResult: {
        "actors": [{"actorAddress": _AGENT, "capabilities": ["billing"], "metadata": {}, "registeredAt": NOW}],
        "count": 1,
        "hasMore": False,
        "totalMatches": 1,
    },
    m.Subscribed: {"topic": "orders/#", "subscriptionId": f"sub-{_UUID}", "recovered": True, "position": _POSITION},
    m.Unsubscribed: {"topic": "orders/#", "unsubscribedAt": NOW},
    m.Published: {
        "topic": "orders/eu",
        "subscriberCount": 3,
        "delivered": True,
        "timestamp": NOW,
        "messageId": REQUEST_ID,
        "position": _POSITION,
    },
    m.Acked: {"acked": 1},
    m.TopicList: {"topics": [{"topic": "orders/#", "subscriberCount": 2}], "total": 1, "hasMore": False},
    m.TopicFacts: {
        "topic": "orders/eu",
        "subscriberCount": 2,
        "exactCount": 0,
        "history": True,
        "position": _POSITION,
        "boundTo": "orders",
    },
    m.PresenceNews: {"topic": "orders/#", "event": "join", "actors": [CLIENT], "timestamp": NOW},
    m.Delivered: {"messageId": REQUEST_ID, "delivered": True, "timestamp": NOW},
    m.UnknownActor: {"actorAddress": _AGENT, "message": "Actor not registered with Signal Hub"},
    m.BroadcastDone: {
        "messageId": REQUEST_ID,
        "delivered": True,
        "timestamp": NOW,
        "deliveredCount": 12,
        "failedCount": 0,
    },
    m.FlowChanged: {"paused": True, "queueDepth": 0},
    m.QueueStatsResponse: {
        "queueDepth": 12,
        "queueBytes": 3_400,
        "processingRate": 250.0,
        "pauseThreshold": 10_000,
        "resumeThreshold": 5_000,
        "paused": False,
    },
    m.MetricsResponse: {
        "messages_received": 120,
        "messages_sent": 1_450,
        "errors": 1,
        "connections_opened": 4,
        "connections_closed": 2,
        "windowStart": NOW - 21_000,
        "timestamp": NOW,
    },
    m.Error: {
        "code": "internal_error",
        "message": "topic is required",
        "resolution": "publish to one topic; + and # are for subscriptions only",
        "details": {"reason": "wildcard_topic", "retryable": False, "topic": "orders/#"},
    },
}

FORWARDED: dict[str, Any] = {
    "type": "order:placed",
    "from": _AGENT,
    "to": CLIENT,
    "payload": {"id": 1},
    "timestamp": NOW,
    "metadata": {"forwarded": True, "via": HUB, "topic": "orders/eu", "messageId": REQUEST_ID, "offset": 41, "epoch": "6f1d2c9e"},
}
"""A message as a subscriber receives it."""
