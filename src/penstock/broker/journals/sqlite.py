"""The journal of a durable broker: SQLite in WAL mode, every commit synced before it returns.

One connection writes; it belongs to whoever calls `append`. Readers take a connection of their own from a small pool and never
wait for the writer. Whatever SQLite or the disk says is turned into one of two errors: `JournalUnavailable` (try again later,
nothing was stored) or `CorruptLog` (these bytes are not what was written).
"""

from __future__ import annotations

import os
import struct
import threading
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib.resources import files

import apsw

from penstock.broker.core import chunk as chunks
from penstock.broker.core import events, image
from penstock.broker.core.chunk import Chunk, Summary
from penstock.broker.core.events import Event
from penstock.broker.core.image import State
from penstock.broker.journal import Commit
from penstock.broker.journals.directory import FORMAT, Directory
from penstock.errors import BrokerClosed, CorruptLog, JournalUnavailable, PenstockError

STREAM_BITS = 40
CHECKPOINT_PAGES = 1_000
# Our own SQL is fixed: an error in it, or a broken constraint, can only come from the file.
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.ConstraintError, apsw.SQLError)
_SUMMARY = "SELECT position, count, size, published_at, plain, keyed"


class SqliteJournal:
    """The journal in a data directory."""

    is_durable = True

    def __init__(self, data_dir: str | os.PathLike[str], *, vfs: str | None = None) -> None:
        self._directory = Directory(data_dir)
        self._vfs = vfs
        self._readers: list[apsw.Connection] = []
        self._readers_lock = threading.Lock()
        self._first_event = 0
        self._next_event = 0
        self._is_open = True
        self._has_written = False
        self._writer: apsw.Connection | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    @property
    def path(self) -> str:
        """The data directory."""
        return str(self._directory.path)

    def load(self) -> tuple[State, Iterable[Event]]:
        with self._reading("the checkpoint") as reader:
            row = reader.execute("SELECT events, crc, body FROM checkpoint").fetchone()
        if row is None:
            return State(), self._events_since(0)
        since, crc, body = row
        self._verify((since,), body, crc, "the checkpoint")
        return image.decode(body), self._events_since(since)

    def append(self, commit: Commit) -> None:
        rows: list[tuple[int | bytes | None, ...]] = []
        for append in commit.appends:
            batch = append.batch
            body = chunks.encode(chunks.pack(batch.messages))
            position = append.stream << STREAM_BITS | append.first
            header = (position, len(batch.messages), batch.size, append.at, batch.priority, int(batch.keyed))
            rows.append((*header, _crc(header, body), body))
        count = sum([event.count for event in commit.events])
        with self._writing() as writer:
            for row in rows:
                writer.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            if count:
                body = events.encode(commit.events)
                mark = (self._next_event, count, commit.at)
                writer.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (*mark, _crc(mark, body), body))
            if not rows and not count:
                writer.execute("INSERT OR REPLACE INTO meta VALUES ('probe', ?)", (commit.at,))
        self._next_event += count
        self._directory.mark(self._next_event)

    def checkpoint(self, state: State) -> None:
        body = image.encode(state)
        row = (self._next_event, _crc((self._next_event,), body), body)
        with self._writing() as writer:
            writer.execute("INSERT OR REPLACE INTO checkpoint VALUES (1, ?, ?, ?)", row)

    def streams(self) -> list[int]:
        found: list[int] = []
        with self._reading("the chunks") as reader:
            # One look-up for each stream, instead of a walk over all chunks.
            query = f"SELECT position >> {STREAM_BITS} FROM chunks WHERE position >= ? ORDER BY position LIMIT 1"
            while row := reader.execute(query, ((found[-1] + 1 << STREAM_BITS) if found else 0,)).fetchone():
                found.append(row[0])
        return found

    def summaries(self, stream: int, start: int, stop: int) -> Iterator[Summary]:
        query = f"{_SUMMARY} FROM chunks WHERE position >= ? AND position < ? ORDER BY position"
        with self._reading(f"the chunks of stream {stream}") as reader:
            for row in reader.execute(query, self._span(reader, stream, start, stop)):
                yield _summary(row)

    def read(self, stream: int, start: int, stop: int) -> Iterator[tuple[Summary, Chunk]]:
        query = f"{_SUMMARY}, crc, body FROM chunks WHERE position >= ? AND position < ? ORDER BY position"
        with self._reading(f"the chunks of stream {stream}") as reader:
            for *header, crc, body in reader.execute(query, self._span(reader, stream, start, stop)):
                summary = _summary(header)
                where = f"offsets {summary.first} to {summary.first + summary.count - 1} of stream {stream}"
                self._verify(tuple(header), body, crc, where)
                yield summary, chunks.decode(body)

    def read_events(self, start: int, stop: int) -> Iterator[tuple[int, Event]]:
        query = "SELECT first, count, at, crc, body FROM events WHERE first >= ? AND first < ? ORDER BY first"
        limit = min(stop, self._next_event)
        with self._reading("the event log") as reader:
            begin = self._record_of(reader, start)
            expected = begin
            for *header, crc, body in reader.execute(query, (begin, stop)):
                first, count, _ = header
                self._check_dense(expected, first)
                expected = first + count
                if first + count <= start:
                    continue
                self._verify(tuple(header), body, crc, f"events {first} to {first + count - 1}")
                for event in events.decode(body):
                    if first < stop and first + event.count > start:
                        yield first, event
                    first += event.count
            self._check_dense(expected, limit)

    def _check_dense(self, expected: int, found: int) -> None:
        """Refuse a hole in the event log; one that retention made in the meantime is none."""
        if max(expected, self._first_event) < found:
            raise CorruptLog(self.path, f"event {expected}", "the event is not in the log")

    def event_range(self) -> tuple[int, int]:
        return self._first_event, self._next_event

    def trim(self, stream: int, chunks: list[int]) -> None:
        with self._writing() as writer:
            writer.executemany("DELETE FROM chunks WHERE position = ?", [(stream << STREAM_BITS | first,) for first in chunks])

    def trim_events(self, before: int) -> None:
        query = (
            "DELETE FROM events WHERE at < ? AND first + count <= (SELECT events FROM checkpoint)"
            " AND first < (SELECT max(first) FROM events)"
        )
        known = self._first_event
        try:
            with self._writing() as writer:
                writer.execute(query, (before,))
                if writer.changes():
                    row = writer.execute("SELECT min(first) FROM events").fetchone()
                    # Known to readers before they can see the gap.
                    self._first_event = row[0] if row is not None else known
                    writer.execute("INSERT OR REPLACE INTO meta VALUES ('first_event', ?)", (self._first_event,))
        except PenstockError:
            self._first_event = known
            raise

    def verify(self) -> None:
        """Read everything, as a restore from backup should; raises CorruptLog at the first byte that is wrong."""
        with self._reading("the database") as reader:
            for (finding,) in reader.execute("PRAGMA integrity_check(1)"):
                if finding != "ok":
                    raise CorruptLog(self.path, "the database", str(finding))
        _, since_checkpoint = self.load()
        for _ in since_checkpoint:
            pass
        for _ in self.read_events(self._first_event, self._next_event):
            pass
        for stream in self.streams():
            for _ in self.read(stream, 0, 1 << STREAM_BITS):
                pass

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        with self._readers_lock:
            for reader in self._readers:
                reader.close()
            self._readers.clear()
        try:
            if self._writer is not None:
                self._writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 0 if self._has_written else 1)
                self._writer.close()
        except apsw.Error as error:
            raise JournalUnavailable(self.path, str(error)) from error
        finally:
            self._directory.close()

    def _open(self) -> None:
        directory = self._directory
        is_new = directory.is_new
        if is_new:
            directory.begin()
        else:
            directory.check()
        with self._guarded("opening"):
            writer = self._writer = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            # Until something is written here, closing must leave every byte as it was found: a refusal keeps the evidence.
            writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            writer.execute("PRAGMA synchronous = FULL")
            writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self._check_tables(writer, is_new)
            writer.execute("PRAGMA journal_mode = WAL")
            row = writer.execute("SELECT first + count FROM events ORDER BY first DESC LIMIT 1").fetchone()
            self._next_event = row[0] if row else 0
            row = writer.execute("SELECT value FROM meta WHERE name = 'first_event'").fetchone()
            self._first_event = row[0] if row else 0
            if type(self._next_event) is not int or type(self._first_event) is not int:
                raise CorruptLog(self.path, "the ends of the event log", "a row makes no sense")
        if self._next_event < directory.marked():
            problem = (
                f"the log ends at event {self._next_event}, but {directory.marked()} were confirmed: a file was cut or replaced"
            )
            raise CorruptLog(self.path, "the event log", problem)
        if is_new:
            directory.confirm()

    def _check_tables(self, writer: apsw.Connection, is_new: bool) -> None:
        name = self._directory.database.name
        tables = {str(table) for (table,) in writer.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if is_new and not tables:
            with self._writing():
                for _ in writer.execute(files("penstock.broker.journals").joinpath("sqlite.sql").read_text()):
                    pass
                writer.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
            self._has_written = False
        elif not {"meta", "chunks", "events", "checkpoint"} <= tables:
            raise CorruptLog(self.path, name, f"tables are missing, found {sorted(tables)}")
        elif is_new and writer.execute("SELECT count(*) FROM events").fetchone() != (0,):
            raise CorruptLog(self.path, "FORMAT", "the file is missing beside a log that is in use")
        row = writer.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        if row is None or row[0] != FORMAT:
            raise CorruptLog(self.path, "meta", f"format is {row and row[0]!r}, this version reads {FORMAT}")

    def _connect(self, flags: int) -> apsw.Connection:
        connection = apsw.Connection(str(self._directory.database), flags=flags, vfs=self._vfs)
        connection.set_busy_timeout(5_000)
        return connection

    def _record_of(self, reader: apsw.Connection, event: int) -> int:
        """The first offset of the record that holds an event, or of the oldest record when the event is older."""
        if event <= self._first_event:
            return self._first_event
        row = reader.execute("SELECT max(first) FROM events WHERE first <= ?", (event,)).fetchone()
        return event if row is None or row[0] is None else row[0]

    @staticmethod
    def _span(reader: apsw.Connection, stream: int, start: int, stop: int) -> tuple[int, int]:
        """The positions of the chunks that overlap a range: the first may begin before it."""
        base = stream << STREAM_BITS
        query = "SELECT position, count FROM chunks WHERE position >= ? AND position <= ? ORDER BY position DESC LIMIT 1"
        row = reader.execute(query, (base, base | start)).fetchone()
        low = row[0] if row is not None and row[0] + row[1] > base | start else base | start
        return low, base + stop

    def _events_since(self, since: int) -> Iterator[Event]:
        """The events after the checkpoint; a gap is refused, not skipped."""
        expected = since
        for first, event in self.read_events(since, self._next_event):
            self._check_dense(expected, first)
            expected = first + event.count
            yield event
        if expected != self._next_event:
            raise CorruptLog(self.path, f"event {expected}", "the event is not in the log")

    def _verify(self, header: tuple[int | None, ...], body: bytes, crc: int, where: str) -> None:
        try:
            is_intact = _crc(header, body) == crc
        except struct.error as error:
            raise CorruptLog(self.path, where, f"a row makes no sense: {error}") from error
        if not is_intact:
            raise CorruptLog(self.path, where, "the checksum does not fit the bytes")

    def _writing(self) -> _Transaction:
        """A transaction that is synced to disk at its end, or rolled back."""
        if not self._is_open or self._writer is None:
            raise BrokerClosed
        return _Transaction(self, self._writer)

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
                reader = self._connect(apsw.SQLITE_OPEN_READONLY)
            try:
                yield reader
            except (TypeError, ValueError, OverflowError) as error:
                # A damaged row has columns of other types, or a body that does not decode.
                raise CorruptLog(self.path, where, f"a row makes no sense: {error}") from error
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


class _Transaction:
    """A write to the journal. A class, not a generator: it is on the way of every publish."""

    __slots__ = ("_journal", "_writer")

    def __init__(self, journal: SqliteJournal, writer: apsw.Connection) -> None:
        self._journal = journal
        self._writer = writer

    def __enter__(self) -> apsw.Connection:
        try:
            self._writer.execute("BEGIN IMMEDIATE")
        except apsw.Error as error:
            raise self._journal._translated(error, "writing") from error
        return self._writer

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is None:
            try:
                self._writer.execute("COMMIT")
            except apsw.Error as failure:
                error = failure
            else:
                self._journal._has_written = True
                return
        try:
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        except apsw.Error as failure:
            raise self._journal._translated(failure, "writing") from error
        if isinstance(error, apsw.Error):
            raise self._journal._translated(error, "writing") from error


def _crc(header: tuple[int | None, ...], body: bytes) -> int:
    """A checksum of a row: of its small columns and its body."""
    numbers = [-1 if number is None else number for number in header]
    return zlib.crc32(body, zlib.crc32(struct.pack(f"<{len(numbers)}q", *numbers)))


def _summary(row: Sequence[int]) -> Summary:
    position, count, size, published_at, plain, keyed = row
    if not all(type(value) is int for value in (position, count, size, published_at, keyed, plain or 0)):
        raise TypeError(f"columns {row!r}")
    return Summary(position & (1 << STREAM_BITS) - 1, count, size, published_at, plain, bool(keyed))
