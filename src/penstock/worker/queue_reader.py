"""A lane: the deliveries of one queue on their way to the crew, as a MessageStream brings them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any, Protocol, Self

from penstock.client.link import Link
from penstock.client.message import IncomingMessage
from penstock.client.options import SubscriberOptions
from penstock.client.queue import QueueTask
from penstock.client.stream import MessageStream
from penstock.errors import PenstockError
from penstock.wire import frames

log = logging.getLogger("penstock.worker")


class Hands(Protocol):
    """Who does the work."""

    def take(self, lane: Lane, message: QueueTask) -> None:
        """A message has arrived."""

    def take_back(self, lane: Lane) -> list[QueueTask]:
        """Give up what nobody has begun to work on."""

    def lose(self, lane: Lane, receipts: Collection[int]) -> None:
        """Forget what nobody has begun to work on, and whose lease is over."""

    def is_busy(self, lane: Lane) -> bool:
        """Whether something from a lane is worked on."""


class Lane:
    """One queue that a worker takes from: a stream's source, and where its messages go."""

    kind = frames.QUEUE
    message_type: type[IncomingMessage] = QueueTask

    def __init__(
        self, name: str, link: Link, hands: Hands, options: SubscriberOptions, on_failure: Callable[[PenstockError], None]
    ) -> None:
        self.name = name
        self.link = link
        self._hands = hands
        self._on_failure = on_failure
        self._on_done: Callable[[], None] | None = None
        self.stream = MessageStream(self, options)

    def worked(self) -> None:
        """Work on a message has ended."""
        if self._on_done is not None:
            self._on_done()

    # ── for the stream ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def inflow(self) -> Self:
        """Messages go here."""
        return self

    def begin(self, on_done: Callable[[], None]) -> None:
        """A stream begins."""
        self._on_done = on_done

    def end(self) -> None:
        """It has ended."""
        self._on_done = None

    def take(self, message: QueueTask) -> None:
        """To the crew; its lease is extended from now on, for as long as it is here."""
        message.is_worked_on = True
        self._hands.take(self, message)

    def drain(self) -> list[QueueTask]:
        """What nobody has begun to work on."""
        return self._hands.take_back(self)

    def lose(self, receipts: Collection[int]) -> None:
        """Leases have run out."""
        self._hands.lose(self, receipts)

    def held_by(self, tasks: Collection[asyncio.Task[Any]]) -> set[int]:
        """Nothing: no task stops its own worker."""
        return set()

    def is_busy(self, but: Collection[asyncio.Task[Any]] = ()) -> bool:
        """Whether something of this queue is worked on."""
        return self._hands.is_busy(self)

    def emit(self, event: str, *args: Any) -> None:
        """From the stream."""
        if event == "error":
            log.warning("queue=%s problem=%s", self.name, args[0])
        elif event == "close" and self.stream.failure is not None:
            self._on_failure(self.stream.failure)
