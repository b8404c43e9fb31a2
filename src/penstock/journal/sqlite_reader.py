"""Reading the log in a data directory: rows checked and decoded, the same for the broker itself and for readers.

No read holds a transaction for longer than it takes to fetch some megabytes: while one is held, SQLite cannot take what is in
its write-ahead log over into the database, and the log grows. A read that continues later may therefore find that retention has
removed what it had not reached; its caller sees the gap in the offsets.
"""

from __future__ import annotations

import struct
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import apsw
import msgspec

from penstock import forks
from penstock.errors import BrokerClosed, CorruptLog, JournalUnavailable, PenstockError
from penstock.journal import formats
from penstock.journal.core import checkpoint as image
from penstock.journal.core import chunk as chunks
from penstock.journal.core import events
from penstock.journal.core.checkpoint import State
from penstock.journal.core.chunk import Chunk, Summary
from penstock.journal.core.events import Event
from penstock.journal.directory import check_mark

STREAM_BITS = 40
FETCH_BYTES = 4 * 1024 * 1024
FETCH_ROWS = 4_096
"""A transaction ends after this many rows or bytes, whichever comes first. The first ends sooner: most reads are small."""
_OFFSETS = (1 << STREAM_BITS) - 1
# Our own SQL is fixed: an error in it, or a broken constraint, can only come from the file.
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.ConstraintError, apsw.SQLError)
_SUMMARY = "SELECT position, count, size, published_at, plain, keyed"
_TABLES = {"meta", "chunks", "events", "checkpoint"}


class Verified(NamedTuple):
    """What was read and found intact."""

    streams: int = 0
    messages: int = 0
    events: int = 0
    bytes: int = 0
    """Of the messages."""


class SqliteReader(ABC):
    """The reading half of a journal in SQLite. Who inherits says how to connect."""

    is_durable = True

    def __init__(self, path: str) -> None:
        self.path = path
        """The data directory."""
        self._readers: list[apsw.Connection] = []
        self._readers_lock = threading.Lock()
        self._is_open = True
        forks.own(self, "log")

    def after_fork(self) -> None:
        """In a child: the files are the parent's."""
        forks.leave_behind(self.path)

    @abstractmethod
    def _connect_reader(self) -> apsw.Connection:
        """A connection of its own for somebody who reads."""

    def load(self) -> tuple[State, Iterable[Event]]:
        since, body = self.stored_checkpoint()
        return (image.decode(body) if body is not None else State()), self.events_since(since, self.event_range()[1])

    def stored_checkpoint(self) -> tuple[int, bytes | None]:
        """The offset of the first event that the checkpoint does not cover, and the checkpoint itself, verified."""
        with self._reading("the checkpoint") as reader:
            row = reader.execute("SELECT events, crc, body FROM checkpoint").fetchone()
        if row is None:
            return 0, None
        since, crc, body = row
        self._verify((since,), body, crc, "the checkpoint")
        return since, body

    def streams(self) -> list[int]:
        found: list[int] = []
        with self._reading("the chunks") as reader:
            # One look-up for each stream, instead of a walk over all chunks.
            query = f"SELECT position >> {STREAM_BITS} FROM chunks WHERE position >= ? ORDER BY position LIMIT 1"
            while row := reader.execute(query, ((found[-1] + 1 << STREAM_BITS) if found else 0,)).fetchone():
                found.append(row[0])
        return found

    def earliest(self, stream: int) -> int | None:
        with self._reading(f"the chunks of stream {stream}") as reader:
            return self._earliest(reader, stream)

    def summaries(self, stream: int, start: int, stop: int) -> Iterator[Summary]:
        query = f"{_SUMMARY} FROM chunks WHERE position >= ? AND position < ? ORDER BY position LIMIT ?"
        most = FETCH_ROWS // 64
        while start < stop:
            with self._reading(f"the chunks of stream {stream}") as reader:
                found = [_summary(row) for row in reader.execute(query, (*self._span(reader, stream, start, stop), most))]
            yield from found
            if len(found) < most:
                break
            start, most = found[-1].first + found[-1].count, min(4 * most, FETCH_ROWS)

    def read(self, stream: int, start: int, stop: int) -> Iterator[tuple[Summary, Chunk]]:
        query = f"{_SUMMARY}, crc, body FROM chunks WHERE position >= ? AND position < ? ORDER BY position"
        is_over, limit = start >= stop, FETCH_BYTES // 16
        while not is_over:
            found: list[tuple[Summary, Chunk]] = []
            size, is_over = 0, True
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
        query = "SELECT first, count, at, crc, body FROM events WHERE first >= ? AND first < ? ORDER BY first"
        expected: int | None = None
        is_over, limit = False, FETCH_BYTES // 16
        while not is_over:
            found: list[tuple[int, Event]] = []
            size, is_over = 0, True
            with self._reading("the event log") as reader, snapshot(reader):
                oldest, latest = self._stored_ends(reader)
                # What retention has removed in the meantime is no hole.
                expected = _record_of(reader, start, oldest) if expected is None else max(expected, oldest)
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

    def event_range(self) -> tuple[int, int]:
        with self._reading("the event log") as reader, snapshot(reader):
            return self._stored_ends(reader)

    def verify(self) -> None:
        """Read everything, as a restore from backup should; raises CorruptLog at the first byte that is wrong."""
        for check in self.checks():
            check()

    def checks(self) -> Iterator[Callable[[], Verified]]:
        """The parts of `verify`: each call reads one, returns what it has read, and raises CorruptLog at the first error."""
        yield self._check_database
        yield self._check_checkpoint
        yield self._check_events
        for stream in self.streams():
            yield partial(self._check_stream, stream)

    def _check_database(self) -> Verified:
        with self._reading("the database") as reader:
            for (finding,) in reader.execute("PRAGMA integrity_check(1)"):
                if finding != "ok":
                    raise CorruptLog(self.path, "the database", str(finding))
        return Verified()

    def _check_checkpoint(self) -> Verified:
        _, since_checkpoint = self.load()
        for _ in since_checkpoint:
            pass
        return Verified()

    def _check_events(self) -> Verified:
        check_mark(Path(self.path), lambda: self.event_range()[1], is_needed=True)
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

    def _connected(self, database: str, flags: int, vfs: str | None = None) -> apsw.Connection:
        """A connection, which every way to connect makes here."""
        forks.check_directory(self.path)
        connection = apsw.Connection(database, flags=flags, vfs=vfs)
        forks.keep_open(connection)
        connection.set_busy_timeout(5_000)
        return connection

    def _check_format(self, reader: apsw.Connection, database: str) -> int:
        """Refuse a database that is no log, or whose format cannot be read; returns the format, which may be an older one."""
        tables = {str(table) for (table,) in reader.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if not tables >= _TABLES:
            raise CorruptLog(self.path, database, f"tables are missing, found {sorted(tables)}")
        row = reader.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        return formats.check_number(self.path, row and row[0])

    def _stored_ends(self, reader: apsw.Connection) -> tuple[int, int]:
        """The ends of the event log as they are on disk."""
        row = reader.execute("SELECT first + count FROM events ORDER BY first DESC LIMIT 1").fetchone()
        latest = row[0] if row else 0
        row = reader.execute("SELECT value FROM meta WHERE name = 'first_event'").fetchone()
        oldest = row[0] if row else 0
        if type(oldest) is not int or type(latest) is not int:
            raise CorruptLog(self.path, "the ends of the event log", "a row is invalid")
        return oldest, latest

    def _earliest(self, reader: apsw.Connection, stream: int) -> int | None:
        base = stream << STREAM_BITS
        query = "SELECT position FROM chunks WHERE position >= ? AND position <= ? ORDER BY position LIMIT 1"
        row = reader.execute(query, (base, base | _OFFSETS)).fetchone()
        return max(row[0] & _OFFSETS, self._removed_until(reader, stream)) if row is not None else None

    @staticmethod
    def _removed_until(reader: apsw.Connection, stream: int) -> int:
        row = reader.execute("SELECT value FROM meta WHERE name = ?", (removed_until(stream),)).fetchone()
        return row[0] if row is not None else 0

    @staticmethod
    def _span(reader: apsw.Connection, stream: int, start: int, stop: int) -> tuple[int, int]:
        """The positions of the chunks that overlap a range: the first may begin before it."""
        base = stream << STREAM_BITS
        query = "SELECT position, count FROM chunks WHERE position >= ? AND position <= ? ORDER BY position DESC LIMIT 1"
        row = reader.execute(query, (base, base | start)).fetchone()
        low = row[0] if row is not None and row[0] + row[1] > base | start else base | start
        return low, base + stop

    def _check_dense(self, expected: int, found: int, oldest: int) -> None:
        """Refuse a hole in the event log; one that retention made is none."""
        if max(expected, oldest) < found:
            raise CorruptLog(self.path, f"event {expected}", "the event is not in the log")

    def _verify(self, header: tuple[int | None, ...], body: bytes, crc: int, where: str) -> None:
        try:
            is_intact = checksum(header, body) == crc
        except (struct.error, TypeError) as error:
            raise CorruptLog(self.path, where, f"a row is invalid: {error}") from error
        if not is_intact:
            raise CorruptLog(self.path, where, "the checksum does not fit the bytes")

    def _translated(self, error: apsw.Error, where: str) -> PenstockError:
        """What SQLite or the disk says, in our words."""
        if isinstance(error, _DAMAGE):
            return CorruptLog(self.path, where, str(error))
        return JournalUnavailable(self.path, f"{where}: {error}")

    @contextmanager
    def _reading(self, where: str) -> Iterator[apsw.Connection]:
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

    def _give_back(self, reader: apsw.Connection) -> None:
        with self._readers_lock:
            if self._is_open:
                self._readers.append(reader)
            else:
                reader.close()

    @contextmanager
    def _guarded(self, where: str) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise self._translated(error, where) from error


@contextmanager
def snapshot(reader: apsw.Connection) -> Iterator[None]:
    """Several questions, answered as of one moment."""
    reader.execute("BEGIN")
    try:
        yield
    finally:
        reader.execute("COMMIT")


def removed_until(stream: int) -> str:
    """Where `meta` says up to which offset chunks of a stream were removed, while there are others left."""
    return f"removed_until:{stream}"


def checksum(header: tuple[int | None, ...], body: bytes) -> int:
    """A checksum of a row: of its small columns and its body."""
    numbers = [-1 if number is None else number for number in header]
    return zlib.crc32(body, zlib.crc32(struct.pack(f"<{len(numbers)}q", *numbers)))


def _record_of(reader: apsw.Connection, event: int, oldest: int) -> int:
    """The first offset of the record that holds an event, or of the oldest record when the event is older."""
    if event <= oldest:
        return oldest
    row = reader.execute("SELECT max(first) FROM events WHERE first <= ?", (event,)).fetchone()
    return event if row is None or row[0] is None else row[0]


def _summary(row: Sequence[int]) -> Summary:
    position, count, size, published_at, plain, keyed = row
    if not all(type(value) is int for value in (position, count, size, published_at, keyed, plain or 0)):
        raise TypeError(f"columns {row!r}")
    return Summary(position & _OFFSETS, count, size, published_at, plain, bool(keyed))
