"""The AsyncAPI document of the hub: made from the definitions of its messages, so nothing can be said and not be in it."""

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
from penstock.hub.server.error_reasons import REASONS
from penstock.hub.server.examples import CLIENT, EXAMPLES, FORWARDED, NOW, REQUEST_ID

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
"""What answers a request that is done; one that is not done is answered by hub:error."""

UNASKED: dict[type[m.Reply], str] = {
    m.Disconnecting: "The hub ends the session.",
    m.Unregistered: "A registration ran out.",
    m.PresenceNews: "Somebody joined or left a topic that was subscribed to with `presence`.",
    m.Error: "A frame that could not be read, or something that went wrong later.",
}
"""What the hub says without having been asked, beside the messages that it forwards."""

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
"""Fields that are more than their Python type says."""

_DEMANDED: dict[type[msgspec.Struct], list[str]] = {
    m.Subscribe: ["topic"],
    m.Publish: ["topic", "type"],
    m.TopicInfo: ["topic"],
    m.Presence: ["topic"],
    m.Send: ["type"],
    m.Broadcast: ["type"],
}
"""Fields whose absence is not an error of the form: it is refused in the specification's own words."""


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
    """AsyncAPI 3.0 of the hub of a server: `version` is the server's, `url` where it is reached (`http://127.0.0.1:8085`)."""
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
        "operations": {**_asked(), **_told()},
        "components": {"messages": messages, "schemas": {**NAMES, **_schemas()}},
        "x-error-reasons": dict(REASONS),
    }


def servers(scheme: str, host: str) -> dict[str, Any]:
    """The part of the document that says where the server is."""
    return {"this": {"host": host, "protocol": "wss" if scheme == "https" else "ws", "description": "This server."}}


def _asked() -> dict[str, Any]:
    """What the hub receives, each with what it answers."""
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


def _told() -> dict[str, Any]:
    """What the hub sends by itself."""
    told = {kind.__name__: summary for kind, summary in UNASKED.items()}
    told[Forwarded.__name__] = "A message that was published to a topic, sent to one actor or to all."
    return {
        f"on{name}": {"action": "send", "channel": _CHANNEL, "summary": summary, "messages": [_of_channel(name)]}
        for name, summary in told.items()
    }


def _of_channel(name: str) -> dict[str, str]:
    return {"$ref": f"#/channels/hub/messages/{name}"}


def _request(name: str, kind: type[m.Command]) -> dict[str, Any]:
    """What a client sends. A payload without which nothing can be done is required."""
    payload, is_needed = _schema(kind.__name__), _is_demanding(kind)
    inside = {"type": {"const": name}, "payload": payload if is_needed else {"anyOf": [payload, {"type": "null"}]}}
    frame = {"type": name, "id": REQUEST_ID, "payload": EXAMPLES[kind]}
    described = _message(kind, inside, ["type", "payload"] if is_needed else ["type"], frame)
    return {"name": name, "title": name, **described, "correlationId": {"location": "$message.payload#/id"}}


def _reply(name: str, kind: type[m.Reply]) -> dict[str, Any]:
    """What the hub says."""
    inside = {"type": {"const": name}, "from": {"const": HUB}, "payload": _schema(kind.__name__)}
    frame = {"type": name, "from": HUB, "to": CLIENT, "payload": EXAMPLES[kind], "timestamp": NOW}
    if any(kind in _answers(request) for request in REPLIES_TO):
        frame["correlationId"] = REQUEST_ID
    described = _message(kind, inside, ["type", "from", "to", "payload", "timestamp"], frame)
    return {"name": name, "title": name, **described, "correlationId": {"location": "$message.payload#/correlationId"}}


def _forwarded() -> dict[str, Any]:
    """A message of somebody else: its type and its payload are the application's own."""
    inside = {"from": {"type": "string"}, "to": _ADDRESS, "metadata": _schema("ForwardedMetadata")}
    required = ["type", "from", "to", "payload", "timestamp", "metadata"]
    return {"name": "forwarded", "title": "A forwarded message", **_message(Forwarded, inside, required, FORWARDED)}


def _message(kind: type, inside: dict[str, Any], required: list[str], frame: dict[str, Any]) -> dict[str, Any]:
    """A frame: the envelope, with what this message has inside it."""
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
    """The payloads by the names of their classes, with the envelope around them."""
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
    """The same class with any value where it keeps the bytes of one: msgspec can describe those, but not their default."""
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
