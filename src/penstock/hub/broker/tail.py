"""The end of a log: whatever is published to a topic, by whatever door, is forwarded to the hub once and in order.

The broker rings when a commit has reached the topic, so only what is safe is ever seen. Several commits are one ring, and one
ring is one look, which takes a part of what is there and lets others have their turn before the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from penstock.broker.aio import AsyncBroker, Nudge
from penstock.broker.core.stream import Stream
from penstock.hub.broker.stored_message import LogReader, epoch_of
from penstock.hub.broker.topic_log import loaded, part, resident, why
from penstock.hub.core.binding import Binding
from penstock.hub.feed import Forward, Skipped
from penstock.values.message import StoredMessage

log = logging.getLogger("penstock.hub")

RETRY_SECONDS = 1.0
"""How soon it looks again for a topic that was deleted, and at a log that cannot be read."""


class Tail:
    """Follows the topic of one binding. All methods belong to the event loop.

    A topic that is deleted and made again has another log: the binding gets its epoch, and everything in it is forwarded. `moved`
    is called when the topic is gone (None) and when it is there again. While there is none it looks every second whether somebody
    has made one; who does so may call `look`.
    """

    def __init__(
        self,
        aio: AsyncBroker,
        reader: LogReader,
        forward: Forward,
        skipped: Skipped,
        *,
        run: str,
        moved: Callable[[Binding, Stream | None], None],
    ) -> None:
        self._aio, self._broker = aio, aio.broker
        self._reader, self._binding = reader, reader.binding
        self._forward, self._skipped, self._run, self._moved = forward, skipped, run, moved
        self._nudge = Nudge(self.look)
        self._stream: Stream | None = None
        """The topic that is followed; None while there is none."""
        self._at = 0
        """The offset that is forwarded next."""
        self._ahead: list[StoredMessage] = []
        """What was read from the journal and is forwarded next."""
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_over = False
        self.missed = 0
        """How many messages had left the log before they were forwarded."""

    def start(self) -> None:
        """Follow the topic from its end on, or from its beginning if it is made later."""
        with self._broker.lock:
            stream = self._broker.catalog.topics.get(self._binding.stream)
            if stream is not None:
                self._follow(stream, stream.next_offset)
        if stream is None:
            self._later()

    def stop(self) -> None:
        """Forward nothing more. Safe to call twice."""
        self._is_over = True
        if self._task is not None:
            self._task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        with self._broker.lock:
            self._leave()

    def _follow(self, stream: Stream, offset: int) -> None:
        self._stream = stream
        self._at, self._ahead = offset, []
        self._binding.epoch, self._binding.next_offset = epoch_of(stream, self._run), offset
        self._broker.bells.hang(stream.number, self._nudge.ring)

    def _leave(self) -> None:
        if self._stream is not None:
            self._broker.bells.take_down(self._stream.number, self._nudge.ring)
            self._stream = None

    @property
    def topic(self) -> str:
        """The broker's topic that it follows."""
        return self._binding.stream

    def look(self) -> None:
        """Forward a part of what is there, and come again when there is more."""
        if self._is_over or self._task is not None:
            return
        stream = self._followed()
        if stream is None:
            self._later()
            return
        with self._broker.lock:
            start, end = self._at, stream.next_offset
            messages = self._ahead or resident(stream, start, end)
        if messages:
            count = part(messages)
            self._ahead = self._ahead[count:]
            self._pass_on(stream, messages[:count])
            if start + count < end:
                self._nudge.ring()
        elif start < end:
            self._task = asyncio.get_running_loop().create_task(self._load(stream, start, end))
            self._task.add_done_callback(self._loaded)

    def _followed(self) -> Stream | None:
        """The topic as it is now; where it is another than before, the new one is followed from its beginning."""
        with self._broker.lock:
            stream = self._broker.catalog.topics.get(self._binding.stream)
            before = self._stream
            if stream is before:
                return stream
            lost = before.next_offset - self._at if before is not None else 0
            is_other = before is not None or bool(self._binding.epoch)
            self._leave()
            if stream is not None:
                self._follow(stream, 0)
        if lost:
            self._count(lost)
        if is_other:
            self._moved(self._binding, stream)
        return stream

    def _pass_on(self, stream: Stream, messages: list[StoredMessage]) -> None:
        start, self._at = self._at, self._at + len(messages)
        read = self._reader.message
        found = [read(stored, stream.number, offset) for offset, stored in enumerate(messages, start)]
        # What a service wrote into the log of other topics is in no history: who was away could never know of it.
        is_of_here = self._reader.is_log_of
        news = [message for message in found if message is not None and is_of_here(message.topic or "")]
        if news:
            self._forward(self._binding, news)
        self._binding.next_offset = self._at  # also what was skipped is behind

    async def _load(self, stream: Stream, start: int, end: int) -> None:
        self._ahead = await loaded(self._aio, stream, start, end)
        if not self._ahead and self._stream is stream:
            await self._skip(stream, start, end)

    async def _skip(self, stream: Stream, start: int, end: int) -> None:
        """Go on behind what the log does not hold any more."""
        summaries = self._broker.journal.summaries
        held = await self._aio.call(lambda: next(summaries(stream.number, start, end), None))
        with self._broker.lock:
            if self._broker.catalog.topics.get(self._binding.stream) is not stream:
                return  # what was lost with it is counted when that is found out
            self._at = self._binding.next_offset = max(start + 1, held.first if held is not None else end)
        self._count(self._at - start)

    def _count(self, lost: int) -> None:
        """Say that messages left the log before they were forwarded: nobody has a hole without a word."""
        self.missed += lost
        log.error("%d messages of topic %r left the log before the hub could forward them", lost, self._binding.stream)
        self._skipped(self._binding)

    def _loaded(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if task.cancelled() or self._is_over:
            return
        error = task.exception()
        if error is None:
            self._nudge.ring()
        else:
            log.error("the log of topic %r cannot be read, will try again: %s", self._binding.stream, why(error))
            self._later()

    def _later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(RETRY_SECONDS, self._nudge.ring)
