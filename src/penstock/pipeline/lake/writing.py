"""Writes rows as Parquet files of a table, in tasks. Readers only see files that the driver names in a commit."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from datetime import datetime
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.pipeline.lake.table import NewFile, Shape, Table, is_remote, is_too_long

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

GROUP_BYTES = 32 << 20
"""The size of a row group before compression: a task buffers this much for each file, and a reader can skip row groups."""
REPEATED = ("key", "kind", "stream", "subscription", "consumer", "attributes.key_value.key", "detail.key_value.key")
"""Columns with few distinct values, for which a dictionary is worth its cost."""
DAY = 86_400_000_000


def with_day(batch: pa.RecordBatch, instant: str) -> pa.RecordBatch:
    """Rows with an added column `date`: the day of a timestamp column, in UTC."""
    days = pc.floor(pc.divide(batch.column(instant).cast(pa.int64()).cast(pa.float64()), float(DAY)))
    return batch.append_column("date", days.cast(pa.int32()).cast(pa.date32()))


def write_files(batches: Iterable[pa.RecordBatch], table: Table, shape: Shape) -> Iterator[NewFile]:
    """Write rows in their order: one file for each value of the partition columns.

    Batches may have more columns than the shape; once there are more, all further batches have them.
    """
    with ExitStack() as opened:
        files: dict[tuple[Any, ...], _File] = {}
        for batch in batches:
            more = [field for field in batch.schema if field.name not in shape.schema.names]
            schema = pa.schema([*shape.schema, *more])
            for values, rows in _divided(batch, shape.divided_by):
                key = (*values, len(more))
                if key not in files:
                    named = dict(zip(shape.divided_by, values, strict=True))
                    files[key] = opened.enter_context(_File(table, shape, schema, named))
                files[key].add(rows)
        for file in files.values():
            yield file.finish()


class _File:
    """A file that is written in row groups."""

    def __init__(self, table: Table, shape: Shape, schema: pa.Schema, values: dict[str, object]) -> None:
        self._shape = shape
        self._values = {name: str(value) for name, value in values.items()}
        # Delta has the values in its log, but Polars reads them from the names of directories.
        folders = "/".join(f"{name}={_escaped(value)}" for name, value in self._values.items())
        self.path = f"{folders}/{secrets.token_hex(12)}.zstd.parquet"
        self._table = table
        self._schema = pa.schema([field for field in schema if field.name not in self._values])
        self._waiting: list[pa.RecordBatch] = []
        self._size = self._rows = 0
        self._bounds: dict[str, tuple[Any, Any]] = {}

    def __enter__(self) -> _File:
        if is_remote(self._table.address):
            self._out: Any = self._table.storage().open_output_stream(self.path)
        else:
            path = Path(self._table.address, self.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._out = path.open("xb")
        repeated = [name for name in REPEATED if name.partition(".")[0] in self._schema.names]
        self._writer = pq.ParquetWriter(self._out, self._schema, compression="zstd", use_dictionary=repeated)
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()
        self._out.close()

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows."""
        fitting = rows.select(self._schema.names).cast(self._schema)
        for name in self._shape.bounds:
            found = pc.min_max(fitting.column(name))
            low, high = found["min"].as_py(), found["max"].as_py()
            before = self._bounds.get(name, (low, high))
            self._bounds[name] = min(before[0], low), max(before[1], high)
        self._waiting.append(fitting)
        self._size += fitting.nbytes
        self._rows += fitting.num_rows
        if self._size >= GROUP_BYTES:
            self._flush()

    def finish(self) -> NewFile:
        """Write the rest, and sync the file to disk."""
        self._flush()
        self._writer.close()
        if not is_remote(self._table.address):
            self._out.flush()
            os.fsync(self._out.fileno())
        size = self._out.tell()
        self._out.close()
        lows, highs = ({name: _told(bounds[at]) for name, bounds in self._bounds.items()} for at in (0, 1))
        return NewFile(self.path, size, self._rows, self._values, lows, highs)

    def _flush(self) -> None:
        if self._waiting:
            table = pa.Table.from_batches(self._waiting)
            self._writer.write_table(table, row_group_size=table.num_rows)
            self._waiting, self._size = [], 0


def _divided(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pa.RecordBatch]]:
    """The rows of a batch, grouped by the values of some columns."""
    if not batch.num_rows:
        return
    found = pa.table([batch.column(name) for name in names], list(names)).group_by(list(names), use_threads=False).aggregate([])
    groups = [tuple(row[name] for name in names) for row in found.to_pylist()]
    for values in groups:
        rows = batch
        if len(groups) > 1:
            same = [pc.equal(batch.column(name), value) for name, value in zip(names, values, strict=True)]
            rows = batch.filter(same[0] if len(same) == 1 else pc.and_(*same))
        yield values, rows


def _escaped(value: str) -> str:
    """A value as the name of a directory; a value that is too long is cut, and its hash is appended."""
    mark = "" if not is_too_long(value) else f"~{blake2b(value.encode(), digest_size=12).hexdigest()}"
    while mark and is_too_long(value + mark):
        value = value[:-1]
    return quote(value, safe="") + mark


def _told(value: object) -> object:
    """A bound in Delta's format."""
    return value.isoformat(timespec="microseconds").replace("+00:00", "Z") if isinstance(value, datetime) else value


FILES = "file binary"
"""The schema of what tasks report to the driver: files, each as JSON."""


def reported(files: Iterable[NewFile]) -> Iterator[pa.RecordBatch]:
    """Files as the rows of a frame."""
    yield pa.record_batch({"file": pa.array([msgspec.json.encode(file) for file in files], pa.binary())})


def collected(frame: DataFrame) -> list[NewFile]:
    """The files that the tasks of a frame wrote and reported."""
    return [msgspec.json.decode(bytes(row["file"]), type=NewFile) for row in frame.collect()]


def append(df: DataFrame, table: Table, shape: Shape, *, day: str, query: str, batch: int) -> int:
    """Add the rows of a batch to a table that is not an archive, once, even if called again; returns the number of added rows.

    For `foreachBatch`. `query` is the permanent id of the query, from its checkpoint. `day` is the timestamp column of the day.
    """
    app = f"penstock-query:{query}"
    known = table.create(shape).transaction_version(app)
    if known is not None and known >= batch:
        return 0  # avoids computing the batch; the commit would detect it too
    lake, name = table.address.removesuffix(f"/{table.name}"), table.name

    def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        dated = (with_day(_in_utc(rows), day) for rows in batches)
        return reported(write_files(dated, Table(lake, name), shape))

    files = collected(df.mapInArrow(write, FILES))
    return sum(file.rows for file in files) if files and table.commit(files, app, batch) else 0


def append_rows(rows: Sequence[Mapping[str, Any]], table: Table, shape: Shape, *, day: str) -> int:
    """Add a few rows from the driver to a table; returns their number."""
    table.create(shape)
    if not rows:
        return 0
    schema = pa.schema([field for field in shape.schema if field.name != "date"])
    batch = pa.RecordBatch.from_pylist([{name: row[name] for name in schema.names} for row in rows], schema=schema)
    table.commit([*write_files([with_day(batch, day)], table, shape)], f"penstock-rows:{secrets.token_hex(12)}", 0)
    return len(rows)


def _in_utc(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Convert timestamps to UTC. Spark labels them with the zone of its session."""
    utc = [pa.timestamp("us", tz="UTC") if pa.types.is_timestamp(field.type) else field.type for field in batch.schema]
    return pa.record_batch([column.cast(kind) for column, kind in zip(batch.columns, utc, strict=True)], names=batch.schema.names)
