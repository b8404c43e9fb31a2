"""Forwards the log of a binding to the hub: whatever is published to its topic, by any API, once and in order."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.broker.aio import AsyncBroker
from penstock.broker.follower import LogFollower, Part
from penstock.errors import PenstockError
from penstock.hub.broker.stored_message import LogReader, epoch_of
from penstock.hub.core.binding import Binding
from penstock.hub.feed import Forward, Skipped
from penstock.values.descriptions import StreamDescription
from penstock.values.message import StoredMessage

log = logging.getLogger("penstock.hub")

PART = Part(max_messages=256, max_bytes=256 * 1024)
"""How much is taken from a log at once: less than may wait for one connection, so that no reader is cut off for it."""


class Tail(LogFollower):
    """Follows the topic of one binding, and keeps its epoch and offset up to date. All methods belong to the event loop.

    `replaced` is called with the binding, and whether the topic exists, when it was deleted and when it is created again.
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
        """How many messages had left the log before they were forwarded."""

    def attached(self, stream: StreamDescription, offset: int) -> None:
        """Give the binding the epoch of its log."""
        self._binding.epoch, self._binding.next_offset = epoch_of(stream, self._run), offset

    def deliver(self, stream: int, first: int, messages: list[StoredMessage]) -> None:
        """Forward what belongs to topics of the binding."""
        read = self._reader.message
        found = [read(stored, stream, offset) for offset, stored in enumerate(messages, first)]
        # What a service wrote into the log of other topics is in no history: subscribers that were away could not recover it.
        is_of_here = self._reader.is_log_of
        news = [message for message in found if message is not None and is_of_here(message.topic or "")]
        if news:
            self._forward(self._binding, news)
        self._binding.next_offset = first + len(messages)  # also behind what was skipped

    def lost(self, count: int, offset: int) -> None:
        """Report messages that left the log before they were forwarded: no subscriber has a gap without notice."""
        self._binding.next_offset = offset
        self.missed += count
        log.error("%d messages of topic %r left the log before the hub could forward them", count, self.topic)
        self._skipped(self._binding)

    def replaced(self, *, exists: bool) -> None:
        """Report that the topic was deleted, or created again."""
        self._replaced(self._binding, exists)

    def failed(self, error: BaseException) -> None:
        """Log why the topic cannot be read."""
        log.error("the log of topic %r cannot be read, will try again: %s", self.topic, why(error))


def why(error: BaseException) -> str:
    """Return what the server's log may say about an error: the text of an unforeseen one may hold a payload."""
    return str(error) if isinstance(error, PenstockError) else type(error).__name__
