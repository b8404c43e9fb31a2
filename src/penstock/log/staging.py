"""Staged rows: files that wait for their commit. A part is either complete, checked and on disk, or it does not exist.

    staged/PROJECT/WRITE/PART.arrow   an Arrow IPC stream, followed by its metadata
    staged/PROJECT/WRITE/manifest     the parts that a commit was decided for, and the streams of their rows
    staged/PROJECT/WRITE/*.part       a part that is being uploaded; a leftover is removed at the next start
    staged/PROJECT/.WRITE.N           a write that is being removed

The directory of the server's default project is `_`. A write that a commit has claimed does not change any more: no part is
added, and only the commit removes it.
"""

from __future__ import annotations

import errno
import itertools
import logging
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

import msgspec

from penstock.broker.topic_rules import TopicRules
from penstock.errors import (
    CorruptLog,
    FailedPrecondition,
    InvalidArgument,
    PenstockError,
    PermissionDenied,
    ResourceExhausted,
    Unavailable,
)
from penstock.journal.directory import make_directory, replace_file, sync_directory
from penstock.journal.journal import StagedFiles
from penstock.log.write_ledger import STAGED_FOR

if TYPE_CHECKING:
    from penstock.log.arrow_rows import Target

log = logging.getLogger("penstock.log")

MEBIBYTE = 1024 * 1024
_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The end marker of an Arrow IPC stream. A stream that was cut between two batches has none."""
_MAGIC = b"PENSTAGE"
_PART, _COMING, _MANIFEST = ".arrow", ".part", "manifest"


@dataclass(frozen=True, slots=True)
class StagingLimits:
    """Limits of the staged data."""

    max_part_bytes: int = 1024 * MEBIBYTE
    max_bytes: int = 32 * 1024 * MEBIBYTE
    max_writes: int = 10_000


class PartInfo(msgspec.Struct, array_like=True, frozen=True):
    """The metadata of a part. Stored after its data: fields are only ever added at the end, with a default."""

    rows: int
    bytes: int
    staged_at: int
    stream: str | None
    """The stream of rows without one."""
    streams: dict[str, int]
    """The number of rows for each stream."""
    owner: str = ""
    """The id of the token that staged it; empty without authentication, or if it was staged by a version without this field."""


class ManifestPart(msgspec.Struct, array_like=True, frozen=True):
    """A part of a decided write."""

    part: str
    rows: int
    stream: str | None


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    """The content of a decided commit."""

    parts: list[ManifestPart]
    streams: dict[str, int]
    """The numbers of the streams, by the names in the rows."""


class StagedWrite(msgspec.Struct, frozen=True):
    """A write that waits for its commit, or is being published."""

    write: str
    parts: int
    rows: int
    bytes: int
    touched_at: int
    streams: list[str]


class _Write:
    """The state of a write in memory."""

    __slots__ = ("parts", "touched_at")

    def __init__(self) -> None:
        self.parts: dict[str, PartInfo] = {}
        self.touched_at = 0

    def enter(self, part: str, info: PartInfo) -> None:
        self.parts[part] = info
        self.touched_at = max(self.touched_at, info.staged_at)


class Staging:
    """The directory of staged writes. They are named `NAME`, or `PROJECT/NAME`. Thread-safe."""

    def __init__(self, root: Path, limits: StagingLimits | None = None, copies: StagedFiles | None = None) -> None:
        self.root = root
        self._copies = copies
        """Copies of the files that survive this node. Files that are missing here are fetched from them."""
        self.limits = limits or StagingLimits()
        self._lock = threading.Lock()
        self._writes: dict[str, _Write] = {}
        self._claimed: set[str] = set()
        """The writes that commits have claimed."""
        self._numbers = itertools.count(1)
        self._bytes = 0
        self._load()

    @property
    def bytes(self) -> int:
        """The number of staged bytes, including running uploads."""
        return self._bytes

    def upload(self, write: str, part: str, owner: str = "") -> Upload:
        """Start an upload of a part: write to it, `settle` it, and close it in any case. `owner` is the id of the caller's token.

        PermissionDenied: another token has staged parts of the write.
        """
        with self._lock:
            self._check_open(write)
            self._check_owner(write, owner)
            if write not in self._writes and len(self._writes) >= self.limits.max_writes:
                raise ResourceExhausted(
                    f"{len(self._writes)} writes are staged, which is the maximum",
                    hint="commit or abort some",
                )
            number = next(self._numbers)
        directory = self.directory(write)
        with _disk(directory):
            make_directory(self.root, 0o700)
            make_directory(directory, 0o700)
            try:
                return Upload(self, write, part, owner, directory / f"{part}.{number}{_COMING}")
            except FileNotFoundError:
                # Its last other upload has just failed, or it was aborted: its directory was removed.
                raise Unavailable(f"write {write!r} is just being removed", hint="try again") from None

    def parts(self, write: str) -> dict[str, PartInfo]:
        """The parts of a write, by name; empty for an unknown write."""
        with self._lock:
            found = self._writes.get(write)
            return dict(found.parts) if found is not None else {}

    def listed(self) -> list[StagedWrite]:
        with self._lock:
            return [
                StagedWrite(
                    name,
                    len(write.parts),
                    sum(info.rows for info in write.parts.values()),
                    sum(info.bytes for info in write.parts.values()),
                    write.touched_at,
                    sorted({stream for info in write.parts.values() for stream in info.streams}),
                )
                for name, write in self._writes.items()
            ]

    def expired(self, now: int) -> list[str]:
        """The writes that were not touched for `STAGED_FOR`, and will probably never be committed."""
        with self._lock:
            return [name for name, write in self._writes.items() if now - write.touched_at >= STAGED_FOR]

    def claim(self, write: str) -> None:
        """Freeze a write until `release` or `forget`. FailedPrecondition: another commit has claimed it."""
        with self._lock:
            self._check_open(write)
            self._claimed.add(write)

    def release(self, write: str) -> None:
        with self._lock:
            self._claimed.discard(write)

    def is_claimed(self, write: str) -> bool:
        """Whether a commit has claimed a write."""
        with self._lock:
            return write in self._claimed

    def abort(self, write: str) -> None:
        """Remove a write, unless it is claimed. Safe to call twice."""
        self._remove(write, is_owner=False)

    def forget(self, write: str) -> None:
        """Remove a write, for the commit that has claimed it. Safe to call twice."""
        self._remove(write, is_owner=True)

    def _remove(self, write: str, *, is_owner: bool) -> None:
        directory = self.directory(write)
        with self._lock:
            if not is_owner and write in self._claimed:
                return
            self._claimed.discard(write)
            gone = self._writes.pop(write, None)
            if gone is not None:
                self._bytes -= sum(info.bytes for info in gone.parts.values())
            if self._copies is not None and gone is not None:
                try:
                    self._copies.drop(self._name(directory))
                except Unavailable as error:
                    log.warning("the staged parts of %r stay in the database for now: %s", write, error)
            # Renamed at once, so that parts that are staged with the same name from now on are not removed with it.
            aside = directory.with_name(f".{directory.name}.{next(self._numbers)}")
            try:
                directory.rename(aside)
            except FileNotFoundError:
                return
            except OSError:
                aside = directory
        shutil.rmtree(aside, ignore_errors=True)

    def is_whole(self, write: str, part: str) -> bool:
        """Whether a known part is also on disk, with its full length."""
        info = self.parts(write).get(part)
        if info is not None:
            self._fetch(self.path(write, part))
        try:
            return info is not None and self.path(write, part).stat().st_size > info.bytes
        except OSError:
            return False

    def decide(self, write: str, manifest: Manifest) -> None:
        """Store which parts a commit consists of; on disk on return."""
        directory = self.directory(write)
        with _disk(directory):
            make_directory(self.root, 0o700)
            make_directory(directory, 0o700)
            replace_file(directory / _MANIFEST, msgspec.msgpack.encode(manifest))
        self.copy(directory / _MANIFEST)

    def manifest(self, write: str) -> Manifest:
        path = self.directory(write) / _MANIFEST
        self._fetch(path)
        try:
            return msgspec.msgpack.decode(path.read_bytes(), type=Manifest)
        except (OSError, msgspec.MsgspecError) as error:
            raise CorruptLog(str(self.root), f"the staged write {write!r}", str(error)) from error

    def copy(self, file: Path, place: Path | None = None, info: PartInfo | None = None) -> None:
        """Store a copy of a file that is, or will be, at `place`."""
        if self._copies is not None:
            self._copies.keep(self._name(place or file), file, None if info is None else msgspec.msgpack.encode(info))

    def local_path(self, write: str, part: str) -> Path:
        """The local file of a part; it is fetched if necessary."""
        path = self.path(write, part)
        self._fetch(path)
        return path

    def _fetch(self, path: Path) -> None:
        """Fetch a missing file, if there is a copy of it."""
        if self._copies is not None and not path.exists():
            with _disk(path):
                make_directory(path.parent, 0o700)
                self._copies.fetch(self._name(path), path)

    def _name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def path(self, write: str, part: str) -> Path:
        return self.directory(write) / f"{part}{_PART}"

    def directory(self, write: str) -> Path:
        project, slash, name = write.rpartition("/")
        return self.root / (project if slash else "_") / name

    def take(self, size: int, part_size: int) -> None:
        """Count the bytes of an upload, or refuse them."""
        if part_size > self.limits.max_part_bytes:
            raise InvalidArgument(
                f"the part is larger than {self.limits.max_part_bytes} bytes, expected at most that",
                hint="write smaller parts: repartition",
            )
        with self._lock:
            if self._bytes + size > self.limits.max_bytes:
                raise ResourceExhausted(
                    f"{self._bytes} bytes are staged, and at most {self.limits.max_bytes} may be",
                    hint="commit or abort other writes",
                )
            self._bytes += size

    def give_back(self, size: int) -> None:
        with self._lock:
            self._bytes -= size

    def enter(self, write: str, part: str, coming: Path, info: PartInfo) -> None:
        """Move a part to its place, where it replaces an earlier one; on disk on return."""
        place = self.path(write, part)
        with self._lock, _disk(place):
            self._check_open(write)
            self._check_owner(write, info.owner)
            coming.replace(place)
            sync_directory(place.parent)
            entry = self._writes.setdefault(write, _Write())
            before = entry.parts.get(part)
            entry.enter(part, info)
            self._bytes -= before.bytes if before is not None else 0

    def check_owner(self, write: str, owner: str) -> None:
        """PermissionDenied if another token has staged parts of a write."""
        with self._lock:
            self._check_owner(write, owner)

    def _check_owner(self, write: str, owner: str) -> None:
        known = self._writes.get(write)
        if owner and known is not None and any(info.owner not in {"", owner} for info in known.parts.values()):
            error = PermissionDenied("stage", f"parts of write {write.rpartition('/')[2]}, which another token has staged")
            error.hint = "use a name of its own for every write"
            raise error

    def _check_open(self, write: str) -> None:
        if write in self._claimed:
            raise FailedPrecondition(f"write {write!r} is being published", hint="use a name of its own for every try")

    def _load(self) -> None:
        """Find the staged writes at a start, and remove incomplete uploads and writes that were being removed."""
        if self._copies is not None:
            for name, stored in self._copies.infos().items():
                project, write, file = name.split("/")
                known = self._writes.setdefault(write if project == "_" else f"{project}/{write}", _Write())
                if stored is not None:
                    info = msgspec.msgpack.decode(stored, type=PartInfo)
                    known.enter(file.removesuffix(_PART), info)
                    self._bytes += info.bytes
            return
        if not self.root.is_dir():
            return
        for directory in [*self.root.glob("*/*/")]:
            project, name = directory.parent.name, directory.name
            if name.startswith("."):
                shutil.rmtree(directory, ignore_errors=True)
                continue
            write, known = name if project == "_" else f"{project}/{name}", _Write()
            for path in [*directory.iterdir()]:
                if path.name.endswith(_COMING):
                    path.unlink()
                elif path.name.endswith(_PART):
                    info = _read_info(path)
                    known.enter(path.name.removesuffix(_PART), info)
                    self._bytes += info.bytes
            if known.parts or (directory / _MANIFEST).exists():
                self._writes[write] = known
            else:
                shutil.rmtree(directory, ignore_errors=True)


class Upload:
    """A part that is being uploaded.

    It may be closed while another thread still uses it, because clients may disconnect at any time: `close` waits for it.
    """

    def __init__(self, staging: Staging, write: str, part: str, owner: str, coming: Path) -> None:
        self.name = write
        """The name of its write."""
        self._staging = staging
        self._part = part
        self._owner = owner
        self._coming = coming
        self._lock = threading.Lock()
        self._file = coming.open("wb")
        self._size = 0
        """The bytes that are counted as staged."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        with self._lock, _disk(self._coming):
            self._staging.take(len(data), self._size + len(data))
            self._size += len(data)
            self._file.write(data)

    def settle(self, find: Callable[[str], Target], now: int, *, stream: str | None, rules: TopicRules) -> PartInfo:
        """Check every row, and move the part to its place. `find` returns the target of a name, or raises."""
        from penstock.log import staged_part  # noqa: PLC0415  # pyarrow is an extra

        with self._lock:
            try:
                with _disk(self._coming):
                    self._check_end()
                    limit = self._staging.limits.max_part_bytes
                    found = staged_part.check_part(self._coming, find, now, stream=stream, rules=rules, limit=limit)
                    info = self._finished(*found, now, stream)
                self._staging.copy(self._coming, self._staging.path(self.name, self._part), info)
                self._staging.enter(self.name, self._part, self._coming, info)
            except FileNotFoundError:
                raise FailedPrecondition(f"write {self.name!r} was aborted or committed while this part came in") from None
            self._size = 0
        return info

    def close(self) -> None:
        """Remove an upload that did not become a part, and its directory if it is empty."""
        with self._lock:
            self._file.close()
            if self._size:
                self._staging.give_back(self._size)
                self._size = 0
            self._coming.unlink(missing_ok=True)
            with suppress(OSError):  # it has other parts
                self._coming.parent.rmdir()

    def _check_end(self) -> None:
        """Refuse an incomplete upload, before its content is read."""
        self._file.close()
        with self._coming.open("rb") as file:
            file.seek(max(self._size - len(_END), 0))
            if file.read() != _END:
                raise InvalidArgument(
                    "the body is not an Arrow IPC stream, or it was cut: its end is missing",
                    hint="close the stream writer before sending",
                )

    def _finished(self, rows: int, streams: dict[str, int], now: int, stream: str | None) -> PartInfo:
        """Write the metadata after the data, and sync the file."""
        grown = self._coming.stat().st_size - self._size
        self._staging.take(grown, self._size + grown)
        self._size += grown
        info = PartInfo(rows, self._size, now, stream, streams, self._owner)
        with self._coming.open("ab") as file:
            body = msgspec.msgpack.encode(info)
            file.write(body + len(body).to_bytes(4, "little") + _MAGIC)
            file.flush()
            os.fsync(file.fileno())
        return info


class _disk:  # noqa: N801  # a context manager that reads as a word
    """Converts errors of the disk to an error that may be retried."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise _unavailable(self._path, error) from error


def _unavailable(path: Path, error: OSError) -> PenstockError:
    hint = "free disk space" if error.errno == errno.ENOSPC else None
    return Unavailable(f"cannot write to {str(path)!r}: {error.strerror or error}", hint=hint)


def _read_info(path: Path) -> PartInfo:
    """The metadata of a staged part."""
    problem = "its metadata is missing"
    try:
        with path.open("rb") as file:
            file.seek(-12, os.SEEK_END)
            tail = file.read()
            if tail[4:] == _MAGIC:
                file.seek(-12 - int.from_bytes(tail[:4], "little"), os.SEEK_END)
                return msgspec.msgpack.decode(file.read()[:-12], type=PartInfo)
    except (OSError, msgspec.MsgspecError) as error:
        problem = str(error)
    damaged = CorruptLog(str(path.parent), path.name, problem)
    damaged.hint = "move the file away: its writer gets the error at the commit that it is missing, and stages it again"
    raise damaged


def names(parts: dict[str, PartInfo]) -> Iterator[str]:
    """The streams that rows of some parts go to, each once."""
    yield from dict.fromkeys(name for info in parts.values() for name in info.streams)
