"""A table of the lake: its files, its manifest, and commits that happen once or not at all.

    LAKE/messages/stream=orders/date=2026-01-31/part-….parquet    the files
    LAKE/_penstock/messages/00000000000000000007.json             commit 7
    LAKE/_penstock/messages/00000000000000000100.snapshot.json    the commits up to 100, folded
    LAKE/_penstock/staging/messages/WRITER/…                      files that wait for their commit; who writes holds WRITER/LOCK
    LAKE/_penstock/removed/messages/…                             files that a compaction replaced, for an hour

    write to staging ──> sync ──> make commit n (it did not exist) ──> rename to the final names ──> now and then: fold
          killed here: rubbish        │ the decision                       killed here: the next start renames
                                      └ n exists: somebody was faster; look again, try n + 1, or refuse

What a killed writer left is removed when its lock is free. A reader of the manifest finds a file wherever it is at that moment
(`places`): staged, at its final name, or removed a little while ago.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self, TypeVar

import msgspec

from penstock.clock import Clock, SystemClock
from penstock.durations import SECOND
from penstock.errors import Aborted, DataLoss, FailedPrecondition, InvalidArgument
from penstock.pipeline.core.manifest import FORMAT, Commit, File, Snapshot, State
from penstock.pipeline.core.offsets import Position
from penstock.pipeline.lake.files import HIDDEN, Disk, Lock, directory, lake_path

FOLD = 100
"""Commits between two snapshots: what has to be read stays one snapshot and some commits, however old the lake is."""
GRACE = 3_600 * SECOND
"""How long a replaced file stays for readers that have planned with it."""
TRIES = 100
_NAME = re.compile(r"(\d{20})(\.snapshot)?\.json")
_TABLE = re.compile(r"[a-z][a-z0-9_]{0,63}")

Stored = TypeVar("Stored", Commit, Snapshot)


@dataclass(frozen=True, slots=True)
class Staged:
    """A file that waits in a table's staging, and what is in it."""

    path: Path
    rows: int
    date: str
    stream: str = ""
    number: int = 0
    first: int = 0
    last: int = -1


class Lake:
    """A directory with tables in it: a path, or a `file:` URL."""

    def __init__(self, path: str | os.PathLike[str], *, clock: Clock | None = None, disk: Disk | None = None) -> None:
        self.path = lake_path(path)
        self._clock = clock or SystemClock()
        self._disk = disk or Disk()

    def table(self, name: str) -> Table:
        """A table, which need not exist yet. It belongs to one thread; take another one for another thread."""
        if not _TABLE.fullmatch(name):
            raise InvalidArgument.of("table", name, "up to 64 small letters, digits and _, the first a letter")
        return Table(self.path, name, self._clock, self._disk)


class Table:
    """One table. Reading needs nothing; who has written closes it (it is a context manager), or ends."""

    def __init__(self, lake: Path, name: str, clock: Clock, disk: Disk) -> None:
        self.lake = lake
        self.name = name
        self.root = lake / name
        self._home = lake / HIDDEN / name
        self._staging = lake / HIDDEN / "staging" / name
        self._removed = lake / HIDDEN / "removed"
        self._clock = clock
        self._disk = disk
        self._state = State()
        self._recent: list[Commit] = []
        """The commits since the snapshot that the state was made from."""
        self._own: Path | None = None
        self._lock: Lock | None = None
        self._is_settled = True
        """Not so while staged files may be in the manifest and have no names yet: should the disk fail then, they must stay."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Reading

    def state(self) -> State:
        """What the table holds now. Do not change it; it changes when this table is asked again."""
        for _ in range(TRIES):
            snapshots, commits = self._numbers()
            try:
                return self._follow(max(snapshots, default=0), commits)
            except FileNotFoundError:
                continue  # folded while we were reading: look again
        raise DataLoss(f"the manifest {str(self._home)!r} has a hole after version {self._state.version}", hint=_HINT)

    def watermark(self) -> dict[str, Position]:
        """For every stream its number and the offset that comes next."""
        return dict(self.state().watermark)

    def files(self, stream: str | None = None) -> list[File]:
        """The files that count, all or those of a stream, in the order of their offsets."""
        found = [file for file in self.state().files.values() if stream is None or file.stream == stream]
        return sorted(found, key=lambda file: (file.stream, file.number, file.first, file.path))

    def places(self, file: File) -> Iterator[Path]:
        """Where a file may be, the likeliest first: try to open one after the other."""
        final = self.lake / file.path
        yield from (final, self.lake / file.staged, final, self._removed / file.path)

    # Writing

    def stage(self) -> Path:
        """A new empty directory for files that will be committed. `discard`, `close` or the next start removes the rest."""
        while self._own is None:
            own = self._staging / secrets.token_hex(8)
            self._disk.make(own)
            if lock := Lock.take(own / "LOCK"):  # None: a recovery took it for one that was left
                self._own, self._lock = own, lock
        folder = self._own / secrets.token_hex(8)
        self._disk.make(folder)
        return folder

    def discard(self, folder: Path) -> None:
        """Remove a directory of `stage` that is not needed any more, unless a commit of its files was not finished."""
        if self._is_settled:
            self._disk.remove(folder)

    def commit(
        self,
        add: Sequence[Staged],
        *,
        watermark: Mapping[str, Position] | None = None,
        base: Mapping[str, Position] | None = None,
        remove: Iterable[str] = (),
    ) -> Commit:
        """Add files, remove files and move the watermark, all or nothing; when it returns they have their final names.

        `base` is the watermark that the files were made from, for the streams of `watermark`. Aborted: it has moved since, or
        a file that is to be removed is gone; nothing was changed. Commits of others that do not touch these are no obstacle.
        """
        moved = dict(watermark or {})
        before = {stream: position for stream, position in (base or {}).items() if stream in moved}
        removed = list(remove)
        self._sync([staged.path for staged in add])
        own = self._own if self._own is not None else self.stage().parent
        self._disk.make(self._home)
        for _ in range(TRIES):
            state = self.state()
            version = state.version + 1
            files = [self._file(staged, version, index) for index, staged in enumerate(add)]
            commit = Commit(version, self._clock.now(), before, moved, files, removed)
            state.check(commit)
            path = self._home / f"{version:020}.json"
            self._is_settled = False
            try:
                self._disk.write_new(own / f"commit-{version}", path, msgspec.json.encode(commit))
            except FileExistsError:
                self._is_settled = True
                continue
            # Numbers that were folded are free again: one at or below a snapshot is not the next, and nobody reads it.
            if max(self._numbers()[0], default=0) >= version:
                self._disk.remove(path)
                self._is_settled = True
                continue
            break
        else:
            raise Aborted(f"{TRIES} times another writer committed to {self.name!r} first; nothing was changed")
        state.apply(commit)
        self._recent.append(commit)
        self._settle([commit])
        self._is_settled = True
        if len(self._recent) >= FOLD:
            self._fold()
        return commit

    def recover(self) -> None:
        """Finish what a killed writer had decided, and remove what it had not. Others that write meanwhile are left alone."""
        # Locks first: whoever commits after we have looked holds its lock.
        folders = [self._staging / name for name in self._disk.names(self._staging)]
        left = {folder: lock for folder in folders if (lock := Lock.take(folder / "LOCK")) is not None}
        try:
            self.state()
            self._settle(self._recent)
            if len(self._recent) >= FOLD:
                self._fold()
            for folder in left:
                self._disk.remove(folder)
        finally:
            for lock in left.values():
                lock.release()
        self._purge()

    def close(self) -> None:
        """Remove what was staged and not committed; a commit that was not finished is left to `recover`. Safe to call twice."""
        own, lock, is_settled = self._own, self._lock, self._is_settled
        self._own, self._lock, self._is_settled = None, None, True
        if own is not None and lock is not None:
            try:
                if is_settled:
                    self._disk.remove(own)
            finally:
                lock.release()

    # The manifest

    def _numbers(self) -> tuple[list[int], set[int]]:
        """The versions of the snapshots and of the commits that are there."""
        found = [match for match in map(_NAME.fullmatch, self._disk.names(self._home)) if match]
        return [int(match[1]) for match in found if match[2]], {int(match[1]) for match in found if not match[2]}

    def _follow(self, snapshot: int, commits: set[int]) -> State:
        if snapshot > self._state.version:
            self._state = State(self._read(self._home / f"{snapshot:020}.snapshot.json", Snapshot))
            self._recent = []
        while self._state.version + 1 in commits:
            path = self._home / f"{self._state.version + 1:020}.json"
            commit = self._read(path, Commit)
            try:
                self._state.apply(commit)
            except (Aborted, InvalidArgument) as error:
                raise DataLoss(f"{str(path)!r} does not follow from the commits before it: {error}", hint=_HINT) from error
            self._recent.append(commit)
        if any(version > self._state.version for version in commits):
            raise FileNotFoundError  # one is missing in between: it was made while the names were read, or is lost
        return self._state

    def _read(self, path: Path, kind: type[Stored]) -> Stored:
        try:
            stored = msgspec.json.decode(path.read_bytes(), type=kind)
        except msgspec.DecodeError as error:
            raise DataLoss(f"{str(path)!r} is not what was written: {error}", hint=_HINT) from error
        if stored.format != FORMAT:
            raise DataLoss(
                f"{str(path)!r} has the format {stored.format}, this version reads {FORMAT}", hint="use a newer Penstock"
            )
        return stored

    def _fold(self) -> None:
        """Write a snapshot, and remove what lies before the one before it. Readers that had started there look again."""
        self._settle(self._recent)
        draft = self._own or self.stage().parent
        content = msgspec.json.encode(self._state.snapshot())
        self._disk.write_over(draft / "snapshot", self._home / f"{self._state.version:020}.snapshot.json", content)
        self._recent = []
        snapshots, commits = self._numbers()
        kept = sorted(snapshots)[-2:]
        if len(kept) == 2:
            for version in snapshots:
                if version < kept[0]:
                    self._disk.remove(self._home / f"{version:020}.snapshot.json")
            for version in commits:
                if version <= kept[0]:
                    self._disk.remove(self._home / f"{version:020}.json")

    # The files

    def _file(self, staged: Staged, version: int, index: int) -> File:
        suffix = "".join(part for part in staged.path.suffixes[-2:] if not part[2:].isdigit())  # Spark counts files: .c000
        folder = directory(staged.stream, staged.date)
        return File(
            path=f"{self.name}/{folder}/part-{version:010}-{index:05}{suffix}",
            staged=str(staged.path.relative_to(self.lake)),
            rows=staged.rows,
            bytes=staged.path.stat().st_size,
            date=staged.date,
            stream=staged.stream,
            number=staged.number,
            first=staged.first,
            last=staged.last,
        )

    def _sync(self, paths: Sequence[Path]) -> None:
        folders: set[Path] = set()
        for path in paths:
            if self._own is None or self._own not in path.parents:
                raise InvalidArgument.of("add", str(path), "a file below a directory that stage() gave")
            try:
                self._disk.sync(path)
            except FileNotFoundError:
                raise FailedPrecondition(f"{str(path)!r} was staged and is gone; nothing was changed") from None
            folders.update(folder for folder in path.parents if self._own in folder.parents)
        for folder in folders:
            self._disk.sync(folder)

    def _settle(self, commits: Sequence[Commit]) -> None:
        """Give added files their names and take removed ones away. Safe to repeat, and to do twice at once."""
        touched: set[Path] = set()
        for commit in commits:
            for file in commit.add:
                final = self.lake / file.path
                self._disk.make(final.parent)
                if self._disk.move(self.lake / file.staged, final):
                    touched.add(final.parent)
                elif not final.exists() and file.path in self._state.files and not self._is_removed(file.path):
                    raise DataLoss(f"{str(final)!r} is in the manifest, and neither there nor where it was staged", hint=_HINT)
        for folder in touched:
            self._disk.sync(folder)
        touched.clear()
        for commit in commits:
            for path in commit.remove:
                final = self.lake / path
                if final.exists():
                    self._disk.make((self._removed / path).parent)
                    self._disk.move(final, self._removed / path)
                    touched.add(final.parent)
        for folder in touched:
            self._disk.sync(folder)
        if any(commit.remove for commit in commits):
            self._purge()

    def _is_removed(self, path: str) -> bool:
        """Whether somebody else has merged a file since."""
        return (self._removed / path).exists() or path not in self.state().files

    def _purge(self) -> None:
        """Remove replaced files that nobody can be reading any more."""
        oldest = self._clock.now() - GRACE
        for folder, _, names in os.walk(self._removed / self.name):
            for path in (Path(folder, name) for name in names):
                try:
                    is_over = path.stat().st_ctime_ns // 1000 < oldest
                except FileNotFoundError:
                    continue
                if is_over:
                    self._disk.remove(path)


_HINT = "restore _penstock and the tables beside it from a backup; Penstock never repairs or deletes files of a lake by itself"
