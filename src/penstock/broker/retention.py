"""What leaves the log, and when.

A chunk of messages leaves when it is older than the retention of its stream and no queue holds any of it: unsettled, or in a
list of dead letters. What a deleted stream left goes at once. Events leave when they are older than the longest retention and
the checkpoint has made them unnecessary. In memory, a stream that exceeds `HISTORY_BYTES` also sheds its oldest settled messages.
What a cursor that holds has still to read stays in any case. The names of what was deleted leave after the last event of it.
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
"""How often streams that exceed it are asked how much of them is settled."""
DRIFT = 3_600 * SECOND
"""The clock may have been set back by so much while events were written."""
PART = 1_000
"""How many chunks are removed at once, so that publishers need not wait long."""


class Retention:
    """Looks over all streams once a minute; in memory also after every this many bytes."""

    def __init__(self, broker: Broker, write_pending: Callable[[], bool]) -> None:
        self._broker = broker
        self._write_pending = write_pending
        self.due_at = 0
        """When the streams are looked over next; at once when the clock is set back."""
        self._warn_at = 0
        """When a warning is repeated about cursors that look forgotten."""
        self._large: dict[Stream, tuple[int, int]] = {}
        """In memory: streams that exceed the bound, with what was settled after the last look, and when to look anyway."""

    def run(self, now: int) -> None:
        """Trim what is over. Cheap when it is not yet time."""
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
        """Say once a day which cursors hold what nobody seems to read: the log grows until somebody deletes them."""
        if now < self._warn_at:
            return
        self._warn_at = now + DAY
        for name, updated_at in self._broker.cursors.holding().items():
            if now - updated_at >= RETENTION:
                days = (now - updated_at) // DAY
                log.warning(
                    "the cursor %r was not set for %d days and still holds the log: delete it if it is no more", name, days
                )

    def _forget_deleted_resources(self, now: int) -> None:
        """No event that is kept speaks of what was deleted before the oldest of them."""
        journal, catalog = self._broker.journal, self._broker.catalog
        if catalog.deleted_resources:
            earliest, _ = journal.event_range()
            oldest = next((event.at for _, event in journal.read_events(earliest, earliest + 1)), now)
            with self._broker.lock:
                catalog.forget_deleted_resources(oldest - DRIFT)

    def _drop_deleted(self) -> None:
        """What deleted streams left goes, a part at a time."""
        journal = self._broker.journal
        with self._broker.lock:
            deleted = [number for number in journal.streams() if number not in self._broker.catalog.streams]
        if deleted and self._write_pending():
            for number in deleted:
                firsts = [summary.first for summary in journal.summaries(number, 0, MAX_OFFSET)]
                for start in range(0, len(firsts), PART):
                    journal.trim(number, firsts[start : start + PART])

    def shed(self, stream: Stream) -> None:
        """In memory: a stream has grown; when it is large, let the oldest settled messages go."""
        if stream.pages.size >= HISTORY_BYTES:
            self._trim(stream, excess=stream.pages.size - HISTORY_BYTES // 2)
        if stream.pages.size < HISTORY_BYTES:
            stream.shed_at = HISTORY_BYTES
            self._large.pop(stream, None)
            return
        # What is not settled stays: look again when there is as much again, or when it is settled.
        stream.shed_at = stream.pages.size + HISTORY_BYTES // 2
        now = self._broker.clock.now()
        self._large[stream] = _settled(stream), now + INTERVAL
        self._broker.look_at(now, now + LARGE_INTERVAL)

    def trim_large(self, now: int) -> None:
        """In memory: shed the streams that are too large of which much was settled since. Call it with the lock held."""
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
        """Remove free chunks that are old enough, or as many of the oldest as make up the excess."""
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
            # From here on a seek cannot reach what is about to leave.
            stream.earliest = max(stream.earliest, gone[-1].first + gone[-1].count)
            broker.window.forget(stream, merge((summary.first, summary.first + summary.count) for summary in gone))
        # What settled these messages must be on disk before they leave it.
        if self._write_pending():
            broker.journal.trim(stream.number, [summary.first for summary in gone])


def stream_retention(stream: Stream) -> int:
    """How long a stream keeps what is settled: a week, or as long as its most patient subscription."""
    return max([RETENTION, stream.retention or 0, *(queue.policy.retention or 0 for queue in stream.queues)])


def _settled(stream: Stream) -> int:
    """The bytes in memory that may be free, without a look at each message: snapshots and cursors may hold some of them."""
    return stream.pages.size - max((queue.size + OVERHEAD * queue.backlog for queue in stream.queues), default=0)


def _free(held: Ranges, old: list[Summary], excess: int | None) -> list[Summary]:
    """The chunks that hold nothing anybody needs: all of them, or as many of the oldest as make up the excess."""
    gone: list[Summary] = []
    for summary in old:
        if excess is not None and excess <= 0:
            break
        if not overlaps(held, summary.first, summary.first + summary.count):
            gone.append(summary)
            excess = None if excess is None else excess - summary.size - OVERHEAD * summary.count
    return gone


def _kept(stream: Stream, snapshots: Iterable[Position]) -> Ranges:
    """Every offset that a snapshot with a time to live may bring back; one without lives on what the log has."""
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

    with suppress(OSError, AttributeError, TypeError):  # another C library, or none that can be opened
        ctypes.CDLL(None).malloc_trim(0)
