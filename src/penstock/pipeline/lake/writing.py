"""Rows of a DataFrame as files in a table's staging: written by Spark's tasks, then looked at by the driver before they count."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pyarrow.parquet as pq
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F  # noqa: N812  # what everybody calls it

from penstock.errors import DataLoss, InvalidArgument
from penstock.pipeline.core.offsets import Position
from penstock.pipeline.lake.table import Staged, Table

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

STREAM, DATE = "penstock_stream", "penstock_date"
"""The directories in staging. A stream has the hash of its name there: names may be longer than a file system allows."""
ZSTD = frozenset({"parquet", "orc"})
SMALL_ROWS = 100_000
"""This many rows are written by one task: a file for each stream and day, instead of one for each task too."""
TIMESTAMPS = "spark.sql.parquet.outputTimestampType"


class Content(NamedTuple):
    """What a staged file holds; tables without offsets have 0 and -1 for first and last."""

    path: Path
    rows: int
    first: int
    last: int


def day_of(time: Column) -> Column:
    """The day of an instant in UTC, whatever time zone the session has."""
    return F.date_from_unix_date(F.floor(F.unix_micros(time) / F.lit(86_400_000_000)).cast("int"))


def append(df: DataFrame, table: Table, *, query: str, batch: int, format: str = "parquet") -> int:  # noqa: A002  # Spark's word for it
    """Add the rows of a batch to a table that is no copy of a log, once however often it is called; returns how many were added.

    For `foreachBatch`. `query` names the query for good: its id, which lives in its checkpoint. The column `date` becomes the
    directory.
    """
    mark = f"query:{query}"
    base = table.watermark()
    if mark in base and base[mark].offset > batch:
        return 0
    folder = table.stage()
    try:
        write(df.withColumn(DATE, F.col("date").cast("string")).drop("date"), folder, format, partitions=[DATE])
        add = [Staged(found.path, found.rows, date) for _, date, found in staged(df, folder, format, has_offsets=False)]
        table.commit(add, watermark={mark: Position(0, batch + 1)}, base=base)
    finally:
        table.discard(folder)
    return sum(each.rows for each in add)


def write(df: DataFrame, folder: Path, format: str, *, partitions: list[str]) -> None:  # noqa: A002
    """Have Spark write rows below a directory of staging."""
    # The old default, INT96, has no order, no statistics, and a range of its own in other readers.
    df.sparkSession.conf.set(TIMESTAMPS, "TIMESTAMP_MICROS")
    writer = df.write.format(format).mode("append").partitionBy(*partitions)
    if format in ZSTD:
        writer = writer.option("compression", "zstd")
    try:
        writer.save(folder.as_uri())
    except Exception as error:  # Spark has no error of its own for a format that it does not know
        if isinstance(error, AnalysisException) or "DATA_SOURCE_NOT_FOUND" in str(error):
            raise InvalidArgument.of("format", format, "one that Spark knows, and that can hold these columns") from error
        raise


def staged(df: DataFrame, folder: Path, format: str, *, has_offsets: bool) -> Iterator[tuple[str, str, Content]]:  # noqa: A002
    """The files below a directory of staging: the hash of their stream, their date, and what is in them."""
    paths = [Path(parent, name) for parent, _, names in os.walk(folder) for name in names if not name.startswith(("_", "."))]
    contents = map(_footer, paths) if format == "parquet" else _counted(df, folder, paths, format, has_offsets=has_offsets)
    for found in sorted(contents, key=lambda found: (found.first, found.path)):
        values = dict(part.partition("=")[::2] for part in found.path.relative_to(folder).parts[:-1])
        if found.rows:
            yield values.get(STREAM, ""), values[DATE], found


def hashed(stream: str) -> str:
    """The name of a stream's directory in staging, as `STREAM` has it."""
    return hashlib.md5(stream.encode(), usedforsecurity=False).hexdigest()


def _footer(path: Path) -> Content:
    try:
        metadata = pq.read_metadata(path)
    except (OSError, ValueError) as error:
        raise DataLoss(f"{str(path)!r} was just written and cannot be read: {error}; nothing was changed") from error
    places = [index for index in range(metadata.num_columns) if metadata.schema.column(index).path == "offset"]
    groups = [metadata.row_group(group).column(place).statistics for place in places for group in range(metadata.num_row_groups)]
    bounds = [group for group in groups if group is not None and group.has_min_max]
    return Content(
        path,
        metadata.num_rows,
        min((group.min for group in bounds), default=0),
        max((group.max for group in bounds), default=-1),
    )


def _counted(df: DataFrame, folder: Path, paths: list[Path], format: str, *, has_offsets: bool) -> list[Content]:  # noqa: A002
    """Formats without a footer are read once more."""
    if not paths:
        return []
    schema = "offset bigint" if has_offsets else df.drop("date").schema
    rows = df.sparkSession.read.format(format).schema(schema).load(folder.as_uri()).groupBy(F.input_file_name().alias("file"))
    offset = F.col("offset") if has_offsets else F.lit(None).cast("long")
    counted = rows.agg(F.count("*").alias("rows"), F.min(offset).alias("first"), F.max(offset).alias("last")).collect()
    depth = len(paths[0].relative_to(folder).parts)
    by_end = {path.parts[-depth:]: path for path in paths}
    return [
        Content(by_end[tuple(row["file"].split("/")[-depth:])], row["rows"], _or(row["first"], 0), _or(row["last"], -1))
        for row in counted
    ]


def _or(value: int | None, default: int) -> int:
    return default if value is None else value
