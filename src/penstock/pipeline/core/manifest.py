"""What a table of the lake holds: commits folded into a state, and which files a compaction would merge. No I/O.

A table is a chain of numbered commits. Each adds files, removes files and moves the watermark; what no commit added is not in the
table, whatever lies in its directory. The watermark says for every stream which offset comes next, so rows are added once:

    append    base: the watermark it was made from    watermark: the one after it    add: the rows between
    compact   remove: small files                     add: one file with their rows  (the watermark stays)

A commit that does not fit the state (somebody else moved the watermark, or removed the same files) is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

import msgspec

from penstock.errors import Aborted, DataLoss, InvalidArgument
from penstock.pipeline.core.offsets import Position

FORMAT = 1


class File(msgspec.Struct, frozen=True):
    """A file of the table. Paths are relative to the lake's directory."""

    path: str
    staged: str
    """Where it lay before its commit, for whoever has to finish the renaming."""
    rows: int
    bytes: int
    date: str
    stream: str = ""
    number: int = 0
    first: int = 0
    """The first and the last offset in it; a table without offsets leaves them."""
    last: int = -1

    @property
    def is_dense(self) -> bool:
        """Whether it has a row for every offset from its first to its last, so that these say what is in it."""
        return self.last - self.first + 1 == self.rows

    @property
    def suffix(self) -> str:
        """`.parquet` of `part-0.zstd.parquet`."""
        return self.path[self.path.rindex(".") :]


class Commit(msgspec.Struct, frozen=True):
    """One change of a table."""

    version: int
    at: int
    """When, in microseconds; for people, nothing depends on it."""
    base: dict[str, Position]
    """Where the streams of `watermark` stood; one that was not there before is missing."""
    watermark: dict[str, Position]
    add: list[File]
    remove: list[str]
    format: int = FORMAT


class Snapshot(msgspec.Struct, frozen=True):
    """All commits up to a version, folded."""

    version: int
    watermark: dict[str, Position]
    files: list[File]
    format: int = FORMAT


class State:
    """What a table holds after some commits."""

    def __init__(self, snapshot: Snapshot | None = None) -> None:
        self.version = 0 if snapshot is None else snapshot.version
        self.watermark = {} if snapshot is None else dict(snapshot.watermark)
        self.files = {} if snapshot is None else {file.path: file for file in snapshot.files}

    def snapshot(self) -> Snapshot:
        """The state as it is stored."""
        return Snapshot(self.version, dict(self.watermark), list(self.files.values()))

    def check(self, commit: Commit) -> None:
        """Refuse a commit that may not come next: Aborted when somebody else was first, InvalidArgument when it is wrong."""
        if commit.version != self.version + 1:
            raise DataLoss(
                f"the manifest goes from {self.version} to {commit.version}, expected {self.version + 1}: a commit is missing"
            )
        for stream, position in commit.watermark.items():
            before, base = self.watermark.get(stream), commit.base.get(stream)
            if before != base:
                raise Aborted(
                    f"{stream!r} is archived up to {_shown(before)}, expected {_shown(base)}: another archive writes this lake",
                    hint="let one archive write a lake; the other one may be started again, and continues where the lake ends",
                )
            if before is not None and position < before:
                raise InvalidArgument.of("watermark", {stream: tuple(position)}, f"{tuple(before)} or more: it never decreases")
        for path in commit.remove:
            if path not in self.files:
                raise Aborted(f"{path!r} is not in the table any more: another compaction has merged it")
        for file in commit.add:
            if file.path in self.files:
                raise InvalidArgument.of("add", file.path, "a file that is not in the table yet")
            if file.rows < 0 or 0 <= file.last - file.first < file.rows - 1:
                raise InvalidArgument.of("add", file.path, f"at most one row for each offset, and there are {file.rows} rows")

    def apply(self, commit: Commit) -> None:
        """Let a commit happen. It is checked first, and nothing changes if it is refused."""
        self.check(commit)
        for path in commit.remove:
            del self.files[path]
        self.files.update((file.path, file) for file in commit.add)
        self.watermark.update(commit.watermark)
        self.version = commit.version


def runs(files: Iterable[File]) -> list[tuple[int, int]]:
    """The offsets that files of one stream hold, as ranges without a hole, in order. A file that lacks rows is left out."""
    found: list[tuple[int, int]] = []
    for file in sorted(files, key=lambda file: file.first):
        if not file.is_dense:
            continue
        if found and found[-1][1] == file.first:
            found[-1] = (found[-1][0], file.last + 1)
        else:
            found.append((file.first, file.last + 1))
    return found


def mergers(files: Iterable[File], *, target_bytes: int, min_files: int = 2, is_thorough: bool = True) -> list[list[File]]:
    """Groups of files that should become one each: of one stream and date, neighbours by offset, up to about `target_bytes`.

    Files with a hole between them are not: of one with a hole inside, nobody could say any more which offsets it has.
    Not thorough: a file larger than all its younger neighbours together waits for more of them, so that a row is copied a few
    times only however often this is asked.
    """
    if target_bytes < 1:
        raise InvalidArgument.of("target_bytes", target_bytes, "1 or more")
    if min_files < 2:
        raise InvalidArgument.of("min_files", min_files, "2 or more")
    found: list[list[File]] = []
    for _, members in groupby(sorted(files, key=_place), key=lambda file: _place(file)[:4]):
        bins = _bins(members, target_bytes)
        found += [group for group in (bins if is_thorough else map(_lazy, bins)) if len(group) >= min_files]
    return found


def _place(file: File) -> tuple[str, int, str, str, int, str]:
    return file.stream, file.number, file.date, file.suffix, file.first, file.path


def _bins(files: Iterable[File], target_bytes: int) -> list[list[File]]:
    """Neighbours that fit into one file; one that is large enough stands alone and parts its neighbours."""
    bins: list[list[File]] = []
    size = target_bytes
    for file in files:
        if size + file.bytes > target_bytes or not _are_joined(bins[-1][-1], file):
            bins.append([])
            size = 0
        bins[-1].append(file)
        size += file.bytes
    return bins


def _are_joined(before: File, after: File) -> bool:
    """Whether one file can hold the rows of both; files of a table without offsets have nothing that could be lost."""
    if before.last < 0 and after.last < 0:
        return True
    return before.is_dense and after.is_dense and before.last + 1 == after.first


def _lazy(group: Sequence[File]) -> list[File]:
    rest = list(group)
    while rest and rest[0].bytes > sum(file.bytes for file in rest[1:]):
        rest.pop(0)
    return rest


def merged(files: Sequence[File], rows: int) -> tuple[int, int]:
    """The first and the last offset of files that became one with this many rows; DataLoss when these are not all of theirs."""
    wanted = sum(file.rows for file in files)
    if rows != wanted:
        raise DataLoss(f"{len(files)} files with {wanted} rows were merged into {rows} rows; nothing was changed")
    return min(file.first for file in files), max(file.last for file in files)


def pending(watermark: Mapping[str, Position], ends: Mapping[str, Position]) -> dict[str, Position]:
    """Of the ends of a batch those that are not archived yet. A stream's older self is archived, or gone for good."""
    return {stream: end for stream, end in ends.items() if watermark.get(stream, Position(-1, 0)) < end}


def floor(watermark: Mapping[str, Position], stream: str, number: int) -> int:
    """The first offset of a stream that is not archived yet; 0 for one that is new or was made again."""
    before = watermark.get(stream)
    return before.offset if before is not None and before.number == number else 0


def _shown(position: Position | None) -> str:
    return "nothing" if position is None else f"offset {position.offset} of stream number {position.number}"
