"""The columns of stored messages as Arrow arrays, made chunk by chunk, not row by row.

Most chunks are plain: all their messages were published at the same time, with one priority and without keys. Then the ids,
offsets and times can be calculated, and the payloads already have the layout of Arrow.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, cast

import pyarrow as pa
import pyarrow.compute as pc

from penstock.broker.history import EventRecord
from penstock.ids import message_id
from penstock.journal.core.chunk import Chunk, Summary, numbers
from penstock.journal.core.outline import StreamSpan

TIME = pa.timestamp("us", tz="UTC")
TEXTS = pa.map_(pa.string(), pa.string())

_MANY = 64
_LEAST = 65_536
_ID = 30
_LOW = 1 << 16

Group = list[tuple[Summary, Chunk]]
"""Chunks of a stream, in order."""


class MessageColumns:
    """Makes the columns of chunks of one stream."""

    def __init__(self, span: StreamSpan, schema: pa.Schema) -> None:
        self._span = span
        self._schema = schema
        """The requested columns; each is made by the method of its name."""

    def batch(self, group: Group) -> pa.RecordBatch:
        return pa.record_batch([getattr(self, name)(group) for name in self._schema.names], schema=self._schema)

    def stream(self, group: Group) -> pa.Array:
        return pa.repeat(pa.scalar(self._span.stream, pa.string()), _count(group))

    def offset(self, group: Group) -> pa.Array:
        """Runs of numbers: chunks follow each other, except where some are left out."""
        return _runs([(summary.first, summary.count) for summary, _ in group])

    def message_id(self, group: Group) -> pa.Array:
        """Thirty digits each, of which only the last few differ."""
        parts: list[bytes] = []
        for summary, chunk in group:
            offsets = range(summary.first, summary.first + summary.count)
            if chunk.published is None:
                parts += _ids(f"{summary.published_at:014x}{self._span.number:06x}", offsets)
            else:
                each = zip(chunk.published, offsets, strict=True)
                parts += [message_id(at, self._span.number, offset).encode() for at, offset in each]
        return pa.Array.from_buffers(pa.string(), _count(group), [None, _id_ends(_count(group)), pa.py_buffer(b"".join(parts))])

    def key(self, group: Group) -> pa.Array:
        """Null for messages without a key."""
        return _sparse(group, "keys", pa.string(), lambda keys: pa.array([key or None for key in keys], pa.string()))

    def value(self, group: Group) -> pa.Array:
        """The unchanged buffers of large chunks, or the joined buffers of many small ones."""
        if _count(group) >= _MANY * len(group):
            return _joined([_binary(chunk.count, b"\0\0\0\0" + _native(chunk.ends), chunk.data) for _, chunk in group])
        ends, base = array("i", [0]), 0
        for _, chunk in group:
            ends.extend([base + end for end in numbers(chunk.ends)])
            base += len(chunk.data)
        return _binary(len(ends) - 1, ends.tobytes(), b"".join([chunk.data for _, chunk in group]))

    def attributes(self, group: Group) -> pa.Array:
        """Null for messages without attributes."""
        return _sparse(group, "attributes", TEXTS, _maps)

    def priority(self, group: Group) -> pa.Array:
        given = [bytes([c.priorities]) * s.count if isinstance(c.priorities, int) else bytes(c.priorities) for s, c in group]
        return pa.Array.from_buffers(pa.int8(), _count(group), [None, pa.py_buffer(b"".join(given))])

    def publish_time(self, group: Group) -> pa.Array:
        """One time for a chunk, or one for each of its messages."""
        times = array("q")
        for summary, chunk in group:
            times += (
                array("q", [summary.published_at]) * summary.count if chunk.published is None else array("q", chunk.published)
            )
        return pa.Array.from_buffers(TIME, len(times), [None, pa.py_buffer(times)])

    def expires_at(self, group: Group) -> pa.Array:
        """Null for messages without a time to live."""
        return _sparse(group, "expires_at", TIME, lambda times: pa.array(times, TIME))

    def partition(self, group: Group) -> pa.Array:
        """Always 0."""
        return pa.Array.from_buffers(pa.int32(), _count(group), [None, pa.py_buffer(bytes(4 * _count(group)))])


class EventColumns:
    """Collects records of the event log into the columns of a batch. A value that a record has once is stored once."""

    def __init__(self, schema: pa.Schema, streams: Mapping[int, str], queues: Mapping[int, str]) -> None:
        self._schema = schema
        self._streams = streams
        self._queues = queues
        self._clear()

    def _clear(self) -> None:
        self.count = 0
        """The number of collected rows."""
        self._told: list[EventRecord] = []
        self._runs: list[tuple[int, int]] = []
        self._which = array("i")
        """For every row, the index of its record."""
        self._offsets: list[int | None] = []
        self._ids: list[bytes | None] = []
        self._attempts: list[int | None] = []
        self._consumers: list[str | None] = []
        self._which_consumer = array("i")
        self._details: list[dict[str, str]] = []
        self._which_detail = array("i")

    def add(self, first: int, told: EventRecord) -> None:
        """Add a record whose first event has the offset `first`."""
        count = told.count
        self._which += array("i", [len(self._told)]) * count
        self._told.append(told)
        self._runs.append((first, count))
        self.count += count
        self._offsets += told.offsets if told.offsets is not None else [None] * count
        self._ids += _message_ids(told)
        attempts = told.attempts
        self._attempts += [attempts or None] * count if isinstance(attempts, int) else [each or None for each in attempts]
        if isinstance(told.consumer, list):
            self._which_consumer += array("i", range(len(self._consumers), len(self._consumers) + count))
            self._consumers += told.consumer
        else:
            self._which_consumer += array("i", [len(self._consumers)]) * count
            self._consumers.append(told.consumer)
        if any(not value or not isinstance(value, str) for value in told.detail.values()):
            self._which_detail += array("i", range(len(self._details), len(self._details) + count))
            self._details += [told.detail_of(row) for row in range(count)]
        else:
            self._which_detail += array("i", [len(self._details)]) * count
            self._details.append(cast("dict[str, str]", told.detail))  # every value is a text, as checked above

    def taken(self) -> pa.RecordBatch:
        told, which = self._told, _numbers(self._which)
        streams = [None if each.stream is None else self._streams.get(each.stream) for each in told]
        queues = [None if each.queue is None else self._queues.get(each.queue) for each in told]
        columns = [
            _runs(self._runs),
            pa.array([each.at for each in told], TIME).take(which),
            pa.array([each.kind for each in told], pa.string()).take(which),
            pa.array(streams, pa.string()).take(which),
            pa.array(queues, pa.string()).take(which),
            pa.array(self._offsets, pa.int64()),
            pa.array(self._ids, pa.string()),
            pa.array(self._attempts, pa.int32()),
            pa.array(self._consumers, pa.string()).take(_numbers(self._which_consumer)),
            _maps(self._details, is_null=False).take(_numbers(self._which_detail)),
        ]
        self._clear()
        return pa.record_batch(columns, schema=self._schema)


def _message_ids(told: EventRecord) -> Sequence[bytes | None]:
    """The ids of the messages of a record."""
    if told.offsets is None or told.stream is None or told.published is None:
        return [None] * told.count if told.names is None else [name.encode() for name in told.names]
    if isinstance(told.published, list):
        each = zip(told.published, told.offsets, strict=True)
        return [message_id(at, told.stream, offset).encode() for at, offset in each]
    prefix, endings = f"{told.published:014x}{told.stream:06x}", _endings()
    shared = {high: f"{prefix}{high:06x}".encode() for high in {offset // _LOW for offset in told.offsets}}
    if len(shared) == 1:
        [same] = shared.values()
        return [same + endings[offset % _LOW] for offset in told.offsets]
    return [shared[offset // _LOW] + endings[offset % _LOW] for offset in told.offsets]


def _numbers(values: array[int]) -> pa.Array:
    return pa.Array.from_buffers(pa.int32(), len(values), [None, pa.py_buffer(values)])


def _runs(runs: Iterable[tuple[int, int]]) -> pa.Array:
    """Numbers in runs of (first, count). Adjacent runs are joined."""
    joined: list[list[int]] = []
    for first, count in runs:
        if joined and joined[-1][1] == first:
            joined[-1][1] += count
        else:
            joined.append([first, first + count])
    return _joined([pc.add(_sequence(stop - first), pa.scalar(first, pa.int64())) for first, stop in joined])


def _count(group: Group) -> int:
    return sum([summary.count for summary, _ in group])


def _sparse(group: Group, name: str, kind: pa.DataType, make: Callable[[list[Any]], pa.Array]) -> pa.Array:
    """A column that only few chunks have."""
    if all(getattr(chunk, name) is None for _, chunk in group):
        return pa.nulls(_count(group), kind)
    # One array for all chunks, with or without the column: thousands of tiny arrays would cost more than their rows.
    values: list[Any] = []
    for summary, chunk in group:
        column = getattr(chunk, name)
        values += [None] * summary.count if column is None else column
    return make(values)


def _maps(maps: Sequence[dict[str, str] | None], *, is_null: bool = True) -> pa.Array:
    """A column of maps. Empty maps become null, or stay empty without `is_null`."""
    ends = array("i", accumulate([len(each) if each else 0 for each in maps], initial=0))
    given = [each for each in maps if each]
    keys, texts = (
        pa.array(chain.from_iterable(given), pa.string()),
        pa.array([t for each in given for t in each.values()], pa.string()),
    )
    mask = pa.array([not each for each in maps], pa.bool_()) if is_null else None
    return pa.MapArray.from_arrays(_numbers(ends), keys, texts, mask=mask)


def _binary(count: int, ends: bytes, data: bytes) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _joined(arrays: list[pa.Array]) -> pa.Array:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _native(ends: bytes) -> bytes:
    """The ends of a chunk in this machine's byte order."""
    return ends if sys.byteorder == "little" else numbers(ends).tobytes()


@lru_cache(maxsize=1)
def _endings() -> list[bytes]:
    """The last four digits of every offset."""
    return [f"{low:04x}".encode() for low in range(_LOW)]


def _ids(prefix: str, offsets: range) -> Iterator[bytes]:
    """The ids of messages that differ only in the offset, in pieces of which only the last four digits differ."""
    start = offsets.start
    while start < offsets.stop:
        stop = min(offsets.stop, (start // _LOW + 1) * _LOW)
        shared = f"{prefix}{start // _LOW:06x}".encode()
        low = start % _LOW
        yield shared
        yield shared.join(_endings()[low : low + stop - start])
        start = stop


@lru_cache(maxsize=4)
def _sequence_of(size: int) -> pa.Array:
    return pa.array(range(size), pa.int64())


def _sequence(count: int) -> pa.Array:
    return _sequence_of(_rounded(count)).slice(0, count)


@lru_cache(maxsize=4)
def _ends_of(size: int) -> pa.Buffer:
    return pa.py_buffer(array("i", range(0, _ID * (size + 1), _ID)))


def _id_ends(count: int) -> pa.Buffer:
    """The end positions of consecutive ids."""
    return _ends_of(_rounded(count)).slice(0, 4 * (count + 1))


def _rounded(count: int) -> int:
    """The count rounded up to a power of two, at least the rows of a batch, so that only few sizes are made."""
    return 1 << max(count - 1, _LEAST - 1).bit_length()
