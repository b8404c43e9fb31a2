"""Positions in several streams: the start and the end of a read, and lost data.

In Spark's checkpoint, `{"orders": [7, 120]}` is offset 120 of the stream with number 7. A stream that was deleted and created
again has another number, so that its offsets are not mistaken for those of the old one. The event log is treated as a stream.

A batch reads exactly the rows between two positions: the same positions give the same rows. A stream that is missing in the first
position gets its place in the second, and is read from there by the next batch. So its start is in the checkpoint before anything
of it is read, and a batch that is repeated after days does not depend on a log that has changed since.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import DataLoss, FailedPrecondition, InvalidArgument
from penstock.log.log import EVENTS, Spans, StreamSpan
from penstock.pipeline.core.options import LATEST, Bound, Kind, Point
from penstock.pipeline.core.planning import OffsetRange

_SHOWN = 5
_REMEDY = (
    "set failOnDataLoss to false to skip what is gone and continue, or start again with another checkpoint; "
    "a longer retention, or a cursor that holds it, keeps messages until they are read"
)


class Position(NamedTuple):
    """The next offset to read of a stream."""

    number: int
    offset: int


Offsets = dict[str, Position]


def decode(stored: Mapping[str, object]) -> Offsets:
    offsets: Offsets = {}
    for stream, value in stored.items():
        match value:
            case [int(number), int(offset)] if number >= 0 and offset >= 0:
                offsets[stream] = Position(number, offset)
            case _:
                raise FailedPrecondition(
                    f"the checkpoint has {value!r} for {stream!r}, expected [number of the stream, offset]",
                    hint="it belongs to another source, or was edited; use another checkpoint",
                )
    return offsets


def check_view(offsets: Iterable[str], *, is_messages: bool) -> None:
    """Refuse positions from a query that read another view, which had other rows."""
    if any((stream == EVENTS) is is_messages for stream in offsets):
        found, asked = ("the event log", "messages") if is_messages else ("streams of messages", "the event log")
        raise FailedPrecondition(
            f"the checkpoint has positions in {found}, but the query reads {asked}",
            hint="a query that reads another view needs another checkpoint",
        )


def encode(offsets: Offsets) -> dict[str, list[int]]:
    """Positions in the format of a checkpoint."""
    return {stream: list(offsets[stream]) for stream in sorted(offsets)}


@dataclass(frozen=True, slots=True)
class LostData:
    """Rows that should have been read and are lost. `rows` is their number, if known."""

    stream: str
    text: str
    rows: int | None = None


def check(losses: Sequence[LostData], cause: Exception | None = None) -> None:
    """Raise DataLoss if something is lost."""
    if losses:
        more = f"; and {len(losses) - _SHOWN} more" if len(losses) > _SHOWN else ""
        raise DataLoss("; ".join(loss.text for loss in losses[:_SHOWN]) + more, hint=_REMEDY) from cause


def deleted(stream: str, position: Position) -> LostData:
    """The loss of unread rows of a stream that was deleted."""
    return LostData(stream, f"stream {stream!r} (number {position.number}) was deleted, and read up to offset {position.offset}")


def replaced(stream: str, position: Position, now: str) -> LostData:
    """The loss of unread rows of a stream that was deleted and created again."""
    return LostData(
        stream,
        f"stream {stream!r} (number {position.number}) was deleted and created again, read up to offset {position.offset}: {now}",
    )


def overtaken(stream: str, start: int, stop: int) -> LostData:
    rows = stop - start
    return LostData(stream, f"offsets {start} to {stop - 1} of {stream!r} ({rows} rows) are gone: retention removed them", rows)


def beyond(stream: str, offset: int, latest: int) -> LostData:
    """The loss of rows that a log does not have any more, or never had."""
    return LostData(
        stream,
        f"offset {offset} of {stream!r} is beyond its end, {latest}: it was never there, or the log is another one than before",
    )


def by_name(spans: Spans, *, is_messages: bool) -> dict[str, StreamSpan]:
    """The readable streams by name, or the event log as a stream."""
    if not is_messages:
        return {EVENTS: StreamSpan(EVENTS, 0, spans.events.earliest, spans.events.latest, 0)}
    return {span.stream: span for span in spans.streams}


# ── start and end of a read ──────────────────────────────────────────────────────────────────────────────────────────────────


def times(spans: Iterable[str], bound: Bound) -> dict[str, int]:
    """The times in a bound, by stream, which have to be looked up before `place`."""
    points = {stream: bound.of(stream, LATEST) for stream in spans}
    return {stream: point.value for stream, point in points.items() if point.kind is Kind.TIME}


def place(
    spans: Mapping[str, StreamSpan], bound: Bound, default: Point, found: Mapping[str, int]
) -> tuple[dict[str, int], list[LostData]]:
    """The offset of a bound in every stream, within the existing offsets, and the losses. `found`: the offsets of `times`."""
    if unknown := sorted(bound.by_stream.keys() - spans.keys()):
        known = ", ".join(sorted(spans)[:_SHOWN]) or "none"
        raise InvalidArgument.of(bound.option, unknown[0], f"only streams that are read: {known}{', …' * (len(spans) > _SHOWN)}")
    offsets, losses = {}, []
    for stream, span in spans.items():
        point = bound.of(stream, default)
        match point.kind:
            case Kind.EARLIEST:
                offset = span.earliest
            case Kind.LATEST:
                offset = span.latest
            case Kind.TIME:
                # Messages may have been published between two calls: those after the span are not read.
                offset = min(max(found[stream], span.earliest), span.latest)
            case _:
                offset = point.value
        if offset < span.earliest:
            losses.append(overtaken(stream, offset, span.earliest))
        elif offset > span.latest:
            losses.append(beyond(stream, offset, span.latest))
        offsets[stream] = min(max(offset, span.earliest), span.latest)
    return offsets, losses


def pieces_between(spans: Mapping[str, StreamSpan], starts: Mapping[str, int], stops: Mapping[str, int]) -> list[OffsetRange]:
    """The ranges of a batch read, by name; a stream whose start is not before its end has none."""
    return [
        OffsetRange(stream, spans[stream].number, starts[stream], stops[stream])
        for stream in sorted(spans)
        if starts[stream] < stops[stream]
    ]


# ── the end of a batch ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Backlog:
    """Unread rows: from `starts` up to `stops`. `kept` are positions in streams that are not read any more."""

    starts: Offsets
    stops: Offsets
    kept: Offsets
    losses: list[LostData]

    @property
    def rows(self) -> dict[str, int]:
        return {stream: stop.offset - self.starts[stream].offset for stream, stop in self.stops.items()}

    def end(self, reached: Mapping[str, int] | None = None) -> Offsets:
        """The positions after reading up to `reached`, or everything. A stream not in `reached` keeps its position."""
        ends = dict(self.kept)
        for stream, stop in self.stops.items():
            start = self.starts[stream]
            offset = stop.offset if reached is None else min(max(reached.get(stream, 0), start.offset), stop.offset)
            ends[stream] = Position(start.number, offset)
        return ends


def backlog(
    start: Offsets, spans: Mapping[str, StreamSpan], is_read: Callable[[str], bool], places: Offsets | None = None
) -> Backlog:
    """Unread rows after `start`. A stream that is not in `start`, or was created again, is placed, and is not read yet.

    `places` has the places for a query that is starting. A new stream starts at its beginning, whatever the start options are.
    `is_read` returns whether the reader selects a stream: a missing stream that it does not select is no loss.
    """
    starts: Offsets = {}
    stops: Offsets = {}
    kept: Offsets = {}
    losses: list[LostData] = []
    for stream, position in start.items():
        span = spans.get(stream)
        if span is None:
            kept[stream] = position
            if is_read(stream):
                losses.append(deleted(stream, position))
            continue
        if span.number != position.number:
            losses.append(replaced(stream, position, f"it is number {span.number} now"))
            continue
        if position.offset < span.earliest:
            losses.append(overtaken(stream, position.offset, span.earliest))
        elif position.offset > span.latest:
            losses.append(beyond(stream, position.offset, span.latest))
        starts[stream] = Position(span.number, min(max(position.offset, span.earliest), span.latest))
        stops[stream] = Position(span.number, span.latest)
    for stream in spans.keys() - starts.keys():
        begin = Position(spans[stream].number, spans[stream].earliest)
        placed = (places or {}).get(stream, begin)
        starts[stream] = stops[stream] = placed if placed.number == begin.number else begin
    return Backlog(starts, stops, kept, losses)


def pieces_of(start: Offsets, end: Offsets) -> list[OffsetRange]:
    """The ranges between two positions of a checkpoint."""
    return [
        OffsetRange(stream, number, start[stream].offset, stop)
        for stream, (number, stop) in sorted(end.items())
        if stream in start and start[stream].number == number and start[stream].offset < stop
    ]


# ── the archive ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def pending(archived: Mapping[str, Position], ends: Mapping[str, Position]) -> Offsets:
    """The ends of a batch that are not archived yet. Rows of an older stream with the same name are archived, or lost."""
    return {stream: end for stream, end in ends.items() if archived.get(stream, Position(-1, 0)) < end}


def floor(archived: Mapping[str, Position], stream: str, number: int) -> int:
    """The first offset of a stream that is not archived yet; 0 for one that is new or was created again."""
    before = archived.get(stream)
    return before.offset if before is not None and before.number == number else 0
