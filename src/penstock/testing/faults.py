"""A failing disk: an SQLite file system that refuses calls and loses or tears writes, to test journals.

    with FaultyDisk() as disk:
        journal = SqliteJournal(path, vfs=disk.name)
        disk.fail("ENOSPC", at=disk.calls + 1)      # every call from the next one on, until heal()
        disk.power_loss(path, elsewhere, seed=7)    # what the platters would hold if the power failed now

It is made below apsw, of the C structures themselves: an error raised in an apsw.VFS surfaces even where SQLite means to carry
on (an automatic checkpoint that fails after a commit that did not), so it would test something that cannot happen.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import apsw

from penstock.errors import InvalidArgument

SECTOR = 512
ERRORS = ("EIO", "ENOSPC")

Kind = Literal["open", "write", "sync", "truncate", "delete"]

_POINTER = ctypes.c_void_p
_OPEN = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, _POINTER, ctypes.c_int, ctypes.POINTER(ctypes.c_int))
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, _POINTER, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, _POINTER, ctypes.c_int)

_OK = 0
_EIO: dict[Kind, int] = {
    "open": apsw.SQLITE_CANTOPEN,
    "write": apsw.SQLITE_IOERR_WRITE,
    "sync": apsw.SQLITE_IOERR_FSYNC,
    "truncate": apsw.SQLITE_IOERR_TRUNCATE,
    "delete": apsw.SQLITE_IOERR_DELETE,
}
_FCNTL_VFS_POINTER = 27
_names = itertools.count(1)
_registered: dict[str, FaultyDisk] = {}  # SQLite points into these: they live until they are closed


class _Vfs(ctypes.Structure):
    """The C structure sqlite3_vfs."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("max_path", ctypes.c_int),
        ("next", _POINTER),
        ("name", ctypes.c_char_p),
        ("data", _POINTER),
        ("open", _POINTER),
        ("delete", _POINTER),
        ("others", _POINTER * 14),
    )


class _Methods(ctypes.Structure):
    """The C structure sqlite3_io_methods."""

    _fields_ = (
        ("version", ctypes.c_int),
        ("close", _POINTER),
        ("read", _POINTER),
        ("write", _POINTER),
        ("truncate", _POINTER),
        ("sync", _POINTER),
        ("others", _POINTER * 13),
    )


class Call(NamedTuple):
    """A call that reached the disk: its number (from 1), its kind, and its file."""

    number: int
    kind: Kind
    file: str


class _Content:
    """A file: the bytes that are safe, and the changes since the last sync."""

    def __init__(self, safe: bytes, *, is_journal: bool) -> None:
        self.safe = bytearray(safe)
        self.unsafe: list[tuple[int, bytes | None]] = []
        """(offset, bytes written), or (length, None) for a truncation."""
        self.is_journal = is_journal
        """SQLite syncs the directory when it first syncs a journal that it created."""

    def sync(self) -> None:
        for at, data in self.unsafe:
            _change(self.safe, at, data)
        self.unsafe.clear()

    def after_power_loss(self, rng: random.Random) -> bytes:
        found = bytearray(self.safe)
        for at, data in self.unsafe:
            fate = rng.random()
            if fate < 0.4:
                continue
            if data is None or fate < 0.7:
                _change(found, at, data)
                continue
            for start in range(0, len(data), SECTOR):
                if rng.random() < 0.5:
                    _change(found, at + start, data[start : start + SECTOR])
        return bytes(found)


class FaultyDisk:
    """An SQLite VFS, registered under `name`, on top of the machine's own. Close it after every connection that uses it.

    Calls that change the disk are counted: open (if it creates a file), write, sync, truncate, delete. Syncs are not passed on to
    the machine: nothing here needs to survive it.
    """

    def __init__(self, on_call: Callable[[Call], None] | None = None) -> None:
        self.name = f"faulty-{os.getpid()}-{next(_names)}"
        self.calls = 0
        self.faults: list[Call] = []
        """The refused calls."""
        self._on_call = on_call
        self._lock = threading.RLock()
        self._fault: tuple[str, int, int | None] | None = None
        self._files: dict[str, _Content] = {}
        self._safe_names: dict[str, _Content] = {}
        self._open: dict[int, tuple[str, _Content]] = {}
        self._tables: dict[int, tuple[_Methods, Any]] = {}
        self._register()

    def fail(self, error: str = "EIO", *, at: int | None = None, times: int | None = None) -> None:
        """Refuse calls from number `at` on (default: the next), `times` of them (default: until `heal`)."""
        if error not in ERRORS:
            raise InvalidArgument.of("error", error, " or ".join(ERRORS))
        with self._lock:
            first = self.calls + 1 if at is None else at
            self._fault = (error, first, None if times is None else first + times)

    def heal(self) -> None:
        """Stop failing."""
        with self._lock:
            self._fault = None

    def power_loss(self, source: Path, target: Path, *, seed: int) -> None:
        """Make `target` the directory as it would be after a power failure now.

        Everything synced is there; of the rest an arbitrary part, torn at sectors, chosen by the seed. The small files that are
        not written by SQLite are copied as they are; the one that is never synced may be missing.
        """
        rng = random.Random(seed)
        with self._lock:
            target.mkdir()
            for path in sorted(source.iterdir()):
                is_ours = str(path) in self._files or path.name.endswith("-shm")
                is_kept = path.name != "high-water" or rng.random() < 0.5
                if path.is_file() and not is_ours and is_kept:
                    (target / path.name).write_bytes(path.read_bytes())
            for name in sorted({*self._files, *self._safe_names}):
                choice = self._files.get(name) if rng.random() < 0.5 else self._safe_names.get(name)
                if choice is not None and Path(name).parent == source:
                    (target / Path(name).name).write_bytes(choice.after_power_loss(rng))

    def close(self) -> None:
        """Unregister the VFS."""
        if _registered.pop(self.name, None) is not None:
            apsw.unregister_vfs(self.name)

    def __enter__(self) -> FaultyDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _register(self) -> None:
        pointer = _POINTER()
        connection = apsw.Connection(":memory:")
        connection.file_control("main", _FCNTL_VFS_POINTER, ctypes.addressof(pointer))
        connection.close()
        assert pointer.value is not None, "every connection has a VFS"
        self._real = _Vfs.from_address(pointer.value)
        self._real_open = _OPEN(self._real.open)
        self._real_delete = _DELETE(self._real.delete)
        self._vfs = _Vfs.from_buffer_copy(self._real)
        self._vfs.name = self.name.encode()
        self._callbacks = (_OPEN(self._x_open), _DELETE(self._x_delete))
        self._vfs.open = ctypes.cast(self._callbacks[0], _POINTER).value
        self._vfs.delete = ctypes.cast(self._callbacks[1], _POINTER).value
        # SQLite keeps its file systems in a list; apsw registers only those written with its own classes.
        self._real.next = ctypes.addressof(self._vfs)
        _registered[self.name] = self

    def _enter(self, kind: Kind, file: str) -> int:
        """Count a call; returns the error it should end with."""
        self.calls += 1
        call = Call(self.calls, kind, Path(file).name)
        if self._on_call is not None:
            self._on_call(call)
        if self._fault is None:
            return _OK
        error, first, last = self._fault
        if call.number < first or (last is not None and call.number >= last) or (error == "ENOSPC" and kind == "delete"):
            return _OK
        self.faults.append(call)
        return apsw.SQLITE_FULL if error == "ENOSPC" and kind in {"write", "truncate"} else _EIO[kind]

    def _x_open(self, _vfs: int, name: int | None, file: int, flags: int, out_flags: Any) -> int:
        path = ctypes.string_at(name).decode() if name is not None else ""
        with self._lock:
            is_made = bool(flags & apsw.SQLITE_OPEN_CREATE) and not Path(path).exists()
            if path and is_made and (error := self._enter("open", path)):
                _POINTER.from_address(file).value = None
                return error
            result = int(self._real_open(ctypes.addressof(self._real), name, file, flags, out_flags))
            if result == _OK and path:
                self._adopt(path, file, is_made=is_made, is_journal=not flags & apsw.SQLITE_OPEN_MAIN_DB)
            return result

    def _adopt(self, path: str, file: int, *, is_made: bool, is_journal: bool) -> None:
        content = self._files.get(path)
        if content is None:
            content = self._files[path] = _Content(b"" if is_made else Path(path).read_bytes(), is_journal=is_made and is_journal)
            if not is_made:
                self._safe_names[path] = content
        self._open[file] = (path, content)
        methods = _POINTER.from_address(file)
        assert methods.value is not None, "an open file has methods"
        if methods.value not in self._tables:
            self._tables[methods.value] = self._wrapped(_Methods.from_address(methods.value))
        methods.value = ctypes.addressof(self._tables[methods.value][0])

    def _wrapped(self, real: _Methods) -> tuple[_Methods, Any]:
        """The methods of a kind of file, with ours for those that change it."""
        real_write, real_truncate = _WRITE(real.write), _TRUNCATE(real.truncate)

        def write(file: int, data: int, count: int, at: int) -> int:
            with self._lock:
                path, content = self._open[file]
                error = self._enter("write", path)
                count = count // 2 if error == apsw.SQLITE_FULL else 0 if error else count  # a full disk takes the part that fits
                if count:
                    content.unsafe.append((at, ctypes.string_at(data, count)))
                    error = int(real_write(file, data, count, at)) or error
                return error

        def truncate(file: int, length: int) -> int:
            with self._lock:
                path, content = self._open[file]
                error = self._enter("truncate", path)
                if error == _OK:
                    content.unsafe.append((length, None))
                    error = int(real_truncate(file, length))
                return error

        def sync(file: int, _flags: int) -> int:
            with self._lock:
                path, content = self._open[file]
                error = self._enter("sync", path)
                if error:
                    # As Linux does: lost writes are dropped, and the next sync does not report them.
                    content.unsafe = [change for index, change in enumerate(content.unsafe) if index % 2]
                    return error
                content.sync()
                if content.is_journal:
                    content.is_journal = False
                    self._safe_names = dict(self._files)
                return _OK

        callbacks = (_WRITE(write), _TRUNCATE(truncate), _SYNC(sync))
        wrapped = _Methods.from_buffer_copy(real)
        wrapped.write, wrapped.truncate, wrapped.sync = (ctypes.cast(callback, _POINTER).value for callback in callbacks)
        return wrapped, callbacks

    def _x_delete(self, _vfs: int, name: bytes, is_synced: int) -> int:
        path = name.decode()
        with self._lock:
            if not Path(path).exists():
                return int(self._real_delete(ctypes.addressof(self._real), name, is_synced))
            if error := self._enter("delete", path):
                return error
            result = int(self._real_delete(ctypes.addressof(self._real), name, 0))
            if result == _OK:
                self._files.pop(path, None)
                if is_synced:
                    self._safe_names = dict(self._files)
            return result


def _change(content: bytearray, at: int, data: bytes | None) -> None:
    if data is None:
        del content[at:]
        content.extend(bytes(at - len(content)))
    else:
        content.extend(bytes(max(at - len(content), 0)))
        content[at : at + len(data)] = data
