"""Stands in for a source that was closed while messages of it are in the router.

Those messages are in their queue again and will be delivered by the source that follows. What the router decides about them in
the meantime is kept here, and carried out when they arrive: a message that is done is acked and not delivered a second time.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.clock import Clock
from penstock.durations import SECOND
from penstock.router.core.message import Received
from penstock.router.source import Depth, Source


class HandedOver:
    """Fulfils `Source` as far as a closed one can."""

    lease_seconds: float | None = None
    is_healthy = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._decided: dict[tuple[str, bytes], int] = {}
        """By id and body: 0 for a message that is done, otherwise when it may be delivered again."""

    def __len__(self) -> int:
        return len(self._decided)

    def sift(self, batch: Sequence[Received], source: Source) -> list[Received]:
        """Tell the source what was decided about messages of its batch; returns the others."""
        now, others = self._clock.now(), list[Received]()
        for received in batch:
            due = self._decided.pop(_key(received), None)
            if due == 0:
                source.ack(received)
            elif due is not None and due > now:
                source.nack(received, -(-(due - now) // SECOND))
            else:
                others.append(received)
        return others

    def ack(self, received: Received) -> None:
        """The message is done."""
        self._decided[_key(received)] = 0

    def nack(self, received: Received, delay: int) -> None:
        """The message is to wait for `delay` seconds; it is in its queue already."""
        if delay > 0:
            self._decided[_key(received)] = self._clock.now() + delay * SECOND

    def extend(self, received: Received, seconds: int) -> None:
        """Nobody holds a lease."""

    def set_lease(self, seconds: int) -> None:
        """Nobody holds a lease."""

    async def start(self) -> None:
        """Nothing to do."""

    async def stop(self) -> None:
        """Nothing to do."""

    async def poll(self, want: int, wait: float) -> Sequence[Received]:
        """Nothing comes from here."""
        return ()

    async def flush(self) -> None:
        """It is carried out when the messages arrive."""

    async def depth(self) -> Depth | None:
        """Not known."""
        return None


def _key(received: Received) -> tuple[str, bytes]:
    return received.broker_id, received.body
