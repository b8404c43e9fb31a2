"""The journal of a durable broker: SQLite in WAL mode, every commit synced before it returns.

One connection writes; it belongs to the caller of `append`. Readers take connections from a small pool and never wait for the
writer. Every error of SQLite or the disk is converted to one of two: `JournalUnavailable` (nothing was stored, try again later)
or `CorruptLog` (the bytes are not those that were written).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from importlib.resources import files

import apsw

from penstock.errors import BrokerClosed, CorruptLog, JournalUnavailable, PenstockError
from penstock.ids import MAX_OFFSET
from penstock.journal import formats
from penstock.journal.core import checkpoint as image
from penstock.journal.core import chunk as chunks
from penstock.journal.core import events
from penstock.journal.core.checkpoint import State
from penstock.journal.directory import Directory, check_mark, marked, replace_file
from penstock.journal.journal import Commit
from penstock.journal.sql_reader import STREAM_BITS, Row, checksum, removed_until
from penstock.journal.sqlite_reader import SqliteReader

log = logging.getLogger("penstock.broker")

CHECKPOINT_PAGES = 1_000


class SqliteJournal(SqliteReader):
    """The journal in a data directory."""

    def __init__(self, data_dir: str | os.PathLike[str], *, vfs: str | None = None) -> None:
        self._directory = Directory(data_dir)
        super().__init__(str(self._directory.path))
        self._vfs = vfs
        self._first_event = 0
        self._next_event = 0
        self._held_event = MAX_OFFSET
        self._has_written = False
        self._writer: apsw.Connection | None = None
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def append(self, commit: Commit) -> None:
        rows: list[tuple[int | bytes | None, ...]] = []
        for append in commit.appends:
            batch = append.batch
            body = chunks.encode(chunks.pack(batch.messages))
            position = append.stream << STREAM_BITS | append.first
            header = (position, len(batch.messages), batch.size, append.at, batch.priority, int(batch.keyed))
            rows.append((*header, checksum(header, body), body))
        count = sum([event.count for event in commit.events])
        with self._writing() as writer:
            for row in rows:
                writer.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", row)
            if count:
                body = events.encode(commit.events)
                mark = (self._next_event, count, commit.at)
                writer.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?)", (*mark, checksum(mark, body), body))
            if not rows and not count:
                writer.execute("INSERT OR REPLACE INTO meta VALUES ('probe', ?)", (commit.at,))
        self._next_event += count
        self._directory.mark(self._next_event)

    def checkpoint(self, state: State) -> None:
        body = image.encode(state)
        row = (self._next_event, checksum((self._next_event,), body), body)
        with self._writing() as writer:
            writer.execute("INSERT OR REPLACE INTO checkpoint VALUES (1, ?, ?, ?)", row)

    def event_range(self) -> tuple[int, int]:
        return self._first_event, self._next_event

    def trim(self, stream: int, chunks: list[int]) -> None:
        if not chunks:
            return
        base = stream << STREAM_BITS
        with self._writing() as writer:
            # Read before it is removed: up to its end, the stream is not complete any more.
            row = writer.execute("SELECT count FROM chunks WHERE position = ?", (base | max(chunks),)).fetchone()
            removed = max(self._removed_until(writer, stream), max(chunks) + (row[0] if row is not None else 0))
            writer.executemany("DELETE FROM chunks WHERE position = ?", [(base | first,) for first in chunks])
            if self._earliest(writer, stream) is None:
                writer.execute("DELETE FROM meta WHERE name = ?", (removed_until(stream),))
            else:
                writer.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (removed_until(stream), removed))

    def trim_events(self, before: int) -> None:
        query = (
            "DELETE FROM events WHERE at < ? AND first + count <= (SELECT events FROM checkpoint)"
            " AND first < (SELECT max(first) FROM events) AND first + count <= ?"
        )
        known = self._first_event
        try:
            with self._writing() as writer:
                writer.execute(query, (before, self._held_event))
                if writer.changes():
                    row = writer.execute("SELECT min(first) FROM events").fetchone()
                    # Readers must know it before they can see the gap.
                    self._first_event = row[0] if row is not None else known
                    writer.execute("INSERT OR REPLACE INTO meta VALUES ('first_event', ?)", (self._first_event,))
        except PenstockError:
            self._first_event = known
            raise

    def hold_events(self, start: int | None) -> None:
        self._held_event = MAX_OFFSET if start is None else start

    def take_rows(self, chunks: Iterable[Row], events: Iterable[Row]) -> None:
        """Store rows of another log unchanged."""
        with self._writing() as writer:
            writer.executemany("INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)", chunks)
            writer.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?)", events)

    def take_state(self, ends: Mapping[str, int], since: int, checkpoint: bytes | None) -> None:
        """Finish a log that was copied: store where it begins, and its checkpoint."""
        with self._writing() as writer:
            writer.executemany("INSERT INTO meta VALUES (?, ?)", ends.items())
            if checkpoint is not None:
                row = (since, checksum((since,), checkpoint), checkpoint)
                writer.execute("INSERT INTO checkpoint VALUES (1, ?, ?, ?)", row)
            self._first_event, self._next_event = self._stored_ends(writer)
        self._directory.mark(self._next_event)

    def write_file(self, name: str, content: bytes) -> None:
        try:
            replace_file(self._directory.path / name, content)
        except OSError as error:
            raise JournalUnavailable(self.path, f"{name}: {error.strerror}") from error

    def close(self) -> None:
        if not self._is_open:
            return
        super().close()
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
            # Until something is written, closing must leave every byte unchanged: a refused log is kept as evidence.
            writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
            writer.execute("PRAGMA synchronous = FULL")
            writer.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self._check_tables(writer, is_new)
            writer.execute("PRAGMA journal_mode = WAL")
            self._first_event, self._next_event = self._stored_ends(writer)
        check_mark(directory.path, lambda: self._next_event)
        if is_new or not directory.is_of_this_format:
            directory.confirm()
        if marked(directory.path) is None:
            directory.mark(self._next_event)  # the log is new, or a power loss has removed the mark

    def _check_tables(self, writer: apsw.Connection, is_new: bool) -> None:
        if is_new and writer.execute("SELECT count(*) FROM sqlite_schema WHERE type = 'table'").fetchone() == (0,):
            with self._writing():
                for _ in writer.execute(files("penstock.journal").joinpath("sqlite.sql").read_text()):
                    pass
                writer.execute("INSERT INTO meta VALUES ('format', ?)", (formats.FORMAT,))
            self._has_written = False
            return
        found = self._check_format(writer, self._directory.database.name)
        if found < formats.FORMAT:
            with self._writing():
                formats.migrate(writer, found)
            log.info("migrated %s from format %d to %d", self.path, found, formats.FORMAT)
        if is_new and writer.execute("SELECT count(*) FROM events").fetchone() != (0,):
            raise CorruptLog(self.path, "FORMAT", "the file is missing beside a log that is in use")

    def _connect(self, flags: int) -> apsw.Connection:
        return self._connected(str(self._directory.database), flags, self._vfs)

    def _connect_reader(self) -> apsw.Connection:
        return self._connect(apsw.SQLITE_OPEN_READONLY)

    def _writing(self) -> _Transaction:
        """A transaction that is synced to disk at its end, or rolled back."""
        if not self._is_open or self._writer is None:
            raise BrokerClosed
        return _Transaction(self, self._writer)


class _Transaction:
    """A write to the journal. A class is faster than a generator, and every publish uses it."""

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
