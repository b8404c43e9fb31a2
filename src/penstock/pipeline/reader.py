"""`spark.read.format("penstock")`: batch reads of offset ranges from the log, the lake, or both."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import closing

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from penstock.errors import InvalidArgument
from penstock.log.log import Log, StreamSpan
from penstock.pipeline.core import offsets as rules
from penstock.pipeline.core.offsets import LostData
from penstock.pipeline.core.options import EARLIEST, LATEST, Kind, SourceOptions
from penstock.pipeline.core.planning import OffsetRange
from penstock.pipeline.scan import Part, arrow_schema, find, open_source, parts, scan

logger = logging.getLogger("penstock.pipeline")


class BatchReader(DataSourceReader):
    """Plans on the driver, and is sent to the tasks, where it only reads.

    It has no `pushFilters`: Spark keeps one reader for a loaded frame, so other queries of that frame would get only the rows
    that passed the filters of the first query.
    """

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_batch()
        self._options = options
        self._schema = arrow_schema(schema, options)

    def partitions(self) -> list[InputPartition]:  # Spark accepts no sequence other than a list
        """The tasks for the current state of the log."""
        options = self._options
        with closing(open_source(options)) as log:
            pieces, losses = _ranges(options, log, find(log, options))
        _report(losses, is_strict=options.is_strict)
        return [*parts(options, pieces)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if not isinstance(partition, Part):
            return iter(())  # Spark creates an empty partition if there is nothing to read
        return scan(self._options, self._schema, partition)


def _ranges(options: SourceOptions, log: Log, spans: Mapping[str, StreamSpan]) -> tuple[list[OffsetRange], list[LostData]]:
    """The ranges that the options select, and which parts of them are lost."""
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


def _report(losses: list[LostData], *, is_strict: bool) -> None:
    if is_strict:
        rules.check(losses)
    for loss in losses:
        logger.warning("skipped: %s", loss.text)
