"""A journal in memory: it is lost when its process ends.

The default of `MessageQueue()` and of tests: the same log, events, replay and retention as on disk, but not durable. It stores
the message objects themselves, one pointer each. Settled messages stay for replay until retention removes them, or until they
exceed `history_bytes`, so that a busy broker in memory does not grow for a week.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice

from penstock.durations import SECOND
from penstock.ids import MAX_OFFSET
from penstock.journal.core.checkpoint import State
from penstock.journal.core.chunk import Chunk, Summary, pack
from penstock.journal.core.events import Event
from penstock.journal.journal import Commit
from penstock.values.message import Batch, StoredMessage, summarize

EVENT_RECORDS = 100_000
EVENTS = 1_000_000
"""One record may contain a thousand events or more, each of about 20 bytes."""
SLACK = 1_000
"""How many records may exceed the limit before the oldest are removed together."""
MERGED = 64
"""Chunks with fewer messages grow: a chunk for each message would need more memory than the message."""
MERGED_BYTES = 64 * 1024
"""A chunk grows to at most this many bytes, and larger batches are divided, so that large messages are removed singly."""
MERGED_SPAN = 60 * SECOND
"""A chunk does not grow for longer than this, because it is removed as a whole."""


class _Log:
    """The chunks of a stream: their first offsets, and their messages."""

    __slots__ = ("earliest", "firsts", "messages", "room")

    def __init__(self, earliest: int = 0) -> None:
        self.firsts: list[int] = []
        self.messages: list[list[StoredMessage]] = []
        self.earliest = earliest
        """The offset from which on nothing was removed."""
        self.room = -1
        """How many bytes the last chunk may still grow by; negative if it may not grow, or there is none."""

    def add(self, first: int, messages: list[StoredMessage], size: int) -> None:
        # Readers in other threads only read up to the length of `firsts`.
        self.messages.append(messages)
        self.firsts.append(first)
        self.room = MERGED_BYTES - size

    def covering(self, start: int, stop: int) -> range:
        begin = max(bisect_right(self.firsts, start) - 1, 0)
        end = bisect_right(self.firsts, stop - 1)
        if begin < end and self.firsts[begin] + len(self.messages[begin]) <= start:
            begin += 1
        return range(begin, end)


class MemoryJournal:
    """A journal in the memory of this process."""

    is_durable = False

    def __init__(self) -> None:
        self._logs: dict[int, _Log] = {}
        self._events: deque[Event] = deque()
        self._first_event = 0
        """The offset of the oldest stored event; the others are counted from it when they are read."""
        self._counted = 0, 0
        """How many records, from the oldest one on, were counted, and the offset after the last of them."""
        self._held_event = MAX_OFFSET
        self._shed_at = SLACK
        self._events_lock = threading.Lock()
        """Held while old events are removed, and while readers copy the list."""

    def load(self) -> tuple[State, Iterable[Event]]:
        return State(), ()

    def append(self, commit: Commit) -> None:
        for append in commit.appends:
            self.keep(append.stream, append.first, append.batch)
        for event in commit.events:
            self.note(event)

    def keep(self, stream: int, first: int, batch: Batch) -> None:
        log, messages = self._logs.get(stream), batch.messages
        if log is None:
            log = self._logs[stream] = _Log()
        if batch.size <= log.room:  # so there is a last chunk
            last = log.messages[-1]
            if len(last) < MERGED and messages[0].publish_at - last[0].publish_at < MERGED_SPAN:
                last += messages
                log.room -= batch.size
                return
        if batch.size <= MERGED_BYTES or len(messages) == 1:
            log.add(first, list(messages), batch.size)
            return
        part, size = list[StoredMessage](), 0
        for message in messages:
            if part and size + message.size > MERGED_BYTES:
                log.add(first, part, size)
                first += len(part)
                part, size = [], 0
            part.append(message)
            size += message.size
        log.add(first, part, size)

    def note(self, event: Event) -> None:
        self._events.append(event)
        if len(self._events) > self._shed_at:
            self._shed_events()
            self._shed_at = len(self._events) + SLACK

    def checkpoint(self, state: State) -> None:
        """Do nothing: a journal in memory is never opened again."""

    def streams(self) -> list[int]:
        return list(self._logs)

    def earliest(self, stream: int) -> int | None:
        log = self._logs.get(stream)
        return max(log.earliest, log.firsts[0]) if log is not None else None

    def summaries(self, stream: int, start: int, stop: int) -> Iterator[Summary]:
        for first, messages in self._overlapping(stream, start, stop):
            yield _summary(first, messages)

    def read(self, stream: int, start: int, stop: int) -> Iterator[tuple[Summary, Chunk]]:
        for first, messages in self._overlapping(stream, start, stop):
            yield _summary(first, messages), pack(messages)

    def read_events(self, start: int, stop: int) -> Iterator[tuple[int, Event]]:
        with self._events_lock:
            first, kept = self._first_event, list(self._events)
        for event in kept:
            if first >= stop:
                break
            if first + event.count > start:
                yield first, event
            first += event.count

    def event_range(self) -> tuple[int, int]:
        with self._events_lock:
            counted, stop = self._counted
            if counted < len(self._events):
                fresh = list(islice(list(self._events), counted, None))
                stop += sum([event.count for event in fresh])
                self._counted = counted + len(fresh), stop
            return self._first_event, stop

    def trim(self, stream: int, chunks: list[int]) -> None:
        log = self._logs.get(stream)
        if log is not None:
            gone, kept = set(chunks), _Log(log.earliest)
            for first, messages in zip(log.firsts, log.messages, strict=True):
                if first in gone:
                    kept.earliest = max(kept.earliest, first + len(messages))
                else:
                    kept.messages.append(messages)
                    kept.firsts.append(first)
            # If the last chunk was removed, the next messages begin a new one.
            kept.room = log.room if kept.firsts and kept.firsts[-1] == log.firsts[-1] else -1
            if kept.firsts:
                self._logs[stream] = kept
            else:
                del self._logs[stream]

    def trim_events(self, before: int) -> None:
        with self._events_lock:
            old = 0
            for event in list(self._events):
                if event.at >= before:
                    break
                old += 1
            self._drop_events(old)

    def hold_events(self, start: int | None) -> None:
        self._held_event = MAX_OFFSET if start is None else start

    def _shed_events(self) -> None:
        """Remove the oldest records if there are too many, or too many events in them. Only for the thread that adds events."""
        with self._events_lock:
            counted, stop = self._counted
            stop += sum([event.count for event in islice(reversed(self._events), len(self._events) - counted)])
            self._counted = len(self._events), stop
            self._drop_events(len(self._events) - EVENT_RECORDS, stop - EVENTS)

    def _drop_events(self, most: int, before: int = 0) -> None:
        """Remove the `most` oldest records and all before an offset, except those that are held. Call it with their lock held."""
        counted, stop = self._counted
        dropped = 0
        while self._events and (end := self._first_event + self._events[0].count) <= self._held_event:
            if dropped >= most and end > before:
                break
            self._events.popleft()
            self._first_event = end
            dropped += 1
        self._counted = (counted - dropped, stop) if counted >= dropped else (0, self._first_event)

    def close(self) -> None:
        self._logs.clear()

    def _overlapping(self, stream: int, start: int, stop: int) -> list[tuple[int, list[StoredMessage]]]:
        log = self._logs.get(stream)
        # Copies: the last chunk may grow while it is read.
        return [(log.firsts[index], log.messages[index][:]) for index in log.covering(start, stop)] if log else []


def _summary(first: int, messages: list[StoredMessage]) -> Summary:
    batch = summarize(messages)
    return Summary(first, len(messages), batch.size, messages[-1].publish_at, batch.priority, batch.keyed)
