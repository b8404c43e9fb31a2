"""Writing to logs without a task for each message: the broker's writer tells what is safe, many at once, the loop hears it."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial

from penstock.api.rules import Rules
from penstock.broker.aio import AsyncBroker, Nudge
from penstock.broker.catalog import Catalog
from penstock.broker.core.stream import Stream
from penstock.broker.writer import Ticket
from penstock.errors import FailedPrecondition, PenstockError, Unavailable
from penstock.hub.broker.stored_message import epoch_of, to_store
from penstock.hub.broker.tail import why
from penstock.hub.core.message import Message
from penstock.hub.core.messages import Position
from penstock.hub.feed import Appended
from penstock.values.message import Batch, summarize

log = logging.getLogger("penstock.hub")


class Appends:
    """All writes of one hub. Offsets follow the order of calls, topic by topic.

    Where a topic has a schema or transforms, every message is looked at first, one after the other: `rules` does that. `make`
    makes a topic that is missing, if it is the hub's own.
    """

    def __init__(
        self, aio: AsyncBroker, *, run: str, rules: Rules | None, make: Callable[[str], Coroutine[None, None, None]]
    ) -> None:
        self._aio, self._broker = aio, aio.broker
        self._run, self._rules, self._make = run, rules, make
        self._finished: deque[tuple[Appended, Position | PenstockError]] = deque()
        self._nudge = Nudge(self._tell)
        self._inspected: dict[str, deque[tuple[Batch, Appended]]] = {}
        """What waits to be written, by topic. A topic is here while a task works on it."""
        self._tasks: set[asyncio.Task[None]] = set()

    def append(self, topic: str, message: Message, done: Appended) -> None:
        """Write a message to a topic; `done` is told of it in a later turn of the loop."""
        try:
            batch = to_store(message, self._aio.advance())
            with self._broker.lock:
                stream = self._broker.catalog.topics.get(topic)
            if topic in self._inspected or stream is None or (self._rules is not None and self._rules.inspects(stream)):
                self._inspect(topic, batch, done)
            else:
                self._write(topic, batch, done)
        except PenstockError as error:
            self._finish(done, error)

    def _write(self, topic: str, batch: Batch, done: Appended) -> None:
        if self._broker.is_durable:
            self._broker.hand_in(Catalog.topic, topic, batch, partial(self._written, done))
            return
        placed = self._broker.publish(Catalog.topic, topic, batch, self._broker.clock.now())
        with self._broker.lock:
            stream = self._broker.catalog.streams[placed.stream]
        self._finish(done, self._position(stream, placed.first))

    def _written(self, done: Appended, ticket: Ticket) -> None:
        """Called by the writer."""
        assert ticket.stream is not None, "it is a publish"
        self._finish(done, ticket.error or self._position(ticket.stream, ticket.first))

    def _position(self, stream: Stream, offset: int) -> Position:
        return Position(epoch_of(stream, self._run), offset)

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

    # ── topics that are missing, or have a schema or transforms ──────────────────────────────────────────────────────────

    def _inspect(self, topic: str, batch: Batch, done: Appended) -> None:
        waiting = self._inspected.get(topic)
        if waiting is not None:
            waiting.append((batch, done))
            return
        self._inspected[topic] = deque([(batch, done)])
        task = asyncio.get_running_loop().create_task(self._look_at(topic))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look_at(self, topic: str) -> None:
        waiting = self._inspected[topic]
        try:
            while waiting:
                batch, done = waiting.popleft()
                try:
                    self._write(topic, await self._passed(topic, batch), done)
                except PenstockError as error:
                    self._finish(done, error)
                except Exception as error:  # noqa: BLE001  # whoever waits has to be told, and the next has its turn
                    log.error("a message for topic %r could not be looked at: %s", topic, why(error))
                    self._finish(done, Unavailable("the message could not be written", hint="the server's log says why"))
        finally:
            del self._inspected[topic]

    async def _passed(self, topic: str, batch: Batch) -> Batch:
        await self._make(topic)
        with self._broker.lock:
            stream = self._broker.catalog.topic(topic)
        if self._rules is None or not self._rules.inspects(stream):
            return batch
        kept = [message for message in await self._rules.passed(stream, batch.messages) if message is not None]
        if not kept:
            raise FailedPrecondition(f"a transform of topic {topic!r} dropped the message", hint="see the topic's transforms")
        return summarize(kept)
