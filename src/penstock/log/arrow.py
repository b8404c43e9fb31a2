"""Ranges of streams and of the event log as Arrow record batches. Importing this module imports pyarrow.

The payloads of a stored chunk are already in one buffer with their ends, so a column of values is made without reading single
rows; the other columns of plain messages are made chunk by chunk. The same offsets always give the same rows.

`read_stream` and `read_events` read from a broker. The functions below them read from any `LogView`: they yield the parts of a
range, each a batch and the offset at which to continue after it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.broker.broker import Broker
from penstock.broker.history import record
from penstock.broker.log_view import BrokerLog, LogView, check_range, current
from penstock.errors import InvalidArgument, OutOfRange
from penstock.extras import how_to_install
from penstock.ids import message_id
from penstock.journal.core import events
from penstock.journal.core.chunk import Chunk, Summary
from penstock.journal.core.events import spread
from penstock.journal.core.outline import EVENTS as EVENT_LOG
from penstock.journal.core.outline import StreamSpan
from penstock.values.message import StoredMessage

try:
    import pyarrow as pa
    import pyarrow.compute as pc

    from penstock.log.arrow_columns import TEXTS, TIME, EventColumns, Group, MessageColumns
except ImportError as error:
    raise ImportError(f"reading as Arrow needs pyarrow: {how_to_install('arrow')}") from error

BATCH_ROWS = 65_536
BATCH_BYTES = 64 * 1024 * 1024
_NEAR = 256
"""Dead letters with at most this distance between their messages are looked up in one read."""

MESSAGES = pa.schema(
    [
        pa.field("stream", pa.string(), nullable=False),
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("attributes", TEXTS),
        pa.field("priority", pa.int8(), nullable=False),
        pa.field("publish_time", TIME, nullable=False),
        pa.field("expires_at", TIME),
        # A stream is one ordered log: always 0, for queries that were written for partitioned logs.
        pa.field("partition", pa.int32(), nullable=False),
    ]
)

LEASED = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("attempt", pa.int32(), nullable=False),
        # The order of delivery: of two messages of a group, the one with the lower position comes first.
        pa.field("position", pa.int64(), nullable=False),
        # The number of attempts in earlier batches of the query, and how many of them count.
        pa.field("tried", pa.int32(), nullable=False),
        pa.field("failures", pa.int32(), nullable=False),
        pa.field("wait", pa.duration("us"), nullable=False),
        pa.field("message_id", pa.string(), nullable=False),
        pa.field("key", pa.string()),
        pa.field("value", pa.binary(), nullable=False),
        pa.field("attributes", TEXTS),
    ]
)
"""The messages of a planned batch."""

EVENTS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("at", TIME, nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("stream", pa.string()),
        pa.field("subscription", pa.string()),
        pa.field("message_offset", pa.int64()),
        pa.field("message_id", pa.string()),
        pa.field("attempt", pa.int32()),
        pa.field("consumer", pa.string()),
        pa.field("detail", TEXTS),
    ]
)

DEAD_LETTERS = pa.schema(
    [
        pa.field("offset", pa.int64(), nullable=False),
        pa.field("at", TIME, nullable=False),
        pa.field("stream", pa.string()),
        pa.field("subscription", pa.string()),
        pa.field("message_offset", pa.int64(), nullable=False),
        pa.field("message_id", pa.string()),
        pa.field("key", pa.string()),
        # Null when retention has removed the message.
        pa.field("value", pa.binary()),
        pa.field("attributes", TEXTS),
        pa.field("publish_time", TIME),
        pa.field("attempt", pa.int32()),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("cause", pa.string()),
        pa.field("target", pa.string()),
        pa.field("error", pa.string()),
    ]
)

Part = tuple[pa.RecordBatch, int]
"""Rows of a range, and the offset at which to continue after them."""


def read_stream(
    broker: Broker,
    stream_name: str,
    start: int = 0,
    stop: int | None = None,
    *,
    columns: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
) -> Iterator[pa.RecordBatch]:
    """The messages of a stream from offset `start` up to `stop` (default: its current end), in batches with schema `MESSAGES`.

    `stream_name` is the name of a topic or a queue; write `topic:x` or `queue:x` if both exist. `columns` selects columns.
    OutOfRange if retention has removed part of the range.
    """
    view = BrokerLog(broker)
    span = view.find(stream_name)
    parts = message_parts(view, span, start, span.latest if stop is None else stop, columns=columns, batch_rows=batch_rows)
    return (batch for batch, _ in parts)


def read_events(
    broker: Broker, start: int | None = None, stop: int | None = None, *, batch_rows: int = BATCH_ROWS
) -> Iterator[pa.RecordBatch]:
    """The event log from offset `start` (default: the oldest) up to `stop` (default: its current end).

    The batches have the schema `EVENTS`. OutOfRange if retention has removed part of the range.
    """
    broker.sync()
    view = BrokerLog(broker)
    earliest, latest = view.event_range()
    parts = event_parts(view, earliest if start is None else start, latest if stop is None else stop, batch_rows=batch_rows)
    return (batch for batch, _ in parts)


# ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def message_schema(columns: Sequence[str] | None = None) -> pa.Schema:
    """`MESSAGES`, or the named columns of it in the given order."""
    if columns is None:
        return MESSAGES
    unknown = [name for name in columns if name not in MESSAGES.names]
    if unknown or isinstance(columns, str):
        raise InvalidArgument.of("columns", unknown or columns, f"names out of {', '.join(MESSAGES.names)}")
    return pa.schema([MESSAGES.field(name) for name in columns])


def message_parts(
    view: LogView,
    span: StreamSpan,
    start: int,
    stop: int,
    *,
    columns: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    batch_rows: int = BATCH_ROWS,
    batch_bytes: int = BATCH_BYTES,
) -> Iterator[Part]:
    """The messages of a range, or those with one of these ordering keys. Arguments are checked before the first part is read.

    StreamReplaced if the stream does not have the number of the span; OutOfRange if the log does not have the whole range,
    also later, if retention removes messages that are not read yet.
    """
    schema = message_schema(columns)
    span = current(view, span)
    check_range(span.stream, start, stop, span.earliest, span.latest)
    within = range(start, stop)
    chunks = _chunks(view, span, within)
    if keys is not None:
        chunks = (found for found in chunks if found[1].keys is not None)
    groups = _groups(chunks, batch_rows, batch_bytes)
    return _message_parts(MessageColumns(span, schema), groups, within, None if keys is None else _key_set(keys))


def _key_set(keys: Sequence[str]) -> pa.Array:
    if isinstance(keys, str) or not all(isinstance(key, str) for key in keys):
        raise InvalidArgument.of("keys", keys, "a list of ordering keys")
    return pa.array(dict.fromkeys(keys), pa.string())


def _message_parts(make: MessageColumns, groups: Iterator[Group], within: range, keys: pa.Array | None) -> Iterator[Part]:
    for group in groups:
        # Whole chunks, cut to the requested range.
        end = group[-1][0].first + group[-1][0].count
        before, after = max(within.start - group[0][0].first, 0), max(end - within.stop, 0)
        batch = make.batch(group)
        batch = batch.slice(before, batch.num_rows - before - after) if before or after else batch
        if keys is not None:
            is_wanted = pc.is_in(make.key(group), keys)
            batch = batch.filter(is_wanted.slice(before, batch.num_rows))
        if batch.num_rows:
            yield batch, min(end, within.stop)


def _chunks(view: LogView, span: StreamSpan, within: range) -> Iterator[tuple[Summary, Chunk]]:
    """The chunks of a range; OutOfRange at a missing one."""
    expected, going_on = within.start, within.stop
    for summary, chunk in view.journal.read(span.number, within.start, within.stop):
        if summary.first > expected:
            going_on = summary.first
            break
        expected = summary.first + summary.count
        yield summary, chunk
    if expected < within.stop:
        # Retention has removed chunks since the range was checked.
        now = current(view, span)
        raise OutOfRange(span.stream, expected, max(now.earliest, going_on), now.latest)


def _groups(chunks: Iterator[tuple[Summary, Chunk]], batch_rows: int, batch_bytes: int) -> Iterator[Group]:
    """Chunks in groups, each for one batch."""
    group: Group = []
    count = size = 0
    try:
        for summary, chunk in chunks:
            group.append((summary, chunk))
            count += summary.count
            size += len(chunk.data)
            if count >= batch_rows or size >= batch_bytes:
                yield group
                group, count, size = [], 0, 0
    except OutOfRange:
        # The chunks read before are valid.
        if group:
            yield group
        raise
    if group:
        yield group


# ── events ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def event_parts(
    view: LogView, start: int, stop: int, *, streams: Mapping[int, str] | None = None, batch_rows: int = BATCH_ROWS
) -> Iterator[Part]:
    """The events of a range, or those of `streams` (numbers with the names to show). OutOfRange as for messages."""
    check_range(EVENT_LOG, start, stop, *view.event_range())
    return _event_parts(view, range(start, stop), streams, batch_rows)


def _event_parts(view: LogView, within: range, streams: Mapping[int, str] | None, batch_rows: int) -> Iterator[Part]:
    names = view.names()
    shown = names.streams if streams is None else streams
    columns, end = EventColumns(EVENTS, shown, names.queues), within.start
    for first, event in _records(view, within):
        told = record(event, names.stream_of)
        end = min(first + told.count, within.stop)
        if streams is not None and told.stream not in streams:
            continue
        for start in range(max(first, within.start), end, batch_rows):
            stop = min(start + batch_rows, end)
            columns.add(start, told.cut(start - first, stop - first))
            if columns.count >= batch_rows:
                yield columns.taken(), stop
    if columns.count:
        yield columns.taken(), end


def _records(view: LogView, within: range) -> Iterator[tuple[int, events.Event]]:
    """The records of a range; OutOfRange at a missing one."""
    expected = within.start
    if not within:
        return
    for first, event in view.journal.read_events(within.start, within.stop):
        if first > expected:
            break
        expected = first + event.count
        yield first, event
    if expected < within.stop:
        raise OutOfRange(EVENT_LOG, expected, *view.event_range())


# ── dead letters ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Letter(msgspec.Struct, gc=False):
    """A dead letter, from its event."""

    offset: int
    stream: int | None
    message_offset: int
    published_at: int
    attempt: int
    event: events.DeadLettered


def dead_letter_parts(
    view: LogView, start: int, stop: int, *, streams: Mapping[int, str] | None = None, batch_rows: int = BATCH_ROWS
) -> Iterator[Part]:
    """The dead letters of a range of the event log, or those of `streams`, with their payloads. OutOfRange as for events."""
    check_range(EVENT_LOG, start, stop, *view.event_range())
    return _dead_letter_parts(view, range(start, stop), streams, batch_rows)


def _dead_letter_parts(view: LogView, within: range, streams: Mapping[int, str] | None, batch_rows: int) -> Iterator[Part]:
    names = view.names()
    shown = names.streams if streams is None else streams
    gathered: list[_Letter] = []
    for first, event in _records(view, within):
        if not isinstance(event, events.DeadLettered):
            continue
        stream = names.stream_of.get(event.queue)
        if streams is not None and stream not in streams:
            continue
        each = zip(event.offsets, spread(event.published, event.count), spread(event.attempts, event.count), strict=True)
        letters = [_Letter(offset, stream, *letter, event) for offset, letter in enumerate(each, first)]
        gathered += [letter for letter in letters if letter.offset in within]
        if len(gathered) >= batch_rows:
            yield from _letters(view, gathered, shown, names.queues)
            gathered = []
    yield from _letters(view, gathered, shown, names.queues)


def _letters(view: LogView, gathered: list[_Letter], streams: Mapping[int, str], queues: Mapping[int, str]) -> Iterator[Part]:
    """Dead letters with their payloads, in batches of limited size."""
    if not gathered:
        return
    spans = _near(gathered)
    if len(gathered) > 1 and sum(s.size for span in spans for s in view.journal.summaries(*span)) > BATCH_BYTES:
        half = len(gathered) // 2
        yield from _letters(view, gathered[:half], streams, queues)
        yield from _letters(view, gathered[half:], streams, queues)
        return
    wanted = {(letter.stream, letter.message_offset) for letter in gathered}
    found: dict[tuple[int | None, int], StoredMessage] = {}
    for number, start, stop in spans:
        for summary, chunk in view.journal.read(number, start, stop):
            offsets = [offset for offset in range(summary.first, summary.first + summary.count) if (number, offset) in wanted]
            if offsets:
                messages = chunk.messages(summary.published_at)
                found |= {(number, offset): messages[offset - summary.first] for offset in offsets}
    yield _letter_batch(gathered, found, streams, queues), gathered[-1].offset + 1


def _near(gathered: list[_Letter]) -> list[tuple[int, int, int]]:
    """(stream, start, stop) of the reads for all these messages: messages near each other share a read."""
    spans: list[tuple[int, int, int]] = []
    for number, offset in sorted({(each.stream, each.message_offset) for each in gathered if each.stream is not None}):
        if spans and spans[-1][0] == number and offset < spans[-1][2] + _NEAR:
            spans[-1] = (number, spans[-1][1], offset + 1)
        else:
            spans.append((number, offset, offset + 1))
    return spans


def _letter_batch(
    gathered: list[_Letter],
    found: Mapping[tuple[int | None, int], StoredMessage],
    streams: Mapping[int, str],
    queues: Mapping[int, str],
) -> pa.RecordBatch:
    messages = [found.get((each.stream, each.message_offset)) for each in gathered]
    columns = [
        [each.offset for each in gathered],
        [each.event.at for each in gathered],
        [streams.get(each.stream) if each.stream is not None else None for each in gathered],
        [queues.get(each.event.queue) for each in gathered],
        [each.message_offset for each in gathered],
        [_id_of(each) for each in gathered],
        [message.key or None if message is not None else None for message in messages],
        [message.data if message is not None else None for message in messages],
        [list(message.attributes.items()) if message is not None and message.attributes else None for message in messages],
        [each.published_at for each in gathered],
        [each.attempt or None for each in gathered],
        [each.event.reason for each in gathered],
        [each.event.cause or None for each in gathered],
        [each.event.target for each in gathered],
        [each.event.error for each in gathered],
    ]
    arrays = [pa.array(column, field.type) for column, field in zip(columns, DEAD_LETTERS, strict=True)]
    return pa.record_batch(arrays, schema=DEAD_LETTERS)


def _id_of(letter: _Letter) -> str | None:
    return message_id(letter.published_at, letter.stream, letter.message_offset) if letter.stream is not None else None
