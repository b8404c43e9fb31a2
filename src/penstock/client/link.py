"""The port between a client and a broker; `links/` implements it for a broker in this process and for one behind a connection.

A link hides where the broker is, and nothing else. It repeats requests only if that is idempotent. It ends streams with a
transient error, and their readers reopen them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from penstock.client.core.differences import difference
from penstock.clock import Clock
from penstock.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, PenstockError
from penstock.values.queue import NewMessage
from penstock.wire import frames
from penstock.wire.frames import Limits, Nack, Opened
from penstock.wire.operations import Operations

P = ParamSpec("P")
T = TypeVar("T")

NOTHING: Mapping[str, object] = {}

Delivery = frames.Leased | frames.Delivery
"""One delivery: the broker's own lease if the broker is in this process."""


class Receiver(Protocol):
    """Where a channel delivers to. Called on the event loop; returns at once."""

    def receive(self, channel: Channel, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries, which are leased from now on."""

    def ended(self, channel: Channel, error: PenstockError | None) -> None:
        """The channel has ended, and was not closed here. Its deliveries can still be settled through another one."""


class Channel(Protocol):
    """A stream of deliveries."""

    opened: Opened

    def settle(
        self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]], begun: Sequence[int] = ()
    ) -> None:
        """Settle deliveries by their receipts, or set other deadlines, without a result.

        `begun` are deliveries whose handlers start now: if this process dies, they count as attempts.
        """

    def unconfirmed(self) -> tuple[list[int], list[Nack]]:
        """Acks and nacks that were passed to `settle` and may not have arrived, once the channel is over."""

    async def confirm(self, acks: list[int], nacks: list[Nack], deadlines: list[tuple[list[int], float]]) -> list[int]:
        """The same; returns the receipts that were not leased any more, once the others are durable."""

    def adjust(self, limits: Limits) -> None:
        """Change the limits."""

    async def close(self, *, keep: bool = False) -> None:
        """End it. With its last channel, a consumer's messages are requeued; `keep` delays that for a moment."""


class Link(Protocol):
    """A way to a broker, for one event loop."""

    clock: Clock
    """The broker's own if it is in this process, so that leases expire at the same instant on both sides."""
    address: str
    """For people."""
    is_embedded: bool
    """Whether the broker is in this process."""

    async def start(self) -> None:
        """Connect to the broker; ServerUnreachable if that is not possible."""

    async def close(self) -> None:
        """Disconnect. Safe to call twice."""

    async def call(self, operation: Callable[Concatenate[Operations, P], Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call an operation."""

    async def publish(self, topic: str, messages: list[Any]) -> list[str]:
        """Publish messages to a topic, all or none; returns their ids once they are durable. Never stores them twice.

        The messages are checked, in the form that `publishing.outgoing` makes for this kind of link.
        """

    async def enqueue(self, queue: str, messages: list[NewMessage]) -> list[str]:
        """Publish messages to a work queue, all or none; returns their ids once they are durable. Never stores them twice."""

    async def open(
        self, kind: int, name: str, consumer: str, limits: Limits, receiver: Receiver, *, held: list[int] | None = None
    ) -> Channel:
        """Start a stream of deliveries of a subscription or work queue (`frames.TOPIC`, `frames.QUEUE`).

        `held`: receipts that a reconnecting consumer still has. Raises the error if it cannot be opened; a transient one may
        pass.
        """


OPEN_IT = "open it with `async with PubSub() as pubsub: …`, or in blocking form with `with penstock.sync.PubSub() as pubsub: …`"
"""The hint for a client that is not open."""


def check_loop(loop: asyncio.AbstractEventLoop | None) -> None:
    """Raise FailedPrecondition if `loop`, to which a client belongs, is not the running one."""
    try:
        if asyncio.get_running_loop() is loop:
            return
        where = "in another event loop"
    except RuntimeError:
        where = "outside an event loop"
    raise FailedPrecondition(
        f"the client is used {where}, expected the event loop in which it was opened",
        hint="use penstock.sync.PubSub in threads and in code without an event loop, or open a PubSub in each loop",
    )


async def created(
    creation: Awaitable[object],
    *,
    exist_ok: bool,
    given: Mapping[str, object] = NOTHING,
    found: Callable[[], Awaitable[Mapping[str, object]]] | None = None,
) -> None:
    """Create something. With `exist_ok`, AlreadyExists is ignored if what exists is as `given`: `found` returns its settings."""
    try:
        await creation
    except AlreadyExists as error:
        if not exist_ok:
            raise
        if given and found is not None and (other := difference(await found(), given)) is not None:
            raise AlreadyExists(error.kind, error.name, other) from None


async def exists(look: Awaitable[object]) -> bool:
    """Whether a lookup finds something."""
    try:
        await look
    except (NotFound, InvalidArgument):  # nothing exists, or can have this name
        return False
    return True
