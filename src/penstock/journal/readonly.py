"""Reading the log in a data directory: without its LOCK, also while a broker writes to it.

Nothing is created or changed in the directory, except the files that SQLite itself puts beside a database that it reads (`-shm`,
and an empty `-wal`). If the directory is read-only, a database that no broker has open is read as an immutable file; every
transaction checks that it did not change.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import apsw

from penstock.errors import (
    BrokerClosed,
    CorruptLog,
    FailedPrecondition,
    InvalidArgument,
    JournalUnavailable,
    PenstockError,
    Unavailable,
    UnsupportedFormat,
)
from penstock.journal import formats
from penstock.journal.directory import DATABASE, WAL, check_files, check_mark
from penstock.journal.sqlite_reader import SqliteReader

CHANCES = 3
"""How many attempts to read consistent data are made before it is reported as damaged."""
COPIED_PAGES = 4_096
"""The number of pages that are copied between two calls of `progress`: 16 MiB."""


class ReadOnlyJournal(SqliteReader):
    """The journal in the data directory of a broker, for reading."""

    def __init__(self, data_dir: str | os.PathLike[str]) -> None:
        directory = _data_directory(data_dir)
        super().__init__(str(directory))
        self._directory = directory
        self._database = directory / DATABASE
        self._is_still = False
        """Whether the database is read as an immutable file."""
        self._watcher: apsw.Connection | None = None
        self._check_files()
        try:
            with self._reading("opening") as reader:
                found = self._check_format(reader, self._database.name)
                if found < formats.FORMAT:
                    raise UnsupportedFormat(self.path, found, formats.FORMAT)
        except BaseException:
            self.close()
            raise

    def version(self) -> object:
        """A value that changes whenever something is written, and only then. For one thread at a time."""
        if not self._is_open:
            raise BrokerClosed
        with self._guarded("the database"):
            if self._watcher is None and not self._is_still:
                # A separate connection: values of `data_version` can only be compared on the same connection.
                watcher = self._connect_reader()
                self._watcher = None if self._is_still else watcher
            if self._watcher is None:
                return self._stamp()
            return self._watcher.execute("PRAGMA data_version").fetchone()

    def copy(self, target: Path, progress: Callable[[int, int], None]) -> int:
        """Write a snapshot of the database to `target`, an empty file; returns the number of events in it.

        The broker can write meanwhile. `progress` is called with the number of copied pages and of all pages. CorruptLog if the
        log ends before the last confirmed event.
        """
        check_mark(self._directory, lambda: self.event_range()[1])
        with self._reading("the database") as reader, self.snapshot(reader):
            # The snapshot starts with the first query and lasts over all steps, so a commit in between does not restart the copy.
            _, latest = self._stored_ends(reader)
            try:
                copy = self._connected(_url(target), apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_URI)
                try:
                    with copy.backup("main", reader, "main") as backup:
                        while not backup.done:
                            backup.step(COPIED_PAGES)
                            progress(backup.page_count - backup.remaining, backup.page_count)
                finally:
                    copy.close()
            except (apsw.FullError, apsw.IOError, apsw.CantOpenError) as error:
                # The error of a backup step has no text, only a code.
                problem = "the disk is full" if isinstance(error, apsw.FullError) else _name_of(error)
                raise FailedPrecondition(f"cannot copy the database to {str(target)!r}: {problem}") from error
        return latest

    def close(self) -> None:
        super().close()
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = None

    def _check_files(self) -> None:
        for chance in range(CHANCES):
            try:
                check_files(self._directory)
            except CorruptLog:
                # The broker may be copying its write-ahead log into the database: then sizes change between two reads.
                if chance + 1 == CHANCES:
                    raise
            else:
                return

    def _connect_reader(self) -> apsw.Connection:
        if not self._is_still:
            reader = self._connect("mode=ro")
            try:
                # SQLite opens its files with the first query.
                reader.execute("SELECT count(*) FROM sqlite_schema").fetchone()
            except (apsw.CantOpenError, apsw.ReadOnlyError) as error:
                reader.close()
                self._check_still(error)
                self._is_still = True
            else:
                return reader
        return self._connect("mode=ro&immutable=1")

    def _connect(self, options: str) -> apsw.Connection:
        flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
        return self._connected(f"{_url(self._database)}?{options}", flags)

    def _check_still(self, error: apsw.Error) -> None:
        """Refuse to read a database as an immutable file if it may change."""
        wal = self._directory / WAL
        if wal.exists() and wal.stat().st_size:
            problem = f"{error}: {wal.name} holds a part of the log, and SQLite cannot create the file that it needs to read it"
            raise FailedPrecondition(
                f"cannot read the log {self.path!r}: {problem}",
                hint="make the directory writable, or start a broker on it once and close it",
            ) from error
        if _is_locked(self._directory / "LOCK"):
            raise self._unavailable(f"a broker is opening or closing it, and the directory is not writable ({error})") from error

    @contextmanager
    def _reading(self, where: str) -> Iterator[apsw.Connection]:
        before: tuple[int, int] | None = None
        try:
            with super()._reading(where) as reader:
                before = self._stamp() if self._is_still else None
                yield reader
        except CorruptLog:
            self._check_unchanged(before)
            raise
        self._check_unchanged(before)

    def _check_unchanged(self, before: tuple[int, int] | None) -> None:
        if before is not None and (self._stamp() != before or _is_locked(self._directory / "LOCK")):
            # The next query starts again without this assumption.
            self._is_still = False
            raise self._unavailable("a broker has opened it while it was read")

    def _stamp(self) -> tuple[int, int]:
        try:
            status = self._database.stat()
        except OSError as error:
            raise self._unavailable(f"{self._database.name}: {error.strerror}") from error
        return status.st_mtime_ns, status.st_size

    def _translated(self, error: apsw.Error, where: str) -> PenstockError:
        told = super()._translated(error, where)
        return self._unavailable(f"{where}: {error}") if isinstance(told, JournalUnavailable) else told

    def _unavailable(self, problem: str) -> Unavailable:
        return Unavailable(f"cannot read the log {self.path!r}: {problem}")

    def _give_back(self, reader: apsw.Connection) -> None:
        if self._is_still:
            # It would cache what it has read; a new connection sees the current file.
            reader.close()
        else:
            super()._give_back(reader)


def _data_directory(data_dir: str | os.PathLike[str]) -> Path:
    """The path of a data directory. The error describes what is there instead."""
    wanted = "the data directory of a broker"
    if not isinstance(data_dir, str | os.PathLike) or not os.fspath(data_dir) or "\0" in str(data_dir):
        raise InvalidArgument.of("path", data_dir, wanted)
    path = Path(data_dir)
    try:
        if not path.exists():
            raise InvalidArgument.of("path", str(path), f"{wanted}, but it does not exist")
        if not path.is_dir():
            raise InvalidArgument.of("path", str(path), f"{wanted}, but this is a file")
        if not (path / "FORMAT").exists():
            if (path / DATABASE).exists() and (path / "high-water").exists():
                raise CorruptLog(str(path), "FORMAT", "the file is missing beside a log that is in use")
            hint = "a broker makes it: penstock serve --data-dir, or MessageQueue(data_dir=…); an interrupted backup has none"
            raise InvalidArgument.of("path", str(path), f"{wanted}, with the file FORMAT in it", hint=hint)
    except OSError as error:
        raise InvalidArgument.of("path", str(path), f"{wanted} that can be read ({error.strerror})") from error
    return path


def _url(file: Path) -> str:
    """The URL of a file for SQLite, whatever bytes its name contains."""
    return f"file:{quote(os.fsencode(file.absolute()))}"


def _name_of(error: apsw.Error) -> str:
    """SQLite's name of an error, as in 'SQLITE_IOERR_WRITE'."""
    extended, result = getattr(error, "extendedresult", 0), getattr(error, "result", 0)
    return str(apsw.mapping_extended_result_codes.get(extended) or apsw.mapping_result_codes.get(result) or "SQLite")


def _is_locked(path: Path) -> bool:
    try:
        lock = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        # Without permission to read the LOCK, assume that it is held.
        return path.exists()
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False
