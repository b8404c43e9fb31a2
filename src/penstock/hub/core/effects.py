"""Work that the core cannot do itself, because it needs I/O: the core returns an effect and gets the result later.

While an effect runs, nothing more is read from that session. The exception is `Append`: many may run at once.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.hub.core.memory import Key
from penstock.hub.core.messages import Envelope, Message
from penstock.hub.core.rules import Binding


@dataclass(frozen=True, slots=True)
class Verify:
    """Verify a token, None if there is none; `Hub.verified` or `Hub.unverified` continues."""

    request: Envelope
    token: str | None
    claimed: str | None
    """The address that the client claims; it is used if no token is required."""
    is_refresh: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """Write a message to a log; `Hub.appended` or `Hub.lost` continues."""

    request: Envelope
    binding: Binding
    message: Message
    key: Key | None
    """Identifies the publish if it is sent again; None if it has no id."""


@dataclass(frozen=True, slots=True)
class Recover:
    """Read the messages from `start` up to, not including, `stop`, in parts.

    `Hub.recovering` gets each part; the first is None if the messages are no longer stored. Then `Hub.recovered` is called.
    """

    request: Envelope
    binding: Binding
    epoch: str
    """Identifies the log: if the topic is deleted and created again, its binding has another epoch."""
    pattern: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Retain:
    """Start, or resume, the durable subscription of an actor to a pattern, on these logs.

    `Hub.retained` or `Hub.unretained` continues.
    """

    request: Envelope
    address: str
    pattern: str
    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """Delete durable subscriptions of an actor; `Hub.released` or `Hub.unreleased` continues."""

    request: Envelope
    address: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Acknowledge messages of durable subscriptions. The core does not wait for a result."""

    address: str
    messages: dict[str, list[Message]]
    """Messages by the pattern of the subscription that delivered them: exactly the objects that it delivered."""


Effect = Verify | Append | Recover | Retain | Release | Settle
