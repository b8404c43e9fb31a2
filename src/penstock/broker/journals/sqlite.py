"""The journal of a durable broker: SQLite in WAL mode, every commit synced before it returns.

One connection writes; it belongs to whoever calls `append`. Readers take a connection of their own from a small pool and never
wait for the writer. Whatever SQLite or the disk says is turned into one of two errors: `JournalUnavailable` (try again later,
nothing was stored) or `CorruptLog` (these bytes are not what was written).
"""

from __future__ import annotations

import os
import threading
import zlib
from collections.abc import Iterable, Iterator
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
from penstock.errors import BrokerClosed, CorruptLog, JournalUnavailable

STREAM_BITS = 40
CHECKPOINT_PAGES = 1_000
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.ConstraintError)
_SUMMARY = "SELECT position, count, size, published_at, plain, keyed"


class SqliteJournal:
    """The journal in a data directory."""

    is_durable = True

    def __init__(self, data_dir: str | os.PathLike[str], *, vfs: str | None = None) -> None:
        self._directory = Directory(data_dir)
        self._vfs = vfs
        self._readers: list[apsw.Connection] = []
        self._readers_lock = threading.Lock()
        self._next_event = 0
        self._is_open = True
        try:
            self._writer = self._open()
        except BaseException:
            self._directory.close()
            raise

    @property
    def path(self) -> str:
        """The data directory."""
        return str(self._directory.path)

    def load(self) -> tuple[State, Iterable[Event]]:
        with self._guarded("the checkpoint"):
            row = self._writer.execute("SELECT events, crc, body FROM checkpoint").fetchone()
        if row is None:
            state, since = State(), 0
        else:
            since, crc, body = row
            self._verify(body, crc, since, "the checkpoint")
            state = image.decode(body)
        return state, (event for first, event in self.read_events(since, self._next_event) if first >= since)

    def append(self, commit: Commit) -> None:
        rows = []
        for append in commit.appends:
            batch = append.batch
            body = chunks.encode(chunks.pack(batch.messages))
            position = append.stream << STREAM_BITS | append.first
            crc = zlib.crc32(body, position & 0xFFFFFFFF)
            rows.append((position, len(batch.messages), batch.size, append.at, batch.priority, batch.keyed, crc, body))
        count = sum(event.count for event in commit.events)
        with self._writing() as writer:
            if rows:
                writer.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)
            if count:
                body = events.encode(commit.events)
                crc = zlib.crc32(body, self._next_event & 0xFFFFFFFF)
                writer.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (self._next_event, count, commit.at, crc, body))
        self._next_event += count
        self._directory.mark(self._next_event)

    def checkpoint(self, state: State) -> None:
        body = image.encode(state)
        crc = zlib.crc32(body, self._next_event & 0xFFFFFFFF)
        with self._writing() as writer:
            writer.execute("INSERT OR REPLACE INTO checkpoint VALUES (1, ?, ?, ?)", (self._next_event, crc, body))

    def summaries(self, stream: int, start: int, stop: int) -> Iterator[Summary]:
        with self._reading(f"the chunks of stream {stream}") as reader:
            low, high = self._span(reader, stream, start, stop)
            for row in reader.execute(
                f"{_SUMMARY} FROM chunks WHERE position >= ? AND position < ? ORDER BY position", (low, high)
            ):
                yield _summary(row)

    def read(self, stream: int, start: int, stop: int) -> Iterator[tuple[Summary, Chunk]]:
        where = f"the chunks of stream {stream}"
        with self._reading(where) as reader:
            low, high = self._span(reader, stream, start, stop)
            for row in reader.execute(
                f"{_SUMMARY}, crc, body FROM chunks WHERE position >= ? AND position < ? ORDER BY position", (low, high)
            ):
                summary = _summary(row)
                crc, body = row[6], row[7]
                self._verify(
                    body, crc, row[0], f"offsets {summary.first} to {summary.first + summary.count - 1} of stream {stream}"
                )
                yield summary, chunks.decode(body)

    def read_events(self, start: int, stop: int) -> Iterator[tuple[int, Event]]:
        with self._reading("the event log") as reader:
            low = reader.execute("SELECT max(first) FROM events WHERE first <= ?", (start,)).fetchone()
            begin = start if low is None or low[0] is None else low[0]
            query = "SELECT first, count, crc, body FROM events WHERE first >= ? AND first < ? ORDER BY first"
            for first, count, crc, body in reader.execute(query, (begin, stop)):
                if first + count <= start:
                    continue
                self._verify(body, crc, first, f"events {first} to {first + count - 1}")
                at = first
                for event in events.decode(body):
                    if at < stop and at + event.count > start:
                        yield at, event
                    at += event.count

    def event_range(self) -> tuple[int, int]:
        with self._reading("the event log") as reader:
            row = reader.execute("SELECT min(first) FROM events").fetchone()
        return (self._next_event if row is None or row[0] is None else row[0]), self._next_event

    def trim(self, stream: int, chunks: list[int]) -> None:
        with self._writing() as writer:
            writer.executemany("DELETE FROM chunks WHERE position = ?", [(stream << STREAM_BITS | first,) for first in chunks])

    def trim_events(self, before: int) -> None:
        with self._writing() as writer:
            writer.execute(
                "DELETE FROM events WHERE at < ? AND first + count <= (SELECT events FROM checkpoint)"
                " AND first < (SELECT max(first) FROM events)",
                (before,),
            )

    def verify(self) -> None:
        """Read everything, as a restore from backup should; raises CorruptLog at the first byte that is wrong."""
        with self._reading("the database") as reader:
            for (finding,) in reader.execute("PRAGMA integrity_check(1)"):
                if finding != "ok":
                    raise CorruptLog(self.path, "the database", str(finding))
            streams = [row[0] for row in reader.execute(f"SELECT DISTINCT position >> {STREAM_BITS} FROM chunks")]
        for stream in streams:
            for _ in self.read(stream, 0, 1 << STREAM_BITS):
                pass
        for _ in self.read_events(0, self._next_event):
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
            self._writer.close()
        except apsw.Error as error:
            raise JournalUnavailable(self.path, str(error)) from error
        finally:
            self._directory.close()

    def _open(self) -> apsw.Connection:
        directory = self._directory
        is_new = directory.is_new
        if not is_new:
            directory.check()
        with self._guarded("opening"):
            writer = self._connect(apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
            writer.execute("PRAGMA journal_mode = WAL")
            writer.execute("PRAGMA synchronous = FULL")
            writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            tables = {name for (name,) in writer.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
            if is_new and not tables:
                with writer:
                    writer.execute(files("penstock.broker.journals").joinpath("sqlite.sql").read_text())
                    writer.execute("INSERT INTO meta VALUES ('format', ?)", (FORMAT,))
            elif not {"meta", "chunks", "events", "checkpoint"} <= tables:
                raise CorruptLog(self.path, directory.database.name, f"tables are missing, found {sorted(tables)}")
            row = writer.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
            if row is None or row[0] != FORMAT:
                raise CorruptLog(self.path, "meta", f"format is {row and row[0]!r}, this version reads {FORMAT}")
            row = writer.execute("SELECT first + count FROM events ORDER BY first DESC LIMIT 1").fetchone()
            self._next_event = row[0] if row else 0
        if self._next_event < directory.marked():
            problem = (
                f"the log ends at event {self._next_event}, but {directory.marked()} were confirmed: a file was cut or replaced"
            )
            raise CorruptLog(self.path, "the event log", problem)
        if is_new:
            directory.confirm()
        return writer

    def _connect(self, flags: int) -> apsw.Connection:
        connection = apsw.Connection(str(self._directory.database), flags=flags, vfs=self._vfs)
        connection.set_busy_timeout(5_000)
        return connection

    @staticmethod
    def _span(reader: apsw.Connection, stream: int, start: int, stop: int) -> tuple[int, int]:
        """The positions of the chunks that overlap a range: the first may begin before it."""
        base = stream << STREAM_BITS
        query = "SELECT position, count FROM chunks WHERE position >= ? AND position <= ? ORDER BY position DESC LIMIT 1"
        row = reader.execute(query, (base, base | start)).fetchone()
        low = row[0] if row is not None and row[0] + row[1] > base | start else base | start
        return low, base + stop

    def _verify(self, body: bytes, crc: int, seed: int, where: str) -> None:
        if zlib.crc32(body, seed & 0xFFFFFFFF) != crc:
            raise CorruptLog(self.path, where, "the checksum does not fit the bytes")

    @contextmanager
    def _writing(self) -> Iterator[apsw.Connection]:
        if not self._is_open:
            raise BrokerClosed()
        writer = self._writer
        with self._guarded("writing"):
            writer.execute("BEGIN IMMEDIATE")
            try:
                yield writer
                writer.execute("COMMIT")
            except BaseException:
                if writer.in_transaction:
                    writer.execute("ROLLBACK")
                raise

    @contextmanager
    def _reading(self, where: str) -> Iterator[apsw.Connection]:
        with self._readers_lock:
            if not self._is_open:
                raise BrokerClosed()
            reader = self._readers.pop() if self._readers else None
        with self._guarded(where):
            reader = reader or self._connect(apsw.SQLITE_OPEN_READONLY)
            try:
                yield reader
            finally:
                with self._readers_lock:
                    if self._is_open:
                        self._readers.append(reader)
                    else:
                        reader.close()

    @contextmanager
    def _guarded(self, where: str) -> Iterator[None]:
        try:
            yield
        except _DAMAGE as error:
            raise CorruptLog(self.path, where, str(error)) from error
        except apsw.Error as error:
            raise JournalUnavailable(self.path, f"{where}: {error}") from error


def _summary(row: tuple[int, ...]) -> Summary:
    position, count, size, published_at, plain, keyed = row[:6]
    return Summary(position & (1 << STREAM_BITS) - 1, count, size, published_at, plain, bool(keyed))
