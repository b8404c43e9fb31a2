"""The data directory: its lock, its format, and the check that its files are as the last broker left them.

LOCK        held by the broker that has it open, with its process id
FORMAT      written last when the directory is created: a directory with it is never treated as new
penstock.db the log (SQLite, with its -wal and -shm beside it while open)
high-water  the number of events confirmed so far, written after each commit without waiting for the disk: it can be
            behind the log, never ahead of it, so a log that ends before it has lost data
cursors     the positions of readers outside the broker
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

from penstock import forks
from penstock.errors import (
    CorruptLog,
    DataDirectoryInUse,
    FailedPrecondition,
    InvalidArgument,
    JournalUnavailable,
    PenstockError,
)
from penstock.journal import formats

_MARK = struct.Struct("<QI")
DATABASE = "penstock.db"
WAL = f"{DATABASE}-wal"
FORMAT_FILE = "FORMAT"
MARK = "high-water"
PRIVATE = 0o600
"""The mode of new files: they contain messages and keys, so only the owner may read them."""


log = logging.getLogger("penstock.broker")


class Directory:
    """An opened data directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise InvalidArgument.of("data_dir", path, "the path of a directory")
        self.path = Path(path)
        try:
            os.fsencode(self.path).index(0)
        except ValueError as error:
            is_usable = not isinstance(error, UnicodeError)
        else:
            is_usable = False
        if not is_usable:
            raise InvalidArgument.of("data_dir", path, "a path without NUL that the file system can encode")
        try:
            if self.path.exists() and not self.path.is_dir():
                raise InvalidArgument.of("data_dir", str(path), "a directory, but this is a file")
            make_directory(self.path, 0o700)
            self._lock = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
        except OSError as error:
            raise InvalidArgument.of("data_dir", str(path), f"a directory that can be written ({error.strerror})") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(self._lock, 100, 0).decode(errors="replace").strip()
            os.close(self._lock)
            raise DataDirectoryInUse(str(self.path), holder or "another process") from None
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, f"process {os.getpid()}\n".encode(), 0)
        self.database = self.path / DATABASE
        self._wal = self.path / WAL
        self._had_wal = self._wal.exists()
        self._mark: int | None = None
        forks.own(self, "data directory")

    def after_fork(self) -> None:
        """In a child: close the copies of the files. The lock belongs only to the parent, and ends with it."""
        mark, lock = self._mark, self._lock
        self._mark, self._lock = None, -1
        for file in (mark, lock):
            if file is not None and file >= 0:
                os.close(file)

    @property
    def is_new(self) -> bool:
        if (self.path / FORMAT_FILE).exists():
            return False
        if (self.path / MARK).exists():
            raise CorruptLog(str(self.path), FORMAT_FILE, "the file is missing beside a log that is in use")
        return True

    @property
    def is_of_this_format(self) -> bool:
        """Whether `FORMAT` has the current format. Between a migration and `confirm` it has the old one."""
        return (self.path / FORMAT_FILE).read_text(errors="replace") == formats.text(formats.FORMAT)

    def check(self) -> None:
        """Refuse a directory whose files are not as they were left."""
        check_files(self.path)

    def begin(self) -> None:
        """Create the file of a new log, as SQLite would let others read it. SQLite gives the files beside it the same mode."""
        try:
            os.close(os.open(self.database, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE))
        except OSError as error:
            raise JournalUnavailable(str(self.path), f"{self.database.name}: {error.strerror}") from error

    def confirm(self) -> None:
        """Mark the directory as complete: from now on it is never treated as new."""
        confirm(self.path)

    def mark(self, events: int) -> None:
        """Store how many events are durable. It is not synced: it costs a system call, not a disk write."""
        try:
            if self._mark is None:
                self._mark = os.open(self.path / MARK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, PRIVATE)
                os.ftruncate(self._mark, _MARK.size)  # a damaged mark may be longer
            os.pwrite(self._mark, _packed(events), 0)
        except OSError as error:
            # The commit is on disk: the mark may be behind it, but failing the publish would be wrong.
            log.warning("cannot write %s: %s", self.path / MARK, error)

    def close(self) -> None:
        mark, self._mark = self._mark, None
        if mark is not None:
            os.close(mark)
        if self._lock >= 0:
            if not self._had_wal and self._wal.exists() and not self._wal.stat().st_size:
                # SQLite created it while reading; a refused directory is left unchanged.
                self._wal.unlink()
            lock, self._lock = self._lock, -1
            os.close(lock)
        forks.disown(self)


def confirm(path: Path) -> None:
    """Mark a directory as complete; on disk when it returns."""
    replace_file(path / FORMAT_FILE, formats.text(formats.FORMAT).encode())


def write_mark(path: Path, events: int) -> None:
    """Store how many events a copy of a log has; on disk when it returns."""
    replace_file(path / MARK, _packed(events))


def _packed(events: int) -> bytes:
    return _MARK.pack(events, zlib.crc32(events.to_bytes(8, "little")))


def marked(path: Path) -> int | None:
    """The minimum number of durable events; None if the mark is missing or was damaged by a power loss."""
    try:
        raw = (path / MARK).read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    if len(raw) != _MARK.size:
        return None
    events, crc = _MARK.unpack(raw)
    return int(events) if crc == zlib.crc32(events.to_bytes(8, "little")) else None


def check_mark(path: Path, read_events: Callable[[], int], *, is_needed: bool = False) -> None:
    """Refuse a log that ends before the last confirmed event. The mark is read first: a broker may be writing to the log.

    `is_needed`: also refuse a log with events whose mark is missing or damaged. A broker accepts such a log.
    """
    confirmed = marked(path)
    events = read_events()
    if confirmed is None:
        if is_needed and events:
            raise CorruptLog(str(path), MARK, "the file is missing or damaged, so a log that was cut would not be noticed")
    elif events < confirmed:
        problem = f"the log ends at event {events}, but {confirmed} were confirmed: a file was cut or replaced"
        raise CorruptLog(str(path), "the event log", problem)


def check_files(path: Path) -> None:
    """Refuse a data directory whose files are not as they were left."""
    try:
        _check_files(path)
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> PenstockError:
    """The error for a file of the directory that cannot be read. A missing permission is not damage."""
    if isinstance(error, PermissionError):
        return FailedPrecondition(
            f"cannot read {str(error.filename or path)!r}: {error.strerror}", hint="run this as the owner of the data directory"
        )
    return CorruptLog(str(path), Path(error.filename or "").name, error.strerror or "cannot be read")


def _check_files(path: Path) -> None:
    name, database = str(path), path / DATABASE
    formats.check_text(name, FORMAT_FILE, (path / FORMAT_FILE).read_text(errors="replace"))
    if not database.exists():
        raise CorruptLog(name, DATABASE, "the file is missing")
    with database.open("rb") as file:
        header = file.read(100)
        length = os.fstat(file.fileno()).st_size
    if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
        raise CorruptLog(name, DATABASE, f"no database begins here ({length} bytes)")
    page_size = int.from_bytes(header[16:18], "big")
    page_size = 65_536 if page_size == 1 else page_size
    pages = int.from_bytes(header[28:32], "big")
    if length < pages * page_size and not _in_wal(path / WAL, range(length // page_size + 1, pages + 1)):
        raise CorruptLog(name, DATABASE, f"cut short: {length} bytes where {pages * page_size} were written")


def read_file(path: Path) -> bytes | None:
    """The content of a file of the directory; None if it does not exist."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path.parent, error) from error


def replace_file(path: Path, content: bytes) -> None:
    """Replace a file atomically: after a crash there is either the complete old file or the complete new one."""
    draft = path.with_name(f"{path.name}.new")
    with open(draft, "wb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    sync_directory(path.parent)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, PRIVATE)


def make_directory(path: Path, mode: int = 0o777) -> None:
    """Create a directory and its parents, so that they survive a power loss. An existing directory keeps its mode."""
    if not path.is_dir():
        make_directory(path.parent)
        path.mkdir(mode, exist_ok=True)
        sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Sync the names in a directory, so that they survive a power loss."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _in_wal(path: Path, pages: range) -> bool:
    """Whether SQLite's write-ahead log contains all these pages.

    A crash while the log was copied into the database leaves a first page that already counts pages that are not copied yet.
    Then all of these are in the log.
    """
    try:
        raw = path.open("rb")
    except FileNotFoundError:
        return False
    with raw:
        header = raw.read(32)
        if len(header) < 32:
            return False
        page_size = int.from_bytes(header[8:12], "big")
        missing = set(pages)
        while missing and len(frame := raw.read(24)) == 24:
            missing.discard(int.from_bytes(frame[:4], "big"))
            raw.seek(page_size, os.SEEK_CUR)
    return not missing
