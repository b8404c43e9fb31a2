"""`spark.readStream.format("penstock")`: Spark's questions, put to a `Follower` on the driver and to a scan in the tasks."""

# ruff: noqa: N802  # the names are Spark's
from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.pipeline.core.offsets import decode, encode, pieces_of
from penstock.pipeline.core.options import SourceOptions
from penstock.pipeline.follower import Follower
from penstock.pipeline.scan import Part, arrow_schema, open_cursors, open_source, parts, scan

Stored = dict[str, Any]  # offsets as Spark keeps them: JSON


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Made on the driver, where it follows the log, and sent to the tasks, where it only reads."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_stream()
        self._options = options
        self._schema = arrow_schema(schema, options)
        self._followed: Follower | None = None  # opened with the first question, which no task asks

    @property
    def _follower(self) -> Follower:
        if self._followed is None:
            cursors = None if self._options.cursor is None else lambda: open_cursors(self._options)
            self._followed = Follower(self._options, open_source(self._options), cursors)
        return self._followed

    def initialOffset(self) -> Stored:
        """Where a new query begins."""
        return dict(encode(self._follower.begin()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of the options. Spark knows no two at once: with both, the bytes are counted in `latestOffset`."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:
        """Where the next batch ends."""
        if isinstance(limit, ReadAllAvailable):
            return dict(encode(self._follower.latest(decode(start))))
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        return dict(encode(self._follower.latest(decode(start), max_rows=max_rows, max_bytes=max_bytes)))

    def reportLatestOffset(self) -> Stored | None:
        """The end of the log, for the lag in the progress of the query."""
        return dict(encode(self._follower.newest()))

    def prepareForTriggerAvailableNow(self) -> None:
        """Take the ends of now as the ends of all."""
        self._follower.freeze()

    def partitions(self, start: Stored, end: Stored) -> Sequence[InputPartition]:
        """The tasks of a batch. Only the offsets count, so that one that is repeated reads the same."""
        return parts(self._options, pieces_of(decode(start), decode(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of a task."""
        assert isinstance(partition, Part), "planned above"
        return scan(self._options, self._schema, partition, streams=self._options.streams)

    def commit(self, end: Stored) -> None:
        """A batch is done."""
        self._follower.commit(decode(end))

    def stop(self) -> None:
        """The query has ended."""
        if self._followed is not None:
            self._followed.close()
