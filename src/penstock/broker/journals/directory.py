"""The data directory: who may open it, and whether what lies there is what was left.

LOCK        held by the broker that has it open; says who
FORMAT      written last when the directory is made: a directory with it is never taken for a new one
penstock.db the log (SQLite, with its -wal and -shm beside it while open)
high-water  the number of events confirmed so far, written after each commit without waiting for the disk: it can be
            behind the log, never ahead of it, so a log that ends before it has lost something
"""

from __future__ import annotations

import fcntl
import os
import struct
import zlib
from pathlib import Path

from penstock.errors import CorruptLog, DataDirectoryInUse, InvalidArgument

FORMAT = 1
_FORMAT_TEXT = f"penstock data directory, format {FORMAT}\n"
_MARK = struct.Struct("<QI")


class Directory:
    """An opened data directory."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise InvalidArgument.of("data_dir", path, "the path of a directory")
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise InvalidArgument.of("data_dir", str(path), "a directory, but this is a file")
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
        self.database = self.path / "penstock.db"
        self._mark: int | None = None

    @property
    def is_new(self) -> bool:
        """Whether nothing was ever stored here."""
        return not (self.path / "FORMAT").exists()

    def check(self) -> None:
        """Refuse a directory whose files are not what was left there."""
        name = str(self.path)
        text = (self.path / "FORMAT").read_text(errors="replace")
        if text != _FORMAT_TEXT:
            problem = f"it says {text[:60]!r}, this version reads {_FORMAT_TEXT!r}"
            raise CorruptLog(name, "FORMAT", problem)
        if not self.database.exists():
            raise CorruptLog(name, self.database.name, "the file is missing")
        with self.database.open("rb") as file:
            header = file.read(100)
            length = os.fstat(file.fileno()).st_size
        if len(header) < 100 or not header.startswith(b"SQLite format 3\x00"):
            raise CorruptLog(name, self.database.name, f"no database begins here ({length} bytes)")
        page_size = int.from_bytes(header[16:18], "big")
        page_size = 65_536 if page_size == 1 else page_size
        pages = int.from_bytes(header[28:32], "big")
        if length < pages * page_size:
            raise CorruptLog(name, self.database.name, f"cut short: {length} bytes where {pages * page_size} were written")

    def confirm(self) -> None:
        """The directory is complete: from now on it is never taken for a new one."""
        with (self.path / "FORMAT").open("x") as file:
            file.write(_FORMAT_TEXT)
            file.flush()
            os.fsync(file.fileno())
        self.sync()

    def sync(self) -> None:
        """Make the names of the files durable."""
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def mark(self, events: int) -> None:
        """Note how many events are durable. Not synced: it costs a system call, no disk."""
        if self._mark is None:
            self._mark = os.open(self.path / "high-water", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        os.pwrite(self._mark, _MARK.pack(events, zlib.crc32(events.to_bytes(8, "little"))), 0)

    def marked(self) -> int:
        """How many events were durable at least; 0 when the mark is missing or was torn by a power loss."""
        try:
            raw = (self.path / "high-water").read_bytes()
        except FileNotFoundError:
            return 0
        if len(raw) != _MARK.size:
            return 0
        events, crc = _MARK.unpack(raw)
        return int(events) if crc == zlib.crc32(events.to_bytes(8, "little")) else 0

    def close(self) -> None:
        """Let others have it."""
        if self._mark is not None:
            os.close(self._mark)
            self._mark = None
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1
