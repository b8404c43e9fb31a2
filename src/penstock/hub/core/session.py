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
    """A queue of frames. `push` returns False when it is full; the hub decides what happens to the connection then."""

    # A list, not a deque: most outboxes are empty most of the time, and an empty deque takes ten times as much memory.
    __slots__ = ("_frames", "_max_bytes", "_max_messages", "bytes", "stalled_since")

    def __init__(self, max_bytes: int, max_messages: int) -> None:
        self._max_bytes = max_bytes
        self._max_messages = max_messages
        self._frames: list[Frame] = []
        self.bytes = 0
        """The bytes that wait, without the headers of frames."""
        self.stalled_since: int | None = None
        """Since when frames wait and none was taken; None if none waits, and after a `take` until the next `is_stalled`."""

    def __len__(self) -> int:
        return len(self._frames)

    def push(self, length: int, parts: tuple[bytes, ...], now: int) -> bool:
        """Add a frame; False if the outbox would exceed its limits. A single frame may always wait, even if it is larger."""
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
        """Add frames that were held back, without a limit: releasing them must not close the connection."""
        if frames and not self._frames:
            self.stalled_since = now
        self._frames.extend(frames)
        self.bytes += sum(length for length, _ in frames)

    def take(self, room: int) -> list[Frame]:
        """Remove and return the first frames, up to `room` bytes: at least one if there is room, since frames cannot be split."""
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
        """Whether frames wait and none was taken for `span`. The first call after a `take` starts the span."""
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
    """The state of a session."""

    CONNECTING = "connecting"
    CONNECTED = "connected"
    DISCONNECTING = "disconnecting"
    DISCONNECTED = "disconnected"


class Subscription(msgspec.Struct):
    """A subscription of a session to one topic or pattern."""

    subscription_id: str
    durable: bool = False
    """Whether it outlives the connection. Its messages then come from its own log, not from the table of topics."""


class Session:
    """The state of one connection in the hub."""

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
        """The id of the session that it continues, if it does. Only its client knows it."""
        self.enter(State.CONNECTING)
        self.dialect: Dialect = SPECIFIED
        self.identity: Identity = ANONYMOUS
        self.actor: Actor[Session] | None = None
        self.claimed: str | None = None
        """The `from` of a client that started without hub:connect. It may keep sending it, even if its address is another."""
        self.subscriptions: dict[str, Subscription] = {}
        self.outbox = Outbox(rules.max_outbox_bytes, rules.max_outbox_messages)
        self.holds = 0
        """The number of reasons to hold messages back: a pause, a running recovery."""
        self.held = Outbox(rules.max_outbox_bytes, rules.max_outbox_messages)
        self.is_paused = False
        self.unacked: dict[str, tuple[str, Message]] = {}
        """Unacknowledged messages: by ack id, the pattern of the durable subscription, and the message."""
        self.appends = 0
        """The number of its publishes that are being written to a log."""
        self.closing: Close | None = None
        """Why the connection will be closed, once the waiting frames are written."""
        self.is_dirty = False
        self.is_warned = False
        """Whether it was notified that its token has expired."""
        self.opened_at = self.heard_at = now
        self.full_at = 0
        """State of the rate limit."""
        self.refused = 0
        """Messages that the rate limit refused, minus those accepted since."""
        self.sent = 0
        self.rename(f"@(session/{session_id.removeprefix('session-')})")
        self.peer: Any = None  # belongs to the shell, which a core must not import
        """The connection."""

    def enter(self, state: State) -> None:
        self.state = state
        self.is_open = state is State.CONNECTING or state is State.CONNECTED
        """Whether frames may still be sent to it. Checked for every message, so it is stored."""

    def forget_unacked(self, pattern: str) -> None:
        """Expect no acknowledgement of messages of a durable subscription any more: it has ended in this session."""
        self.unacked = {ack_id: found for ack_id, found in self.unacked.items() if found[0] != pattern}

    def rename(self, name: str) -> None:
        """Change the recipient name of its frames: the actor's address, or before registration, a name of the session."""
        self.name = name
        self.quoted = msgspec.json.encode(name)  # encoded for use in frames
