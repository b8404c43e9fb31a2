"""One session: the client of a connection, the state it is in, and the frames that wait to be written to it.

    connecting ──hub:connect──> connected ──hub:disconnect, or the hub's own reasons──> disconnecting ──closed──> disconnected
        └───────────────── no hub:connect in time, a wrong version, no valid token ───────────┘

If no token is required, any other request connects too and registers the session as an actor; otherwise only hub:connect is
accepted while connecting. From disconnecting on, nothing is accepted. A session is registered as at most one actor; its
subscriptions belong to that actor and end with the registration.

An outbox is bounded, so that a client that does not read costs a known amount of memory. A frame is its length in bytes and the
parts it consists of. Parts are shared with other outboxes but count in full: each slow connection may be the last to hold them.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from penstock.hub.core.close_codes import Close
from penstock.hub.core.dialects import SPECIFIED, Dialect
from penstock.hub.core.identity import ANONYMOUS, Identity
from penstock.hub.core.messages import Message
from penstock.hub.core.registry import Actor
from penstock.hub.core.rules import HubRules

Frame = tuple[int, tuple[bytes, ...]]


class Outbox:
    """Frames in the order they came. Says no when it is full; what that means for the connection is the hub's to decide."""

    # A list, not a deque: most outboxes are empty most of the time, and an empty deque holds ten times as much memory.
    __slots__ = ("_frames", "_max_bytes", "_max_messages", "bytes", "stalled_since")

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._frames: list[Frame] = []
        self.bytes = 0
        """How much waits, without the headers of frames."""
        self.stalled_since: int | None = None
        """Since when something waits and nothing was taken; None while nothing waits, and until the next look after a `take`."""

    def __len__(self) -> int:
        return len(self._frames)

    def push(self, length: int, parts: tuple[bytes, ...], now: int) -> bool:
        """Take a frame in; False when it would be more than may wait. One frame alone may always wait, however large."""
        frames = self._frames
        if frames:
            total = self.bytes + length
            if total > self._max_bytes or len(frames) >= self._max_messages:
                return False
            self.bytes = total
        else:
            self.bytes = length
            self.stalled_since = now
        frames.append((length, parts))
        return True

    def extend(self, frames: list[Frame], now: int) -> None:
        """Take in frames that waited elsewhere, however many they are: to be let go must not be the end of anybody."""
        if frames and not self._frames:
            self.stalled_since = now
        self._frames.extend(frames)
        self.bytes += sum(length for length, _ in frames)

    def take(self, room: int) -> list[Frame]:
        """The first frames, up to `room` bytes: at least one when there is any room at all, since a frame cannot be cut."""
        frames = self._frames
        if room <= 0 or not frames:
            return []
        self.stalled_since = None
        if self.bytes <= room:
            self._frames = []
            self.bytes = 0
            return frames
        size = count = 0
        for length, _ in frames:
            if count and size + length > room:
                break
            size += length
            count += 1
        taken = frames[:count]
        del frames[:count]
        self.bytes -= size
        return taken

    def is_stalled(self, now: int, span: int) -> bool:
        """Whether nothing was taken for a span though something waits. The first look after a `take` begins the span."""
        if not self._frames:
            return False
        if self.stalled_since is None:
            self.stalled_since = now
        return now - self.stalled_since >= span

    def clear(self) -> None:
        self._frames = []
        self.bytes = 0
        self.stalled_since = None


class State(Enum):
    """Where a session is in its life."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    DISCONNECTING = "disconnecting"
    DISCONNECTED = "disconnected"


class Subscription(msgspec.Struct):
    """What a session subscribes to, by one topic or pattern."""

    subscription_id: str
    durable: bool = False
    """Whether it outlives the connection. What it brings comes from its own log then, not from the table of topics."""


class Session:
    """What the hub knows of one connection."""

    __slots__ = (
        "actor",
        "appends",
        "claimed",
        "closing",
        "dialect",
        "full_at",
        "heard_at",
        "held",
        "holds",
        "identity",
        "is_dirty",
        "is_open",
        "is_paused",
        "is_warned",
        "name",
        "opened_at",
        "outbox",
        "peer",
        "quoted",
        "refused",
        "sent",
        "session_id",
        "state",
        "subscriptions",
        "unacked",
    )

    def __init__(self, session_id: str, rules: HubRules, now: int) -> None:
        self.session_id = session_id
        """That of the session it continues, if it does. Known to its client alone."""
        self.enter(State.CONNECTING)
        self.dialect: Dialect = SPECIFIED
        self.identity: Identity = ANONYMOUS
        self.actor: Actor[Session] | None = None
        self.claimed: str | None = None
        """The `from` of a client that began without hub:connect. It may keep sending it, though it may be known by another."""
        self.subscriptions: dict[str, Subscription] = {}
        self.outbox = Outbox(rules.max_outbox_bytes, rules.max_outbox_messages)
        self.holds = 0
        """How many reasons there are to hold messages back: a pause, a recovery that runs."""
        self.held = Outbox(rules.max_outbox_bytes, rules.max_outbox_messages)
        self.is_paused = False
        self.unacked: dict[str, tuple[str, Message]] = {}
        """What was delivered and is not acknowledged: by ack id, the pattern of the durable subscription, and the message."""
        self.appends = 0
        """How many of its publishes are on their way into a log."""
        self.closing: Close | None = None
        """Why the connection is to be closed, once what waits is written."""
        self.is_dirty = False
        self.is_warned = False
        """Whether it was notified that its token has expired."""
        self.opened_at = self.heard_at = now
        self.full_at = 0
        """Of the rate limit."""
        self.refused = 0
        """How many more messages were refused for their rate than were taken since."""
        self.sent = 0
        self.rename(f"@(session/{session_id.removeprefix('session-')})")
        self.peer: Any = None  # the shell's own, which a core must not know
        """The connection."""

    def enter(self, state: State) -> None:
        self.state = state
        self.is_open = state is State.CONNECTING or state is State.CONNECTED
        """Whether it may still be sent something. Asked for every message, so it is kept."""

    def forget_unacked(self, pattern: str) -> None:
        """Await no acknowledgement of what a durable subscription has brought: it is over here."""
        self.unacked = {ack_id: found for ack_id, found in self.unacked.items() if found[0] != pattern}

    def rename(self, name: str) -> None:
        """Be addressed by another name: the actor's, or before there is one, the session's."""
        self.name = name
        self.quoted = msgspec.json.encode(name)  # ready to be put into a frame
