"""How large Arrow data is after decompression, calculated without decompressing it.

A few kilobytes can represent terabytes: buffers are compressed, and dictionaries and views repeat the same bytes. So data from
clients is measured first.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import InvalidArgument

MAX_UNPACKED = 256 * 1024 * 1024
"""The largest size of a batch that is compressed or repeats bytes: the whole batch is in memory."""
_DICTIONARY, _RECORDS = 2, 3
"""Arrow's numbers of the kinds of messages with buffers."""
_BYTES = (
    pa.types.is_binary,
    pa.types.is_large_binary,
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_fixed_size_binary,
)
_PREFIX = struct.Struct("<q")
_BUFFER = struct.Struct("<qq")


def check_unpacked(path: Path, limit: int) -> None:
    """InvalidArgument if a batch of an Arrow IPC stream is too large after decompression, or all of them exceed `limit` bytes."""
    total = 0
    try:
        with pa.memory_map(str(path)) as source:
            for message in pa.ipc.MessageReader.open_stream(source):
                size, is_packed = _unpacked(memoryview(message.metadata).cast("B"), message.body)
                if is_packed:
                    check_batch(size)
                total += size
    except (pa.ArrowException, struct.error, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # an error of the disk
        raise InvalidArgument(f"the body is not a valid Arrow IPC stream: {error}") from None
    if total > limit:
        raise InvalidArgument(
            f"the part is {total} bytes when it is unpacked, expected at most {limit}", hint="write smaller parts: repartition"
        )


def check_batch(size: int) -> None:
    """Refuse a batch that would take too much memory."""
    if size > MAX_UNPACKED:
        raise InvalidArgument(
            f"a batch is {size} bytes when it is unpacked, expected at most {MAX_UNPACKED}", hint="send it as several batches"
        )


def spread(column: pa.Array) -> int:
    """How many bytes a column references, counting repeated references; 0 for types without references."""
    kind = column.type
    if pa.types.is_map(kind):
        return spread(column.keys) + spread(column.items)
    if pa.types.is_dictionary(kind):
        if _is_view(kind.value_type):
            # Two levels of references: the longest value for each row is an upper limit.
            return max(_view_sizes(column.dictionary), default=0) * len(column)
        if not any(fits(kind.value_type) for fits in _BYTES):
            return 0
        return pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
    return sum(_view_sizes(column)) if _is_view(kind) else 0


def _is_view(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary_view(kind) or pa.types.is_string_view(kind))


def _view_sizes(column: pa.Array) -> memoryview:
    """The length of each value: a view has four numbers of 32 bits, and the first is its length."""
    views = memoryview(column.buffers()[1] or b"").cast("B").cast("i")
    return views[4 * column.offset : 4 * (column.offset + len(column)) : 4]


def _unpacked(head: memoryview, body: pa.Buffer | None) -> tuple[int, bool]:
    """(bytes, whether they are compressed) of the buffers of a message, from its header."""
    message = _Table(head, _uint(head, 0))
    kind, header = message.byte(1), message.table(2)
    records = header.table(1) if kind == _DICTIONARY and header is not None else header
    if kind not in {_DICTIONARY, _RECORDS} or records is None or body is None:
        return 0, False
    if records.table(3) is None:
        return len(body), False
    size = 0
    for offset, length in records.buffers(2):
        if length:
            # A compressed buffer begins with its true length; -1: this one is not compressed after all.
            (true,) = _PREFIX.unpack_from(body, offset)
            size += length if true < 0 else true
    return size, True


class _Table:
    """A table of a flatbuffer. Fields are found through a list of their offsets, with 0 for absent ones."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        self._places = at - struct.unpack_from("<i", data, at)[0]

    def byte(self, field: int) -> int:
        place = self._place(field)
        return 0 if place is None else self._data[place]

    def table(self, field: int) -> _Table | None:
        place = self._place(field)
        return None if place is None else _Table(self._data, place + _uint(self._data, place))

    def buffers(self, field: int) -> Iterator[tuple[int, int]]:
        """(offset, length) of each entry of a list of buffers."""
        place = self._place(field)
        if place is not None:
            first = place + _uint(self._data, place)
            for number in range(_uint(self._data, first)):
                yield _BUFFER.unpack_from(self._data, first + 4 + number * _BUFFER.size)

    def _place(self, field: int) -> int | None:
        size = struct.unpack_from("<H", self._data, self._places)[0]
        at = 4 + 2 * field
        offset = struct.unpack_from("<H", self._data, self._places + at)[0] if at < size else 0
        return self._at + offset if offset else None


def _uint(data: memoryview, at: int) -> int:
    return int(struct.unpack_from("<I", data, at)[0])
