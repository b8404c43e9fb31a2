"""Tables of the lake as frames and streams of Spark, without a jar: `option("lake", …)` and `option("table", "lifecycle")`.

A stream gets all rows that exist when it starts, then the rows that each commit adds. Files that a compaction merged do not count
as new. Its offsets are versions of the table.
"""

# ruff: noqa: N802  # the names are Spark's
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from penstock.errors import DataLoss
from penstock.pipeline.core.options import TableOptions
from penstock.pipeline.lake.table import Lake, Table

TASK_BYTES = 64 << 20
"""The approximate size of the files of one task."""

Version = dict[str, int]


class _Added(msgspec.Struct):
    """An added file in a commit, with Delta's names."""

    path: str
    size: int
    partitionValues: dict[str, str | None]  # noqa: N815
    dataChange: bool = True  # noqa: N815


class _Action(msgspec.Struct):
    """A line of a commit. Most lines are actions other than `add`."""

    add: _Added | None = None


File = dict[str, Any]
"""A file as `Table.files` returns it."""


@dataclass(frozen=True)
class FilePart(InputPartition):
    """The files of a task."""

    files: tuple[File, ...]


def table_schema(options: TableOptions) -> StructType:
    """The current columns of a table."""
    schema: StructType = from_arrow_schema(_table(options).schema())
    return schema


class _Scan:
    """Reads files in tasks, for both readers."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        self._options = options
        self._schema: pa.Schema = to_arrow_schema(schema, timezone="UTC")

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        if not isinstance(partition, FilePart):
            return  # Spark creates an empty partition if there is nothing to read
        table = _table(self._options)
        for file in partition.files:
            for batch in table.rows(file, columns=self._schema.names):
                yield batch.cast(self._schema)


class TableReader(_Scan, DataSourceReader):
    """`spark.read`: the current version of the table."""

    def partitions(self) -> list[InputPartition]:
        """The tasks."""
        return [*_parts(_table(self._options).files())]


class TableStreamReader(_Scan, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """`spark.readStream`: the current version of the table, then added rows."""

    def __init__(self, options: TableOptions, schema: StructType) -> None:
        super().__init__(options, schema)
        self._target: int | None = None

    def initialOffset(self) -> Version:
        """Before the first version."""
        return {"version": -1}

    def getDefaultReadLimit(self) -> ReadLimit:
        """None."""
        return ReadAllAvailable()

    def latestOffset(self, start: Version, limit: ReadLimit) -> Version:
        """The end of the next batch."""
        newest = self._newest() if self._target is None else self._target
        return {"version": max(newest, start["version"])}

    def prepareForTriggerAvailableNow(self) -> None:
        """Use the current version as the last one."""
        self._target = self._newest()

    def partitions(self, start: Version, end: Version) -> Sequence[InputPartition]:
        """The tasks of a batch. They depend only on the versions, so that a repeated batch reads the same rows."""
        table = _table(self._options)
        if start["version"] < 0:
            table.delta.load_as_version(end["version"])
            return _parts(table.files())
        return _parts([file for version in range(start["version"] + 1, end["version"] + 1) for file in _added(table, version)])

    def _newest(self) -> int:
        return _table(self._options).delta.version()


def _table(options: TableOptions) -> Table:
    return Lake(options.lake).table(options.table)


def _added(table: Table, version: int) -> list[File]:
    """The files that a commit has added; none if it only moved rows."""
    try:
        with table.storage().open_input_stream(f"_delta_log/{version:020}.json") as log:
            lines: list[Any] = bytes(log.read()).splitlines()
    except FileNotFoundError:
        raise DataLoss(
            f"version {version} of {table.address} has left its log, which keeps 30 days",
            hint="start the query with another checkpoint: it begins with all rows that there are",
        ) from None
    added = [action.add for line in lines if (action := msgspec.json.decode(line, type=_Action)).add and action.add.dataChange]
    types = {field.name: field.type for field in table.schema()}
    return [
        {"path": file.path, "size_bytes": file.size}
        | {
            f"partition.{name}": pa.scalar(value, pa.string()).cast(types[name]).as_py()
            for name, value in file.partitionValues.items()
        }
        for file in added
    ]


def _parts(files: Sequence[File]) -> list[FilePart]:
    """Files in groups of about TASK_BYTES bytes."""
    groups: list[list[File]] = []
    size = TASK_BYTES
    for file in files:
        if size + file["size_bytes"] > TASK_BYTES:
            groups.append([])
            size = 0
        groups[-1].append(file)
        size += file["size_bytes"]
    return [FilePart(tuple(group)) for group in groups]
