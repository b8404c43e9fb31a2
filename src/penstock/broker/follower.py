"""Readers of a topic's log in an event loop: from memory if the messages are there, else from the journal in a thread.

`read_part` reads a part of a range. `LogFollower` follows the end of a log. They use no leases and no acknowledgements, and do
not keep messages in the log.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import NamedTuple

from penstock.broker.aio import AsyncBroker, LoopCallback
from penstock.broker.core.stream import Stream
from penstock.broker.window import read
from penstock.journal.journal import Journal
from penstock.values.descriptions import StreamDescription
from penstock.values.message import StoredMessage

RETRY_SECONDS = 1.0
"""The delay before a follower retries for a topic that does not exist or a log that cannot be read."""


class ReadLimits(NamedTuple):
    """How much is read at once. A larger message is read alone."""

    max_messages: int
    max_bytes: int

    def count(self, messages: list[StoredMessage]) -> int:
        """Return how many of these messages make one part."""
        size = 0
        for count, message in enumerate(messages[: self.max_messages]):
            size += message.size
            if size > self.max_bytes and count:
                return count
        return min(len(messages), self.max_messages)


async def read_part(aio: AsyncBroker, number: int, start: int, stop: int, part: ReadLimits) -> list[StoredMessage]:
    """Read the first messages of a range of a stream; none if the log does not hold all of the range."""
    broker = aio.broker
    with broker.lock:
        stream = broker.catalog.streams.get(number)
        if stream is None or not stream.earliest <= start < stop <= stream.next_offset:
            return []
        messages = stream.pages.span(start, min(stop, start + part.max_messages))
    messages = messages or await aio.call(_load, broker.journal, number, start, stop, part)
    return messages[: part.count(messages)]


def _load(journal: Journal, number: int, start: int, stop: int, part: ReadLimits) -> list[StoredMessage]:
    """Read the first messages of a range from the journal; none if it does not hold the first."""
    found: list[StoredMessage] = []
    size = 0
    for first, messages in read(journal, number, start, min(stop, start + part.max_messages)):
        if first != start + len(found):
            break  # there is a hole
        found += messages
        size += sum(message.size for message in messages)
        if size > part.max_bytes:
            break
    return found


class LogFollower(ABC):
    """Follows the log of a topic: each message once and in order, as soon as it is durable. Call all methods in the event loop.

    A topic that is deleted and recreated has a new log, which is followed from its beginning. While there is no topic, the
    follower looks for it every `RETRY_SECONDS`; the creator may call `look`. Several commits wake it once, and it delivers one
    part at a time, so that other tasks have their turn.
    """

    def __init__(self, aio: AsyncBroker, topic: str, part: ReadLimits) -> None:
        self._aio, self._broker = aio, aio.broker
        self.topic = topic
        self._part = part
        self._callback = LoopCallback(self.look)
        self._stream: Stream | None = None
        """The stream that is followed, if any."""
        self._has_followed = False
        self._at = 0
        """The offset that is delivered next."""
        self._ahead: list[StoredMessage] = []
        """Messages from the journal that are delivered next."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False

    # ── overridden by subclasses ─────────────────────────────────────────────────────────────────────────────────────────────

    @abstractmethod
    def attached(self, stream: StreamDescription, offset: int) -> None:
        """Called when a log is followed, from `offset` on."""

    @abstractmethod
    def deliver(self, stream: int, first: int, messages: list[StoredMessage]) -> None:
        """Take messages of the stream of that number, from the offset `first` on."""

    @abstractmethod
    def lost(self, count: int, offset: int) -> None:
        """Called when messages left the log before they were delivered; it continues at `offset`."""

    @abstractmethod
    def replaced(self, *, exists: bool) -> None:
        """Called when the topic was deleted or, if it `exists`, recreated."""

    @abstractmethod
    def failed(self, error: BaseException) -> None:
        """Called when the log could not be read; this is retried."""

    # ── called by the owner ──────────────────────────────────────────────────────────────────────────────────────────────────

    def start(self) -> None:
        """Follow the topic from its end on, or from its beginning if it is created later."""
        with self._broker.lock:
            stream = self._broker.catalog.topics.get(self.topic)
            if stream is not None:
                self._attach(stream, stream.next_offset)
        if stream is None:
            self._look_later()

    def stop(self) -> None:
        """Stop delivering. Safe to call twice."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        with self._broker.lock:
            self._detach()

    def look(self) -> None:
        """Deliver one part, and schedule the next if there is more."""
        if self._is_over or self._task is not None:
            return
        with self._broker.lock:
            stream = self._broker.catalog.topics.get(self.topic)
            if stream is None or stream is not self._stream:
                messages, end = [], 0
            else:
                end = stream.next_offset
                messages = self._ahead or stream.pages.span(self._at, min(end, self._at + self._part.max_messages))
        if stream is not self._stream:
            self._change(stream)
        elif stream is None:
            self._look_later()
        elif messages:
            count = self._part.count(messages)
            self._ahead = self._ahead[count:]
            first, self._at = self._at, self._at + count
            self.deliver(stream.number, first, messages[:count])
            if self._at < end:
                self._callback.notify()
        elif self._at < end:
            self._task = asyncio.get_running_loop().create_task(self._load(stream, self._at, end))
            self._task.add_done_callback(self._loaded)

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _attach(self, stream: Stream, offset: int) -> None:
        """Called with the lock held, so that no commit can happen in between."""
        self._stream, self._at, self._ahead = stream, offset, []
        self._has_followed = True
        self._broker.notifier.add(stream.number, self._callback.notify)
        self.attached(stream.describe(), offset)

    def _detach(self) -> None:
        if self._stream is not None:
            self._broker.notifier.remove(self._stream.number, self._callback.notify)
            self._stream = None

    def _change(self, stream: Stream | None) -> None:
        """Follow another stream, from its beginning, or none."""
        before, has_followed = self._stream, self._has_followed
        lost = before.next_offset - self._at if before is not None else 0
        with self._broker.lock:
            self._detach()
            if stream is not None:
                self._attach(stream, 0)
        if lost:
            self.lost(lost, self._at)
        if has_followed:
            self.replaced(exists=stream is not None)
        self.look()

    async def _load(self, stream: Stream, start: int, end: int) -> None:
        journal = self._broker.journal
        self._ahead = await self._aio.call(_load, journal, stream.number, start, end, self._part)
        if self._ahead or self._stream is not stream:
            return
        # The log does not have the first message any more: continue behind the lost ones.
        held = await self._aio.call(lambda: next(journal.summaries(stream.number, start, end), None))
        with self._broker.lock:
            if self._broker.catalog.topics.get(self.topic) is not stream:
                return  # `_change` counts the messages that were lost with it
            self._at = max(start + 1, held.first if held is not None else end)
        self.lost(self._at - start, self._at)

    def _loaded(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled() or self._is_over:
            return
        error = task.exception()
        if error is None:
            self._callback.notify()
        else:
            self.failed(error)
            self._look_later()

    def _look_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._callback.notify)
