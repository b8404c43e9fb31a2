"""The lake and its file system: the names of directories and files, and operations that are safe against a power loss.

Names are `stream=…` and `date=…`, escaped so that readers find the names again. Tests use a `Disk` that fails.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidArgument

HIDDEN = "_penstock"
"""What begins with an underscore is no data to Spark, Arrow and others."""
LONGEST = 255 - len("stream=")
"""Bytes of a name: file systems allow 255 of them."""

_SPECIAL = frozenset("\"#%'*/:=?\\{[]^\x7f") | {chr(code) for code in range(1, 32)}
# What Spark would take for a number, a date or a time, or for no value: the directory must not look like it.
_GUESSED = re.compile(r"[+-]?\.?[0-9]|NaN|[+-]?Inf|__HIVE_DEFAULT_PARTITION__\Z|[Nn][Uu][Ll][Ll]\Z|(true|false)\Z")
_MARK = "~"


def lake_path(lake: str | os.PathLike[str]) -> Path:
    """The directory of a lake, from a path or a `file:` URL. Others have no rename that a commit could rely on."""
    text = os.fspath(lake) if isinstance(lake, str | os.PathLike) else lake
    if not isinstance(text, str) or not text or "\0" in text:
        raise InvalidArgument.of("lake", lake, "the path of a directory, or a file: URL")
    scheme = re.match(r"([A-Za-z][A-Za-z0-9+.-]+):", text)
    if scheme is None:
        return Path(os.path.abspath(text))  # noqa: PTH100  # resolve() would follow links, and name another place than was asked for
    parts = urlsplit(text)
    if scheme[1].lower() != "file" or parts.netloc not in {"", "localhost"} or not parts.path.startswith("/"):
        raise InvalidArgument.of(
            "lake", text, "a path or a file: URL of this machine, or of a file system that all machines share",
            hint="mount the store as a file system; object stores have no rename that a commit could rely on",
        )  # fmt: skip
    return Path(os.path.abspath(unquote(parts.path)))  # noqa: PTH100


def directory(stream: str, date: str) -> str:
    """Where rows of a stream and a day lie below the table; a table without streams has "" for it."""
    return f"stream={escaped(stream)}/date={date}" if stream else f"date={date}"


def escaped(stream: str) -> str:
    """A stream's name as the name of a directory, as Spark escapes it.

    One that Spark would take for a number or a date has its first character escaped too, which keeps it text. One that is too
    long for a file system is cut and marked with its hash; the manifest alone has it whole.
    """
    text = "".join(f"%{ord(character):02X}" if character in _SPECIAL else character for character in stream)
    if _GUESSED.match(stream) and not text.startswith("%"):
        text = f"%{ord(text[0]):02X}{text[1:]}"
    if len(text.encode()) <= LONGEST:
        return text
    mark = _MARK + hashlib.sha256(stream.encode()).hexdigest()[:32]
    cut = text.encode()[: LONGEST - len(mark)].decode(errors="ignore")
    return re.sub(r"%[0-9A-Fa-f]?\Z", "", cut) + mark


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
