"""The broker's topics as logs of the hub: following them, and appending to them.

Messages published to the topic of a binding, by any API, are forwarded to the hub once and in order. Appending needs no task for
each message: the broker's writer reports which messages are durable, many at once, and the event loop handles the results.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial

from penstock.broker.aio import AsyncBroker, LoopCallback
from penstock.broker.catalog import Catalog
from penstock.broker.follower import LogFollower, ReadLimits
from penstock.broker.publish import dropped, publish_then
from penstock.broker.writer import Ticket
from penstock.errors import PenstockError, TopicNotFound, Unavailable
from penstock.hub.broker.stored_message import LogReader, epoch_of, to_publish
from penstock.hub.core.messages import Message, Position
from penstock.hub.core.rules import Binding
from penstock.hub.ports import Appended, Forward, Skipped
from penstock.values.descriptions import StreamDescription
from penstock.values.message import StoredMessage

log = logging.getLogger("penstock.hub")

PART = ReadLimits(max_messages=256, max_bytes=256 * 1024)
"""How much is read from a log at once: less than the outbox of a connection, so that no client is disconnected because of it."""


class TopicTail(LogFollower):
    """Follows the topic of one binding, and keeps its epoch and offset up to date. All methods run in the event loop.

    `replaced` is called with the binding and whether the topic exists, after the topic was deleted or created again.
    """

    def __init__(
        self,
        aio: AsyncBroker,
        reader: LogReader,
        forward: Forward,
        skipped: Skipped,
        *,
        run: str,
        replaced: Callable[[Binding, bool], None],
    ) -> None:
        super().__init__(aio, reader.binding.stream, PART)
        self._reader, self._binding = reader, reader.binding
        self._forward, self._skipped, self._run, self._replaced = forward, skipped, run, replaced
        self.missed = 0
        """The number of messages that were removed from the log before they were forwarded."""

    def attached(self, stream: StreamDescription, offset: int) -> None:
        """Set epoch and offset of the binding."""
        self._binding.epoch, self._binding.next_offset = epoch_of(stream, self._run), offset

    def deliver(self, stream: int, first: int, messages: list[StoredMessage]) -> None:
        """Forward the messages of topics of the binding."""
        read = self._reader.message
        found = [read(stored, stream, offset) for offset, stored in enumerate(messages, first)]
        # A message that a service wrote to the log of another topic is in no history: returning subscribers could not recover it.
        is_of_here = self._reader.is_log_of
        news = [message for message in found if message is not None and is_of_here(message.topic or "")]
        if news:
            self._forward(self._binding, news)
        self._binding.next_offset = first + len(messages)  # also after skipped messages

    def lost(self, count: int, offset: int) -> None:
        """Report messages that were removed from the log before they were forwarded: no subscriber has a gap without notice."""
        self._binding.next_offset = offset
        self.missed += count
        log.error("%d messages of topic %r left the log before the hub could forward them", count, self.topic)
        self._skipped(self._binding)

    def replaced(self, *, exists: bool) -> None:
        """Report that the topic was deleted, or created again."""
        self._replaced(self._binding, exists)

    def failed(self, error: BaseException) -> None:
        log.error("the log of topic %r cannot be read, will try again: %s", self.topic, why(error))


def why(error: BaseException) -> str:
    """The text of an error for the server's log. For unexpected errors only the type, since the text may contain a payload."""
    return str(error) if isinstance(error, PenstockError) else type(error).__name__


class TopicAppender:
    """All writes of one hub. Within a topic, offsets follow the order of calls.

    `make` creates a missing topic if the hub owns it.
    """

    def __init__(self, aio: AsyncBroker, *, run: str, make: Callable[[str], Coroutine[None, None, None]]) -> None:
        self._broker = aio.broker
        self._run, self._make = run, make
        self._finished: deque[tuple[Appended, Position | PenstockError]] = deque()
        self._callback = LoopCallback(self._tell)
        self._missing: dict[str, deque[tuple[Message, Appended]]] = {}
        """Messages that wait until their topic is created, by topic. A topic is here while a task works on it."""
        self._tasks: set[asyncio.Task[None]] = set()

    def append(self, topic: str, message: Message, done: Appended) -> None:
        """Write a message to a topic; `done` is called in a later turn of the loop."""
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
        """Called by the broker, in any thread."""
        assert ticket.stream is not None, "it is a publish"
        if ticket.error is not None:
            self._finish(done, ticket.error)
        elif ticket.dropped is not None:
            self._finish(done, dropped(topic))
        else:
            self._finish(done, Position(epoch_of(ticket.stream, self._run), ticket.first))

    def _finish(self, done: Appended, outcome: Position | PenstockError) -> None:
        self._finished.append((done, outcome))
        self._callback.notify()

    def _tell(self) -> None:
        try:
            while self._finished:
                done, outcome = self._finished.popleft()
                done(outcome)
        finally:
            if self._finished:
                self._callback.notify()  # an error in one callback must not delay the others

    async def _write_to_new(self, topic: str) -> None:
        """Create a missing topic, and write the messages that wait for it."""
        waiting = self._missing[topic]
        try:
            while waiting:
                message, done = waiting.popleft()
                try:
                    await self._make(topic)
                    self._write(topic, message, done)
                except PenstockError as error:
                    self._finish(done, error)
                except Exception as error:  # noqa: BLE001  # the publisher has to get the error, and further messages are still written
                    log.error("a message for topic %r could not be written: %s", topic, why(error))
                    self._finish(done, Unavailable("the message could not be written", hint="see the server's log"))
        finally:
            del self._missing[topic]
