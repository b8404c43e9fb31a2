"""Rows in Arrow format that are to be published: checked column by column like a publish, and converted to messages.

They are checked once, when they are staged, with fast Arrow kernels; the later conversion to messages checks nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.lookup import find_work_queue
from penstock.durations import DAY, SECOND, micros
from penstock.errors import InvalidArgument, QueueNotFound
from penstock.extras import how_to_install
from penstock.journal.core.checkpoint import QUEUE
from penstock.journal.core.chunk import size_of
from penstock.values.descriptions import StreamDescription
from penstock.values.message import (
    DEFAULT_PRIORITY,
    MAX_ATTRIBUTE_KEY_BYTES,
    MAX_ATTRIBUTE_VALUE_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_ORDERING_KEY_BYTES,
    RESERVED_PREFIX,
    Batch,
    StoredMessage,
)
from penstock.values.policy import QueueConfig

try:
    import pyarrow as pa
    import pyarrow.compute as pc

    from penstock.log.arrow_sizes import check_batch, spread
except ImportError as error:
    raise ImportError(f"writing as Arrow needs pyarrow: {how_to_install('arrow')}", name="pyarrow") from error

LONGEST = 36_525 * DAY
"""The longest time to live."""
_TIME = pa.timestamp("us", tz="UTC")
_TEXTS = pa.map_(pa.string(), pa.string())


def _is_text(kind: pa.DataType) -> bool:
    return any(fits(kind) for fits in (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view))


def _is_binary(kind: pa.DataType) -> bool:
    if pa.types.is_fixed_size_binary(kind):
        return bool(kind.byte_width > 0)  # with no bytes per row, any number of rows could be sent
    return any(fits(kind) for fits in (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_binary_view))


class _Column(NamedTuple):
    """A column of a write."""

    fits: Callable[[pa.DataType], bool]
    """Whether a type is allowed."""
    kind: pa.DataType
    """The type that it is converted to."""
    wanted: str


_COLUMNS = {
    "value": _Column(lambda kind: _is_binary(kind) or _is_text(kind), pa.large_binary(), "binary or string"),
    "key": _Column(_is_text, pa.string(), "string"),
    "attributes": _Column(
        lambda kind: pa.types.is_map(kind) and _is_text(kind.key_type) and _is_text(kind.item_type), _TEXTS, "map<string, string>"
    ),
    "priority": _Column(pa.types.is_integer, pa.int64(), "a whole number"),
    "ttl": _Column(lambda kind: pa.types.is_integer(kind) or pa.types.is_floating(kind), pa.float64(), "a number of seconds"),
    "deliver_at": _Column(lambda kind: pa.types.is_timestamp(kind) and kind.tz is not None, _TIME, "timestamp with a time zone"),
    "stream": _Column(_is_text, pa.string(), "string"),
}


class Target(NamedTuple):
    """A stream that rows are published to, and its defaults for missing values."""

    stream: StreamDescription
    priority: int
    ttl: int | None
    """Microseconds."""

    @property
    def is_queue(self) -> bool:
        """Whether it is a work queue: these have no ordering keys, and allow empty payloads."""
        return self.stream.kind == QUEUE


def target(broker: Broker, stream: StreamDescription) -> Target:
    """The target for a stream. QueueNotFound if it belongs to a deleted work queue."""
    if stream.kind != QUEUE:
        return Target(stream, DEFAULT_PRIORITY, None)
    queue = find_work_queue(broker, stream.name)
    if queue is None:
        raise QueueNotFound(stream.name)
    config = msgspec.msgpack.decode(queue.spec, type=QueueConfig)
    ttl = None if config.message_ttl is None else micros(config.message_ttl, "message_ttl", minimum=1e-6)
    return Target(stream, config.default_priority, ttl)


def check_schema(schema: pa.Schema) -> None:
    """Refuse unknown and missing columns, and unexpected types."""
    names = schema.names
    for field in schema:
        known = _COLUMNS.get(field.name)
        if known is None:
            raise InvalidArgument(f"column {field.name[:100]!r} is not known, expected some of {', '.join(_COLUMNS)}")
        if names.count(field.name) > 1:
            raise InvalidArgument(f"column {field.name!r} appears {names.count(field.name)} times, expected once")
        kind = _without_dictionary(field.type)
        if not known.fits(kind) and not (pa.types.is_null(kind) and field.name != "value"):
            raise InvalidArgument(f"column {field.name!r} is {field.type}, expected {known.wanted}")
    if "value" not in names:
        raise InvalidArgument.of("columns", names, "value among them")


def plain(batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The columns of a batch, converted to the types of `_COLUMNS`. InvalidArgument for values that cannot be converted."""
    check_batch(sum(map(spread, batch.columns)))
    columns = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        known = _COLUMNS[name]
        try:
            # Fractions of a microsecond are cut off.
            columns[name] = column.cast(_without_dictionary(column.type)).cast(known.kind, safe=name != "deliver_at")
        except pa.ArrowInvalid as error:
            raise InvalidArgument(f"column {name!r} cannot be read as {known.wanted}: {error}") from None
    return columns


def _without_dictionary(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def grouped(
    columns: dict[str, pa.Array], default: str | None, row: int
) -> Iterator[tuple[str, dict[str, pa.Array], pa.Array | None]]:
    """(stream, its rows, their positions) for every stream of a batch, in the order of first rows; None for all rows in order.

    `row` is the number of the batch's first row, for errors.
    """
    names = columns.get("stream")
    rest = {name: column for name, column in columns.items() if name != "stream"}
    count = len(columns["value"])
    if names is None or names.null_count == len(names):
        if default is None and count:
            raise InvalidArgument(
                f"row {row} names no stream, expected one", hint="add a column `stream`, or name the stream of all rows"
            )
        if default is not None and count:
            yield default, rest, None
        return
    if names.null_count:
        if default is None:
            place = _first(pc.is_null(names))
            raise InvalidArgument(
                f"row {row + (place or 0)} names no stream, expected one", hint="or name the stream of all rows"
            )
        names = names.fill_null(default)
    found = names.unique().to_pylist()
    if len(found) == 1:
        yield found[0], rest, None
        return
    for name in found:
        places = pc.indices_nonzero(pc.equal(names, name))
        yield name, {other: column.take(places) for other, column in rest.items()}, places


def check(columns: dict[str, pa.Array], where: Target, row: Callable[[int], int]) -> None:
    """Refuse rows that a publish would refuse. The error names the first invalid row; `row` returns its number for a position."""

    def refuse(mask: pa.Array, name: str, wanted: str, hint: str | None = None) -> None:
        place = _first(mask)
        if place is not None:
            raise InvalidArgument.of(f"row {row(place)}: {name}", columns[name][place].as_py(), wanted, hint)

    sizes = pc.fill_null(pc.binary_length(columns["value"]), 0).cast(pa.int64())
    has_attributes = pa.scalar(value=False)
    key = columns.get("key")
    if key is not None and key.null_count < len(key):
        lengths = pc.fill_null(pc.binary_length(key), 0)
        if where.is_queue:
            refuse(pc.greater(lengths, 0), "key", "none: a work queue has no ordering keys")
        refuse(pc.greater(lengths, MAX_ORDERING_KEY_BYTES), "key", f"at most {MAX_ORDERING_KEY_BYTES} bytes")
        sizes = pc.add(sizes, lengths)
    attributes = columns.get("attributes")
    if attributes is not None and attributes.null_count < len(attributes):
        extra = _attribute_sizes(attributes, row)
        sizes, has_attributes = pc.add(sizes, extra), pc.greater(extra, 0)
    if not where.is_queue:
        is_empty = pc.and_(pc.equal(pc.fill_null(pc.binary_length(columns["value"]), 0), 0), pc.invert(has_attributes))
        place = _first(is_empty)
        if place is not None:
            raise InvalidArgument(f"row {row(place)} is empty, expected a value or at least one attribute")
    place = _first(pc.greater(sizes, MAX_MESSAGE_BYTES))
    if place is not None:
        raise InvalidArgument(
            f"row {row(place)} is {sizes[place]} bytes with attributes and key, expected at most {MAX_MESSAGE_BYTES}",
            hint="store large bodies elsewhere and send a reference",
        )
    if "priority" in columns:
        priority = columns["priority"]
        refuse(pc.or_(pc.less(priority, 0), pc.greater(priority, 9)), "priority", "a whole number from 0 to 9, 9 first")
    if "ttl" in columns:
        ttl = columns["ttl"]
        fits = pc.and_(pc.greater_equal(ttl, 1 / SECOND), pc.less_equal(ttl, LONGEST // SECOND))
        refuse(pc.invert(fits), "ttl", f"seconds, more than 0 and at most {LONGEST // SECOND}")
    if "deliver_at" in columns:
        at = columns["deliver_at"].cast(pa.int64())
        refuse(pc.or_(pc.less(at, 0), pc.greater(at, 2 * LONGEST)), "deliver_at", "a time from 1970 on")


def _attribute_sizes(attributes: pa.Array, row: Callable[[int], int]) -> pa.Array:
    """The bytes of the attributes of each row; InvalidArgument for invalid attributes."""
    bounds = attributes.offsets
    low, high = bounds[0].as_py(), bounds[-1].as_py()
    keys, values = attributes.keys.slice(low, high - low), attributes.items.slice(low, high - low)
    key_sizes, value_sizes = pc.binary_length(keys), pc.binary_length(values)

    def refuse(mask: pa.Array, shown: Callable[[str, str | None], tuple[str, object]], wanted: str) -> None:
        place = _first(mask)
        if place is not None:
            name, value = shown(keys[place].as_py(), values[place].as_py())
            where = bisect_right(bounds.to_pylist(), low + place) - 1
            raise InvalidArgument.of(f"row {row(where)}: {name}", value, wanted)

    def of_key(key: str, _: str | None) -> tuple[str, object]:
        return "an attribute key", key

    def of_value(key: str, value: str | None) -> tuple[str, object]:
        return f"attribute {key[:40]!r}", value

    refuse(pc.equal(key_sizes, 0), of_key, "a non-empty string")
    refuse(pc.greater(key_sizes, MAX_ATTRIBUTE_KEY_BYTES), of_key, f"at most {MAX_ATTRIBUTE_KEY_BYTES} bytes")
    refuse(
        pc.starts_with(keys, RESERVED_PREFIX), of_key, f"a key that does not start with {RESERVED_PREFIX!r}, which is reserved"
    )
    refuse(pc.is_null(values), of_value, "a string")
    refuse(pc.greater(value_sizes, MAX_ATTRIBUTE_VALUE_BYTES), of_value, f"at most {MAX_ATTRIBUTE_VALUE_BYTES} bytes")
    # Cumulative bytes of all entries, looked up at the begin and the end of each row.
    each = pc.add(key_sizes, value_sizes).cast(pa.int64())
    sums = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(each)])
    ends = pc.subtract(bounds, low)
    sizes = pc.subtract(sums.take(ends.slice(1)), sums.take(ends.slice(0, len(ends) - 1)))
    return pc.if_else(pc.is_null(attributes), 0, sizes)


def _first(mask: pa.Array) -> int | None:
    """The first position where a mask is true; None if there is none."""
    found = pc.index(mask, value=True).as_py()
    return None if found < 0 else found


def messages(columns: dict[str, pa.Array], where: Target, now: int) -> Batch:
    """Convert checked rows to messages as the log stores them."""
    values = columns["value"].fill_null(b"").to_pylist() if columns["value"].null_count else columns["value"].to_pylist()
    count = len(values)
    keys, attributes = _texts(columns.get("key")), _maps(columns.get("attributes"))
    priority, ttl, at = columns.get("priority"), columns.get("ttl"), columns.get("deliver_at")
    if priority is None or priority.null_count == count:
        priorities, is_even = None, True
    else:
        priorities = priority.fill_null(where.priority).to_pylist()
        is_even = priorities.count(priorities[0]) == count
    level = where.priority if priorities is None else priorities[0]
    if keys is None and attributes is None and is_even:
        stored = [StoredMessage(now, value, None, "", level, len(value)) for value in values]
    else:
        every = zip(values, attributes or [None] * count, keys or [""] * count, priorities or [level] * count, strict=True)
        stored = [StoredMessage(now, value, some, key, rank, 0) for value, some, key, rank in every]
        for message in stored:
            message.size = size_of(message)
    is_plain = is_even
    if ttl is not None and ttl.null_count < count:
        lives = pc.round(pc.multiply(ttl, SECOND)).cast(pa.int64()).to_pylist()
    else:
        lives = [None] * count
    if where.ttl is not None or (ttl is not None and ttl.null_count < count):
        for message, life in zip(stored, lives, strict=True):
            span = where.ttl if life is None else life
            message.expires_at = None if span is None else now + span
        is_plain = False
    if at is not None and at.null_count < count:
        for message, instant in zip(stored, at.cast(pa.int64()).to_pylist(), strict=True):
            message.deliver_at = instant
        is_plain = False
    return Batch(stored, sum([message.size for message in stored]), level if is_plain else None, keys is not None)


def _texts(column: pa.Array | None) -> list[str] | None:
    """A column of texts; None if all are empty."""
    if column is None or column.null_count == len(column):
        return None
    texts: list[str] = column.fill_null("").to_pylist()
    return texts if any(texts) else None


def _maps(column: pa.Array | None) -> list[dict[str, str] | None] | None:
    """A column of attributes; None if all are empty. If a key appears twice, the last one counts."""
    if column is None or column.null_count == len(column):
        return None
    maps = [dict(entries) if entries else None for entries in column.to_pylist()]
    return maps if any(maps) else None


def rows_of(batches: list[tuple[str, list[StoredMessage]]], now: int) -> pa.RecordBatch:
    """Convert messages back to rows, each list with the name of its stream: a part after the transforms of a topic."""
    every = [message for _, messages in batches for message in messages]
    lives = [None if message.expires_at is None else (message.expires_at - now) / SECOND for message in every]
    columns = {
        "value": pa.array([message.data for message in every], pa.large_binary()),
        "key": pa.array([message.key or None for message in every], pa.string()),
        "attributes": pa.array([[*message.attributes.items()] if message.attributes else None for message in every], _TEXTS),
        "priority": pa.array([message.priority for message in every], pa.int64()),
        "ttl": pa.array(lives, pa.float64()),
        "deliver_at": pa.array([message.deliver_at for message in every], _TIME),
        "stream": pa.array([name for name, messages in batches for _ in messages], pa.string()),
    }
    return pa.record_batch([*columns.values()], names=[*columns])
