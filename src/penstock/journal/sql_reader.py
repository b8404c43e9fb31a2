"""Reading a log in a database: checks and decodes rows, for SQLite and PostgreSQL, for the broker and for readers.

No read holds a transaction for longer than it takes to fetch some megabytes: meanwhile the database cannot reuse the space of
removed rows. A read that continues later may therefore find that retention has removed rows that it had not reached; its caller
sees the gap in the offsets.
"""

from __future__ import annotations

import hashlib
import struct
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from penstock import forks
from penstock.errors import BrokerClosed, CorruptLog
from penstock.journal.core import checkpoint as image
from penstock.journal.core import chunk as chunks
from penstock.journal.core import events
from penstock.journal.core.checkpoint import State
from penstock.journal.core.chunk import Chunk, Summary
from penstock.journal.core.events import Event

STREAM_BITS = 40
FETCH_BYTES = 4 * 1024 * 1024
FETCH_ROWS = 4_096
"""A transaction ends after this many rows or bytes. The first has a lower limit, because most reads are small."""
_OFFSETS = (1 << STREAM_BITS) - 1
CHUNK_COLUMNS = "position, count, size, published_at, plain, keyed, crc, body"
EVENT_COLUMNS = "first, count, at, crc, body"
_SUMMARY = "position, count, size, published_at, plain, keyed"


class Rows(Protocol):
    """The rows of an answer, each a tuple of its columns."""

    def fetchone(self) -> Any: ...
    def __iter__(self) -> Iterator[Any]: ...
    def close(self) -> None: ...


class Connection(Protocol):
    """A connection to a database. Queries have `?` for parameters."""

    def execute(self, query: str, parameters: Sequence[object] = ...) -> Rows: ...
    def close(self) -> None: ...


Row = tuple[Any, ...]
"""A stored row."""

ConnectionT = TypeVar("ConnectionT", bound=Connection)


class Verified(NamedTuple):
    """Counts of the data that was read and found intact."""

    streams: int = 0
    messages: int = 0
    events: int = 0
    bytes: int = 0
    """The size of the messages."""


class SqlReader(ABC, Generic[ConnectionT]):
    """The reading part of a journal in a database. A subclass implements what depends on the database."""

    is_durable = True
    _of_chunks = _of_events = _of_log = ""
    """The beginning of conditions on chunks, events and other tables: which log of the database, and how far it is read."""

    def __init__(self, path: str) -> None:
        self.path = path
        """The place of the log, for errors."""
        self._readers: list[ConnectionT] = []
        self._readers_lock = threading.Lock()
        self._is_open = True
        forks.own(self, "log")

    def after_fork(self) -> None:
        """In a child: refuse to open the parent's data directory."""
        forks.leave_behind(self.path)

    @abstractmethod
    def _connect_reader(self) -> ConnectionT:
        """Open a connection for a reader."""

    @abstractmethod
    def _guarded(self, where: str) -> AbstractContextManager[None]:
        """Convert errors of the database to ours."""

    @abstractmethod
    def snapshot(self, reader: ConnectionT) -> AbstractContextManager[None]:
        """A transaction in which all queries see the same snapshot."""

    @abstractmethod
    def _page(self, columns: str, table: str, condition: str, limit: int) -> str:
        """A query for rows with a `body`, in the order of their first column. Rows beyond `limit` bytes may be left out."""

    @abstractmethod
    def _check_database(self) -> Verified:
        """Run the integrity check of the database itself."""

    @abstractmethod
    def _check_mark(self) -> None:
        """Refuse a log that ends before the last confirmed event."""

    @abstractmethod
    def stored_checkpoint(self) -> tuple[int, bytes | None]:
        """The offset of the first event after the checkpoint, and the checkpoint itself, verified."""

    def load(self) -> tuple[State, Iterable[Event]]:
        since, body = self.stored_checkpoint()
        return (image.decode(body) if body is not None else State()), self.events_since(since, self.event_range()[1])

    def streams(self) -> list[int]:
        found: list[int] = []
        with self._reading("the chunks") as reader:
            # One lookup for each stream, instead of a scan of all chunks.
            query = f"SELECT position >> {STREAM_BITS} FROM chunks WHERE {self._of_chunks}position >= ? ORDER BY position LIMIT 1"
            while row := reader.execute(query, ((found[-1] + 1 << STREAM_BITS) if found else 0,)).fetchone():
                found.append(row[0])
        return found

    def earliest(self, stream: int) -> int | None:
        with self._reading(f"the chunks of stream {stream}") as reader:
            return self._earliest(reader, stream)

    def summaries(self, stream: int, start: int, stop: int) -> Iterator[Summary]:
        query = f"SELECT {_SUMMARY} FROM chunks WHERE {self._of_chunks}position >= ? AND position < ? ORDER BY position LIMIT ?"
        most = FETCH_ROWS // 64
        while start < stop:
            with self._reading(f"the chunks of stream {stream}") as reader:
                found = [_summary(row) for row in reader.execute(query, (*self._span(reader, stream, start, stop), most))]
            yield from found
            if len(found) < most:
                break
            start, most = found[-1].first + found[-1].count, min(4 * most, FETCH_ROWS)

    def read(self, stream: int, start: int, stop: int) -> Iterator[tuple[Summary, Chunk]]:
        condition = f"{self._of_chunks}position >= ? AND position < ?"
        is_over, limit = start >= stop, FETCH_BYTES // 16
        while not is_over:
            found: list[tuple[Summary, Chunk]] = []
            size, is_over = 0, True
            query = self._page(f"{_SUMMARY}, crc, body", "chunks", condition, limit)
            with (
                self._reading(f"the chunks of stream {stream}") as reader,
                closing(reader.execute(query, self._span(reader, stream, start, stop))) as rows,
            ):
                for *header, crc, body in rows:
                    summary = _summary(header)
                    where = f"offsets {summary.first} to {summary.first + summary.count - 1} of stream {stream}"
                    self._verify(tuple(header), body, crc, where)
                    found.append((summary, chunks.decode(body)))
                    start = summary.first + summary.count
                    size += len(body)
                    if size >= limit or len(found) >= FETCH_ROWS:
                        is_over, limit = start >= stop, min(4 * limit, FETCH_BYTES)
                        break
            yield from found

    def read_events(self, start: int, stop: int) -> Iterator[tuple[int, Event]]:
        condition = f"{self._of_events}first >= ? AND first < ?"
        expected: int | None = None
        is_over, limit = False, FETCH_BYTES // 16
        while not is_over:
            found: list[tuple[int, Event]] = []
            size, is_over = 0, True
            query = self._page("first, count, at, crc, body", "events", condition, limit)
            with self._reading("the event log") as reader, self.snapshot(reader):
                oldest, latest = self._stored_ends(reader)
                # Events that retention has removed in the meantime are not a hole.
                expected = self._record_of(reader, start, oldest) if expected is None else max(expected, oldest)
                with closing(reader.execute(query, (expected, stop))) as rows:
                    for *header, crc, body in rows:
                        first, count, _ = header
                        self._check_dense(expected, first, oldest)
                        expected = first + count
                        if expected <= start:
                            continue
                        self._verify(tuple(header), body, crc, f"events {first} to {first + count - 1}")
                        is_whole = start <= first and expected <= stop
                        for event in events.decode(body):
                            end = first + event.count
                            if is_whole or (first < stop and end > start):
                                found.append((first, event))
                            first = end
                        size += len(body)
                        if size >= limit or len(found) >= FETCH_ROWS:
                            is_over, limit = expected >= stop, min(4 * limit, FETCH_BYTES)
                            break
                if is_over:
                    self._check_dense(expected, min(stop, latest), oldest)
            yield from found

    def events_since(self, since: int, latest: int) -> Iterator[Event]:
        """The events after the checkpoint; a gap is refused, not skipped."""
        expected = since
        for first, event in self.read_events(since, latest):
            if first > expected:
                break
            expected = first + event.count
            yield event
        if expected != latest:
            raise CorruptLog(self.path, f"event {expected}", "the event is not in the log")

    def stored_chunks(self) -> Iterator[list[Row]]:
        """All chunks as rows of `CHUNK_COLUMNS`, verified, in pages."""
        return self._stored("chunks", CHUNK_COLUMNS, self._of_chunks)

    def stored_events(self) -> Iterator[list[Row]]:
        """All rows of the event log, with `EVENT_COLUMNS`, verified, in pages."""
        return self._stored("events", EVENT_COLUMNS, self._of_events)

    def stored_ends(self) -> dict[str, int]:
        """The start offsets of the event log and the streams, by their names in `meta`."""
        query = f"SELECT name, value FROM meta WHERE {self._of_log}(name = 'first_event' OR name LIKE 'removed_until:%')"
        with self._reading("the ends of the log") as reader:
            return dict(iter(reader.execute(query)))

    def fingerprint(self) -> str:
        """A SHA-256 over every row: equal logs have the same offsets, ids, times, checksums, contents and state."""
        digest = hashlib.sha256()
        for pages in (self.stored_chunks(), self.stored_events()):
            for rows in pages:
                for *header, body in rows:
                    digest.update(f"{header}{len(body)}".encode())
                    digest.update(body)
        since, checkpoint = self.stored_checkpoint()
        digest.update(f"{sorted(self.stored_ends().items())}{since}".encode())
        digest.update(checkpoint or b"")
        return digest.hexdigest()

    def _stored(self, table: str, columns: str, scope: str) -> Iterator[list[Row]]:
        key, last, is_over = columns.partition(",")[0], -1, False
        query = self._page(columns, table, f"{scope}{key} > ?", FETCH_BYTES)
        while not is_over:
            found: list[Row] = []
            size, is_over = 0, True
            with self._reading(f"the {table}") as reader, closing(reader.execute(query, (last,))) as rows:
                for row in rows:
                    *header, crc, body = row
                    self._verify(tuple(header), body, crc, f"{table} at {header[0]}")
                    found.append(tuple(row))
                    last, size = header[0], size + len(body)
                    if size >= FETCH_BYTES or len(found) >= FETCH_ROWS:
                        is_over = False
                        break
            if found:
                yield found

    def event_range(self) -> tuple[int, int]:
        with self._reading("the event log") as reader, self.snapshot(reader):
            return self._stored_ends(reader)

    def verify(self) -> None:
        """Read everything, for example before a restore; CorruptLog at the first error."""
        for check in self.checks():
            check()

    def checks(self) -> Iterator[Callable[[], Verified]]:
        """The parts of `verify`: each call reads one and returns its counts, or raises CorruptLog at the first error."""
        yield self._check_database
        yield self._check_checkpoint
        yield self._check_events
        for stream in self.streams():
            yield partial(self._check_stream, stream)

    def _check_checkpoint(self) -> Verified:
        _, since_checkpoint = self.load()
        for _ in since_checkpoint:
            pass
        return Verified()

    def _check_events(self) -> Verified:
        self._check_mark()
        return Verified(events=sum(event.count for _, event in self.read_events(*self.event_range())))

    def _check_stream(self, stream: int) -> Verified:
        messages = size = 0
        for summary, _ in self.read(stream, 0, 1 << STREAM_BITS):
            messages += summary.count
            size += summary.size
        return Verified(1, messages, bytes=size)

    def close(self) -> None:
        self._is_open = False
        forks.disown(self)
        with self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()

    def _stored_ends(self, reader: ConnectionT) -> tuple[int, int]:
        """The start and the end of the event log, from the database."""
        row = reader.execute(f"SELECT first + count FROM events{_where(self._of_events)} ORDER BY first DESC LIMIT 1").fetchone()
        latest = row[0] if row else 0
        row = reader.execute(f"SELECT value FROM meta WHERE {self._of_log}name = 'first_event'").fetchone()
        oldest = row[0] if row else 0
        if type(oldest) is not int or type(latest) is not int:
            raise CorruptLog(self.path, "the ends of the event log", "a row is invalid")
        return oldest, latest

    def _earliest(self, reader: ConnectionT, stream: int) -> int | None:
        base = stream << STREAM_BITS
        query = f"SELECT position FROM chunks WHERE {self._of_chunks}position >= ? AND position <= ? ORDER BY position LIMIT 1"
        row = reader.execute(query, (base, base | _OFFSETS)).fetchone()
        return max(row[0] & _OFFSETS, self._removed_until(reader, stream)) if row is not None else None

    def _removed_until(self, reader: ConnectionT, stream: int) -> int:
        row = reader.execute(f"SELECT value FROM meta WHERE {self._of_log}name = ?", (removed_until(stream),)).fetchone()
        return int(row[0]) if row is not None else 0

    def _span(self, reader: ConnectionT, stream: int, start: int, stop: int) -> tuple[int, int]:
        """The positions of the chunks that overlap a range: the first may begin before it."""
        base = stream << STREAM_BITS
        condition = f"{self._of_chunks}position >= ? AND position <= ?"
        query = f"SELECT position, count FROM chunks WHERE {condition} ORDER BY position DESC LIMIT 1"
        row = reader.execute(query, (base, base | start)).fetchone()
        low = row[0] if row is not None and row[0] + row[1] > base | start else base | start
        return low, base + stop

    def _record_of(self, reader: ConnectionT, event: int, oldest: int) -> int:
        """The first offset of the record with an event, or of the oldest record if the event is older."""
        if event <= oldest:
            return oldest
        row = reader.execute(f"SELECT max(first) FROM events WHERE {self._of_events}first <= ?", (event,)).fetchone()
        return event if row is None or row[0] is None else row[0]

    def _check_dense(self, expected: int, found: int, oldest: int) -> None:
        """Refuse a hole in the event log, unless retention has removed the events."""
        if max(expected, oldest) < found:
            raise CorruptLog(self.path, f"event {expected}", "the event is not in the log")

    def _verify(self, header: tuple[int | None, ...], body: bytes, crc: int, where: str) -> None:
        try:
            is_intact = checksum(header, body) == crc
        except (struct.error, TypeError) as error:
            raise CorruptLog(self.path, where, f"a row is invalid: {error}") from error
        if not is_intact:
            raise CorruptLog(self.path, where, "the checksum does not fit the bytes")

    @contextmanager
    def _reading(self, where: str) -> Iterator[ConnectionT]:
        with self._readers_lock:
            if not self._is_open:
                raise BrokerClosed
            reader = self._readers.pop() if self._readers else None
        with self._guarded(where):
            if reader is None:
                reader = self._connect_reader()
            try:
                yield reader
            except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
                # A damaged row has columns of other types, or a body that does not decode.
                raise CorruptLog(self.path, where, f"a row is invalid: {error}") from error
            finally:
                self._give_back(reader)

    def _give_back(self, reader: ConnectionT) -> None:
        with self._readers_lock:
            if self._is_open:
                self._readers.append(reader)
            else:
                reader.close()


def removed_until(stream: int) -> str:
    """The name in `meta` of the offset up to which chunks of a stream were removed, while it has other chunks."""
    return f"removed_until:{stream}"


def checksum(header: tuple[int | None, ...], body: bytes) -> int:
    """The checksum of a row: of its small columns and its body."""
    numbers = [-1 if number is None else number for number in header]
    return zlib.crc32(body, zlib.crc32(struct.pack(f"<{len(numbers)}q", *numbers)))


def _where(scope: str) -> str:
    """A WHERE clause with only the scope."""
    return f" WHERE {scope.removesuffix(' AND ')}" if scope else ""


def _summary(row: Sequence[int]) -> Summary:
    position, count, size, published_at, plain, keyed = row
    if not all(type(value) is int for value in (position, count, size, published_at, keyed, plain or 0)):
        raise TypeError(f"columns {row!r}")
    return Summary(position & _OFFSETS, count, size, published_at, plain, bool(keyed))
