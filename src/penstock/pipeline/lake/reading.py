"""The archived part of the log and the log after it as one log: an offset has the same row in both."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.clock import monotonic
from penstock.durations import SECOND, to_datetime
from penstock.errors import DataLoss, NotFound, OutOfRange
from penstock.log.log import EVENTS, EventSpan, Log, Spans, StreamSpan
from penstock.pipeline.core.options import SourceOptions
from penstock.pipeline.lake.table import ArchivedSpan, Lake, is_remote

SIZED_ROWS = 100_000
"""The maximum number of rows whose sizes are looked up for one batch of a stream with a limit of bytes."""
TIMES = {"messages": "publish_time", "events": "at"}
REFRESH = SECOND
"""The minimum time between two checks of an object store for new data."""
_NOTHING = ArchivedSpan(-1, 0, 0)

logger = logging.getLogger("penstock.pipeline")


class LakeLog:
    """A lake and the log that is archived there, as one `Log`: archived rows come from the lake, the rest from the log.

    Without a log (`live`) it has only the archived rows. Rows of the lake are in the order of offsets, unless files were merged.
    """

    def __init__(self, options: SourceOptions, live: Log | None) -> None:
        assert options.lake is not None, "checked with the options"
        self._view = options.view
        self._is_strict = options.is_strict
        self._table = Lake(options.lake).table(options.view)
        self._live = live
        self._archived: Mapping[str, ArchivedSpan] = {}
        self._looked_at: int | None = None

    def spans(self, names: Sequence[str] | None = None, pattern: str | None = None) -> Spans:
        """The spans of both. If a stream was created again since, its archive belongs to the old one and is ignored."""
        archived = self._look()
        if self._live is not None:
            live = self._live.spans(names, pattern)
            events = _joined(StreamSpan(EVENTS, 0, live.events.earliest, live.events.latest, 0), archived)
            return Spans([_joined(span, archived) for span in live.streams], EventSpan(events.earliest, events.latest))
        if missing := [name for name in names or () if name not in archived]:
            raise NotFound(f"{missing[0]} in the lake {self._table.address}")
        chosen = [name for name in archived if name != EVENTS and (names is None or name in names)]
        events = _joined(StreamSpan(EVENTS, 0, 0, 0, 0), archived)
        return Spans(
            [
                StreamSpan(name, *archived[name], 0)
                for name in sorted(chosen)
                if pattern is None or re.fullmatch(pattern, name) is not None
            ],
            EventSpan(events.earliest, events.latest),
        )

    def offsets_at(self, times: Mapping[str, int]) -> dict[str, int]:
        """For every stream, the first offset at or after a time (microseconds); its end if there is none."""
        archived = self._look()
        found = {stream: self._first_at(stream, archived[stream], time) for stream, time in times.items() if stream in archived}
        if self._live is not None:
            new = {
                stream: time for stream, time in times.items() if stream not in found or found[stream] >= archived[stream].offset
            }
            found |= self._live.offsets_at(new) if new else {}
        return found

    def offsets_for(self, starts: Mapping[str, int], max_bytes: int) -> dict[str, int]:
        """How far a reader gets from `starts` with `max_bytes`. Rows that only the lake has come first."""
        archived = self._look()
        live: dict[str, StreamSpan] = {}
        if self._live is not None:
            spans = self._live.spans([stream for stream in starts if stream != EVENTS])
            live = {span.stream: span for span in spans.streams}
            live[EVENTS] = StreamSpan(EVENTS, 0, spans.events.earliest, spans.events.latest, 0)
        old = {stream: at for stream, at in starts.items() if stream not in live or at < live[stream].earliest}
        if not old:
            assert self._live is not None, "else all are old"
            return self._live.offsets_for(starts, max_bytes)
        share = max(max_bytes // len(old), 1)
        return dict(starts) | {
            stream: self._offset_for(stream, archived.get(stream, _NOTHING), at, share) for stream, at in old.items()
        }

    def sizes_after(self, starts: Mapping[str, int]) -> dict[str, int]:
        """The approximate bytes of each stream from an offset to its end; those of the lake are stored sizes."""
        archived = self._look()
        found = {stream: self._stored_after(stream, archived[stream], at) for stream, at in starts.items() if stream in archived}
        if self._live is not None:
            later = {stream: max(at, archived.get(stream, _NOTHING).offset) for stream, at in starts.items()}
            for stream, size in self._live.sizes_after(later).items():
                found[stream] = found.get(stream, 0) + size
        return found

    def messages(
        self, span: StreamSpan, start: int, stop: int, *, columns: Sequence[str] | None = None, keys: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """The messages of a range; with `keys`, only those with one of these ordering keys."""
        archived = self._look().get(span.stream, _NOTHING)
        archived = archived if archived.number == span.number else _NOTHING
        for first, last, is_archived in _split(start, stop, archived):
            if is_archived:
                wanted = None if keys is None else pc.is_in(ds.field("key"), pa.array(keys, pa.string()))
                yield from self._rows(span.stream, archived.number, first, last, columns, wanted)
            elif self._live is None:
                raise OutOfRange(span.stream, first, archived.first, archived.offset)
            else:
                yield from self._live.messages(span, first, last, columns=columns, keys=keys)

    def events(self, start: int, stop: int, *, streams: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """The events of a range, or those of some streams."""
        archived = self._look().get(EVENTS, _NOTHING)
        for first, last, is_archived in _split(start, stop, archived):
            if is_archived:
                wanted = None if streams is None else pc.is_in(ds.field("stream"), pa.array(streams, pa.string()))
                yield from self._rows(EVENTS, archived.number, first, last, None, wanted)
            elif self._live is None:
                raise OutOfRange(EVENTS, first, archived.first, archived.offset)
            else:
                yield from self._live.events(first, last, streams=streams)

    def dead_letters(self, start: int, stop: int, *, streams: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Never called: dead letters are not archived."""
        raise AssertionError("refused with the options")

    def close(self) -> None:
        """Close the log. Safe to call twice."""
        if self._live is not None:
            self._live.close()

    def _look(self) -> Mapping[str, ArchivedSpan]:
        now = monotonic()
        if self._looked_at is None or not is_remote(self._table.address) or now - self._looked_at >= REFRESH:
            self._archived, self._looked_at = self._table.watermark().streams, now
        return self._archived

    def _files(  # a range of a column of a stream
        self, stream: str, number: int, column: str, low: Any, high: Any = None
    ) -> Iterator[tuple[dict[str, Any], ds.Expression]]:
        """The files that may have rows of a stream between two values of a column (`high` excluded; None: no end).

        In the order of their first offsets, each with the filter for its rows.
        """
        condition = ds.field(column) >= low
        if high is not None:
            condition &= ds.field(column) < high
        if stream != EVENTS:
            condition &= ds.field("stream_number") == number
        for file in self._table.files(None if stream == EVENTS else stream):
            lowest, highest = file[f"min.{column}"], file[f"max.{column}"]
            if (highest is None or highest >= low) and (high is None or lowest is None or lowest < high):
                yield file, condition

    def _rows(  # noqa: PLR0917  # some rows of a range of a stream
        self, stream: str, number: int, start: int, stop: int, columns: Sequence[str] | None, wanted: ds.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        rows = 0
        for file, inside in self._files(stream, number, "offset", start, stop):
            for batch in self._table.rows(file, columns=columns, condition=inside if wanted is None else inside & wanted):
                rows += batch.num_rows
                yield batch
        if wanted is None and rows < stop - start:
            missing = stop - start - rows
            text = f"{missing} offsets of {stream!r} between {start} and {stop - 1} have left the lake {self._table.address}"
            if self._is_strict:
                raise DataLoss(text, hint="rows or files of it were deleted; set failOnDataLoss to false to skip what is gone")
            logger.warning("skipped: %s", text)

    def _first_at(self, stream: str, archived: ArchivedSpan, time: int) -> int:
        """The first archived offset at or after a time. Times need not increase with offsets: clocks may be set back."""
        best = archived.offset
        for file, late in self._files(stream, archived.number, TIMES[self._view], to_datetime(time)):
            if file["min.offset"] >= best:
                break
            for batch in self._table.rows(file, columns=["offset"], condition=late):
                best = min(best, pc.min(batch.column("offset")).as_py())
        return best

    def _stored_after(self, stream: str, archived: ArchivedSpan, start: int) -> int:
        """The size of the files from an offset on; the file that contains the offset counts in proportion."""
        size = 0
        for file, _ in self._files(stream, archived.number, "offset", start):
            low, high = file["min.offset"], file["max.offset"]
            size += file["size_bytes"] * (high + 1 - max(start, low)) // (high + 1 - low)
        return size

    def _offset_for(self, stream: str, archived: ArchivedSpan, start: int, max_bytes: int) -> int:
        """The offset that is reached with `max_bytes` of archived messages; at least one message is included."""
        stop = min(archived.offset, start + SIZED_ROWS)
        column = "value" if self._view == "messages" else "message_id"
        sizes: list[tuple[int, int]] = []
        for file, inside in self._files(stream, archived.number, "offset", start, stop):
            for batch in self._table.rows(file, columns=["offset", column], condition=inside):
                lengths = pc.fill_null(pc.binary_length(batch.column(column)), 0)
                sizes += zip(batch.column("offset").to_pylist(), lengths.to_pylist(), strict=True)
        for offset, size in sorted(sizes):
            max_bytes -= size
            if max_bytes < 0 and offset > start:
                return offset
        return max(stop, start + 1)


def _split(start: int, stop: int, archived: ArchivedSpan) -> Iterator[tuple[int, int, bool]]:
    """The parts of a range before, in and after the archive."""
    first = min(max(archived.first, start), stop)
    last = max(min(archived.offset, stop), first)
    parts = ((start, first, False), (first, last, True), (last, stop, False))
    return (part for part in parts if part[0] < part[1])


def _joined(span: StreamSpan, archived: Mapping[str, ArchivedSpan]) -> StreamSpan:
    """The span of a stream in the log and the archive together."""
    held = archived.get(span.stream, _NOTHING)
    if held.number != span.number or held.first >= held.offset:
        return span
    earliest = held.first if span.earliest >= span.latest else min(held.first, span.earliest)
    return msgspec.structs.replace(span, earliest=earliest, latest=max(held.offset, span.latest))
