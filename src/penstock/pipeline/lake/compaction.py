"""Small files of a table become large ones: the merge itself, which any process can do, and the commit that puts it in place."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from penstock.errors import Aborted, DataLoss
from penstock.pipeline.core.manifest import File, merged, mergers
from penstock.pipeline.lake.reading import BATCH_ROWS, PARQUET
from penstock.pipeline.lake.table import Staged, Table

logger = logging.getLogger("penstock.pipeline")

TARGET_BYTES = 128 << 20
GROUP_BYTES = 64 << 20
"""A row group of the merged file, before compression: what a reader holds in memory, and can skip."""


@dataclass(frozen=True, slots=True)
class FileMerge:
    """Some files that are to become one. Each may be at several places, the likeliest first."""

    sources: tuple[tuple[str, ...], ...]
    target: str


Merger = Callable[[Sequence[FileMerge]], Iterator[int]]
"""Does merges, here or elsewhere; yields the number of rows of each, in order, as they are done."""


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did: this many files became so few."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    bytes_before: int = 0
    bytes_after: int = 0

    def __add__(self, other: CompactReport) -> CompactReport:
        return CompactReport(
            self.files_before + other.files_before,
            self.files_after + other.files_after,
            self.rows + other.rows,
            self.bytes_before + other.bytes_before,
            self.bytes_after + other.bytes_after,
        )


def merge_here(merges: Sequence[FileMerge]) -> Iterator[int]:
    """Do them in this process, one after the other."""
    return map(merge_files, merges)


def compact_table(
    table: Table,
    *,
    target_bytes: int = TARGET_BYTES,
    min_files: int = 2,
    is_thorough: bool = True,
    merger: Merger = merge_here,
) -> CompactReport:
    """Merge the small files of a table. Rows and watermark stay as they are, and so does their order.

    Safe beside a running archive, beside another compaction, and against being killed: a group of files is replaced by one
    commit, or not at all.
    """
    table.recover()
    files = [file for file in table.files() if file.suffix == PARQUET]
    groups = mergers(files, target_bytes=target_bytes, min_files=min_files, is_thorough=is_thorough)
    report = CompactReport()
    folder = table.stage()
    try:
        targets = [folder / f"{index}.zstd.parquet" for index in range(len(groups))]
        merges = [
            FileMerge(tuple(_places(table, file) for file in group), str(path))
            for group, path in zip(groups, targets, strict=True)
        ]
        for group, path, rows in zip(groups, targets, merger(merges), strict=True):
            first, last = merged(group, rows)
            whole = Staged(path, rows, group[0].date, group[0].stream, group[0].number, first, last)
            try:
                commit = table.commit([whole], remove=[file.path for file in group])
            except Aborted as error:  # somebody else merged them
                logger.info("a merge of %s was not needed: %s", table.name, error)
                continue
            before = sum(file.bytes for file in group)
            report += CompactReport(len(group), 1, rows, before, commit.add[0].bytes)
    finally:
        table.discard(folder)
    return report


def merge_files(merge: FileMerge) -> int:
    """One file with the rows of several, in their order; returns how many rows."""
    writer: pq.ParquetWriter | None = None
    rows = 0
    try:
        for table in _groups(merge):
            if writer is None:
                writer = pq.ParquetWriter(merge.target, table.schema, compression="zstd")
            writer.write_table(table, row_group_size=table.num_rows)
            rows += table.num_rows
    finally:
        if writer is not None:
            writer.close()
    return rows


def _groups(merge: FileMerge) -> Iterator[pa.Table]:
    """The rows of all files, in parts that become row groups."""
    waiting: list[pa.RecordBatch] = []
    size = 0
    for places in merge.sources:
        with _open(places) as opened:
            for batch in opened.iter_batches(BATCH_ROWS):
                waiting.append(batch)
                size += batch.nbytes
                if size >= GROUP_BYTES:
                    yield pa.Table.from_batches(waiting)
                    waiting, size = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting)


def _open(places: Sequence[str]) -> pq.ParquetFile:
    for path in places:
        with suppress(FileNotFoundError):
            return pq.ParquetFile(path)
    raise DataLoss(f"{places[0]!r} is in the manifest, and not there")


def _places(table: Table, file: File) -> tuple[str, ...]:
    return tuple(str(path) for path in dict.fromkeys(table.places(file)))
