"""What leaves the log, and when.

A chunk of messages leaves when it is older than the retention of its stream and no queue holds any of it: unsettled, or in a
list of dead letters. Events leave when they are older than the longest retention and the checkpoint has made them unnecessary.
In memory, settled messages also leave when there are more than `HISTORY_BYTES` of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.broker.core.chunk import Summary
from penstock.broker.core.events import Ranges
from penstock.broker.core.image import subtract
from penstock.broker.core.ready import merge
from penstock.broker.core.stream import Stream
from penstock.durations import DAY, SECOND

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

RETENTION = 7 * DAY
INTERVAL = 60 * SECOND
HISTORY_BYTES = 64 * 1024 * 1024


class Retention:
    """Looks over all streams once a minute; in memory also after every so many bytes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._next = 0
        self._shed_at: dict[int, int] = {}

    def run(self, now: int) -> None:
        """Trim what is over. Cheap when it is not yet time."""
        if now >= self._next:
            self._next = now + INTERVAL
            for stream in list(self._broker.catalog.streams.values()):
                self._trim(stream, before=now - stream_retention(stream))
            self._broker.journal.trim_events(
                now - max(map(stream_retention, self._broker.catalog.streams.values()), default=RETENTION)
            )

    def shed(self, number: int) -> None:
        """In memory: when a stream has grown by much, let the oldest settled messages go."""
        stream = self._broker.catalog.streams.get(number)
        if stream is not None and stream.pages.size >= self._shed_at.get(number, HISTORY_BYTES):
            self._trim(stream, excess=stream.pages.size - HISTORY_BYTES // 2)
            self._shed_at[number] = max(stream.pages.size, HISTORY_BYTES // 2) + HISTORY_BYTES // 2

    def _trim(self, stream: Stream, *, before: int | None = None, excess: int | None = None) -> None:
        """Remove free chunks that are old enough, or as many of the oldest as make up the excess."""
        broker = self._broker
        with broker.lock:
            held = _held(stream)
        gone: list[Summary] = []
        for summary in broker.journal.summaries(stream.number, 0, stream.next_offset):
            if (before is not None and summary.published_at > before) or (excess is not None and excess <= 0):
                break
            span = [(summary.first, summary.first + summary.count)]
            if subtract(span, held) == span:
                gone.append(summary)
                excess = None if excess is None else excess - summary.size
        if gone:
            # A seek back in the meantime can bring a message of these back; it finds it gone, as after any retention.
            with broker.lock:
                stream.earliest = max(stream.earliest, gone[-1].first + gone[-1].count)
                broker.window.forget(stream, before=min([stream.earliest, *(start for start, _ in held[:1])]))
            broker.journal.trim(stream.number, [summary.first for summary in gone])


def stream_retention(stream: Stream) -> int:
    """How long a stream keeps what is settled: a week, or as long as its most patient subscription."""
    return max([RETENTION, *(queue.policy.retention or 0 for queue in stream.queues)])


def _held(stream: Stream) -> Ranges:
    """Every offset that some queue still needs."""
    dead = ((offset, offset + 1) for queue in stream.queues for offset in queue.dead)
    return merge([*(span for queue in stream.queues for span in queue.unsettled()), *dead])
