"""Retention: which messages and events leave the log, and when.

A chunk of messages leaves the log when it is older than the retention of its stream and no queue holds any of its messages, as
unsettled or as a dead letter. The log of a deleted stream is removed at once. Events leave when they are older than the longest
retention and the checkpoint has made them unnecessary. In memory, a stream that exceeds `HISTORY_BYTES` also drops its oldest
settled messages. Messages that a cursor holds always stay. The names of deleted streams and queues are kept until their last
event has left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from penstock.broker.core.pages import OVERHEAD
from penstock.broker.core.stream import Stream
from penstock.durations import DAY, SECOND
from penstock.ids import MAX_OFFSET
from penstock.journal.core.checkpoint import Position
from penstock.journal.core.chunk import Summary
from penstock.journal.core.ranges import Ranges, merge, overlaps

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

log = logging.getLogger("penstock.broker")

RETENTION = 7 * DAY
INTERVAL = 60 * SECOND
HISTORY_BYTES = 64 * 1024 * 1024
LARGE_INTERVAL = SECOND
"""How often streams that exceed it are checked for settled messages."""
DRIFT = 3_600 * SECOND
"""How far the clock may have been set back while events were written."""
PART = 1_000
"""How many chunks are removed at once, so that publishers do not wait long."""


class Retention:
    """Checks all streams once a minute; in memory also after every `HISTORY_BYTES`."""

    def __init__(self, broker: Broker, write_pending: Callable[[], bool]) -> None:
        self._broker = broker
        self._write_pending = write_pending
        self.due_at = 0
        """The time of the next check; now, if the clock was set back."""
        self._warn_at = 0
        """When to repeat the warning about cursors that seem abandoned."""
        self._large: dict[Stream, tuple[int, int]] = {}
        """In memory: streams over the bound, with the bytes settled at the last check, and the latest time of the next check."""

    def run(self, now: int) -> None:
        """Remove what retention allows. Cheap if it is not time yet."""
        if not self.is_due(now):
            return
        self.due_at = now + INTERVAL
        if self._broker.is_retention_held():
            return
        with self._broker.lock:
            streams = list(self._broker.catalog.streams.values())
        for stream in streams:
            self._trim(stream, before=now - stream_retention(stream))
        self._drop_deleted()
        self._broker.journal.trim_events(now - max(map(stream_retention, streams), default=RETENTION))
        self._forget_deleted_resources(now)
        self._warn(now)

    def is_due(self, now: int) -> bool:
        return not self.due_at - INTERVAL <= now < self.due_at

    def _warn(self, now: int) -> None:
        """Warn once a day about abandoned cursors: the log grows until they are deleted."""
        if now < self._warn_at:
            return
        self._warn_at = now + DAY
        for name, updated_at in self._broker.cursors.holding().items():
            if now - updated_at >= RETENTION:
                days = (now - updated_at) // DAY
                log.warning(
                    "the cursor %r was not set for %d days and still holds the log: delete it if it is not used any more",
                    name,
                    days,
                )

    def _forget_deleted_resources(self, now: int) -> None:
        """Forget what was deleted before the oldest event that is kept."""
        journal, catalog = self._broker.journal, self._broker.catalog
        if catalog.deleted_resources:
            earliest, _ = journal.event_range()
            oldest = next((event.at for _, event in journal.read_events(earliest, earliest + 1)), now)
            with self._broker.lock:
                catalog.forget_deleted_resources(oldest - DRIFT)

    def _drop_deleted(self) -> None:
        """Remove the log of deleted streams, a part at a time."""
        journal = self._broker.journal
        with self._broker.lock:
            deleted = [number for number in journal.streams() if number not in self._broker.catalog.streams]
        if deleted and self._write_pending():
            for number in deleted:
                firsts = [summary.first for summary in journal.summaries(number, 0, MAX_OFFSET)]
                for start in range(0, len(firsts), PART):
                    journal.trim(number, firsts[start : start + PART])

    def shed(self, stream: Stream) -> None:
        """In memory: after a stream has grown, drop its oldest settled messages if it is too large."""
        if stream.pages.size >= HISTORY_BYTES:
            self._trim(stream, excess=stream.pages.size - HISTORY_BYTES // 2)
        if stream.pages.size < HISTORY_BYTES:
            stream.shed_at = HISTORY_BYTES
            self._large.pop(stream, None)
            return
        # Unsettled messages stay: check again when as much was added, or when they are settled.
        stream.shed_at = stream.pages.size + HISTORY_BYTES // 2
        now = self._broker.clock.now()
        self._large[stream] = _settled(stream), now + INTERVAL
        self._broker.look_at(now, now + LARGE_INTERVAL)

    def trim_large(self, now: int) -> None:
        """In memory: trim too large streams of which much was settled since. Call it with the lock held."""
        for stream, (settled, again_at) in list(self._large.items()):
            if self._broker.catalog.streams.get(stream.number) is not stream:
                del self._large[stream]
            elif _settled(stream) - settled >= HISTORY_BYTES // 2 or not again_at - INTERVAL <= now < again_at:
                self.shed(stream)
                if stream not in self._large:
                    return_freed_memory()
        if self._large:
            self._broker.look_at(now, now + LARGE_INTERVAL)

    def _trim(self, stream: Stream, *, before: int | None = None, excess: int | None = None) -> None:
        """Remove free chunks that are old enough, or the oldest ones up to the excess."""
        broker = self._broker
        old: list[Summary] = []
        for summary in broker.journal.summaries(stream.number, 0, stream.next_offset):
            if before is not None and summary.published_at > before:
                break
            old.append(summary)
        if not old:
            return
        with broker.lock:
            held = merge([*_held(stream), *_kept(stream, broker.catalog.snapshots.values()), *broker.cursors.held(stream)])
            gone = _free(held, old, excess)
            if not gone:
                return
            # From here on a seek cannot reach the removed messages.
            stream.earliest = max(stream.earliest, gone[-1].first + gone[-1].count)
            broker.window.forget(stream, merge((summary.first, summary.first + summary.count) for summary in gone))
        # The events that settled these messages must be on disk before the messages are removed.
        if self._write_pending():
            broker.journal.trim(stream.number, [summary.first for summary in gone])


def stream_retention(stream: Stream) -> int:
    """How long a stream keeps settled messages: a week, or the longest retention of its subscriptions."""
    return max([RETENTION, stream.retention or 0, *(queue.policy.retention or 0 for queue in stream.queues)])


def _settled(stream: Stream) -> int:
    """An upper bound of the bytes in memory that can be freed: snapshots and cursors may hold some of them."""
    return stream.pages.size - max((queue.size + OVERHEAD * queue.backlog for queue in stream.queues), default=0)


def _free(held: Ranges, old: list[Summary], excess: int | None) -> list[Summary]:
    """The chunks without messages that are needed: all of them, or the oldest ones up to the excess."""
    gone: list[Summary] = []
    for summary in old:
        if excess is not None and excess <= 0:
            break
        if not overlaps(held, summary.first, summary.first + summary.count):
            gone.append(summary)
            excess = None if excess is None else excess - summary.size - OVERHEAD * summary.count
    return gone


def _kept(stream: Stream, snapshots: Iterable[Position]) -> Ranges:
    """Every offset that a snapshot with a time to live may need; a snapshot without one uses what the log still has."""
    spans = [(taken.unsettled, taken.high) for taken in snapshots if taken.stream == stream.number and taken.expires_at]
    return [span for unsettled, high in spans for span in [*unsettled, (high, stream.next_offset)] if span[0] < span[1]]


def _held(stream: Stream) -> Ranges:
    """Every offset that some queue still needs."""
    dead = ((offset, offset + 1) for queue in stream.queues for offset in queue.dead)
    return merge([*(span for queue in stream.queues for span in queue.unsettled()), *dead])


def return_freed_memory() -> None:
    """Return free memory to the system, if the C library can. It takes milliseconds: call it after freeing very much.

    glibc keeps large blocks that were freed below others that are in use, so a process stays as large as its largest backlog was.
    """
    import ctypes  # noqa: PLC0415  # few processes free so much

    with suppress(OSError, AttributeError, TypeError):  # a different C library, or none that can be opened
        ctypes.CDLL(None).malloc_trim(0)
