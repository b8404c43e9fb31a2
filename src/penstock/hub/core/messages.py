"""Every message of the hub's protocol, once: requests of clients and replies of the hub, as the specification writes them.

The payload of a message is a class here and its wire name stands beside it, in COMMANDS or REPLIES. Decoders, the AsyncAPI
document and the tables of the documentation are made from these two. Times and durations on the wire are milliseconds. A field
that is not in the specification is an addition, and never required. `Message` is what the hub forwards from one client to others.
"""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

Milliseconds = Annotated[int, Meta(ge=0, le=1 << 53)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
SessionId = Annotated[str, Meta(min_length=1, max_length=128)]
LATEST = 1 << 52
"""Of a timestamp and of a TTL, so that their sum in microseconds is an integer of 64 bits."""


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
    """The payload of a request. Fields that nobody knows are passed over."""


class Reply(Struct, frozen=True, rename="camel", omit_defaults=True):
    """The payload of what the hub says."""


class Position(Struct, frozen=True):
    """Where a message is: the `offset` in the history that `epoch` names. A history that begins again has another epoch."""

    epoch: Annotated[str, Meta(max_length=128)]
    offset: Annotated[int, Meta(ge=-1, le=1 << 53)]


# --- connection ---------------------------------------------------------------------------------------------------------------


class Connect(Command, frozen=True):
    """Open a session. Where a token is needed, nothing else is heard before it."""

    version: str = "1.0"
    jwt: str | None = None
    """The token, with or without the word `Bearer`."""
    resume: SessionId | None = None
    """The session of an earlier connection that this one continues, so that publishes which are sent again are recognised."""


class Connected(Reply, frozen=True):
    """The session is open."""

    session_id: str
    actor_identity: str | None
    """Whose session it is, as far as that is known before a registration."""
    capabilities: tuple[str, ...]
    server_time: Milliseconds
    server_version: str
    max_message_size: int
    heartbeat_interval: Milliseconds
    max_actors: int


class Heartbeat(Command, frozen=True):
    """A sign of life."""

    timestamp: float | None = None


class HeartbeatAck(Reply, frozen=True):
    """The answer to a sign of life."""

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
    """The hub ends the session, and says why; the connection closes next. Its wire name is `hub:disconnect`."""

    reason: str
    message: str


class RefreshToken(Command, frozen=True):
    """Continue with a new token of the same actor."""

    token: str


class TokenRefreshed(Reply, frozen=True):
    """The new token counts from now on."""

    expires_at: Milliseconds | None = None


# --- registration -------------------------------------------------------------------------------------------------------------


class Register(Command, frozen=True):
    """Be known by an address, until the TTL ends. An earlier holder of the address is notified and disconnected."""

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
    """Be known no longer. All subscriptions of the actor end, durable ones too."""

    actor_address: str | None = None


class Unregistered(Reply, frozen=True):
    """The actor is not registered any more. With the reason `expired` it comes without having been asked for."""

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
    """Receive what is published to a topic, or to all topics of a pattern with `+` and `#`."""

    topic: str | None = None
    durable: bool = False
    """Whether what is published while the actor is away waits for it, until it says hub:ack."""
    presence: bool = False
    """Whether to be notified of joins and departures."""
    since: Position | None = None
    """The last position that was seen: what came after it is sent first."""


class Subscribed(Reply, frozen=True):
    """The subscription stands. Asked with `since`, it says whether everything that was missed follows."""

    topic: str
    subscription_id: str
    durable: bool | UnsetType = UNSET
    recovered: bool | UnsetType = UNSET
    position: Position | UnsetType = UNSET
    """Where the topic is now: what was missed follows up to this offset, what is published later has a larger one."""


class Unsubscribe(Command, frozen=True):
    """Receive no more of a topic; it may be named by the subscription's id."""

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
    """Messages of durable subscriptions are done: they are not sent again. Ids are those of `metadata.ackId`."""

    ack_id: str | None = None
    ack_ids: Annotated[tuple[str, ...], Meta(max_length=1000)] = ()


class Acked(Reply, frozen=True):
    """How many deliveries are done now; the other ids were acknowledged before, or are none of this connection."""

    acked: int
    unknown: tuple[str, ...] = ()


class ListTopics(Command, frozen=True):
    """List the topics that have subscribers, those that begin with a prefix only."""

    prefix: str = ""
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    offset: Count = 0


class TopicCount(Reply, frozen=True):
    """A topic, or a pattern, and how many subscribe to it by that very name."""

    topic: str
    subscriber_count: int


class TopicList(Reply, frozen=True):
    """The topics, by name."""

    topics: tuple[TopicCount, ...]
    total: int
    has_more: bool


class TopicInfo(Command, frozen=True):
    """What is known of a topic."""

    topic: str | None = None


class TopicFacts(Reply, frozen=True):
    """What is known of a topic. `subscriberCount` counts everybody whom a message to it would reach."""

    topic: str
    subscriber_count: int
    exact_count: int
    history: bool
    position: Position | UnsetType = UNSET
    bound_to: str | UnsetType = UNSET
    """The broker's topic that it is bound to."""


class Presence(Command, frozen=True):
    """Who subscribes to a topic."""

    topic: str | None = None


class PresenceNews(Reply, frozen=True):
    """Who subscribes to a topic: `list` of all, or `join` and `leave` of one."""

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
    """The message was handed to the actor's connection. Its wire name is `hub:delivery_ack`."""

    message_id: str
    delivered: bool
    timestamp: Milliseconds


class UnknownActor(Reply, frozen=True):
    """Nobody is registered by that address."""

    actor_address: str
    message: str


class Broadcast(Command, frozen=True):
    """Send `data` to all actors, or to those with a capability."""

    type: str | None = None
    data: Raw = Raw(b"null")
    exclude_self: bool = True
    target_capability: str | None = None


class BroadcastDone(Reply, frozen=True):
    """To how many it was sent. Its wire name is `hub:delivery_ack`."""

    message_id: str
    delivered: bool
    timestamp: Milliseconds
    delivered_count: int
    failed_count: int


# --- flow and numbers ---------------------------------------------------------------------------------------------------------


class Pause(Command, frozen=True):
    """Send no messages for now; replies still come. What waits is bounded, see `slow_reader`."""

    reason: str | None = None


class Resume(Command, frozen=True):
    """Send what waits, and continue."""


class FlowChanged(Reply, frozen=True):
    """Messages are held back, or flow again."""

    paused: bool
    queue_depth: int


class QueueStats(Command, frozen=True):
    """What waits for this connection."""


class QueueStatsResponse(Reply, frozen=True):
    """What waits for this connection."""

    queue_depth: int
    queue_bytes: int
    processing_rate: float
    pause_threshold: int
    resume_threshold: int
    paused: bool


class Metrics(Command, frozen=True):
    """What the hub has done in this minute."""


class MetricsResponse(Reply, frozen=True, rename=None):
    """What the hub has done since `windowStart`."""

    messages_received: int
    messages_sent: int
    errors: int
    connections_opened: int
    connections_closed: int
    windowStart: int  # noqa: N815  # the specification's own spelling, beside words with underscores
    timestamp: int


class Error(Reply, frozen=True):
    """A request that was not done: what was wrong, what to do, and details for programs."""

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
"""What a client may ask."""

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
"""What the hub says, beside the messages it forwards."""

decode_envelope = msgspec.json.Decoder(Envelope).decode

# --- forwarded messages -------------------------------------------------------------------------------------------------------

_AROUND = 320
"""What a forwarded message has beside its data and its names, in bytes: ids, times, a recipient with a long address."""


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """A message to a topic, to one actor or to all. `data` is JSON text that has been checked; it is forwarded as it is."""

    type: str
    sender: str
    """The address of the actor that sent it, stamped by the hub."""
    data: bytes
    message_id: str
    """Of the request that brought it; of a message that a service published, the broker's own."""
    published_at: int
    expires_at: int | None = None
    topic: str | None = None
    """None of a direct message."""
    ack_id: str | None = None
    """By which this one delivery is acknowledged, if it is one of a durable subscription."""
    position: Position | None = None
    metadata: bytes | None = None
    """What the sender of a direct message said beside it: the inside of a JSON object, or None."""

    @property
    def weight(self) -> int:
        """About how many bytes it takes in an outbox."""
        return len(self.data) + len(self.type) + len(self.sender) + len(self.message_id) + len(self.topic or "") + _AROUND
