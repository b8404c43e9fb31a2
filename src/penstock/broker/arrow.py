"""Ranges of streams and of the event log as Arrow record batches. The only place of the broker that imports pyarrow.

The payloads of a stored chunk already lie in one buffer with their ends, so a column of values is made without touching a row.
The same offsets always give the same rows.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.broker.broker import Broker
from penstock.broker.core.chunk import Chunk, Summary, numbers
from penstock.broker.history import Row, rows
from penstock.errors import InvalidArgument, OutOfRange
from penstock.ids import message_id

try:
    import pyarrow as pa
except ImportError as error:
    raise ImportError("reading as Arrow needs pyarrow: pip install 'penstock[arrow]'") from error

BATCH_ROWS = 65_536
BATCH_BYTES = 64 * 1024 * 1024
_MANY = 64

_TIME = pa.timestamp("us", tz="UTC")
_TEXTS = pa.map_(pa.string(), pa.string())

MESSAGES = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("attributes", _TEXTS),
        pa.field("priority", pa.int8(), nullable=False),
        pa.field("publish_time", _TIME, nullable=False),
        pa.field("expires_at", _TIME),
    ]
)

EVENTS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("at", _TIME, nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("stream", pa.string()),
        pa.field("subscription", pa.string()),
        pa.field("message_offset", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("consumer", pa.string()),
        pa.field("detail", _TEXTS),
    ]
)


def read_stream(
    broker: Broker,
    stream_name: str,
    start: int = 0,
    stop: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The messages of a stream from offset `start` up to `stop` (default: its end now), as batches with the schema `MESSAGES`.

    `stream_name` is that of a topic or a queue; write `topic:x` or `queue:x` where both exist. `columns` picks some of them.
    OutOfRange when retention has removed part of the range.
    """
    names = MESSAGES.names if columns is None else list(columns)
    unknown = [name for name in names if name not in MESSAGES.names]
    if unknown:
        raise InvalidArgument.of("columns", unknown, f"names out of {', '.join(MESSAGES.names)}")
    with broker.lock:
        stream = broker.stream(stream_name)
        number, name, earliest, latest = stream.number, stream.name, stream.earliest, stream.next_offset
    stop = latest if stop is None else stop
    if not earliest <= start <= stop <= latest:
        raise OutOfRange(name, stop if start >= earliest and start <= stop else start, earliest, latest)
    return _batches(broker, number, name, range(start, stop), names=names, batch_rows=batch_rows)


def read_events(
    broker: Broker, start: int = 0, stop: int | None = None, *, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The event log from offset `start` up to `stop` (default: its end now), as batches with the schema `EVENTS`."""
    broker.sync()
    with broker.lock:
        stream_of = {queue.number: queue.stream for queue in broker.catalog.queues.values()}
        streams = {stream.number: stream.name for stream in broker.catalog.streams.values()}
        queues = {queue.number: queue.name for queue in broker.catalog.queues.values()}
    stop = broker.journal.event_range()[1] if stop is None else stop
    gathered: list[Row] = []
    for first, event in broker.journal.read_events(start, stop):
        gathered += [row for row in rows(first, event, stream_of) if start <= row.offset < stop]
        if len(gathered) >= batch_rows:
            yield _event_batch(gathered, streams, queues)
            gathered = []
    if gathered:
        yield _event_batch(gathered, streams, queues)


def _batches(
    broker: Broker, number: int, name: str, span: range, *, names: list[str], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    group: list[tuple[Summary, Chunk]] = []
    count = size = 0
    for summary, chunk in broker.journal.read(number, span.start, span.stop):
        group.append((summary, chunk))
        count += summary.count
        size += len(chunk.data)
        if count >= batch_rows or size >= BATCH_BYTES:
            yield _batch(group, number, name, span, names)
            group, count, size = [], 0, 0
    if group:
        yield _batch(group, number, name, span, names)


def _batch(group: list[tuple[Summary, Chunk]], number: int, name: str, span: range, names: list[str]) -> pa.RecordBatch:
    """One batch of whole chunks, cut to the range that was asked for."""
    first, last = group[0][0].first, group[-1][0].first + group[-1][0].count
    makers = {
        "stream": lambda: pa.repeat(pa.scalar(name, pa.string()), sum(summary.count for summary, _ in group)),
        "offset": lambda: pa.array(_flat(range(s.first, s.first + s.count) for s, _ in group), pa.int64()),
        "message_id": lambda: pa.array(_flat(_message_ids(s, c, number) for s, c in group), pa.string()),
        "key": lambda: _column(group, "keys", pa.string(), lambda keys: [key or None for key in keys]),
        "value": lambda: _values(group),
        "attributes": lambda: _column(group, "attributes", _TEXTS, lambda maps: [list(m.items()) if m else None for m in maps]),
        "priority": lambda: pa.array(_flat(_each(c.priorities, s.count) for s, c in group), pa.int8()),
        "publish_time": lambda: pa.array(_flat(c.published or [s.published_at] * s.count for s, c in group), _TIME),
        "expires_at": lambda: _column(group, "expires_at", _TIME, list),
    }
    batch = pa.record_batch(
        [makers[column]() for column in names], schema=pa.schema([MESSAGES.field(column) for column in names])
    )
    low, high = max(span.start, first), min(span.stop, last)
    return batch if low == first and high == last else batch.slice(low - first, high - low)


def _values(group: list[tuple[Summary, Chunk]]) -> pa.Array:
    """The payloads: each chunk's buffers as they are when chunks are large, joined buffers when there are many small ones."""
    if sum(summary.count for summary, _ in group) >= _MANY * len(group):
        return pa.concat_arrays([_binary(chunk.count, b"\0\0\0\0" + chunk.ends, chunk.data) for _, chunk in group])
    ends, base = array("i", [0]), 0
    for _, chunk in group:
        ends.extend([base + end for end in numbers(chunk.ends)])
        base += len(chunk.data)
    return _binary(len(ends) - 1, ends.tobytes(), b"".join([chunk.data for _, chunk in group]))


def _binary(count: int, ends: bytes, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _column(group: list[tuple[Summary, Chunk]], name: str, kind: pa.DataType, convert: Any) -> pa.Array:
    """A column that most chunks do not have."""
    if all(getattr(chunk, name) is None for _, chunk in group):
        return pa.nulls(sum(summary.count for summary, _ in group), kind)
    values: list[Any] = []
    for summary, chunk in group:
        column = getattr(chunk, name)
        values += [None] * summary.count if column is None else convert(column)
    return pa.array(values, kind)


def _message_ids(summary: Summary, chunk: Chunk, number: int) -> list[str]:
    offsets = range(summary.first, summary.first + summary.count)
    if chunk.published is None:
        # All of a chunk but the offset is the same text: cheaper than to format each id.
        prefix = f"{summary.published_at:014x}{number:06x}"
        return [f"{prefix}{offset:010x}" for offset in offsets]
    return [message_id(at, number, offset) for at, offset in zip(chunk.published, offsets, strict=True)]


def _event_batch(gathered: list[Row], streams: dict[int, str], queues: dict[int, str]) -> pa.RecordBatch:
    columns = [
        [row.offset for row in gathered],
        [row.at for row in gathered],
        [row.kind for row in gathered],
        [streams.get(row.stream) if row.stream is not None else None for row in gathered],
        [queues.get(row.queue) if row.queue is not None else None for row in gathered],
        [row.message_offset for row in gathered],
        [row.message_id for row in gathered],
        [row.attempt for row in gathered],
        [row.consumer for row in gathered],
        [list(row.detail.items()) for row in gathered],
    ]
    return pa.record_batch([pa.array(column, field.type) for column, field in zip(columns, EVENTS, strict=True)], schema=EVENTS)


def _flat(parts: Iterator[Any]) -> list[Any]:
    return [value for part in parts for value in part]


def _each(values: int | list[int], count: int) -> list[int]:
    return [values] * count if isinstance(values, int) else values
