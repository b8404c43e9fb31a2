"""Writing: `df.write.format("penstock")` and `df.writeStream.format("penstock")`, exactly once.

    driver                      tasks (executors)                   server
    a writer per attempt  ────> stage: parts of a write ──────────> stored, invisible
    commit(query, batch)  ────────────────────────────────────────> published, all or nothing, once
    or abort              ────────────────────────────────────────> deleted

Spark creates a new writer for every attempt of a batch and sends it to its tasks, so its random name is known to all tasks of
this attempt and to no others. Parts are named by the attempt of their task: parts of a lost, failed or speculative task attempt
are not named in the commit, and are deleted with the write. If the driver is killed before the commit, the staged write expires
at the server. A repeated batch is recognised by (query, batch).
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from penstock.errors import FailedPrecondition, InvalidArgument
from penstock.log.http import TIMEOUT, HttpLog
from penstock.pipeline.core.destination import (
    ATTRIBUTES,
    DELIVER_AT,
    HEADERS,
    KEY,
    PRIORITY,
    SAME,
    STREAM,
    TTL,
    VALUE,
    Column,
    Destination,
    Layout,
    destination,
    layout,
)
from penstock.pipeline.scan import check_reach

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


PART_BYTES = 8 * 1024 * 1024
"""How much a task buffers and stages at once: small enough to be sent again, large enough for the cost of a request."""

QUERY_ID = "sql.streaming.queryId"

# The types of columns on the wire. Numbers are not narrowed here: the server reports the row that is out of bounds.
_WIRE: dict[str, pa.DataType] = {
    VALUE: pa.binary(),
    KEY: pa.string(),
    ATTRIBUTES: pa.map_(pa.string(), pa.string()),
    PRIORITY: pa.int64(),
    TTL: pa.float64(),
    DELIVER_AT: pa.timestamp("us", tz="UTC"),
    STREAM: pa.string(),
}

Values = list[Any]  # any JSON values

ESCAPED = '"\\' + "".join(map(chr, range(32)))
"""The characters that must be escaped in a JSON string."""

_ENCODER = msgspec.json.Encoder(decimal_format="number")


@dataclass(frozen=True)
class StagedParts(WriterCommitMessage):
    """What a task reports to the driver: the parts that it staged."""

    write: str
    partition: int
    parts: tuple[str, ...]
    query: str | None
    """The streaming query of the task; Spark passes it to tasks, but not to the driver side of a sink."""


class _Stager:
    """Staging in the tasks, and publishing on the driver."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument("a log is only appended to", hint="use mode('append'), in a stream outputMode('append')")
        self._to: Destination = destination(options)
        to = self._to
        self._log = HttpLog(to.endpoint, token=to.token, project=to.project, timeout=to.timeout or TIMEOUT)
        self._write = secrets.token_hex(16)
        columns = [Column(field.name, field.dataType.simpleString(), field.dataType.jsonValue()) for field in schema]
        self._layout: Layout = layout(columns, is_json=self._to.is_json, has_stream=self._to.stream is not None)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedParts:
        """Called in a task: stage its rows, one part at a time."""
        context = TaskContext.get()
        assert context is not None, "Spark calls it in a task"
        name = f"{context.partitionId()}-{context.taskAttemptId()}"
        parts: list[str] = []
        with closing(self._log) as log:
            for group in pieces((messages(batch, self._layout) for batch in iterator), PART_BYTES):
                part = f"{name}-{len(parts)}"
                log.stage(self._write, part, group, stream=self._to.stream)
                parts.append(part)
        return StagedParts(self._write, context.partitionId(), tuple(parts), context.getLocalProperty(QUERY_ID))

    def _publish(self, staged: Sequence[StagedParts], query: str | None, batch: int) -> None:
        parts = [part for task in sorted(staged, key=lambda task: task.partition) for part in task.parts]
        with closing(self._log) as log:
            log.commit(staged[0].write, parts, query=query, batch=batch)

    def _forget(self, writes: Iterable[str]) -> None:
        with closing(self._log) as log:
            for write in set(writes):
                log.abort(write)


class BatchSink(_Stager, DataSourceArrowWriter):
    """`df.write`. With the options `query` and `batch`, as in foreachBatch, a repeated write adds nothing."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._query, self._batch = self._to.for_batch()
        if self._query is None:  # a batch of a query may wait during a restart of the server
            check_reach(self._log)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Publish. Called on the driver, when all tasks are done."""
        if staged := _staged(messages):
            # Do not use the query id of the tasks: in foreachBatch they have one, and all writes of a batch would count as one.
            self._publish(staged, self._query, self._batch)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:  # it knows its own write
        """Delete the staged parts. Called on the driver, when a task has finally failed."""
        self._forget([self._write])


class StreamSink(_Stager, DataSourceStreamArrowWriter):
    """`df.writeStream`. A batch is identified by the id of the query, which is stored in its checkpoint, and by its number."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        super().__init__(options, schema, overwrite)
        self._to.for_stream()

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Publish. Called on the driver, when all tasks of a batch are done."""
        if staged := _staged(messages):
            query = self._to.query or staged[0].query
            if query is None:
                raise FailedPrecondition(f"Spark did not pass to its tasks {QUERY_ID}", hint="option('query', …) names the query")
            self._publish(staged, query, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803  # Spark's name
        """Delete the staged parts. Called on the driver, when a task has finally failed. The tasks had another writer object."""
        self._forget(task.write for task in _staged(messages))


def _staged(told: Sequence[WriterCommitMessage | None]) -> list[StagedParts]:
    return [task for task in told if isinstance(task, StagedParts) and task.parts]


def messages(batch: pa.RecordBatch, shape: Layout) -> pa.RecordBatch:
    """The rows of a batch in the format of the log API."""
    columns = {SAME.get(name, name): _on_wire(name, batch.column(name)) for name in shape.special}
    if shape.payload is not None:
        columns[VALUE] = json_rows(batch, shape.payload)
    return pa.record_batch(columns)


def _on_wire(name: str, column: pa.Array) -> pa.Array:
    if name == VALUE:
        return column.cast(pa.binary()).fill_null(b"")
    if name == HEADERS:
        return _attributes(column)
    if pa.types.is_duration(column.type):
        column = _seconds(column)
    return column.cast(_WIRE[SAME.get(name, name)])


def _attributes(headers: pa.Array) -> pa.Array:
    """Kafka headers, a list of names with bytes, as a map of texts."""
    # A slice keeps the items of all rows: this makes them start with those of the slice.
    headers = pa.concat_arrays([headers])
    names, values = headers.values.field("key"), pc.fill_null(headers.values.field("value"), b"").cast(pa.string())
    return pa.MapArray.from_arrays(headers.offsets, names, values, mask=headers.is_null() if headers.null_count else None)


def _seconds(column: pa.Array) -> pa.Array:
    """An interval as a number of seconds."""
    return pc.divide(column.cast(pa.duration("us")).cast(pa.int64()).cast(pa.float64()), 1e6)


def pieces(batches: Iterable[pa.RecordBatch], limit: int) -> Iterator[list[pa.RecordBatch]]:
    """The batches in groups of about `limit` bytes; larger batches are split, empty ones are left out."""
    group: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        step = max(1, batch.num_rows * limit // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, step):
            group.append(batch.slice(start, step))
            size += group[-1].nbytes
            if size >= limit:
                yield group
                group, size = [], 0
    if group:
        yield group


def json_rows(batch: pa.RecordBatch, names: Sequence[str]) -> pa.Array:
    """Return one JSON object for each row, with these columns in this order, as a column of bytes.

    Dates and times are ISO 8601 (instants in UTC, with a Z), decimals are numbers with all their digits, binary is base64,
    intervals are ISO 8601 durations. Nulls are kept. Values that JSON cannot express (NaN, infinity) become null. It processes
    whole columns as far as possible, because single cells are slow.
    """
    columns = [_values(batch.column(name)) for name in names]
    return pa.array(list(map(_ENCODER.encode, map(_row(tuple(names)), *columns))), pa.binary())


@cache
def _row(names: tuple[str, ...]) -> Callable[..., object]:
    """A function from cells to a row: a struct, encoded three times as fast as a dict, unless a name must be escaped."""
    if any(character in name for name in names for character in ESCAPED):
        return lambda *cells: dict(zip(names, cells, strict=True))
    fields = [f"c{index}" for index in range(len(names))]
    renamed = dict(zip(fields, names, strict=True))
    return msgspec.defstruct("Row", [(field, object) for field in fields], rename=renamed, gc=False)


def _values(column: pa.Array) -> Values:
    kind = column.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_boolean(kind) or pa.types.is_floating(kind):
        return _quick(column)
    if pa.types.is_integer(kind):
        return _quick(column) if column.null_count == 0 else _values_or_none(column)
    if pa.types.is_timestamp(kind):
        return _quick(_instants(column))
    if pa.types.is_date(kind):
        return _quick(column.cast(pa.string()))
    if pa.types.is_time(kind):
        return _quick(column.cast(pa.time64("us")).cast(pa.string()))
    if pa.types.is_struct(kind):
        return _structs(column)
    if pa.types.is_map(kind):
        return _maps(column)
    if pa.types.is_list(kind):
        return _grouped(column, _values(column.values))
    return _cells(column)  # decimals, durations, nulls


def _quick(column: pa.Array) -> Values:
    """Convert with numpy, many times faster than cell by cell. A missing number becomes NaN, encoded as null."""
    cells: Values = column.to_numpy(zero_copy_only=False).tolist()
    return cells


def _cells(column: pa.Array) -> Values:
    cells: Values = column.to_pylist()
    return cells


def _values_or_none(column: pa.Array) -> Values:
    """Integers with nulls: numpy would convert them to floats, and lose digits."""
    numbers, is_null = _quick(column.fill_null(0)), _quick(column.is_null())
    return [None if gap else number for number, gap in zip(numbers, is_null, strict=True)]


def _instants(column: pa.Array) -> pa.Array:
    """ISO 8601 with microseconds. Spark's timestamps with a zone are in UTC, whatever zone they name; others have no zone."""
    text = pc.replace_substring(column.cast(pa.timestamp("us")).cast(pa.string()), pattern=" ", replacement="T")
    return pc.binary_join_element_wise(text, "Z", "") if column.type.tz is not None else text


def _structs(column: pa.Array) -> Values:
    names = [field.name for field in column.type]
    if not names:
        return [{} if is_valid else None for is_valid in _quick(column.is_valid())]
    rows = zip(*[_values(column.field(index)) for index in range(len(names))], strict=True)
    objects: Values = [dict(zip(names, row, strict=True)) for row in rows]
    return _with_nulls(column, objects)


def _maps(column: pa.Array) -> Values:
    pairs = list(zip(_values(column.keys), _values(column.items), strict=True))
    return [None if group is None else dict(group) for group in _grouped(column, pairs)]


def _grouped(column: pa.Array, flat: Values) -> Values:
    """The cells of all lists, or of all maps, grouped by row."""
    ends = _quick(column.offsets)
    return _with_nulls(column, [flat[start:stop] for start, stop in pairwise(ends)])


def _with_nulls(column: pa.Array, values: Values) -> Values:
    if column.null_count == 0:
        return values
    return [value if is_valid else None for value, is_valid in zip(values, _quick(column.is_valid()), strict=True)]
