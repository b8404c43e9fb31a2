"""Where messages come from: the port that every kind of queue fulfils. One conformance suite holds all of them to it.

    handed out by `poll` ──┬── ack      gone from the queue for good
                           ├── nack     handed out again when the delay is over
                           ├── extend   not handed out again before so many seconds from now
                           └── neither  handed out again when its lease ends (see `lease_seconds`), or its source is stopped

Settling never waits and never fails towards the caller: a source collects what it is told in one turn of the loop and sends it
together; what it could not carry out it tries again, and if the message comes again that it was to ack, it acks it again and does
not hand it out (`core.settled` remembers). `flush` returns when what was told so far is carried out or given up.

A source belongs to one event loop. `poll` may be called by several tasks at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from penstock.router.core.message import Received


class Depth(msgspec.Struct, frozen=True):
    """How much a queue holds."""

    pending: int
    """Messages that can be handed out."""
    not_visible: int
    """Messages that are handed out, or have to wait."""


class Source(Protocol):
    """One queue at one server."""

    lease_seconds: float | None
    """How long after `poll` or `extend` a message is handed out again if nothing is said of it; None: not while connected."""

    async def start(self) -> None:
        """Connect, and find the queue.

        Unavailable when the server is not reached (try again), FailedPrecondition or NotFound when the queue cannot be used as it
        is. What an earlier life of this router left unsettled is handed out before what it never saw, in order, as far as the
        server lets it be.
        """

    async def stop(self) -> None:
        """Take no more, carry out what was told, give back at once what is unsettled, in order, and close.

        Waiting polls return nothing. Safe to call twice, and before a start.
        """

    @property
    def is_healthy(self) -> bool:
        """Whether it is connected, as far as it knows."""

    async def poll(self, want: int, wait: float) -> Sequence[Received]:
        """Up to `want` messages, in the queue's order, as soon as there is one; nothing after `wait` seconds.

        A server's own limits may make both smaller. Unavailable when the server is not reached: the next call connects again.
        """

    def ack(self, received: Received) -> None:
        """The message is done with."""

    def nack(self, received: Received, delay: int) -> None:
        """The message is to be handed out again after so many seconds; 0: at once, in its old place if the server can."""

    def extend(self, received: Received, seconds: int) -> None:
        """The message is still worked on: its lease runs for so many seconds from now."""

    def set_lease(self, seconds: int) -> None:
        """Lease messages for `seconds` from now on, where the router and not the server decides that."""

    async def flush(self) -> None:
        """Return when everything told so far is carried out, or given up."""

    async def depth(self) -> Depth | None:
        """How much is in the queue; None where the server does not say."""


class CountsTries(Protocol):
    """A source whose queue counts how often a message was tried, and lets it die after so many times."""

    def refuse(self, received: Received, delay: int) -> None:
        """As `nack`, but nobody has tried the message: there was no room for it."""


class TakesMessages(Protocol):
    """A source whose queue can be written to from here: for trying a router out."""

    async def send(self, body: bytes, group: str) -> str:
        """Put a message on the queue; returns the queue's own id of it when it is safe there."""


class KeepsDead(Protocol):
    """A source whose queue has a list of dead letters of its own."""

    async def bury(self, received: Received, reason: str, error: str) -> None:
        """Move the message to the dead letters; returns when that is safe."""
