"""`spark.read.format("penstock")`: the ranges of a batch read, cut down by filters, out of the log, the lake, or both."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

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
from penstock.errors import InvalidArgument
from penstock.log.log import Log, StreamSpan
from penstock.pipeline.core import offsets as rules
from penstock.pipeline.core.filters import ANYTHING, Condition, RowFilter, prune, wanted
from penstock.pipeline.core.offsets import LostData
from penstock.pipeline.core.options import EARLIEST, LATEST, Kind, SourceOptions
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
        with closing(open_source(options, is_first=True)) as log:
            spans = find(log, options)
            pieces, losses = _ranges(options, log, spans)
            pieces = _pruned(pieces, self._place, log)
        _report(losses, is_strict=options.is_strict)
        return [*parts(options, pieces)]

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


def _ranges(options: SourceOptions, log: Log, spans: Mapping[str, StreamSpan]) -> tuple[list[OffsetRange], list[LostData]]:
    """What the options ask for, and what of it is gone."""
    found = []
    for bound, default in ((options.start, EARLIEST), (options.stop, LATEST)):
        times = rules.times(spans, bound)
        found.append(rules.place(spans, bound, default, log.offsets_at(times) if times else {}))
    (starts, early), (stops, late) = found
    for stream in sorted(starts):
        kinds = {options.start.of(stream, EARLIEST).kind, options.stop.of(stream, LATEST).kind}
        if starts[stream] > stops[stream] and kinds == {Kind.OFFSET}:
            raise InvalidArgument.of("startingOffsets", {stream: starts[stream]}, f"not more than endingOffsets, {stops[stream]}")
    return rules.pieces_between(spans, starts, stops), early + late


def _pruned(pieces: list[OffsetRange], want: RowFilter, log: Log) -> list[OffsetRange]:
    """Without the ranges of which nothing is read."""
    pieces = [piece for piece in pieces if want.streams is None or piece.stream in want.streams]
    since = log.offsets_at({piece.stream: want.since for piece in pieces}) if pieces and want.since > 0 else {}
    until = log.offsets_at({piece.stream: want.until for piece in pieces}) if pieces and want.until < FOREVER else {}
    return prune(pieces, want, since=since, until=until)


def _report(losses: list[LostData], *, is_strict: bool) -> None:
    if is_strict:
        rules.check(losses)
    for loss in losses:
        logger.warning("skipped: %s", loss.text)
