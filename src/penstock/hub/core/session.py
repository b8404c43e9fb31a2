"""One session: who is at the other end of a connection, and where in its life it is.

    connecting ──hub:connect──> connected ──hub:disconnect, or the hub's own reasons──> disconnecting ──closed──> disconnected
        └───────────────── no hub:connect in time, a wrong version, no valid token ───────────┘

Where nobody is asked for a token any other request connects too, and makes the session an actor; else nothing but hub:connect is
heard while connecting. From disconnecting on nothing is heard at all. A session is registered as at most one actor; its
subscriptions are that actor's, and end with the registration.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec

from penstock.hub.core.close_codes import Close
from penstock.hub.core.dialect import SPECIFIED, Dialect
from penstock.hub.core.identity import ANYBODY, Identity
from penstock.hub.core.message import Message
from penstock.hub.core.outbox import Outbox
from penstock.hub.core.registry import Actor
from penstock.hub.core.rules import HubRules


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
        self.identity: Identity = ANYBODY
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
        """Whether it was told that its token has run out."""
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
        """Go on to the next state."""
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
