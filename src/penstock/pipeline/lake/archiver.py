"""Writes batches of the log to a table of the lake, each row once. `foreachBatch` of the archive calls it.

Spark's checkpoint has the end of each batch, the table has the position of the lake. If they differ, the table is right: its rows
are not written again, whatever happened to the checkpoint, and missing rows are not skipped. Tasks read their ranges from the log
and write them as Parquet themselves, so no row passes through Java.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pyarrow as pa
from deltalake.exceptions import DeltaError

from penstock.errors import (
    Aborted,
    DataLoss,
    FailedPrecondition,
    NotFound,
    OutOfRange,
    PenstockError,
    Unavailable,
)
from penstock.log.log import EVENTS, Log, WritableLog
from penstock.pipeline.arrow_types import arrow_schema
from penstock.pipeline.core.offsets import Offsets, Position, by_name, decode, floor, pending
from penstock.pipeline.core.options import VIEWS, SourceOptions, source_options
from penstock.pipeline.core.planning import OffsetRange
from penstock.pipeline.job import Plan, open_target
from penstock.pipeline.lake.reading import TIMES
from penstock.pipeline.lake.table import ARCHIVE, SHAPES, TRIES, ArchivedSpan, Lake, NewFile, Table, Watermark
from penstock.pipeline.lake.typed import TypedTables
from penstock.pipeline.lake.writing import FILES, collected, reported, with_day, write_files
from penstock.pipeline.progress import FETCHED
from penstock.pipeline.scan import Part, parts, scan

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger = logging.getLogger("penstock.pipeline")

COMPACT_EVERY = 60
"""The number of commits between two searches for small files: about a minute with a batch every second."""
COMPACT_FILES = 8
SMALL_BYTES, LARGE_BYTES = 8 << 20, 128 << 20
REPORTS = 200
"""The number of batches whose row counts are kept, for reports of Spark that are read late."""
LARGE_EVERY = 16
"""One in this many searches merges larger files, so that a row is copied only a few times."""


class Archiver:
    """Archives batches of one view, `messages` or `events`. It is sent to where Spark calls it, and opens its tables there."""

    def __init__(self, plan: Plan, view: str, checkpoint: Path, *, compact_every: int = COMPACT_EVERY) -> None:
        self._plan = plan
        self.view = view
        self.checkpoint = checkpoint
        self._compact_every = compact_every
        self._opened: Table | None = None
        self._typed: TypedTables | None = None
        self._commits = self._looks = 0
        self._compaction: threading.Thread | None = None

    @property
    def cursor(self) -> str:
        """The name of the archive's cursor at the broker, which shows its lag."""
        return f"archive-{self.view}"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None, "_compaction": None, "_typed": None}

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Archive a batch, of which some or all rows may be archived already. Only its offsets are used; tasks read the rows."""
        ends = self._ends(batch)
        rows = self._take(df.sparkSession, ends)
        fetched = FETCHED.setdefault(self.cursor, {})
        fetched[batch] = rows
        fetched.pop(batch - REPORTS, None)
        self.report(ends)
        if rows:
            self._tend()

    def catch_up(self, spark: SparkSession) -> None:
        """Archive what the checkpoint has and the lake lacks: a batch of a killed archive, or rows missing in a restored lake."""
        if self._plan.typed and self.view == "messages":
            for stream in self._table().watermark().streams:
                self._typed_tables().follow(stream)
        if batches := [int(path.name) for path in (self.checkpoint / "offsets").glob("[0-9]*")]:
            self._take(spark, self._ends(max(batches)))
        self.report(positions(self._table().watermark()))

    def start_offsets(self) -> dict[str, int]:
        """The start of a query without a checkpoint: the end of the lake. Streams that the lake lacks are archived as a whole."""
        archived = positions(self._table().watermark())
        with closing(self._log()) as log:
            spans = by_name(log.spans(pattern=self._plan.streams), is_messages=self.view != "events")
        offsets = {}
        for stream, span in spans.items():
            offset = floor(archived, stream, span.number)
            if offset > span.latest:
                raise FailedPrecondition(
                    f"the lake has {stream!r} up to offset {offset}, and the log ends at {span.latest}: it is of another broker",
                    hint="use a lake of its own for each broker",
                )
            if offset > span.earliest:
                offsets[stream] = offset
        return offsets

    def report(self, ends: Mapping[str, Position]) -> None:
        """Report the position of the lake to the broker. If the broker does not answer, it gets it with the next batch."""
        if self._plan.target.endpoint is None:
            return
        with closing(cast("WritableLog", self._log())) as log:  # the log of an endpoint is one
            try:
                spans = by_name(log.spans(), is_messages=self.view != "events")
                offsets = {
                    stream: end.offset for stream, end in ends.items() if stream in spans and spans[stream].number == end.number
                }
                log.advance(self.cursor, offsets, holds=self._plan.hold or None)
            except (Unavailable, NotFound, OutOfRange) as error:  # the last two: a stream was deleted just now
                logger.warning("the cursor %s was not moved: %s", self.cursor, error)

    def reader_options(self) -> dict[str, str]:
        """The options of the query for `format("penstock")`."""
        options = self._plan.target.reading() | {"view": self.view, "failOnDataLoss": "false"}
        return options | ({"subscribePattern": self._plan.streams} if self.view == "messages" else {})

    def _table(self) -> Table:
        if self._opened is None:
            self._opened = Lake(self._plan.lake).table(self.view)
            self._opened.create(SHAPES[self.view])
        return self._opened

    def _typed_tables(self) -> TypedTables:
        if self._typed is None:
            self._typed = TypedTables(self._plan.lake, self._plan.target)
        return self._typed

    def _log(self) -> Log:
        return open_target(self._plan.target)

    def _ends(self, batch: int) -> Offsets:
        """The end of a batch, which Spark stored before the batch started."""
        text = (self.checkpoint / "offsets" / str(batch)).read_text()
        return decode(json.loads(text.splitlines()[-1]))

    def _take(self, spark: SparkSession, ends: Offsets) -> int:
        """Bring the lake up to these offsets; returns the number of added rows."""
        watermark = self._table().watermark()
        base = positions(watermark)
        todo = pending(base, ends)
        pieces = [
            OffsetRange(stream, end.number, floor(base, stream, end.number), end.offset) for stream, end in sorted(todo.items())
        ]
        files = self._write(spark, pieces)
        archived = {}
        for piece in pieces:
            mine = [file for file in files if self.view == "events" or _is_of(file, piece)]
            first = self._check(piece, mine)
            before = watermark.streams.get(piece.stream)
            is_joined = before is not None and before.number == piece.number and first == before.offset
            archived[piece.stream] = ArchivedSpan(piece.number, before.first if before and is_joined else first, piece.stop)
        if archived:
            self._commit(files, archived, base)
            self._commits += 1
        if self._plan.typed and self.view == "messages":
            for stream in archived:
                self._typed_tables().follow(stream)
        return sum(file.rows for file in files)

    def _write(self, spark: SparkSession, pieces: Sequence[OffsetRange]) -> list[NewFile]:
        """Write the rows of these ranges in tasks. A single task is done here, which saves the cost of a Spark job."""
        options, lake, view = source_options(self.reader_options()), self._plan.lake, self.view
        tasks = parts(options, pieces)
        if not tasks:
            return []
        if len(tasks) == 1:
            return list(archive_part(options, tasks[0], lake, view))

        def write(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for batch in batches:
                for task in batch.column("id").to_pylist():
                    yield from reported(archive_part(options, tasks[task], lake, view))

        return collected(spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(write, FILES))

    def _commit(self, files: Sequence[NewFile], archived: Mapping[str, ArchivedSpan], base: Offsets) -> None:
        """Commit the files, unless the position of the lake has changed since they were written."""
        for _ in range(TRIES):
            watermark = self._table().watermark()
            now = positions(watermark)
            for stream in archived:
                if now.get(stream) != base.get(stream):
                    raise Aborted(
                        f"{stream!r} is archived up to {_shown(now.get(stream))}, expected {_shown(base.get(stream))}: "
                        "another process writes to this lake",
                        hint="let one archive write a lake; the other one, started again, continues where the lake ends",
                    )
            if self._table().commit(files, ARCHIVE, watermark.commits + 1, archived=watermark.streams | dict(archived)):
                return
        raise Aborted(f"{TRIES} times another writer committed to {self.view!r} first; nothing was changed")

    def _check(self, piece: OffsetRange, files: Sequence[NewFile]) -> int:
        """The first archived offset. Raises DataLoss if a row is missing that the log still has."""
        stream, start, stop = piece.stream, piece.start, piece.stop
        missing = stop - start - sum(file.rows for file in files)
        first = min((file.lows["offset"] for file in files), default=stop)
        if missing < 0 or any(file.lows["offset"] < start or file.highs["offset"] >= stop for file in files):
            raise DataLoss(f"{stream!r} has other rows than its offsets {start} to {stop - 1}; nothing was changed")
        if not missing:
            return first
        gone = min(self._earliest(piece), stop) - start
        if missing > gone:
            raise DataLoss(
                f"{missing} offsets of {stream!r} in {start} to {stop - 1} have no row, and the log has them",
                hint="start it again",
            )
        if start:
            logger.warning(
                "lost: %s offsets of %r between %s and %s left the log before they were archived", missing, stream, start, stop
            )
        return first

    def _earliest(self, piece: OffsetRange) -> int:
        """The first offset of a stream in the log; the end of the piece if the stream does not exist any more."""
        is_messages = piece.stream != EVENTS
        with closing(self._log()) as log:
            try:
                spans = log.spans([piece.stream] if is_messages else None)
            except NotFound:
                return piece.stop
        span = by_name(spans, is_messages=is_messages)[piece.stream]
        return span.earliest if span.number == piece.number else piece.stop

    def _tend(self) -> None:
        """Search for small files periodically, in a thread beside the batches."""
        is_busy = self._compaction is not None and self._compaction.is_alive()
        if self._commits >= self._compact_every and not is_busy:
            self._commits = 0
            self._looks += 1
            self._compaction = threading.Thread(target=self._compact, name="penstock-compact", daemon=True)
            self._compaction.start()

    def _compact(self) -> None:
        is_large = self._looks % LARGE_EVERY == 0
        try:
            table = Lake(self._plan.lake).table(self.view)
            table.compact(LARGE_BYTES if is_large else SMALL_BYTES, min_files=COMPACT_FILES)
            if is_large:
                table.vacuum()
        except (PenstockError, DeltaError, OSError) as error:
            logger.warning("small files of %s were not merged: %s", self.view, error)


def archive_part(options: SourceOptions, part: Part, lake: str, view: str) -> Iterator[NewFile]:
    """Write the rows of some ranges as files of a table, without rows that retention has removed meanwhile."""
    table, shape = Lake(lake).table(view), SHAPES[view]
    schema = arrow_schema(VIEWS[view])
    for piece in part.pieces:
        rows = (with_day(batch, TIMES[view]) for batch in scan(options, schema, Part((piece,))))
        if view == "messages":
            rows = (_numbered(batch, piece.number) for batch in rows)
        yield from write_files(rows, table, shape)


def positions(watermark: Watermark) -> Offsets:
    """The ends of the streams in the lake."""
    return {stream: Position(span.number, span.offset) for stream, span in watermark.streams.items()}


def _numbered(batch: pa.RecordBatch, number: int) -> pa.RecordBatch:
    return batch.append_column("stream_number", pa.repeat(pa.scalar(number, pa.int64()), batch.num_rows))


def _is_of(file: NewFile, piece: OffsetRange) -> bool:
    return file.values["stream"] == piece.stream and file.lows["stream_number"] == piece.number


def _shown(position: Position | None) -> str:
    return "nothing" if position is None else f"offset {position.offset} of stream number {position.number}"
