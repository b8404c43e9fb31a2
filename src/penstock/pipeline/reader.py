"""`spark.read.format("penstock")`: the ranges of a batch read, cut down by filters, out of the log, the lake, or both."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.types import StructType

from penstock.durations import FOREVER
from penstock.errors import InvalidArgument, NotFound
from penstock.log.log import Log, StreamSpan
from penstock.pipeline.core import offsets as rules
from penstock.pipeline.core.filters import ANYTHING, Condition, RowFilter, prune, wanted
from penstock.pipeline.core.offsets import LostData, overtaken
from penstock.pipeline.core.options import EARLIEST, LAKE, LATEST, LOG, Kind, SourceOptions
from penstock.pipeline.core.planning import OffsetRange
from penstock.pipeline.scan import Part, arrow_schema, find, open_source, parts, scan

logger = logging.getLogger("penstock.pipeline")

_OPS: dict[type[Filter], str] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    In: "in",
    LessThan: "<",
    LessThanOrEqual: "<=",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
}


class BatchReader(DataSourceReader):
    """Plans on the driver; sent to the tasks, where it only reads."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_batch()
        self._options = options
        self._schema = arrow_schema(schema, options)
        self._wanted = ANYTHING

    def partitions(self) -> list[InputPartition]:  # of all sequences, Spark takes only lists
        """The tasks, for the log as it is now."""
        options = self._options
        with nullcontext() if options.storage == LAKE else closing(open_source(options)) as log:
            holdings = ReadableStreams(options, log)
            pieces, losses = _ranges(options, holdings)
            archived, live, gaps = holdings.split(_pruned(pieces, self._place, holdings))
        _report(losses + gaps, is_strict=options.is_strict)
        return [*parts(options, live, archived)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            return iter(())  # Spark makes one up when nothing is to be read
        keys = None if self._wanted.keys is None else sorted(self._wanted.keys)
        return scan(self._options, self._schema, partition, keys=keys, streams=self._streams)

    @property
    def _streams(self) -> list[str] | None:
        """The streams whose events are requested; None: of all."""
        given, pushed = self._options.streams, self._wanted.streams
        if pushed is None:
            return None if given is None else list(given)
        return sorted(pushed if given is None else pushed.intersection(given))

    @property
    def _place(self) -> RowFilter:
        """What names the place of rows. All events are in one log; the streams above say which are meant."""
        if self._options.is_messages or self._streams == []:
            return self._wanted if self._options.is_messages else replace(self._wanted, streams=frozenset())
        return replace(self._wanted, streams=None)


class PruningReader(BatchReader):
    """Reads only what may fulfil the filters of the query.

    A class of its own, for reads that ask for it. Spark 4.3 keeps what was planned for some filters with the frame that was
    loaded, and gives it to other queries of the same frame, which then lack rows. Later ones keep it with the query.
    """

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # noqa: N802  # Spark's name
        """Take note of all filters, and hand all back: pruning leaves rows out, and checks none."""
        self._wanted = wanted(_conditions(filters), is_messages=self._options.is_messages)
        return filters


def _conditions(filters: Iterable[Filter]) -> Iterator[Condition]:
    """The filters on columns as they are in the source: those inside of a map or negated say nothing about places."""
    for filter_ in filters:
        op = _OPS.get(type(filter_))
        if op is not None:
            path, value = filter_.attribute, filter_.value  # type: ignore[attr-defined]  # all of these have both
            if len(path) == 1:
                yield Condition(path[0], op, value)


def _ranges(options: SourceOptions, holdings: ReadableStreams) -> tuple[list[OffsetRange], list[LostData]]:
    """What the options ask for, and what of it is gone."""
    found = []
    for bound, default in ((options.start, EARLIEST), (options.stop, LATEST)):
        times = rules.times(holdings.spans, bound)
        found.append(rules.place(holdings.spans, bound, default, holdings.offsets_at(times) if times else {}))
    (starts, early), (stops, late) = found
    for stream in sorted(starts):
        kinds = {options.start.of(stream, EARLIEST).kind, options.stop.of(stream, LATEST).kind}
        if starts[stream] > stops[stream] and kinds == {Kind.OFFSET}:
            raise InvalidArgument.of("startingOffsets", {stream: starts[stream]}, f"not more than endingOffsets, {stops[stream]}")
    return rules.pieces_between(holdings.spans, starts, stops), early + late


def _pruned(pieces: list[OffsetRange], want: RowFilter, holdings: ReadableStreams) -> list[OffsetRange]:
    """Without the ranges that hold no requested rows."""
    pieces = [piece for piece in pieces if want.streams is None or piece.stream in want.streams]
    since = holdings.offsets_at({piece.stream: want.since for piece in pieces}) if pieces and want.since > 0 else {}
    until = holdings.offsets_at({piece.stream: want.until for piece in pieces}) if pieces and want.until < FOREVER else {}
    return prune(pieces, want, since=since, until=until)


def _report(losses: list[LostData], *, is_strict: bool) -> None:
    if is_strict:
        rules.check(losses)
    for loss in losses:
        logger.warning("skipped: %s", loss.text)


class ReadableStreams:
    """Everything that the options let a reader see, as of one moment. Without a log: `storage` is lake."""

    def __init__(self, options: SourceOptions, log: Log | None) -> None:
        self._options = options
        self._log = log
        self._live = {} if log is None else find(log, options)
        lake = None if options.storage == LOG else options.lake
        self._archived = {} if lake is None else _archived(options, lake, None if log is None else self._live)
        self.spans = {stream: self._joined(stream) for stream in self._live | self._archived}

    def offsets_at(self, times: Mapping[str, int]) -> dict[str, int]:
        """For every stream the first offset at or after an instant, wherever it is; its end when there is none."""
        found: dict[str, int] = {}
        old = {stream: at for stream, at in times.items() if stream in self._archived}
        if old:
            from penstock.pipeline.lake import reading  # noqa: PLC0415  # most reads have nothing to do with a lake

            assert self._options.lake is not None, "something is archived there"
            found = reading.offsets_at(self._options.lake, self._options.view, old)
        if self._log is not None:
            new = {stream: at for stream, at in times.items() if stream not in found or found[stream] >= self._archive(stream)[1]}
            found |= self._log.offsets_at(new) if new else {}
        return found

    def split(self, pieces: Sequence[OffsetRange]) -> tuple[list[OffsetRange], list[OffsetRange], list[LostData]]:
        """Which parts of pieces are read from the lake, which from the log, and which are in neither."""
        archived: list[OffsetRange] = []
        live: list[OffsetRange] = []
        losses: list[LostData] = []
        for piece in pieces:
            first, last = self._archive(piece.stream)
            archived.append(piece._replace(start=max(piece.start, first), stop=min(piece.stop, last)))
            for part in (piece._replace(stop=min(piece.stop, first)), piece._replace(start=max(piece.start, last))):
                if part.rows > 0:
                    earliest = min(max(part.start, self._live[part.stream].earliest), part.stop)
                    losses += [overtaken(part.stream, part.start, earliest)] if part.start < earliest else []
                    live.append(part._replace(start=earliest))
        return [piece for piece in archived if piece.rows > 0], [piece for piece in live if piece.rows > 0], losses

    def _archive(self, stream: str) -> tuple[int, int]:
        """The offsets of a stream that are in the lake, the second excluded."""
        span = self._archived.get(stream)
        return (0, 0) if span is None else (span.earliest, span.latest)

    def _joined(self, stream: str) -> StreamSpan:
        live, old = self._live.get(stream), self._archived.get(stream)
        if live is None or old is None:
            found = live or old
            assert found is not None, "a name of one of the two"
            return found
        return msgspec.structs.replace(live, earliest=min(old.earliest, live.earliest), latest=max(old.latest, live.latest))


def _archived(options: SourceOptions, lake: str, live: Mapping[str, StreamSpan] | None) -> dict[str, StreamSpan]:
    """What the lake holds of the streams that are read. Of a stream that was made again since, the archive is of another one."""
    from penstock.pipeline.lake import reading  # noqa: PLC0415  # most reads have nothing to do with a lake

    held = {span.stream: span for span in reading.archived(lake, options.view) if options.matches(span.stream)}
    if live is not None:
        return {stream: span for stream, span in held.items() if stream in live and live[stream].number == span.number}
    missing = [stream for stream in options.streams or () if options.is_messages and stream not in held]
    if missing:
        raise NotFound(f"{missing[0]} in the lake {lake}")
    return held
