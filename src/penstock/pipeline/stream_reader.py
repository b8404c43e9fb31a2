"""`spark.readStream.format("penstock")`: calls of Spark are answered by a `Follower` on the driver and a scan in the tasks.

The follower knows which offsets exist, how many of them the next batch takes, and which losses were reported. It lives as long as
its query, in its own process. All state that must outlive it is in Spark's checkpoint: a new follower gives the same answers for
the same offsets.
"""

# ruff: noqa: N802  # the names are Spark's
from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import NotFound, OutOfRange, PenstockError
from penstock.log.log import Log, StreamSpan, WritableLog
from penstock.pipeline.core import offsets as rules
from penstock.pipeline.core.offsets import Backlog, LostData, Offsets, Position, decode, encode, pieces_of
from penstock.pipeline.core.options import LATEST, SourceOptions
from penstock.pipeline.core.planning import share
from penstock.pipeline.scan import Part, arrow_schema, find, find_present, open_cursors, open_source, parts, scan

Stored = dict[str, Any]  # offsets as Spark stores them: JSON


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Created on the driver, where it follows the log, and sent to the tasks, where it only reads."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_stream()
        self._options = options
        self._schema = arrow_schema(schema, options)
        self._followed: Follower | None = None  # opened at the first call on the driver; tasks never open it

    @property
    def _follower(self) -> Follower:
        if self._followed is None:
            cursors = None if self._options.cursor is None else lambda: open_cursors(self._options)
            self._followed = Follower(self._options, open_source(self._options), cursors)
        return self._followed

    def initialOffset(self) -> Stored:
        return dict(encode(self._follower.begin()))

    def getDefaultReadLimit(self) -> ReadLimit:
        """The limit of the options. Spark supports only one: with both, `latestOffset` applies the limit of bytes."""
        if self._options.max_rows is not None:
            return ReadMaxRows(self._options.max_rows)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: Stored, limit: ReadLimit) -> Stored:
        if isinstance(limit, ReadAllAvailable):
            return dict(encode(self._follower.latest(decode(start))))
        max_rows = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        max_bytes = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._options.max_bytes
        return dict(encode(self._follower.latest(decode(start), max_rows=max_rows, max_bytes=max_bytes)))

    def reportLatestOffset(self) -> Stored | None:
        """The end of the log, and how far the last planned batch is behind it: `latestOffset` in Spark's progress."""
        return self._follower.newest()

    def prepareForTriggerAvailableNow(self) -> None:
        """Use the current ends of the streams as the end of the query."""
        self._follower.freeze()

    def partitions(self, start: Stored, end: Stored) -> Sequence[InputPartition]:
        """The tasks of a batch. They depend only on the offsets, so that a repeated batch reads the same rows."""
        return parts(self._options, pieces_of(decode(start), decode(end)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part), "planned above"
        return scan(self._options, self._schema, partition)

    def commit(self, end: Stored) -> None:
        self._follower.commit(decode(end))

    def stop(self) -> None:
        if self._followed is not None:
            self._followed.close()


logger = logging.getLogger("penstock.pipeline")

IDLE = 50_000
"""The minimum time between two calls to a log without new data, in microseconds. Spark calls every ten milliseconds."""


class Follower:
    """Follows the streams that the options select. `cursors` opens the log that stores the cursor, if there is one."""

    def __init__(self, options: SourceOptions, log: Log, cursors: Callable[[], WritableLog] | None = None) -> None:
        self._options = options
        self._log = log
        self._open_cursors = cursors
        self._cursors: WritableLog | None = None
        self._told_cursor: Offsets | None = None
        self._initial: Offsets | None = None
        self._places: Offsets = {}
        self._target: dict[str, StreamSpan] | None = None
        self._seen: dict[str, StreamSpan] = {}
        self._told: set[LostData] = set()
        self._is_idle = False
        self._asked_at = 0
        self._planned: Offsets = {}
        """The end of the last planned batch."""
        self._batch_at = monotonic()
        self._closed = threading.Event()

    def begin(self) -> Offsets:
        """The start of the query. Spark may call it several times before the first batch: the answer stays the same.

        Spark does not store it, and calls it again if a first batch was killed and is repeated. So a stream that starts at its
        end is left out here and placed by the end of that batch, which is stored: otherwise the second call would return a later
        end, and the messages in between would be skipped.
        """
        if self._initial is None:
            spans = find(self._log, self._options)
            if self._target is not None:  # ignore streams and messages that are newer
                spans = {stream: self._target[stream] for stream in spans if stream in self._target}
            self._seen = spans
            times = rules.times(spans, self._options.start)
            found = self._log.offsets_at(times) if times else {}
            offsets, losses = rules.place(spans, self._options.start, LATEST, found)
            self._report(losses)
            self._places = {stream: Position(spans[stream].number, offset) for stream, offset in offsets.items()}
            self._initial = {stream: at for stream, at in self._places.items() if at.offset < spans[stream].latest}
        return self._initial

    def freeze(self) -> None:
        """Ignore all new data from now on: Trigger.AvailableNow."""
        self._target = self._ask()

    def latest(self, start: Offsets, *, max_rows: int | None = None, max_bytes: int | None = None) -> Offsets:
        """The end of a batch that begins at `start`: `start` if nothing is new. Waits briefly if the last call found nothing."""
        rules.check_view(start, is_messages=self._options.is_messages)
        spans = self._target
        if spans is None:
            if self._is_idle:
                self._closed.wait(max(self._asked_at + IDLE - monotonic(), 0) / 1_000_000)
            spans = self._ask()
        self.commit(start)  # the batch before `start` is done: Spark itself calls `commit` for it one batch later
        places = self._places if start == self._initial else {}
        waiting = rules.backlog(start, spans, self._options.matches, places)
        self._report(waiting.losses)
        if self._is_too_little(waiting, start):
            self._is_idle, self._planned = True, start
            return start
        self._batch_at = monotonic()
        self._planned = end = waiting.end(self._reached(waiting, max_rows, max_bytes))
        self._is_idle = end == start
        return end

    def newest(self) -> Stored:
        """The last known ends of all streams, and how much lies between the planned end and them."""
        places = {stream: self._planned.get(stream, Position(span.number, span.earliest)) for stream, span in self._seen.items()}
        rows = {stream: max(span.latest - places[stream].offset, 0) for stream, span in self._seen.items()}
        sizes = self._sizes({stream: places[stream].offset for stream, count in rows.items() if count})
        return {
            stream: {"offset": span.latest, "rowsBehind": rows[stream], "bytesBehind": sizes.get(stream) if rows[stream] else 0}
            for stream, span in sorted(self._seen.items())
        }

    def commit(self, end: Offsets) -> None:
        """Advance the cursor to Spark's position. If the server is unavailable, the next commit does it."""
        if self._options.cursor is None or self._open_cursors is None or end == self._told_cursor:
            return
        alive = {stream: at.offset for stream, at in end.items() if not self._seen or self._is_alive(stream, at)}
        try:
            if self._cursors is None:
                self._cursors = self._open_cursors()
            self._cursors.advance(self._options.cursor, alive)
            self._told_cursor = end
        except PenstockError as error:
            if not error.transient and not isinstance(error, NotFound):
                raise
            logger.warning("cursor %s was not advanced, the next commit tries again: %s", self._options.cursor, error)

    def close(self) -> None:
        """End waits, and close the log. Safe to call twice."""
        self._closed.set()
        self._log.close()
        if self._cursors is not None:
            self._cursors.close()

    def _sizes(self, starts: Mapping[str, int]) -> Mapping[str, int]:
        """The bytes after these offsets. They are only displayed, so an error of the log does not end the query."""
        try:
            return self._log.sizes_after(starts) if starts else {}
        except PenstockError as error:
            logger.debug("the bytes behind are not known: %s", error)
            return {}

    def _is_alive(self, stream: str, position: Position) -> bool:
        span = self._seen.get(stream)
        return span is not None and span.number == position.number and position.offset <= span.latest

    def _ask(self) -> dict[str, StreamSpan]:
        self._seen = find_present(self._log, self._options)
        self._asked_at = monotonic()
        return self._seen

    def _report(self, losses: list[LostData]) -> None:
        if self._options.is_strict:
            rules.check(losses)
        for loss in losses:
            if loss not in self._told:
                self._told.add(loss)
                logger.warning("skipped: %s", loss.text)

    def _is_too_little(self, waiting: Backlog, start: Offsets) -> bool:
        """Whether a batch waits for more rows. It does not wait if a new stream has to be placed, or after `freeze`."""
        least = self._options.min_rows
        if least is None or self._target is not None or waiting.starts.keys() - start.keys():
            return False
        is_due = monotonic() - self._batch_at >= self._options.max_delay * SECOND
        return not is_due and sum(waiting.rows.values()) < least

    def _reached(self, waiting: Backlog, max_rows: int | None, max_bytes: int | None) -> dict[str, int] | None:
        """The offsets that a batch may reach within the limits; None: to the end. If rows wait, at least one is included."""
        rows = {stream: count for stream, count in waiting.rows.items() if count > 0}
        if not rows or (max_rows is None and max_bytes is None):
            return None
        starts = {stream: waiting.starts[stream].offset for stream in rows}
        if max_bytes is not None:
            reached = self._offsets_for(waiting, starts, max_bytes)
            allowed = {stream: min(max(reached[stream] - start, 0), rows[stream]) for stream, start in starts.items()}
            rows = allowed if any(allowed.values()) else share(rows, 1)
        if max_rows is not None:
            rows = share(rows, max_rows)  # after the limit of bytes, so that both limits hold and rows are left
        return {stream: start + rows.get(stream, 0) for stream, start in starts.items()}

    def _offsets_for(self, waiting: Backlog, starts: Mapping[str, int], max_bytes: int) -> dict[str, int]:
        """The offsets from the log. A stream that has changed meanwhile is taken to its end: reading it reports what is lost."""
        ends = {stream: waiting.stops[stream].offset for stream in starts}
        try:
            return self._log.offsets_for(starts, max_bytes)
        except (NotFound, OutOfRange):
            spans = find_present(self._log, self._options)
        same = {
            stream: max(start, spans[stream].earliest)
            for stream, start in starts.items()
            if stream in spans and spans[stream].number == waiting.starts[stream].number and spans[stream].latest >= start
        }
        return ends | (self._log.offsets_for(same, max_bytes) if same else {})
