"""Dead letters of queues that keep none: they are kept among those of a work queue `router.NAME`, where they can be redriven."""

from __future__ import annotations

from contextlib import suppress
from typing import Final

from penstock.api.queue_manager import QueueManager
from penstock.broker.aio import AsyncBroker
from penstock.broker.catalog import Catalog
from penstock.broker.lookup import find_work_queue
from penstock.broker.settlement import add_dead_letter
from penstock.errors import AlreadyExists, FailedPrecondition
from penstock.values.policy import ROUTER_QUEUE
from penstock.values.queue import NewMessage

PREFIX: Final = "router."
HIDDEN: Final = 600
"""Seconds for which a letter is kept from consumers while it is on its way to the dead letters. Should the process end on that
way, its message is not acked, and is redelivered; the letter is delivered once more then, and does no harm."""


class DeadLetterQueues:
    """Adds dead letters to such queues, which are made when they are needed. Belongs to one event loop."""

    def __init__(self, aio: AsyncBroker) -> None:
        self._aio, self._broker = aio, aio.broker
        self._manager = QueueManager(broker=aio.broker)

    async def open(self, name: str) -> None:
        """Make sure that the queue exists and keeps dead letters."""
        found = find_work_queue(self._broker, name)
        if found is None:
            with suppress(AlreadyExists):  # made by somebody else, in this moment
                await self._aio.call(self._manager.create, name, ROUTER_QUEUE)
        elif not found.policy.dead_letter_size:
            raise FailedPrecondition(
                f"the queue {name!r} keeps no dead letters", hint="delete it: the router makes it again as it has to be"
            )

    async def add(
        self, name: str, body: bytes, headers: dict[str, str], *, reason: str, attempts: int, error: str | None
    ) -> None:
        """Add a letter to a queue that is open. It is safe when the broker's events are durable."""
        batch = self._manager.batch(name, [NewMessage(body, headers=headers, delay=HIDDEN)], self._broker.clock.now())
        placed = await self._aio.publish(Catalog.work_stream, name, batch)
        self._aio.advance()
        add_dead_letter(self._broker, name, placed, batch.messages[0], reason=reason, attempts=attempts, error=error)

    async def durable(self) -> None:
        """Return when what was added is on disk, if the broker has one."""
        await self._aio.durable()
