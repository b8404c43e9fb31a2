"""Compact: many small files of the lake become few of about 128 MB, merged by Spark's tasks. Rows, order and watermark stay."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.pipeline.lake.compaction import TARGET_BYTES, CompactReport, FileMerge, compact_table, merge_files
from penstock.pipeline.lake.files import HIDDEN
from penstock.pipeline.lake.table import Lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CompactReport", "compact"]

NOT_TABLES = frozenset({"staging", "removed"})
FOLLOWED = frozenset({"lifecycle"})
"""A stream of Spark reads the files of these as they come, and would take a merged one for new rows."""


def compact(spark: SparkSession, lake: str, *, target_bytes: int = TARGET_BYTES, min_files: int = 2) -> CompactReport:
    """Merge the small Parquet files of a lake: those of a stream and a day, `min_files` or more of them, up to `target_bytes`."""
    opened = Lake(lake)
    home = opened.path / HIDDEN
    if not home.is_dir():
        raise InvalidArgument.of("lake", lake, "a directory with an archive in it", hint="`penstock pipeline archive` makes one")
    report = CompactReport()
    for name in sorted(path.name for path in home.iterdir() if path.name not in NOT_TABLES | FOLLOWED):
        with opened.table(name) as table:
            report += compact_table(
                table, target_bytes=target_bytes, min_files=min_files, merger=lambda merges: _on_spark(spark, merges)
            )
    return report


def _on_spark(spark: SparkSession, merges: Sequence[FileMerge]) -> Iterator[int]:
    if not merges:
        return iter(())
    orders = [(index, json.dumps([merge.sources, merge.target])) for index, merge in enumerate(merges)]
    frame = spark.createDataFrame(orders, "place int, merge string").repartition(len(merges), "place")
    done = frame.mapInArrow(_merge_batches, "place int, rows bigint").collect()
    return iter([row["rows"] for row in sorted(done, key=lambda row: row["place"])])


def _merge_batches(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for place, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            sources, target = json.loads(text)
            rows = merge_files(FileMerge(tuple(map(tuple, sources)), target))
            yield pa.RecordBatch.from_pydict({"place": pa.array([place], pa.int32()), "rows": pa.array([rows], pa.int64())})
