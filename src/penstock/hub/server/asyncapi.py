"""The AsyncAPI document of the hub, generated from the definitions of its messages, so that it is always complete.

It also has every `details.reason` of hub:error with its meaning, and one example payload of every message, which the page of the
protocol shows too.
"""

from __future__ import annotations

import inspect
from typing import Any, get_args
from urllib.parse import urlsplit

import msgspec

from penstock.hub.core import messages as m
from penstock.hub.core.close_codes import CLOSES
from penstock.hub.core.names import HUB, MAX_ADDRESS
from penstock.hub.core.refusal import Code
from penstock.hub.core.rules import MAX_TOPIC

REASONS: dict[str, str] = {
    # not a valid request
    "message_too_large": "the frame is too large",
    "binary_frame": "the frame is not text",
    "invalid_json": "the frame is not JSON",
    "invalid_envelope": "the frame is JSON, but has no type, or a field of the wrong type",
    "unknown_type": "there is no request of that type",
    "invalid_payload": "a field of the payload is missing, or has the wrong type or size",
    "rate_limited": "the session sends more messages a second than allowed",
    # the session
    "not_connected": "another request came before hub:connect, and a token is required",
    "already_connected": "hub:connect was sent twice",
    "version_mismatch": "the client speaks another major version",
    "not_registered": "the session is not registered, and the request requires that",
    "anonymous": "a durable subscription without a registered address",
    "registration_expired": "the registration has expired",
    "from_mismatch": "from is the address of another actor",
    # tokens
    "missing_token": "there is no token",
    "malformed_token": "the token is not a JWT, or is far too long",
    "wrong_algorithm": "the token is not signed with an algorithm that the hub accepts",
    "unknown_key": "the token names a key that is not published",
    "bad_signature": "the signature of the token is wrong",
    "keys_unavailable": "the hub has no keys to check tokens with at the moment",
    "malformed_claims": "the claims of the token cannot be read",
    "missing_claim": "the token lacks a required claim",
    "wrong_issuer": "the token was issued by another issuer",
    "wrong_audience": "the token is not for this hub",
    "expired_token": "the token has expired",
    "token_too_old": "the token was issued too long ago",
    "token_not_yet_valid": "the token is valid in the future only",
    "invalid_token": "the token is not one of the server's, or was revoked",
    "tokens_unavailable": "the server cannot read its tokens at the moment",
    "wrong_project": "the token is for another project",
    "malformed_permissions": "publish or subscribe of the token contains an invalid pattern",
    "wrong_actor": "the token, or the session, belongs to another actor",
    "not_permitted": "the token does not allow this topic, to send, or a broadcast",
    # registration
    "invalid_address": "the address of the actor is invalid",
    "reserved_address": "the address is the hub's own",
    "already_registered": "the session is registered with another address",
    "missing_capabilities": "capabilities is empty",
    "too_many_capabilities": "there are too many capabilities",
    "invalid_capability": "a capability is empty or too long",
    "metadata_too_large": "metadata is too large",
    "metadata_too_deep": "metadata is nested too deep",
    "invalid_ttl": "the TTL is too short, too long or not a number",
    "registry_full": "no more actors may be registered",
    "wrong_renewal_token": "renewalToken is not the newest one",
    "invalid_pattern": "the pattern of an address is not supported",
    "pattern_too_costly": "the pattern of an address would take too long to search",
    # topics
    "missing_topic": "there is no topic",
    "invalid_topic": "the topic has invalid characters, or is too long",
    "wildcard_topic": "a publish to a pattern",
    "too_many_levels": "a pattern with wildcards has too many levels",
    "too_many_durable": "the hub has the maximum number of durable subscriptions",
    "too_many_subscriptions": "the actor has the maximum number of subscriptions",
    "too_many_topics": "too many topics begin with the prefix",
    "unknown_subscription": "subscriptionId is not one of this session",
    "missing_ack_id": "hub:ack without an id",
    # messages
    "missing_type": "there is no payload.type",
    "invalid_type": "payload.type is too long",
    "reserved_type": "payload.type begins with hub:",
    "too_deep": "payload.data, or metadata, is nested too deep, or the whole message is",
    "huge_number": "payload.data, or metadata, has a number beyond what a double holds",
    "message_expired": "the message has expired by its timestamp and ttl",
    "missing_to": "hub:send without a recipient",
    "not_reachable": "the connection of the recipient is gone",
    "invalid_metadata": "metadata is not an object",
    "broadcast_limit": "too many actors would receive it",
}
"""Every `details.reason` of hub:error with its meaning. Errors of the broker behind the hub have their own reasons."""


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
        "serverVersion": "0.2.0",
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


PATH = "/ws"
TITLE = "Penstock hub"
ABOUT = (
    "Realtime publish and subscribe over WebSocket: topics with wildcards, direct messages, presence, and recovery of what was "
    "missed. Every frame is one JSON text, an envelope around a payload. This document is made from the definitions of the "
    "messages. Operations are the hub's: what it receives, clients send."
)

REPLIES_TO: dict[str, tuple[type[m.Reply], ...]] = {
    "hub:connect": (m.Connected,),
    "hub:heartbeat": (m.HeartbeatAck,),
    "hub:disconnect": (m.DisconnectAck,),
    "hub:refresh_token": (m.TokenRefreshed,),
    "hub:register": (m.Registered,),
    "hub:renew": (m.Renewed,),
    "hub:unregister": (m.Unregistered,),
    "hub:discover": (m.DiscoveryResult,),
    "hub:list_actors": (m.DiscoveryResult,),
    "hub:subscribe": (m.Subscribed,),
    "hub:unsubscribe": (m.Unsubscribed,),
    "hub:publish": (m.Published,),
    "hub:ack": (m.Acked,),
    "hub:list_topics": (m.TopicList,),
    "hub:topic_info": (m.TopicFacts,),
    "hub:presence": (m.PresenceNews,),
    "hub:send": (m.Delivered, m.UnknownActor),
    "hub:broadcast": (m.BroadcastDone,),
    "hub:pause": (m.FlowChanged,),
    "hub:resume": (m.FlowChanged,),
    "hub:queue_stats": (m.QueueStatsResponse,),
    "hub:metrics": (m.MetricsResponse,),
}
"""The replies to a successful request; a failed one is answered by hub:error."""

UNASKED: dict[type[m.Reply], str] = {
    m.Disconnecting: "The hub ends the session.",
    m.Unregistered: "A registration has expired.",
    m.PresenceNews: "An actor joined or left a topic that was subscribed to with `presence`.",
    m.Error: "A frame that could not be read, or something that went wrong later.",
}
"""What the hub sends without a request, in addition to forwarded messages."""

_REFERENCE = "#/components/schemas/{name}"
_CHANNEL = {"$ref": "#/channels/hub"}
_TOPIC = {"$ref": _REFERENCE.format(name="Topic")}
_PATTERN = {"$ref": _REFERENCE.format(name="TopicPattern")}
_ADDRESS = {"$ref": _REFERENCE.format(name="Address")}
_TYPE = {
    "type": "string",
    "minLength": 1,
    "maxLength": 256,
    "description": "What the message is called; the application's own word.",
}
_LEVEL = r"([a-zA-Z0-9_-]*|\+)"

NAMES: dict[str, dict[str, Any]] = {
    "Address": {
        "description": "The name of an actor: a kind and a name in lower case.",
        "type": "string",
        "pattern": r"^@\([a-z0-9-]+/[a-z0-9-]+\)$",
        "maxLength": MAX_ADDRESS,
        "examples": ["@(browser/client-ui)"],
    },
    "Topic": {
        "description": "What can be published to: levels with / between them.",
        "type": "string",
        "pattern": "^[a-zA-Z0-9/_-]+$",
        "minLength": 1,
        "maxLength": MAX_TOPIC,
        "examples": ["orders/eu"],
    },
    "TopicPattern": {
        "description": "What can be subscribed to: a topic in which `+` stands for any one level, and `#`, as the last level, "
        "for any number of further ones, none included.",
        "type": "string",
        "pattern": f"^({_LEVEL}(/{_LEVEL})*(/#)?|#)$",
        "minLength": 1,
        "maxLength": MAX_TOPIC,
        "examples": ["orders/eu", "orders/+/new", "orders/#"],
    },
}
"""The rules of names, as schemas."""

_NAMED: dict[tuple[type[msgspec.Struct], str], dict[str, Any]] = {
    **{(kind, "topic"): _TOPIC for kind in (m.Publish, m.Published, m.TopicInfo, m.TopicFacts)},
    **{(kind, "topic"): _PATTERN for kind in (m.Subscribe, m.Subscribed, m.Unsubscribe, m.Unsubscribed, m.TopicCount)},
    **{(kind, "topic"): _PATTERN for kind in (m.Presence, m.PresenceNews)},
    **{(kind, "actorAddress"): _ADDRESS for kind in (m.Register, m.Registered, m.Renew, m.Renewed, m.Unregister)},
    **{(kind, "actorAddress"): _ADDRESS for kind in (m.Unregistered, m.ActorFound)},
    (m.Send, "to"): _ADDRESS,
    **{(kind, "type"): _TYPE for kind in (m.Publish, m.Send, m.Broadcast)},
    (m.Error, "code"): {"enum": list(get_args(Code))},
    (m.PresenceNews, "event"): {"enum": ["list", "join", "leave"]},
    (m.Unregistered, "reason"): {"enum": ["requested", "expired"], "default": "requested"},
}
"""Fields with a schema that is more specific than their Python type."""

_DEMANDED: dict[type[msgspec.Struct], list[str]] = {
    m.Subscribe: ["topic"],
    m.Publish: ["topic", "type"],
    m.TopicInfo: ["topic"],
    m.Presence: ["topic"],
    m.Send: ["type"],
    m.Broadcast: ["type"],
}
"""Required fields that are optional for the decoder: their absence is refused with the error text of the specification."""


class Forwarded:
    """A message that somebody published or sent.

    `type` and `payload` are as the sender gave them; `from` is who it was, by the hub's own knowledge.
    """


class ForwardedMetadata(msgspec.Struct, rename="camel", omit_defaults=True):
    """What the hub says of a message that it passes on, beside what the sender of a direct message said in its own metadata.

    A message of a topic has `topic` and `messageId`, and its position where it has one. One of a durable subscription has an
    `ackId`, other in each delivery, for hub:ack. A direct message or a broadcast has `originalMessageId`.
    """

    forwarded: bool
    via: str
    topic: str | msgspec.UnsetType = msgspec.UNSET
    message_id: str | msgspec.UnsetType = msgspec.UNSET
    ack_id: str | msgspec.UnsetType = msgspec.UNSET
    offset: int | msgspec.UnsetType = msgspec.UNSET
    epoch: str | msgspec.UnsetType = msgspec.UNSET
    original_message_id: str | msgspec.UnsetType = msgspec.UNSET


def asyncapi(version: str, url: str) -> dict[str, Any]:
    """The AsyncAPI 3.0 document of a server's hub: `version` of the server, `url` of the server (`http://127.0.0.1:8085`)."""
    messages = {
        **{kind.__name__: _request(name, kind) for name, kind in m.COMMANDS.items()},
        **{kind.__name__: _reply(name, kind) for kind, name in m.REPLIES.items()},
        Forwarded.__name__: _forwarded(),
    }
    parts = urlsplit(url)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": TITLE, "version": version, "description": ABOUT},
        "defaultContentType": "application/json",
        "servers": servers(parts.scheme, parts.netloc),
        "channels": {
            "hub": {
                "address": PATH,
                "title": "The connection of a client",
                "description": "A client sends hub:connect, with a token if the server asks for one, then hub:register. Where no "
                "token is needed both may be left out: the first request registers an anonymous actor. Close codes from 4000 on "
                "are the hub's own.",
                "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in messages},
                "x-close-codes": [
                    {"code": close.code, "reason": close.reason, "meaning": close.meaning, "mayReconnect": close.may_reconnect}
                    for close in CLOSES
                ],
            }
        },
        "operations": {**_sent_by_client(), **_sent_by_server()},
        "components": {"messages": messages, "schemas": {**NAMES, **_schemas()}},
        "x-error-reasons": dict(REASONS),
    }


def servers(scheme: str, host: str) -> dict[str, Any]:
    """The `servers` part of the document."""
    return {"this": {"host": host, "protocol": "wss" if scheme == "https" else "ws", "description": "This server."}}


def _sent_by_client() -> dict[str, Any]:
    """The operations of requests, each with its replies."""
    return {
        kind.__name__[:1].lower() + kind.__name__[1:]: {
            "action": "receive",
            "channel": _CHANNEL,
            "summary": (kind.__doc__ or "").partition("\n")[0],
            "messages": [_of_channel(kind.__name__)],
            "reply": {"channel": _CHANNEL, "messages": [_of_channel(reply.__name__) for reply in _answers(name)]},
        }
        for name, kind in m.COMMANDS.items()
    }


def _answers(name: str) -> tuple[type[m.Reply], ...]:
    return *REPLIES_TO[name], m.Error


def _sent_by_server() -> dict[str, Any]:
    told = {kind.__name__: summary for kind, summary in UNASKED.items()}
    told[Forwarded.__name__] = "A message that was published to a topic, sent to one actor or to all."
    return {
        f"on{name}": {"action": "send", "channel": _CHANNEL, "summary": summary, "messages": [_of_channel(name)]}
        for name, summary in told.items()
    }


def _of_channel(name: str) -> dict[str, str]:
    return {"$ref": f"#/channels/hub/messages/{name}"}


def _request(name: str, kind: type[m.Command]) -> dict[str, Any]:
    """The message of a request. The payload is required if the request needs one."""
    payload, is_needed = _schema(kind.__name__), _is_demanding(kind)
    inside = {"type": {"const": name}, "payload": payload if is_needed else {"anyOf": [payload, {"type": "null"}]}}
    frame = {"type": name, "id": REQUEST_ID, "payload": EXAMPLES[kind]}
    described = _message(kind, inside, ["type", "payload"] if is_needed else ["type"], frame)
    return {"name": name, "title": name, **described, "correlationId": {"location": "$message.payload#/id"}}


def _reply(name: str, kind: type[m.Reply]) -> dict[str, Any]:
    inside = {"type": {"const": name}, "from": {"const": HUB}, "payload": _schema(kind.__name__)}
    frame = {"type": name, "from": HUB, "to": CLIENT, "payload": EXAMPLES[kind], "timestamp": NOW}
    if any(kind in _answers(request) for request in REPLIES_TO):
        frame["correlationId"] = REQUEST_ID
    described = _message(kind, inside, ["type", "from", "to", "payload", "timestamp"], frame)
    return {"name": name, "title": name, **described, "correlationId": {"location": "$message.payload#/correlationId"}}


def _forwarded() -> dict[str, Any]:
    """The message that the hub forwards: the application defines its type and its payload."""
    inside = {"from": {"type": "string"}, "to": _ADDRESS, "metadata": _schema("ForwardedMetadata")}
    required = ["type", "from", "to", "payload", "timestamp", "metadata"]
    return {"name": "forwarded", "title": "A forwarded message", **_message(Forwarded, inside, required, FORWARDED)}


def _message(kind: type, inside: dict[str, Any], required: list[str], frame: dict[str, Any]) -> dict[str, Any]:
    """The description of a frame: the envelope, with the fields of this message."""
    about = inspect.getdoc(kind) or ""
    return {
        "summary": about.partition("\n")[0],
        "description": about,
        "payload": {"allOf": [_schema("Envelope"), {"properties": inside, "required": required}]},
        "examples": [{"name": kind.__name__, "payload": frame}],
    }


def _schema(name: str) -> dict[str, Any]:
    return {"$ref": _REFERENCE.format(name=name)}


def _schemas() -> dict[str, Any]:
    """The schemas of the payloads by class name, and of the envelope."""
    kinds: list[type[msgspec.Struct]] = [m.Envelope, ForwardedMetadata, *m.COMMANDS.values(), *m.REPLIES]
    _, found = msgspec.json.schema_components(map(_without_raw, kinds), schema_hook=_anything, ref_template=_REFERENCE)
    for (kind, field), schema in _NAMED.items():
        found[kind.__name__]["properties"][field] = schema
    for kind, fields in _DEMANDED.items():
        found[kind.__name__]["required"] = fields
        for field in fields:
            found[kind.__name__]["properties"][field].pop("default", None)
    return found


def _without_raw(kind: type[msgspec.Struct]) -> type[msgspec.Struct]:
    """The same class with `Any` for `Raw` fields: msgspec can describe those, but not their default."""
    fields = msgspec.structs.fields(kind)
    if all(field.type is not msgspec.Raw for field in fields):
        return kind
    return msgspec.defstruct(
        kind.__name__,
        [
            (field.name, Any, msgspec.field(name=field.encode_name, default=None))
            if field.type is msgspec.Raw
            else (field.name, field.type, msgspec.field(name=field.encode_name, default=field.default))
            for field in fields
        ],
        namespace={"__doc__": kind.__doc__},
    )


def _is_demanding(kind: type[msgspec.Struct]) -> bool:
    """Whether a request without a payload is refused."""
    return kind in _DEMANDED or any(field.required for field in msgspec.structs.fields(kind))


def _anything(kind: type) -> dict[str, Any]:
    """`object` in a definition is any JSON value."""
    if kind is object:
        return {"description": "Any JSON value."}
    raise NotImplementedError
