"""The two dialects of the protocol: that of the specification, and that of clients of the original implementation.

A dialect reads the payload of a request and writes replies and forwarded messages. Everything in between follows the
specification. A client that connects with `metadata.protocolVersion` gets the original dialect: its connect message has all
fields in the metadata, its replies carry the whole envelope, some have other names or fields, and two requests have no reply.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Raw, Struct

from penstock.hub.core import messages as m
from penstock.hub.core.messages import COMMANDS, REPLIES, Command, Envelope, Message, Reply
from penstock.hub.core.names import HUB

MakeId = Callable[[], str]
Parts = tuple[bytes, bytes]
"""A forwarded message before and after its recipient."""

encode = msgspec.json.Encoder().encode


class Dialect(Protocol):
    """How requests of one kind of client are read, and how replies and messages to it are written."""

    has_globs: bool
    """Whether the pattern of hub:discover is a glob instead of a regular expression."""

    def read(self, request: Envelope) -> Command:
        """The command of a request whose type is in COMMANDS. Raises msgspec.DecodeError if the payload is invalid."""

    def write(
        self, reply: Reply, to: str, *, request: Envelope | None, command: Command | None, now: int, make_id: MakeId
    ) -> bytes:
        """An encoded reply; empty if this dialect has no reply of that kind."""

    def parts(self, message: Message, make_id: MakeId) -> Parts:
        """An encoded forwarded message in two parts; the recipient, as JSON, goes between them."""


class _Out(msgspec.Struct, omit_defaults=True, rename={"sender": "from", "correlation_id": "correlationId"}):
    """The envelope of a reply."""

    type: str
    sender: str
    to: str
    payload: Reply
    correlation_id: str | None = None
    timestamp: int = 0


class Specified:
    """The dialect of the specification."""

    has_globs = False

    def __init__(self) -> None:
        self._readers: dict[str, Callable[[bytes], Command]] = {
            name: msgspec.json.Decoder(kind).decode for name, kind in COMMANDS.items()
        }

    def read(self, request: Envelope) -> Command:
        return self._readers[request.type](payload_of(request))

    def write(
        self, reply: Reply, to: str, *, request: Envelope | None, command: Command | None, now: int, make_id: MakeId
    ) -> bytes:
        """Type, sender, recipient, payload, and the id of the request that it answers."""
        asked = None if request is None else request.message_id
        return encode(_Out(REPLIES[type(reply)], HUB, to, reply, asked, now // 1000))

    def parts(self, message: Message, make_id: MakeId) -> Parts:
        """The flat message: the data is the payload."""
        return head_of(message), b',"payload":%b,"timestamp":%d,"metadata":{%b}}' % (
            message.data,
            message.published_at // 1000,
            metadata_of(message, b'"forwarded":true,"via":"%b"' % HUB.encode()),
        )


def payload_of(request: Envelope) -> bytes:
    """The payload of a request; null counts as an empty object."""
    payload = bytes(request.payload)
    return b"{}" if payload == b"null" else payload


def head_of(message: Message) -> bytes:
    """A forwarded message up to its recipient."""
    return b'{"type":%b,"from":%b,"to":' % (encode(message.type), encode(message.sender))


def metadata_of(message: Message, said: bytes) -> bytes:
    """The members of a forwarded message's metadata: those of its sender, those of the hub (`said`), and its position."""
    parts = [said] if message.metadata is None else [message.metadata, said]
    if message.topic is None:
        parts.append(b'"originalMessageId":%b' % encode(message.message_id))
    else:
        parts.append(b'"topic":%b,"messageId":%b' % (encode(message.topic), encode(message.message_id)))
    if message.ack_id is not None:
        parts.append(b'"ackId":%b' % encode(message.ack_id))
    if message.position is not None:
        parts.append(b'"offset":%d,"epoch":%b' % (message.position.offset, encode(message.position.epoch)))
    return b",".join(parts)


SPECIFIED = Specified()


MAX_FOUND = 100
CONTENT_TYPES = ("application/json",)
_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.IGNORECASE).fullmatch
"""Clients of this dialect require every id to be a UUID. Other clients may use any id, and both exchange messages."""


class ConnectMetadata(Struct, frozen=True, rename="camel"):
    """The metadata of hub:connect in this dialect. Without protocolVersion, the client uses the dialect of the specification."""

    protocol_version: str | None = None
    auth_token: str | None = None
    resume: m.SessionId | None = None


class _Register(Struct, frozen=True, rename="camel"):
    actor_address: str
    capabilities: tuple[str, ...]
    metadata: dict[str, object] = {}
    ttl_seconds: float | None = None
    ttl: float | None = None


class _Discover(Struct, frozen=True):
    pattern: str | None = None
    capability: str | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_FOUND)] = MAX_FOUND


class _OriginalOut(Struct, rename={"message_id": "id", "sender": "from", "correlation_id": "correlationId"}):
    """The whole envelope."""

    message_id: str
    sender: str
    to: str
    type: str
    payload: object
    pattern: str
    correlation_id: str | None
    timestamp: int
    metadata: object
    ttl: None = None
    signature: None = None


class Original:
    """The dialect of the original implementation."""

    has_globs = True

    def __init__(self) -> None:
        connect = msgspec.json.Decoder(ConnectMetadata | None).decode
        register = msgspec.json.Decoder(_Register).decode
        discover = msgspec.json.Decoder(_Discover).decode
        self._readers: dict[str, Callable[[m.Envelope], m.Command]] = {
            "hub:connect": lambda request: _connect(connect(request.metadata)),
            "hub:register": lambda request: _register(register(payload_of(request))),
            "hub:discover": lambda request: _discover(discover(payload_of(request))),
        }

    def read(self, request: m.Envelope) -> m.Command:
        return self._readers.get(request.type, SPECIFIED.read)(request)

    def write(
        self, reply: m.Reply, to: str, *, request: m.Envelope | None, command: m.Command | None, now: int, make_id: MakeId
    ) -> bytes:
        if isinstance(reply, m.Unsubscribed) or (isinstance(reply, m.Unregistered) and request is not None):
            return b""  # its clients do not expect a reply to these
        kind, payload, metadata = _translated(reply, command)
        asked = None if request is None else request.message_id
        return encode(_OriginalOut(make_id(), HUB, to, kind, payload, "tell", asked, now // 1000, metadata))

    def parts(self, message: Message, make_id: MakeId) -> Parts:
        """The whole envelope around the data. The correlation id is the message's id, if that is a valid id in this dialect."""
        said = b'"publication":true,"via":"%b"' if message.topic is not None else b'"forwarded":true,"via":"%b"'
        ttl = b"null" if message.expires_at is None else b"%d" % max((message.expires_at - message.published_at) // 1000, 1)
        return head_of(message), (
            b',"payload":%b,"id":%b,"pattern":"tell","correlationId":%b,"timestamp":%d,"ttl":%b,"signature":null,"metadata":{%b}}'
            % (
                message.data,
                encode(make_id()),
                encode(message.message_id) if _UUID(message.message_id) else b"null",
                message.published_at // 1000,
                ttl,
                metadata_of(message, said % HUB.encode()),
            )
        )


def _connect(metadata: ConnectMetadata | None) -> m.Connect:
    found = metadata or ConnectMetadata()
    return m.Connect(version=found.protocol_version or "", jwt=found.auth_token, resume=found.resume)


def _register(asked: _Register) -> m.Register:
    ttl = asked.ttl if asked.ttl_seconds is None else asked.ttl_seconds * 1000
    return m.Register(asked.actor_address, asked.capabilities, asked.metadata, ttl)


def _discover(asked: _Discover) -> m.Discover:
    wanted = () if asked.capability is None else (asked.capability,)
    return m.Discover(asked.pattern, wanted, limit=asked.limit)


def _translated(reply: m.Reply, command: m.Command | None) -> tuple[str, object, dict[str, object]]:
    """Type, payload and metadata of a reply."""
    kind, payload, metadata = m.REPLIES[type(reply)], object(), dict[str, object]()
    match reply:
        case m.Connected():
            metadata = {"actorIdentity": reply.actor_identity}
            payload = {
                "sessionId": reply.session_id,
                "serverVersion": reply.server_version,
                "maxMessageSize": reply.max_message_size,
                "heartbeatInterval": reply.heartbeat_interval,
                "capabilities": {
                    "maxActorsPerInstance": reply.max_actors,
                    "supportsBackpressure": True,
                    "supportedContentTypes": CONTENT_TYPES,
                },
            }
        case m.DisconnectAck():
            kind, payload = "hub:disconnect", {"acknowledged": True}
        case m.TokenRefreshed() if isinstance(command, m.RefreshToken):
            payload = {"token": command.token, "expiresAt": reply.expires_at}
        case m.Renewed():
            payload = {"expiresAt": reply.expires_at, "renewalToken": reply.new_renewal_token}
        case m.DiscoveryResult() if isinstance(command, m.ListActors):
            kind = "hub:actor_list"
            payload = {
                "actors": reply.actors,
                "total": reply.total_matches,
                "offset": command.offset,
                "limit": command.limit,
                "hasMore": reply.has_more,
            }
        case m.DiscoveryResult():
            kind = "hub:discovered"
            found = [{"address": actor.actor_address, "capabilities": actor.capabilities} for actor in reply.actors]
            payload = {"actors": found, "hasMore": reply.has_more}
        case m.Published():
            kind, payload = "hub:published", {"topic": reply.topic, "subscriberCount": reply.subscriber_count}
        case m.Delivered():
            payload = {"messageId": reply.message_id, "deliveredAt": reply.timestamp, "status": "delivered"}
        case m.BroadcastDone():
            kind = "hub:broadcast_ack"
            counts = {"deliveredCount": reply.delivered_count, "failedCount": reply.failed_count}
            payload = {"messageId": reply.message_id, **counts}
        case _:
            payload = reply
    return kind, payload, metadata


ORIGINAL = Original()


def read_connect_metadata(metadata: Raw) -> ConnectMetadata | None:
    """The metadata of hub:connect; None if it does not have the form of this dialect."""
    try:
        return msgspec.json.decode(metadata, type=ConnectMetadata | None)
    except (msgspec.DecodeError, RecursionError):
        return None
