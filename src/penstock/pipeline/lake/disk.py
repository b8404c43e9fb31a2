"""The few things that the lake does to a file system, each safe against a power loss. Tests put one that fails in its place."""

from __future__ import annotations

import fcntl
import os
import shutil
from contextlib import suppress
from pathlib import Path


class Disk:
    """A POSIX file system. What is made here is on the disk when the call returns, but for `remove`, which may come back."""

    def write_new(self, draft: Path, path: Path, content: bytes) -> None:
        """Make a file that was not there, whole or not at all; FileExistsError when somebody else made it."""
        self._write(draft, content)
        try:
            os.link(draft, path)
        finally:
            self.remove(draft)
        self.sync(path.parent)

    def write_over(self, draft: Path, path: Path, content: bytes) -> None:
        """Make a file, or put it in the place of one."""
        self._write(draft, content)
        draft.replace(path)
        self.sync(path.parent)

    def _write(self, path: Path, content: bytes) -> None:
        with path.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())

    def make(self, path: Path) -> None:
        """A directory and those above it."""
        if not path.is_dir():
            self.make(path.parent)
            path.mkdir(exist_ok=True)
            self.sync(path.parent)

    def move(self, source: Path, target: Path) -> bool:
        """Give a file its name, in a directory that exists; False when it is not there. The caller syncs the directory."""
        try:
            source.rename(target)
        except FileNotFoundError:
            return False
        return True

    def sync(self, path: Path) -> None:
        """A file, or the names in a directory."""
        number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(number)
        finally:
            os.close(number)

    def names(self, path: Path) -> list[str]:
        """What is in a directory; nothing when there is none."""
        try:
            return [entry.name for entry in path.iterdir()]
        except FileNotFoundError:
            return []

    def remove(self, path: Path) -> None:
        """Remove a file, or a directory with all that is in it. Safe if it is gone."""
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


class Lock:
    """A lock on a file that ends with its process. Use `Lock.take`; None when somebody else has it."""

    def __init__(self, number: int) -> None:
        self._number = number

    @classmethod
    def take(cls, path: Path) -> Lock | None:
        """Take it without waiting. None also when its directory goes away meanwhile."""
        try:
            number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except (FileNotFoundError, NotADirectoryError):
            return None
        lock = cls(number)
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(number).st_ino == path.stat().st_ino:  # not one that was removed, and perhaps made again
                return lock
        except (BlockingIOError, FileNotFoundError):
            pass
        lock.release()
        return None

    def release(self) -> None:
        """Let go. Safe to call twice."""
        if self._number >= 0:
            with suppress(OSError):
                os.close(self._number)
            self._number = -1
