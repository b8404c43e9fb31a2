"""How a client reaches a broker: the port, for which `links/` has a broker in this process and one behind a connection.

A link hides where the broker is, and nothing else. It retries what it may retry without doing it twice; streams it ends with a
transient error, and whoever reads them opens them again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from penstock.clock import Clock
from penstock.errors import AlreadyExists, NotFound, PenstockError
from penstock.values.message import Message
from penstock.values.queue import NewMessage
from penstock.wire import frames
from penstock.wire.frames import Limits, Nack, Opened
from penstock.wire.operations import Operations

P = ParamSpec("P")
T = TypeVar("T")


Delivery = frames.Leased | frames.Delivery
"""One delivery: the broker's own lease if the broker is in this process."""


class Receiver(Protocol):
    """Who a channel delivers to. Called on the event loop; returns at once."""

    def receive(self, channel: Channel, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries, which are leased from now on."""

    def ended(self, channel: Channel, error: PenstockError | None) -> None:
        """The channel is over, and not because it was closed here. What was delivered may still be settled through another."""


class Channel(Protocol):
    """A stream of deliveries."""

    opened: Opened

    def settle(
        self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]], begun: Sequence[int] = ()
    ) -> None:
        """End deliveries, by their receipts, or give them other deadlines. Nobody hears whether that came in time.

        `begun` are deliveries that somebody works on from now on: should this process die over one of them, its try counts.
        """

    def unconfirmed(self) -> tuple[list[int], list[Nack]]:
        """Acks and nacks that were given to `settle` and may not have arrived, once the channel is over."""

    async def confirm(self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]]) -> list[int]:
        """The same; returns the receipts that were not live any more, when the rest cannot be undone."""

    def adjust(self, limits: Limits) -> None:
        """Live by other limits."""

    async def close(self, *, keep: bool = False) -> None:
        """End it. What its consumer still holds goes back with its last channel, unless it is to be kept for a moment."""


class Link(Protocol):
    """A way to a broker, for one event loop."""

    clock: Clock
    """The broker's own where it is in this process: what it lets expire has expired here too."""
    address: str
    """For people."""

    async def start(self) -> None:
        """Reach the broker; ServerUnreachable when that is not possible."""

    async def close(self) -> None:
        """Let go of it. Safe to call twice."""

    async def call(self, operation: Callable[Concatenate[Operations, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Have an operation done."""

    async def publish(self, topic: str, messages: list[Message]) -> list[str]:
        """Publish messages to a topic, all or none; returns their ids when they are safe. Never twice."""

    async def enqueue(self, queue: str, messages: list[NewMessage]) -> list[str]:
        """Publish messages to a work queue, all or none; returns their ids when they are safe. Never twice."""

    async def open(
        self, kind: int, name: str, consumer: str, limits: Limits, receiver: Receiver, *, held: list[int] | None = None
    ) -> Channel:
        """Begin a stream of deliveries of a subscription or work queue (`frames.TOPIC`, `frames.QUEUE`).

        `held`: receipts that a returning consumer still has. Raises what keeps it from opening; a transient error may pass.
        """


async def created(creation: Awaitable[object], *, exist_ok: bool) -> None:
    """Create something; that it exists already is an error unless it is allowed."""
    try:
        await creation
    except AlreadyExists:
        if not exist_ok:
            raise


async def exists(look: Awaitable[object]) -> bool:
    """Whether a look at something finds it."""
    try:
        await look
    except NotFound:
        return False
    return True
