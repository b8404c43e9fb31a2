"""What a read gives: batches of the broker's log for one caller, each with the offset from which to go on after it.

Called in threads, and the first to import pyarrow: a server that is asked for no Arrow does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

from penstock.broker.log_view import check_range
from penstock.errors import InvalidArgument
from penstock.journal.core.span import EVENTS, StreamSpan
from penstock.log.server.requests import EventsAsked, MessagesAsked
from penstock.log.server.scope import Scope

if TYPE_CHECKING:
    import pyarrow as pa

    Rows = Iterator[tuple[pa.RecordBatch, int]]
    """Batches, each with the offset from which to go on after it."""

BATCH_BYTES = 8 * 1024 * 1024
"""A slow reader holds two batches: one on its way, one ahead."""
STRIDE = 1_000_000
"""A search that finds nothing for so many offsets says so, and its client knows that it is not forgotten."""


def message_rows(scope: Scope, span: StreamSpan, asked: MessagesAsked) -> tuple[pa.Schema, Rows]:
    """The messages of a range."""
    from penstock.log import arrow  # noqa: PLC0415

    start, stop = _range(span.stream, asked.start, asked.stop, span.earliest, span.latest)
    schema = arrow.message_schema(asked.columns)
    if asked.keys is None:
        return schema, arrow.message_parts(scope, span, start, stop, columns=asked.columns, batch_bytes=BATCH_BYTES)
    search = partial(arrow.message_parts, scope, span, columns=asked.columns, keys=asked.keys, batch_bytes=BATCH_BYTES)
    return schema, _strides(schema, search, start, stop)


def event_rows(scope: Scope, asked: EventsAsked) -> tuple[pa.Schema, Rows]:
    """The events of a range."""
    from penstock.log import arrow  # noqa: PLC0415

    streams, start, stop = _events(scope, asked)
    return arrow.EVENTS, _strides(arrow.EVENTS, partial(arrow.event_parts, scope, streams=streams), start, stop)


def dead_letter_rows(scope: Scope, asked: EventsAsked) -> tuple[pa.Schema, Rows]:
    """The dead letters of a range of the event log."""
    from penstock.log import arrow  # noqa: PLC0415

    streams, start, stop = _events(scope, asked)
    return arrow.DEAD_LETTERS, _strides(arrow.DEAD_LETTERS, partial(arrow.dead_letter_parts, scope, streams=streams), start, stop)


def _events(scope: Scope, asked: EventsAsked) -> tuple[Mapping[int, str] | None, int, int]:
    """(streams, start, stop) of what is asked of the event log; no streams: all of it."""
    scope.check(scope.verb)
    for name in asked.streams:
        scope.check_name(scope.verb, name)
    scope.broker.sync()  # what has happened until now is to be read
    start, stop = _range(EVENTS, asked.start, asked.stop, *scope.event_range())
    if asked.streams:
        return scope.names().numbers(asked.streams), start, stop
    return None if scope.sees_all_events else scope.names().streams, start, stop


def _range(name: str, start: int | None, stop: int | None, earliest: int, latest: int) -> tuple[int, int]:
    """The range that is asked for. OutOfRange when the log does not hold all of it."""
    if start is not None and stop is not None and start > stop:
        raise InvalidArgument.of("start", start, f"at most stop, which is {stop}")
    start, stop = earliest if start is None else start, latest if stop is None else stop
    check_range(name, start, stop, earliest, latest)
    return start, stop


def _strides(schema: pa.Schema, search: Callable[[int, int], Rows], start: int, stop: int) -> Rows:
    """A search through a long range, piece by piece; a piece in which nothing was found ends with an empty batch."""
    for first in range(start, stop, STRIDE):
        last = min(first + STRIDE, stop)
        at = first
        for batch, at in search(first, last):
            yield batch, at
        if at < last < stop:
            yield _empty(schema), last


def _empty(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa  # noqa: PLC0415

    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)
