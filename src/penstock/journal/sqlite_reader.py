"""Reading the log in a data directory: the part that is specific to SQLite.

While a transaction is held, SQLite cannot copy its write-ahead log into the database, and the log grows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from penstock import forks
from penstock.errors import CorruptLog, JournalUnavailable, PenstockError
from penstock.journal import formats
from penstock.journal.directory import check_mark, read_file
from penstock.journal.sql_reader import SqlReader, Verified

# Our SQL is fixed, so an SQL error or a broken constraint can only come from a damaged file.
_DAMAGE = (apsw.CorruptError, apsw.NotADBError, apsw.FormatError, apsw.ConstraintError, apsw.SQLError)
_TABLES = {"meta", "chunks", "events", "checkpoint"}


class SqliteReader(SqlReader[apsw.Connection]):
    """The reading part of a journal in SQLite. Subclasses implement the connection."""

    def stored_checkpoint(self) -> tuple[int, bytes | None]:
        with self._reading("the checkpoint") as reader:
            row = reader.execute("SELECT events, crc, body FROM checkpoint").fetchone()
        if row is None:
            return 0, None
        since, crc, body = row
        self._verify((since,), body, crc, "the checkpoint")
        return since, body

    def read_file(self, name: str) -> bytes | None:
        """The content of a file of the directory; None if it does not exist."""
        return read_file(Path(self.path) / name)

    @contextmanager
    def snapshot(self, reader: apsw.Connection) -> Iterator[None]:
        reader.execute("BEGIN")
        try:
            yield
        finally:
            reader.execute("COMMIT")

    def _page(self, columns: str, table: str, condition: str, limit: int) -> str:  # rows are fetched one by one
        return f"SELECT {columns} FROM {table} WHERE {condition} ORDER BY 1"

    def _check_database(self) -> Verified:
        with self._reading("the database") as reader:
            for (finding,) in reader.execute("PRAGMA integrity_check(1)"):
                if finding != "ok":
                    raise CorruptLog(self.path, "the database", str(finding))
        return Verified()

    def _check_mark(self) -> None:
        check_mark(Path(self.path), lambda: self.event_range()[1], is_needed=True)

    def _connected(self, database: str, flags: int, vfs: str | None = None) -> apsw.Connection:
        """Open a connection. All connections are opened here."""
        forks.check_directory(self.path)
        connection = apsw.Connection(database, flags=flags, vfs=vfs)
        forks.keep_open(connection)
        connection.set_busy_timeout(5_000)
        return connection

    def _check_format(self, reader: apsw.Connection, database: str) -> int:
        """Refuse a database that is not a log, or whose format cannot be read; returns the format, which may be an older one."""
        tables = {str(table) for (table,) in reader.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if not tables >= _TABLES:
            raise CorruptLog(self.path, database, f"tables are missing, found {sorted(tables)}")
        row = reader.execute("SELECT value FROM meta WHERE name = 'format'").fetchone()
        return formats.check_number(self.path, row and row[0])

    def _translated(self, error: apsw.Error, where: str) -> PenstockError:
        """Convert an error of SQLite or the disk to one of ours."""
        if isinstance(error, _DAMAGE):
            return CorruptLog(self.path, where, str(error))
        return JournalUnavailable(self.path, f"{where}: {error}")

    @contextmanager
    def _guarded(self, where: str) -> Iterator[None]:
        try:
            yield
        except apsw.Error as error:
            raise self._translated(error, where) from error
