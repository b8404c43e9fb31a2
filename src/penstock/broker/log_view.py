"""A read-only view of a log, by name: of a live broker, or of a data directory that is only read.

All readers of ranges (`arrow`, the log API, `penstock.log`) use a `LogView`, so they need not know which of the two it is.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import msgspec

from penstock.broker.core.stream import Stream
from penstock.errors import InvalidArgument, NotFound, OutOfRange, QueueNotFound, StreamReplaced, TopicNotFound
from penstock.journal.core.checkpoint import QUEUE, SUBSCRIPTION, TOPIC, DeletedResource
from penstock.journal.core.outline import EVENTS, StreamSpan, stream_name
from penstock.journal.journal import ReadableJournal
from penstock.values.descriptions import StreamDescription
from penstock.values.message import check_name

if TYPE_CHECKING:
    from penstock.broker.broker import Broker

MAX_STEPS = 100_000
"""How many chunks one query examines at most: a stream of small publishes has millions. The call returns what it found so far."""
EVENT_BYTES = 100
"""The size of an event when bytes are shared between streams."""
SIZED_CHUNKS = 10_000
"""How many chunks an estimate of sizes examines at most."""


class LogNames(msgspec.Struct, frozen=True):
    """The names for the numbers in the event log, also of deleted streams and queues."""

    streams: dict[int, str]
    """The names in the log."""
    queues: dict[int, str]
    stream_of: dict[int, int]
    """The stream of each queue."""

    def numbers(self, streams: Iterable[str]) -> dict[int, str]:
        """The streams with these names, also deleted ones, by number; NotFound for an unknown name."""
        wanted = dict.fromkeys(streams)
        found = {number: name for number, name in self.streams.items() if name in wanted}
        unknown = wanted.keys() - set(found.values())
        if unknown:
            raise not_found(min(unknown))
        return found


class LogView(Protocol):
    """A log to read from. Results are as of the time of the call; offsets only grow."""

    @property
    def journal(self) -> ReadableJournal:
        """Where the chunks and the events are."""

    def spans(self) -> list[StreamSpan]:
        """All streams."""

    def span(self, name: str) -> StreamSpan:
        """The stream with this name in the log; NotFound if there is none."""

    def event_range(self) -> tuple[int, int]:
        """The offsets of the oldest event in the log and of the next one."""

    def names(self) -> LogNames:
        """The names for the numbers in the event log."""

    def sync(self) -> None:
        """Return when everything that has happened until now can be read, if the log can wait for that."""


class BrokerLog:
    """The log of a live broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def journal(self) -> ReadableJournal:
        """Where the chunks and the events are."""
        return self._broker.journal

    def spans(self) -> list[StreamSpan]:
        with self._broker.lock:
            self._broker.check_open()
            return [_span_of(stream) for stream in self._broker.catalog.streams.values()]

    def span(self, name: str) -> StreamSpan:
        with self._broker.lock:
            return _span_of(self._stream(name))

    def stream(self, name: str) -> StreamDescription:
        """The stream with this name, described for a writer."""
        with self._broker.lock:
            return self._stream(name).describe()

    def _stream(self, name: str) -> Stream:
        kind, plain = kind_of(name)
        self._broker.check_open()
        catalog = self._broker.catalog
        return catalog.topic(plain) if kind == TOPIC else catalog.work_stream(plain)

    def find(self, name: str) -> StreamSpan:
        """The stream of a topic or work queue by its plain name; `topic:x` and `queue:x` select one if both exist."""
        with self._broker.lock:
            is_queue = name in self._broker.catalog.work_queues and name not in self._broker.catalog.topics
            return self.span(f"{QUEUE}:{name}" if is_queue else name)

    def written_at(self, name: str, offset: int) -> int | None:
        """When the message at an offset was published, or the event happened; None if the log does not have it.

        It may read the disk, but no message.
        """
        if name == EVENTS:
            return next((event.at for _, event in self.journal.read_events(offset, offset + 1)), None)
        with self._broker.lock:
            return self._broker.window.published_at(self._stream(name), offset)

    def event_range(self) -> tuple[int, int]:
        """The range of the written events, which may be slightly behind the current state."""
        return self._broker.journal.event_range()

    def sync(self) -> None:
        self._broker.sync()

    def names(self) -> LogNames:
        """The names for the numbers in the event log."""
        with self._broker.lock:
            catalog = self._broker.catalog
            return names_of(catalog.streams.values(), catalog.queues.values(), catalog.deleted_resources)


def _span_of(stream: Stream) -> StreamSpan:
    """The range of a live stream. Call it with the broker's lock held."""
    return StreamSpan(
        stream_name(stream.kind, stream.name), stream.number, stream.earliest, stream.next_offset, stream.published_at
    )


class _Stream(Protocol):
    number: int
    kind: str
    name: str


class _Queue(Protocol):
    number: int
    name: str
    stream: int


def names_of(streams: Iterable[_Stream], queues: Iterable[_Queue], deleted_resources: Mapping[int, DeletedResource]) -> LogNames:
    """The names for the numbers of these streams and queues."""
    names = LogNames({}, {}, {})
    for number, gone in deleted_resources.items():
        if gone.kind != SUBSCRIPTION:
            names.streams[number] = stream_name(gone.kind, gone.name)
        if gone.kind != TOPIC:
            names.queues[number], names.stream_of[number] = gone.name, gone.stream
    for stream in streams:
        names.streams[stream.number] = stream_name(stream.kind, stream.name)
    for queue in queues:
        names.queues[queue.number], names.stream_of[queue.number] = queue.name, queue.stream
    return names


def kind_of(name: str) -> tuple[str, str]:
    """(kind, name) of a stream's name in the log: the inverse of `stream_name`."""
    if isinstance(name, str):
        kind, _, plain = name.partition(":")
        if kind in {TOPIC, QUEUE} and plain:
            return kind, check_name(plain, "stream")
    return TOPIC, check_name(name, "stream")


def not_found(name: str) -> NotFound:
    """The error for a name without a stream in the log."""
    kind, plain = kind_of(name)
    return TopicNotFound(plain) if kind == TOPIC else QueueNotFound(plain)


def current(view: LogView, span: StreamSpan) -> StreamSpan:
    """The current state of a stream, if it is still the one of a span."""
    now = view.span(span.stream)
    if now.number != span.number:
        raise StreamReplaced(span.stream, now.number, span.number)
    return now


def check_range(stream: str, start: int, stop: int, earliest: int, latest: int) -> None:
    """Refuse a range that the log does not have completely."""
    for name, value in (("start", start), ("stop", stop)):
        if type(value) is not int:
            raise InvalidArgument.of(name, value, "an offset, a whole number")
    if not earliest <= start <= stop <= latest:
        raise OutOfRange(stream, stop if earliest <= start <= stop else start, earliest, latest)


def select(view: LogView, names: Sequence[str] | None = None, pattern: str | None = None) -> list[StreamSpan]:
    """The named streams (NotFound for a missing one), those whose whole name matches a pattern, or all; by name."""
    if names is not None and pattern is not None:
        raise InvalidArgument("names and pattern are both given, expected at most one of them")
    if names is not None:
        return [view.span(name) for name in dict.fromkeys(names)]
    found = view.spans()
    if pattern is not None:
        from penstock.broker.name_patterns import fitting  # noqa: PLC0415  # pyarrow is an extra

        wanted = fitting(pattern, [span.stream for span in found])
        found = [span for span in found if span.stream in wanted]
    return sorted(found, key=lambda span: span.stream)


def offsets_at(view: LogView, times: Mapping[str, int]) -> dict[str, int]:
    """For every stream, `EVENTS` too, the first offset published at or after an instant; its end if there is none."""
    found: dict[str, int] = {}
    for name, at in times.items():
        if name == EVENTS:
            earliest, latest = view.event_range()
            found[name] = earliest + bisect_left(range(earliest, latest), at, key=partial(_happened_at, view))
        else:
            span = view.span(name)
            within, published_at = range(span.earliest, span.latest), partial(_published_at, view, span.number)
            found[name] = span.earliest + bisect_left(within, at, key=published_at)
    return found


def _happened_at(view: LogView, offset: int) -> int:
    return next((event.at for _, event in view.journal.read_events(offset, offset + 1)), 0)


def _published_at(view: LogView, number: int, offset: int) -> int:
    """When a message was published; 0 if it has just left the log, since older messages leave first."""
    if view.journal.is_durable:
        # All messages of a chunk on disk were published in one commit, at one instant.
        return next((summary.published_at for summary in view.journal.summaries(number, offset, offset + 1)), 0)
    for summary, chunk in view.journal.read(number, offset, offset + 1):
        return chunk.published[offset - summary.first] if chunk.published is not None else summary.published_at
    return 0


def offsets_for(view: LogView, starts: Mapping[str, int], max_bytes: int) -> dict[str, int]:
    """The offsets that a reader reaches with this many bytes, shared fairly between the streams, at least one message of each.

    It stops earlier after `MAX_STEPS` chunks: call it again to continue.
    """
    if type(max_bytes) is not int or max_bytes < 1:
        raise InvalidArgument.of("max_bytes", max_bytes, "a whole number of bytes, at least 1")
    ends = dict(starts)
    # The stream with the least bytes so far is next, for at most a fair share at once.
    share, left = max(max_bytes // max(len(ends), 1), 1), max_bytes
    waiting: list[tuple[int, int, str, Iterator[tuple[int, int]]]] = []
    for turn, (name, start) in enumerate(starts.items()):
        waiting.append((0, turn, name, _steps(view, name, start, share)))
    looks = 0
    while waiting and ((left > 0 and looks < MAX_STEPS) or not waiting[0][0]):
        looks += 1
        taken, turn, name, steps = waiting[0]
        step = next(steps, None)
        if step is None:
            heapq.heappop(waiting)
            continue
        end, size = step
        if size > left and taken:
            left = 0
            continue
        ends[name] = end
        left -= size
        heapq.heapreplace(waiting, (taken + max(size, 1), turn, name, steps))
    return ends


def sizes_after(view: LogView, starts: Mapping[str, int]) -> dict[str, int]:
    """About how many bytes each stream has from an offset to its end. The rows of the first chunks stand for those of all."""
    found: dict[str, int] = {}
    for name, start in starts.items():
        if name == EVENTS:
            _, latest = view.event_range()
            found[name] = EVENT_BYTES * max(latest - start, 0)
            continue
        span = view.span(name)
        begin = max(start, span.earliest)
        rows = size = 0
        for summary in islice(view.journal.summaries(span.number, begin, span.latest), max(SIZED_CHUNKS // len(starts), 1)):
            count = min(summary.first + summary.count, span.latest) - max(begin, summary.first)
            rows += count
            size += summary.size * count // summary.count
        found[name] = size * (span.latest - begin) // rows if rows else 0
    return found


def _steps(view: LogView, name: str, start: int, share: int) -> Iterator[tuple[int, int]]:
    """(end, bytes) of each step through a stream: chunks, or parts of a chunk that is larger than a share."""
    if name == EVENTS:
        earliest, latest = view.event_range()
        check_range(name, start, latest, earliest, latest)
        yield from _parts(start, latest, EVENT_BYTES * (latest - start), share)
        return
    span = view.span(name)
    check_range(name, start, span.latest, span.earliest, span.latest)
    for summary in view.journal.summaries(span.number, start, span.latest):
        begin, end = max(start, summary.first), min(summary.first + summary.count, span.latest)
        yield from _parts(begin, end, summary.size * (end - begin) // summary.count, share)


def _parts(begin: int, end: int, size: int, share: int) -> Iterator[tuple[int, int]]:
    count = end - begin
    step = count if size <= share else max(count * share // size, 1)
    for first in range(begin, end, step):
        last = min(first + step, end)
        yield last, size * (last - first) // count
