"""Which messages are in memory, and how the others are read back from the journal.

A broker in memory holds all messages. A durable one holds up to `budget` bytes, including `OVERHEAD` for each message; other
messages are only in the log and are read when they are due. Messages that all queues have consumed are dropped first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

from penstock.broker.core.outcome import RestorePart
from penstock.broker.core.pages import OVERHEAD, PAGE
from penstock.broker.core.stream import Stream
from penstock.errors import CorruptLog
from penstock.journal.core.checkpoint import QueueImage
from penstock.journal.core.chunk import Summary
from penstock.journal.core.ranges import Ranges, subtract
from penstock.journal.journal import Journal, ReadableJournal
from penstock.values.message import Batch, StoredMessage, summarize

READ_AHEAD = 4 * PAGE
READ_BYTES = 16 * 1024 * 1024
"""How many bytes are read at once. A larger message is read alone."""
RETRY_EVERY = 64
"""A full window searches pages to drop only once in this many batches: the search examines all pages."""


class Window:
    """The resident part of all streams."""

    def __init__(self, journal: Journal, budget: int | None) -> None:
        self._journal = journal
        self._budget = budget
        self._size = 0
        self._refused = 0
        """Batches without room since the last one with room."""
        self._pages: dict[tuple[int, int], Stream] = {}

    def admit(self, stream: Stream, first: int, batch: Batch) -> None:
        """Hold new messages, if there is room."""
        if self._budget is not None:
            room = self._budget - batch.size - OVERHEAD * len(batch.messages)
            if self._size > room and self._refused % RETRY_EVERY == 0:
                self._drop_consumed()
            if self._size > room:
                self._refused += 1
                return
            self._refused = 0
            for page in range(first // PAGE, (first + len(batch.messages) - 1) // PAGE + 1):
                self._pages.setdefault((stream.number, page), stream)
        self._size += stream.pages.put(first, batch.messages, batch.size)

    def fetch(self, stream: Stream, offset: int) -> list[tuple[int, list[StoredMessage]]]:
        """Read the messages around an offset, and some after them. Needs no lock; pass the result to `hold`."""
        room = READ_BYTES if self._budget is None else min(READ_BYTES, self._budget)
        page = offset - offset % PAGE
        chunks = self._journal.summaries(stream.number, page, offset + 1)
        before = sum(chunk.size + OVERHEAD * chunk.count for chunk in chunks)
        start, stop = page if before <= room else offset, min(page + READ_AHEAD, stream.next_offset)
        runs: list[tuple[int, list[StoredMessage]]] = []
        for first, messages in read(self._journal, stream.number, start, stop):
            count = 0
            for message in messages:
                room -= message.size + OVERHEAD
                if room < 0 and first + count > offset:
                    break
                count += 1
            if count:
                runs.append((first, messages[:count]))
            if count < len(messages):
                break
        return runs

    def hold(self, stream: Stream, runs: list[tuple[int, list[StoredMessage]]]) -> None:
        """Hold the messages that `fetch` read, replacing those that were held."""
        pages = {page for first, messages in runs for page in range(first // PAGE, (first + len(messages) - 1) // PAGE + 1)}
        for page in pages:
            self._drop(stream, page)
        for first, messages in runs:
            self._size += stream.pages.put(first, messages, summarize(messages).size)
        if self._budget is not None:
            # The requested page is the first of them, and is dropped last.
            for page in sorted(pages, reverse=True):
                self._pages[stream.number, page] = stream
            while self._size > self._budget and len(self._pages) > 1:
                (_, page), oldest = next(iter(self._pages.items()))
                self._drop(oldest, page)

    def published_at(self, stream: Stream, offset: int) -> int | None:
        """When a message was published, without reading the message; None if the log does not have it."""
        message = stream.pages.get(offset)
        if message is not None:
            return message.publish_at
        if self._journal.is_durable:
            # All messages of a chunk on disk were published in one commit, at one instant.
            summary = next(self._journal.summaries(stream.number, offset, offset + 1), None)
            return summary.published_at if summary is not None else None
        run = next(read(self._journal, stream.number, offset, offset + 1), None)
        return run[1][0].publish_at if run is not None else None

    def forget(self, stream: Stream, gone: Ranges) -> None:
        pages = sorted(stream.pages.page_numbers())
        kept: dict[int, Ranges] = {page: [] for page in pages}
        for start, stop in subtract([(page * PAGE, (page + 1) * PAGE) for page in pages], gone):
            kept[start // PAGE].append((start, stop))
        for page, ranges in kept.items():
            if ranges != [(page * PAGE, (page + 1) * PAGE)]:
                self._drop(stream, page, ranges)

    def forget_deleted(self, streams: Mapping[int, Stream]) -> None:
        """Drop the pages of deleted streams."""
        for (number, page), stream in list(self._pages.items()):
            if number not in streams:
                self._drop(stream, page)

    def _drop_consumed(self) -> None:
        """Drop pages that no queue of their stream has still to deliver."""
        fronts: dict[int, int] = {}
        for (number, page), stream in list(self._pages.items()):
            if number not in fronts:
                oldest = [queue.oldest_waiting() for queue in stream.queues]
                fronts[number] = min((offset for offset in oldest if offset is not None), default=stream.next_offset)
            start, stop = max(fronts[number], page * PAGE), (page + 1) * PAGE
            if start > page * PAGE:
                self._drop(stream, page, [(start, stop)] if start < stop else [])

    def _drop(self, stream: Stream, page: int, kept: Ranges | None = None) -> None:
        """Drop a page, except the offsets in `kept`."""
        self._size -= stream.pages.drop(page, kept)
        if page not in stream.pages:
            self._pages.pop((stream.number, page), None)


def read(journal: ReadableJournal, stream: int, start: int, stop: int) -> Iterator[tuple[int, list[StoredMessage]]]:
    """Runs of messages within a range of offsets."""
    for summary, chunk in journal.read(stream, start, stop):
        messages = chunk.messages(summary.published_at)
        low, high = max(start, summary.first), min(stop, summary.first + summary.count)
        yield low, messages[low - summary.first : high - summary.first]


def pieces(journal: Journal, image: QueueImage) -> Iterator[RestorePart]:
    """The pieces to restore a queue from. Every chunk is read at most once; plain ones without deliveries are only counted."""
    touched = sorted(image.traces)
    unsettled = iter(image.unsettled)
    span = next(unsettled, None)
    if span is None:
        return
    expected = span[0]
    for summary in journal.summaries(image.stream, span[0], image.unsettled[-1][1]):
        end = summary.first + summary.count
        parts: Ranges = []
        while span is not None and expected < end and span[0] < end:
            if expected < summary.first:
                raise _missing(journal, image, expected)
            parts.append((expected, min(span[1], end)))
            expected = parts[-1][1]
            if expected == span[1]:
                span = next(unsettled, None)
                expected = span[0] if span is not None else expected
        if parts:
            yield from _pieces_of(journal, image, summary, parts, touched)
    if span is not None:
        raise _missing(journal, image, expected)


def _pieces_of(journal: Journal, image: QueueImage, summary: Summary, parts: Ranges, touched: list[int]) -> Iterator[RestorePart]:
    first, end = summary.first, summary.first + summary.count
    is_matched = not image.policy.filter or end <= image.high
    is_free = summary.priority is not None and not (image.policy.ordered and summary.keyed)
    if parts == [(first, end)] and is_matched and is_free and not _any_between(touched, first, end):
        # A chunk in memory grows for some time, so its instant may be later than that of its first message.
        published_at = summary.published_at if journal.is_durable else 0
        yield RestorePart(first, summary.count, published_at, summary.priority or 0, summary.size)
        return
    for start, messages in read(journal, image.stream, first, end):
        for low, high in parts:
            yield RestorePart(low, high - low, messages[low - start].publish_at, messages=messages[low - start : high - start])


def _missing(journal: Journal, image: QueueImage, offset: int) -> CorruptLog:
    where = f"offset {offset} of stream {image.stream}, which {image.name!r} has still to deliver"
    return CorruptLog(getattr(journal, "path", "memory"), where, "the message is not in the log")


def _any_between(sorted_offsets: list[int], low: int, high: int) -> bool:
    index = bisect_left(sorted_offsets, low)
    return index < len(sorted_offsets) and sorted_offsets[index] < high
