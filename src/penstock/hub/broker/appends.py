"""Writing to logs without a task for each message: the broker's writer tells what is safe, many at once, the loop hears it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial

from penstock.broker.aio import AsyncBroker, Nudge
from penstock.broker.catalog import Catalog
from penstock.broker.publish import dropped, publish_then
from penstock.broker.writer import Ticket
from penstock.errors import PenstockError, TopicNotFound, Unavailable
from penstock.hub.broker.stored_message import epoch_of, to_publish
from penstock.hub.broker.tail import why
from penstock.hub.core.messages import Message, Position
from penstock.hub.feed import Appended

log = logging.getLogger("penstock.hub")


class Appends:
    """All writes of one hub. Offsets follow the order of calls, topic by topic.

    `make` makes a topic that is missing, if it is the hub's own.
    """

    def __init__(self, aio: AsyncBroker, *, run: str, make: Callable[[str], Coroutine[None, None, None]]) -> None:
        self._broker = aio.broker
        self._run, self._make = run, make
        self._finished: deque[tuple[Appended, Position | PenstockError]] = deque()
        self._nudge = Nudge(self._tell)
        self._missing: dict[str, deque[tuple[Message, Appended]]] = {}
        """What waits for its topic to be made, by topic. A topic is here while a task works on it."""
        self._tasks: set[asyncio.Task[None]] = set()

    def append(self, topic: str, message: Message, done: Appended) -> None:
        """Write a message to a topic; `done` is told of it in a later turn of the loop."""
        waiting = self._missing.get(topic)
        if waiting is not None:
            waiting.append((message, done))
            return
        try:
            self._write(topic, message, done)
        except TopicNotFound:
            self._missing[topic] = deque([(message, done)])
            task = asyncio.get_running_loop().create_task(self._write_to_new(topic))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        except PenstockError as error:
            self._finish(done, error)

    def _write(self, topic: str, message: Message, done: Appended) -> None:
        publish_then(self._broker, Catalog.topic, topic, [to_publish(message)], partial(self._written, topic, done))

    def _written(self, topic: str, done: Appended, ticket: Ticket) -> None:
        """Called by the broker, in whatever thread."""
        assert ticket.stream is not None, "it is a publish"
        if ticket.error is not None:
            self._finish(done, ticket.error)
        elif ticket.dropped is not None:
            self._finish(done, dropped(topic))
        else:
            self._finish(done, Position(epoch_of(ticket.stream, self._run), ticket.first))

    def _finish(self, done: Appended, outcome: Position | PenstockError) -> None:
        self._finished.append((done, outcome))
        self._nudge.ring()

    def _tell(self) -> None:
        try:
            while self._finished:
                done, outcome = self._finished.popleft()
                done(outcome)
        finally:
            if self._finished:
                self._nudge.ring()  # one that failed must not keep the others waiting

    async def _write_to_new(self, topic: str) -> None:
        """Make a topic that is missing, and write what waits for it."""
        waiting = self._missing[topic]
        try:
            while waiting:
                message, done = waiting.popleft()
                try:
                    await self._make(topic)
                    self._write(topic, message, done)
                except PenstockError as error:
                    self._finish(done, error)
                except Exception as error:  # noqa: BLE001  # the publisher has to be told, and the next has its turn
                    log.error("a message for topic %r could not be written: %s", topic, why(error))
                    self._finish(done, Unavailable("the message could not be written", hint="the server's log says why"))
        finally:
            del self._missing[topic]
