"""What other doors made of topics and subscriptions, as the operations need to know it: schemas, transforms, push, expiry.

The operations own this port. A server gives them the Pub/Sub door's rules; a broker that never had such a door has none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from penstock.broker.core.leases import Lease
from penstock.broker.core.message import StoredMessage
from penstock.broker.core.queue import Queue
from penstock.broker.core.stream import Stream


class Rules(Protocol):
    """Asked on the event loop, so only what is awaited may take time."""

    def inspects(self, stream: Stream) -> bool:
        """Whether what is published to a topic must be looked at first. Cheap: asked at every publish."""

    async def passed(self, stream: Stream, given: list[StoredMessage]) -> list[StoredMessage | None]:
        """What is published of each message, None for one that is dropped; an error refuses them all."""

    def check_pulled(self, queue: Queue) -> None:
        """FailedPrecondition for a subscription whose messages are pushed to an endpoint."""

    def transforms(self, queue: Queue) -> bool:
        """Whether deliveries of a subscription must be looked at first. Cheap: asked at every delivery."""

    async def ready(self, queue: Queue, leases: list[Lease], max_bytes: int) -> list[Lease]:
        """What is delivered of these leases; the others are settled as their transforms say."""

    def in_use(self, number: int) -> AbstractContextManager[None]:
        """As long as it is entered, a subscription does not expire for lack of use."""


class NoRules:
    """Of a broker without such doors."""

    def inspects(self, stream: Stream) -> bool:
        """Never."""
        return False

    async def passed(self, stream: Stream, given: list[StoredMessage]) -> list[StoredMessage | None]:
        """All of them, as they are."""
        return [*given]

    def check_pulled(self, queue: Queue) -> None:
        """Nothing is pushed."""

    def transforms(self, queue: Queue) -> bool:
        """Never."""
        return False

    async def ready(self, queue: Queue, leases: list[Lease], max_bytes: int) -> list[Lease]:
        """All of them, as they are."""
        return leases

    def in_use(self, number: int) -> AbstractContextManager[None]:
        """Nothing expires."""
        return nullcontext()
