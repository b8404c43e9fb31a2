"""All limits and durations of a hub, with their defaults. Durations are microseconds, as everywhere in a core."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.durations import SECOND
from penstock.rate_limit import RateLimit

MINUTE = 60 * SECOND
MIN_TTL = SECOND
DEFAULT_TTL = 5 * MINUTE
MAX_TTL = 60 * MINUTE
"""How long a registration lasts without renewal: see the registration domain of specification 002."""
MAX_TOPIC = 256
MAX_DEPTH = 64
"""How deep the data of a message may be nested: more than applications need, and far less than any client's parser tolerates."""
READ_UNIT = 1024
"""The bytes of one permit of `HubRules.read_rate`. A read takes at least one; each fragment of a message takes one more."""


def read_rate(bytes_per_second: int) -> RateLimit:
    """A rate for reading a connection, with a burst of one second."""
    units = max(bytes_per_second // READ_UNIT, 1)
    return RateLimit(units, units)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubRules:
    """The limits of a hub."""

    max_message_bytes: int = 1024 * 1024
    """Of one frame, in bytes, before it is parsed."""
    max_connections_per_address: int = 10_000
    """Of one IP address."""
    max_actors: int = 50_000
    max_subscriptions: int = 1_000
    """Of one actor."""
    max_broadcast: int = 1_000
    """Recipients of one broadcast."""
    max_outbox_bytes: int = 1024 * 1024
    """The bytes that may wait for one connection; a single message always may."""
    max_outbox_messages: int = 10_000
    stall: int = 30 * SECOND
    """How long a connection may read nothing although something waits for it."""
    rate: RateLimit | None = field(default_factory=lambda: RateLimit(1_000, 2_000))
    """The rate limit of the messages of one session; None for no limit."""
    read_rate: RateLimit | None = field(default_factory=lambda: read_rate(8 * 1024 * 1024))
    """How fast one connection is read, in units of `READ_UNIT` bytes; None for no limit. Above it, reading pauses."""
    flood: int = 1_000
    """The connection is closed when the rate limit has refused more messages than this, minus those accepted since."""
    anonymous: bool = False
    """Whether a session may start without hub:connect, because no token is required."""
    connect_timeout: int = 10 * SECOND
    """How long a client may take to send hub:connect, or another request that starts the session."""
    heartbeat: int = 5 * MINUTE
    """How often a client should send a heartbeat."""
    idle: int = 10 * MINUTE
    """How long a client may be silent."""
    leaving: int = 30 * SECOND
    """How long a connection may take to close."""
    sweep: int = 60 * SECOND
    """How often expired registrations are removed, in addition to when one is found."""
    max_recovered: int = 10_000
    """How many missed messages are sent to a client that returns; one that missed more gets `recovered: false`."""
    max_durable: int = 100_000
    """The maximum number of durable subscriptions of all actors together: each is kept while its actor is away."""
    max_unacked: int = 1_000
    """How many messages of durable subscriptions one connection may hold unacknowledged."""
    max_appends: int = 1_000
    """How many publishes of one connection may wait for the log."""
    remember: int = 60 * SECOND
    max_remembered: int = 10_000
    """How long publishes are remembered, and how many, so that one that is sent again is not forwarded again."""
    max_plain_topics: int = 65_536
    """The number of topics without history whose last position is remembered."""


EVERYTHING = "#"


class Binding:
    """A pattern and its log. `next_offset` is how far the log has been forwarded: missed messages are below it."""

    __slots__ = ("epoch", "next_offset", "pattern", "stream")

    def __init__(self, pattern: str, stream: str, *, epoch: str = "", next_offset: int = 0) -> None:
        self.pattern = pattern
        self.stream = stream
        """The name of the broker's topic."""
        self.epoch = epoch
        """Identifies this log until it is deleted. Set, like `next_offset`, by the host before the hub starts."""
        self.next_offset = next_offset

    @property
    def base(self) -> str:
        """The topic for messages of services, which have no hub topic: the beginning of the pattern."""
        return self.pattern.removesuffix("#").rstrip("/") or "messages"
