"""All messages of the hub's protocol: requests of clients and replies of the hub, as in the specification.

The payload of a message is a class here; its wire name is in COMMANDS or REPLIES. Decoders, the AsyncAPI document and the tables
of the documentation are generated from these two. Times and durations on the wire are milliseconds. Fields that are not in the
specification are additions, and never required. `Message` is a message that the hub forwards from one client to others.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

Milliseconds = Annotated[int, Meta(ge=0, le=1 << 53)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
SessionId = Annotated[str, Meta(min_length=1, max_length=128)]
LATEST = 1 << 52
"""The largest timestamp and TTL, so that their sum in microseconds is an integer of 64 bits."""


class Envelope(Struct, frozen=True, rename={"sender": "from", "message_id": "id", "correlation_id": "correlationId"}):
    """What surrounds every payload. Of a request only `type` is required; `from` is stamped by the hub whatever it says."""

    type: Annotated[str, Meta(min_length=1, max_length=256)]
    payload: Raw = Raw(b"null")
    message_id: Annotated[str, Meta(max_length=256)] | None = None
    sender: Annotated[str, Meta(max_length=256)] | None = None
    to: Annotated[str, Meta(max_length=256)] | None = None
    pattern: str | None = None
    correlation_id: Annotated[str, Meta(max_length=256)] | None = None
    timestamp: Annotated[float, Meta(gt=0, le=LATEST)] | None = None
    ttl: Annotated[float, Meta(ge=0, le=LATEST)] | None = None
    metadata: Raw = Raw(b"null")


class Command(Struct, frozen=True, rename="camel"):
    """The payload of a request. Unknown fields are ignored."""


class Reply(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The payload of a message of the hub."""


class Position(Struct, frozen=True):
    """Where a message is: the `offset` in the history that `epoch` names. A history that begins again has another epoch."""

    epoch: Annotated[str, Meta(max_length=128)]
    offset: Annotated[int, Meta(ge=-1, le=1 << 53)]


# --- connection ---------------------------------------------------------------------------------------------------------------


class Connect(Command, frozen=True):
    """Open a session. If a token is required, no other request is accepted before it."""

    version: str = "1.0"
    jwt: str | None = None
    """The token, with or without the word `Bearer`."""
    resume: SessionId | None = None
    """The session of an earlier connection that this one continues, so that publishes which are sent again are recognised."""


class Connected(Reply, frozen=True):
    """The session is open."""

    session_id: str
    actor_identity: str | None
    """The actor of the session, if it is known before a registration."""
    capabilities: tuple[str, ...]
    server_time: Milliseconds
    server_version: str
    max_message_size: int
    heartbeat_interval: Milliseconds
    max_actors: int


class Heartbeat(Command, frozen=True):
    """Show that the client is alive."""

    timestamp: float | None = None


class HeartbeatAck(Reply, frozen=True):
    """The answer to a heartbeat."""

    timestamp: float | None
    server_time: Milliseconds


class Disconnect(Command, frozen=True):
    """End the session."""

    reason: str | None = None


class DisconnectAck(Reply, frozen=True, omit_defaults=False):
    """The session is over; the connection closes next."""

    session_id: str
    cleaned_up: bool = True


class Disconnecting(Reply, frozen=True):
    """The hub ends the session for a reason; the connection closes next. Its wire name is `hub:disconnect`."""

    reason: str
    message: str


class RefreshToken(Command, frozen=True):
    """Continue with a new token of the same actor."""

    token: str


class TokenRefreshed(Reply, frozen=True):
    """The new token is used from now on."""

    expires_at: Milliseconds | None = None


# --- registration -------------------------------------------------------------------------------------------------------------


class Register(Command, frozen=True):
    """Register as an actor with an address, until the TTL ends. An earlier holder of the address is notified and disconnected."""

    actor_address: str
    capabilities: tuple[str, ...]
    metadata: dict[str, object] = {}
    ttl: float | None = None


class Registered(Reply, frozen=True):
    """The actor is registered."""

    actor_address: str
    renewal_token: str
    expires_at: Milliseconds
    version: int


class Renew(Command, frozen=True):
    """Stay registered for another TTL."""

    renewal_token: str
    actor_address: str | None = None
    ttl: float | None = None


class Renewed(Reply, frozen=True):
    """The registration lasts longer; the next renewal needs the new token."""

    actor_address: str
    expires_at: Milliseconds
    new_renewal_token: str


class Unregister(Command, frozen=True):
    """End the registration. All subscriptions of the actor end, durable ones too."""

    actor_address: str | None = None


class Unregistered(Reply, frozen=True):
    """The actor is not registered any more. With the reason `expired`, the hub sends it without a request."""

    actor_address: str
    unregistered_at: Milliseconds
    reason: str = "requested"


class Discover(Command, frozen=True):
    """Find actors by a pattern of their address, by capabilities (all of them) and by metadata (equal values)."""

    pattern: str | None = None
    capabilities: tuple[str, ...] = ()
    metadata: dict[str, object] = {}
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    offset: Count = 0


class ListActors(Command, frozen=True):
    """List all actors."""

    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    offset: Count = 0


class ActorFound(Reply, frozen=True):
    """An actor, as others may see it."""

    actor_address: str
    capabilities: tuple[str, ...]
    metadata: dict[str, object]
    registered_at: Milliseconds


class DiscoveryResult(Reply, frozen=True):
    """The actors that were found, by address."""

    actors: tuple[ActorFound, ...]
    count: int
    has_more: bool
    total_matches: int


# --- publish and subscribe ----------------------------------------------------------------------------------------------------


class Subscribe(Command, frozen=True):
    """Receive messages that are published to a topic, or to all topics of a pattern with `+` and `#`."""

    topic: str | None = None
    durable: bool = False
    """Whether messages that are published while the actor is away wait for it, until it sends hub:ack."""
    presence: bool = False
    """Whether to be notified of joins and departures."""
    since: Position | None = None
    """The last position that was seen: messages after it are sent first."""


class Subscribed(Reply, frozen=True):
    """The subscription is active. With `since`, `recovered` is whether all missed messages follow."""

    topic: str
    subscription_id: str
    durable: bool | UnsetType = UNSET
    recovered: bool | UnsetType = UNSET
    position: Position | UnsetType = UNSET
    """The current position of the topic: missed messages follow up to this offset, later messages have a larger one."""


class Unsubscribe(Command, frozen=True):
    """End the subscription to a topic; the subscription's id may be used instead of the topic."""

    topic: str | None = None
    subscription_id: str | None = None


class Unsubscribed(Reply, frozen=True):
    """The subscription is over."""

    topic: str
    unsubscribed_at: Milliseconds


class Publish(Command, frozen=True):
    """Send `data` to all subscribers of a topic, as a message of type `type`."""

    topic: str | None = None
    type: str | None = None
    data: Raw = Raw(b"null")


class Published(Reply, frozen=True):
    """The message was sent to this many subscribers. Its wire name is `hub:delivery_ack`."""

    topic: str
    subscriber_count: int
    delivered: bool
    timestamp: Milliseconds
    message_id: str | UnsetType = UNSET
    position: Position | UnsetType = UNSET


class Ack(Command, frozen=True):
    """Acknowledge messages of durable subscriptions, so that they are not redelivered. Ids are those of `metadata.ackId`."""

    ack_id: str | None = None
    ack_ids: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()


class Acked(Reply, frozen=True):
    """The number of acknowledged deliveries; the other ids were acknowledged before, or are not of this connection."""

    acked: int
    unknown: tuple[str, ...] = ()


class ListTopics(Command, frozen=True):
    """List the topics that have subscribers and begin with a prefix."""

    prefix: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    offset: Count = 0


class TopicCount(Reply, frozen=True):
    """A topic or pattern, and the number of subscribers of exactly this name."""

    topic: str
    subscriber_count: int


class TopicList(Reply, frozen=True):
    """The topics, by name."""

    topics: tuple[TopicCount, ...]
    total: int
    has_more: bool


class TopicInfo(Command, frozen=True):
    """Return information about a topic."""

    topic: str | None = None


class TopicFacts(Reply, frozen=True):
    """Information about a topic. `subscriberCount` is the number of subscribers that a message to it would reach."""

    topic: str
    subscriber_count: int
    exact_count: int
    history: bool
    position: Position | UnsetType = UNSET
    bound_to: str | UnsetType = UNSET
    """The broker's topic that it is bound to."""


class Presence(Command, frozen=True):
    """List the subscribers of a topic."""

    topic: str | None = None


class PresenceNews(Reply, frozen=True):
    """Subscribers of a topic: `event` is `list` for all, or `join` or `leave` for one."""

    topic: str
    event: str
    actors: tuple[str, ...]
    timestamp: Milliseconds


# --- direct messages ----------------------------------------------------------------------------------------------------------


class Send(Command, frozen=True):
    """Send `data` to one actor, as a message of type `type`."""

    to: str | None = None
    type: str | None = None
    data: Raw = Raw(b"null")


class Delivered(Reply, frozen=True):
    """The message was sent to the actor's connection. Its wire name is `hub:delivery_ack`."""

    message_id: str
    delivered: bool
    timestamp: Milliseconds


class UnknownActor(Reply, frozen=True):
    """No actor is registered by that address."""

    actor_address: str
    message: str


class Broadcast(Command, frozen=True):
    """Send `data` to all actors, or to those with a capability."""

    type: str | None = None
    data: Raw = Raw(b"null")
    exclude_self: bool = True
    target_capability: str | None = None


class BroadcastDone(Reply, frozen=True):
    """The number of actors that it was sent to. Its wire name is `hub:delivery_ack`."""

    message_id: str
    delivered: bool
    timestamp: Milliseconds
    delivered_count: int
    failed_count: int


# --- flow and numbers ---------------------------------------------------------------------------------------------------------


class Pause(Command, frozen=True):
    """Pause messages; replies are still sent. The waiting messages are limited, see `slow_reader`."""

    reason: str | None = None


class Resume(Command, frozen=True):
    """Send the waiting messages, and continue."""


class FlowChanged(Reply, frozen=True):
    """Messages are paused, or were resumed."""

    paused: bool
    queue_depth: int


class QueueStats(Command, frozen=True):
    """Return what waits for this connection."""


class QueueStatsResponse(Reply, frozen=True):
    """What waits for this connection."""

    queue_depth: int
    queue_bytes: int
    processing_rate: float
    pause_threshold: int
    resume_threshold: int
    paused: bool


class Metrics(Command, frozen=True):
    """Return the counters of the hub in this minute."""


class MetricsResponse(Reply, frozen=True, rename=None):
    """The counters of the hub since `windowStart`."""

    messages_received: int
    messages_sent: int
    errors: int
    connections_opened: int
    connections_closed: int
    windowStart: int  # noqa: N815  # the specification's own spelling, beside words with underscores
    timestamp: int


class Error(Reply, frozen=True):
    """A failed request: the problem, what to do, and details for programs."""

    code: str
    message: str
    resolution: str
    details: dict[str, object]


COMMANDS: dict[str, type[Command]] = {
    "hub:connect": Connect,
    "hub:heartbeat": Heartbeat,
    "hub:disconnect": Disconnect,
    "hub:refresh_token": RefreshToken,
    "hub:register": Register,
    "hub:renew": Renew,
    "hub:unregister": Unregister,
    "hub:discover": Discover,
    "hub:list_actors": ListActors,
    "hub:subscribe": Subscribe,
    "hub:unsubscribe": Unsubscribe,
    "hub:publish": Publish,
    "hub:ack": Ack,
    "hub:list_topics": ListTopics,
    "hub:topic_info": TopicInfo,
    "hub:presence": Presence,
    "hub:send": Send,
    "hub:broadcast": Broadcast,
    "hub:pause": Pause,
    "hub:resume": Resume,
    "hub:queue_stats": QueueStats,
    "hub:metrics": Metrics,
}
"""The requests of clients."""

REPLIES: dict[type[Reply], str] = {
    Connected: "hub:connected",
    HeartbeatAck: "hub:heartbeat_ack",
    DisconnectAck: "hub:disconnect_ack",
    Disconnecting: "hub:disconnect",
    TokenRefreshed: "hub:token_refreshed",
    Registered: "hub:registered",
    Renewed: "hub:renewed",
    Unregistered: "hub:unregistered",
    DiscoveryResult: "hub:discovery_result",
    Subscribed: "hub:subscribed",
    Unsubscribed: "hub:unsubscribed",
    Published: "hub:delivery_ack",
    Acked: "hub:acked",
    TopicList: "hub:topic_list",
    TopicFacts: "hub:topic_info_response",
    PresenceNews: "hub:presence",
    Delivered: "hub:delivery_ack",
    UnknownActor: "hub:unknown_actor",
    BroadcastDone: "hub:delivery_ack",
    FlowChanged: "hub:flow",
    QueueStatsResponse: "hub:queue_stats_response",
    MetricsResponse: "hub:metrics_response",
    Error: "hub:error",
}
"""The messages of the hub, without forwarded messages."""

decode_envelope = msgspec.json.Decoder(Envelope).decode

# --- forwarded messages -------------------------------------------------------------------------------------------------------

_AROUND = 320
"""The bytes of a forwarded message without its data and its names: ids, times, a recipient with a long address."""


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """A message to a topic, to one actor or to all. `data` is checked JSON text, which is forwarded unchanged."""

    type: str
    sender: str
    """The address of the actor that sent it, stamped by the hub."""
    data: bytes
    message_id: str
    """The id of the publishing request; for a message that a service published, the id in the broker."""
    published_at: int
    expires_at: int | None = None
    topic: str | None = None
    """None for a direct message."""
    ack_id: str | None = None
    """The id to acknowledge this delivery, if it is one of a durable subscription."""
    position: Position | None = None
    metadata: bytes | None = None
    """The metadata of the sender of a direct message: the members of a JSON object, or None."""

    @property
    def weight(self) -> int:
        """The approximate number of bytes it takes in an outbox."""
        return len(self.data) + len(self.type) + len(self.sender) + len(self.message_id) + len(self.topic or "") + _AROUND
