"""What one hub allows: every limit and every span, with its default. Spans are microseconds, as everywhere in a core."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.durations import SECOND
from penstock.rate_limit import RateLimit

MINUTE = 60 * SECOND
MIN_TTL = SECOND
DEFAULT_TTL = 5 * MINUTE
MAX_TTL = 60 * MINUTE
"""How long a registration lasts without being renewed: specification 002's registration domain."""
MAX_TOPIC = 256
MAX_DEPTH = 64
"""How deep the data of a message may be nested: far beyond use, far below what some client's parser tolerates."""
READ_UNIT = 1024
"""Bytes that one permit of `HubRules.read_rate` is for. A read takes at least one, and a fragment of a message takes one more."""


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
    """What may wait for one connection; one message always may."""
    max_outbox_messages: int = 10_000
    stall: int = 30 * SECOND
    """How long a connection may take nothing of what waits for it."""
    rate: RateLimit | None = field(default_factory=lambda: RateLimit(1_000, 2_000))
    """Messages of one session; None for no limit."""
    read_rate: RateLimit | None = field(default_factory=lambda: read_rate(8 * 1024 * 1024))
    """How fast one connection is read, in `READ_UNIT` bytes; None for no limit. Beyond it, it is not read for a while."""
    flood: int = 1_000
    """How many more messages may be refused for their rate than are taken before the connection is closed."""
    anonymous: bool = False
    """Whether a session may begin without hub:connect, which is so where nobody is asked for a token."""
    connect_timeout: int = 10 * SECOND
    """How long a connection may take to say hub:connect, or whatever else it may begin with."""
    heartbeat: int = 5 * MINUTE
    """How often a client is asked to give a sign of life."""
    idle: int = 10 * MINUTE
    """How long a client may say nothing."""
    leaving: int = 30 * SECOND
    """How long a connection may take to close."""
    sweep: int = 60 * SECOND
    """How often registrations that ran out are removed, beside whenever somebody meets one."""
    max_recovered: int = 10_000
    """How many missed messages are sent to one that returns; a client that missed more gets `recovered: false`."""
    max_durable: int = 100_000
    """Durable subscriptions of all actors together: each is kept while its actor is away."""
    max_unacked: int = 1_000
    """How many messages of durable subscriptions one connection may hold unacknowledged."""
    max_appends: int = 1_000
    """How many publishes of one connection may wait for the log."""
    remember: int = 60 * SECOND
    max_remembered: int = 10_000
    """How long, and how many, ids of publishes are remembered, so that one that is sent again is not forwarded again."""
    max_plain_topics: int = 65_536
    """Of how many topics without history the last position is known."""


EVERYTHING = "#"


class Binding:
    """A pattern and its log. `next_offset` is how far the log has been forwarded: what a subscriber missed lies below it."""

    __slots__ = ("epoch", "next_offset", "pattern", "stream")

    def __init__(self, pattern: str, stream: str, *, epoch: str = "", next_offset: int = 0) -> None:
        self.pattern = pattern
        self.stream = stream
        """The name of the broker's topic."""
        self.epoch = epoch
        """Names this log for as long as it exists. Set, like `next_offset`, by the host before the hub starts."""
        self.next_offset = next_offset

    @property
    def base(self) -> str:
        """The topic of messages that say none, since a service published them: the pattern's beginning."""
        return self.pattern.removesuffix("#").rstrip("/") or "messages"
