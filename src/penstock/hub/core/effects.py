"""What the core cannot do by itself, since somebody has to wait for it: it returns an effect, and gets the result later.

While an effect is carried out nothing more is read from that session, but for an `Append`, of which many may be under way.
"""

from __future__ import annotations

from dataclasses import dataclass

from penstock.hub.core.memory import Key
from penstock.hub.core.messages import Envelope, Message
from penstock.hub.core.rules import Binding


@dataclass(frozen=True, slots=True)
class Verify:
    """Find out whose token this is; `Hub.verified` or `Hub.unverified` continues. Without a token, None."""

    request: Envelope
    token: str | None
    claimed: str | None
    """Who the client says it is, which counts where nobody is asked for a token."""
    is_refresh: bool = False


@dataclass(frozen=True, slots=True)
class Append:
    """Write a message to a log; `Hub.appended` or `Hub.lost` continues."""

    request: Envelope
    binding: Binding
    message: Message
    key: Key | None
    """By which the publish is recognised when it is sent again; None when it has no id."""


@dataclass(frozen=True, slots=True)
class Recover:
    """Read the messages from `start` up to, not including, `stop`, part by part.

    `Hub.recovering` gets each part, the first of them None when the messages are not kept any more; then `Hub.recovered`.
    """

    request: Envelope
    binding: Binding
    epoch: str
    """The log that is meant: the binding has another one when its topic is deleted and created again."""
    pattern: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Retain:
    """Begin, or resume, the durable subscription of an actor to a pattern, on these logs.

    `Hub.retained` or `Hub.unretained` continues.
    """

    request: Envelope
    address: str
    pattern: str
    bindings: tuple[Binding, ...]


@dataclass(frozen=True, slots=True)
class Release:
    """End durable subscriptions of an actor for good; `Hub.released` or `Hub.unreleased` continues."""

    request: Envelope
    address: str
    patterns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Settle:
    """Messages of durable subscriptions are done; nothing has to be waited for."""

    address: str
    messages: dict[str, list[Message]]
    """By the pattern of the subscription that brought them: the very objects that it delivered."""


Effect = Verify | Append | Recover | Retain | Release | Settle
