"""Batches of the log into a table of the lake, each row once: what `foreachBatch` of the archive calls.

Spark's checkpoint says where a batch ends, the manifest how far the lake is. Where they differ the manifest is right: what it has
is not taken again, whatever happened to the checkpoint, and what it lacks is not skipped.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pyspark.sql import functions as F  # noqa: N812  # what everybody calls it

from penstock.errors import DataLoss, FailedPrecondition, NotFound, OutOfRange, PenstockError, Unavailable
from penstock.log.log import EVENTS, Log, WritableLog
from penstock.log.open import open_log
from penstock.pipeline.core.manifest import floor, pending
from penstock.pipeline.core.offsets import Offsets, Position, by_name, decode
from penstock.pipeline.job import Plan
from penstock.pipeline.lake.compaction import compact_table
from penstock.pipeline.lake.table import Lake, Staged, Table
from penstock.pipeline.lake.writing import DATE, SMALL_ROWS, STREAM, Content, hashed, staged, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger("penstock.pipeline")

COMPACT_EVERY = 60
"""Commits between two looks for small files: about a minute when batches come every second."""
COMPACT_FILES = 8
_NEVER = (1 << 63) - 1


class Archiver:
    """Takes batches of one view, `messages` or `events`. It is sent to where Spark calls it, and opens there what it needs."""

    def __init__(self, plan: Plan, view: str, checkpoint: Path, *, compact_every: int = COMPACT_EVERY) -> None:
        self._plan = plan
        self.view = view
        self.checkpoint = checkpoint
        self._compact_every = compact_every
        self._opened: Table | None = None
        self._commits = 0
        self._compaction: threading.Thread | None = None

    @property
    def cursor(self) -> str:
        """What the archive is called at the broker, which shows how far behind it is."""
        return f"archive-{self.view}"

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_opened": None, "_compaction": None}

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Take a batch: nothing of it is archived yet, or some, or all."""
        if self._opened is None:
            self._opened = Lake(self._plan.lake).table(self.view)
        table = self._opened
        ends = self._ends(batch)
        base = table.watermark()
        if todo := pending(base, ends):
            self._take(df, table, todo, ends=ends, base=base, starts=self._begin(batch))
        self.report(ends)
        if todo:
            self._tend()

    def start_offsets(self) -> dict[str, int]:
        """Where a query without a checkpoint begins: where the lake ends. Streams that the lake has not are taken as a whole."""
        watermark = Lake(self._plan.lake).table(self.view).watermark()
        with closing(self._log()) as log:
            spans = by_name(log.spans(pattern=self._plan.streams), is_messages=self.view != "events")
        offsets = {}
        for stream, span in spans.items():
            offset = floor(watermark, stream, span.number)
            if offset > span.latest:
                raise FailedPrecondition(
                    f"the lake has {stream!r} up to offset {offset}, and the log ends at {span.latest}: it is of another broker",
                    hint="use a lake of its own for each broker",
                )
            if offset > span.earliest:
                offsets[stream] = offset
        return offsets

    def report(self, ends: Mapping[str, Position]) -> None:
        """Tell the broker how far the lake is. A broker that does not answer now gets it with the next batch."""
        if self._plan.target.endpoint is None:
            return
        with closing(cast("WritableLog", self._log())) as log:  # that of an endpoint is
            try:
                spans = by_name(log.spans(), is_messages=self.view != "events")
                offsets = {
                    stream: end.offset for stream, end in ends.items() if stream in spans and spans[stream].number == end.number
                }
                log.advance(self.cursor, offsets, holds=self._plan.hold or None)
            except (Unavailable, NotFound, OutOfRange) as error:  # or a stream was deleted just now
                logger.warning("the cursor %s was not moved: %s", self.cursor, error)

    def _log(self) -> Log:
        target = self._plan.target
        return open_log(endpoint=target.endpoint, path=target.path, token=target.token, project=target.project)

    def _ends(self, batch: int) -> Offsets:
        """Where a batch ends, as Spark wrote it down before it began."""
        text = (self.checkpoint / "offsets" / str(batch)).read_text()
        return decode(json.loads(text.splitlines()[-1]))

    def _begin(self, batch: int) -> Offsets:
        """Where a batch begins; nowhere if that is not known any more, so that its rows are looked at one by one."""
        with suppress(FileNotFoundError):
            return self._ends(batch - 1)
        return {}

    def _take(
        self, df: DataFrame, table: Table, todo: Offsets, *, ends: Offsets, base: Mapping[str, Position], starts: Offsets
    ) -> None:
        floors = {stream: floor(base, stream, end.number) if stream in todo else _NEVER for stream, end in ends.items()}
        # What Spark reads again was archived by a batch that it does not know to be done: by one that was killed, or its like.
        if any(starts.get(stream) != base.get(stream) for stream in ends):
            df = _above(df, floors, is_messages=self.view == "messages")
        wanted = {stream: end.offset - floors[stream] for stream, end in todo.items()}
        folder = table.stage()
        try:
            self._write(df, folder, sum(wanted.values()))
            files = self._files(df, folder, todo)
            for stream, end in todo.items():
                self._check(stream, end, floors[stream], [each for each in files if (each.stream or EVENTS) == stream])
            table.commit(files, watermark=todo, base=base)
        finally:
            table.close()  # of what was staged nothing is needed any more, and nobody says when the last batch was
        self._commits += 1

    def _write(self, df: DataFrame, folder: Path, rows: int) -> None:
        partitions = [DATE]
        df = df.withColumn(DATE, F.col("date").cast("string")).drop("date")
        if self.view == "messages":
            df = df.withColumn(STREAM, F.md5(F.col("stream").cast("binary"))).drop("stream")
            partitions = [STREAM, DATE]
        if rows <= SMALL_ROWS:
            df = df.coalesce(1)
        write(df.sortWithinPartitions(*partitions, "offset"), folder, self._plan.format, partitions=partitions)

    def _files(self, df: DataFrame, folder: Path, todo: Offsets) -> list[Staged]:
        streams = {hashed(stream): stream for stream in todo} if self.view == "messages" else {"": ""}
        files = []
        for mark, date, found in staged(df, folder, self._plan.format, has_offsets=True):
            if mark not in streams:
                raise DataLoss(
                    f"a batch has rows of a stream that it has no offsets of: {str(found.path)!r}; nothing was changed"
                )
            stream = streams[mark]
            files.append(_staged(found, date, stream, todo[stream].number if stream else 0))
        return files

    def _check(self, stream: str, end: Position, start: int, files: Sequence[Staged]) -> None:
        """Every offset has its row, unless the log has it no more."""
        missing = end.offset - start - sum(file.rows for file in files)
        if missing < 0 or any(file.first < start or file.last >= end.offset for file in files):
            raise DataLoss(f"{stream!r} has other rows than its offsets {start} to {end.offset - 1}; nothing was changed")
        if not missing:
            return
        gone = min(self._earliest(stream, end), end.offset) - start
        if missing > gone:
            raise DataLoss(
                f"{missing} offsets of {stream!r} in {start} to {end.offset - 1} have no row, and the log has them",
                hint="if the lake was replaced, or put back from a backup, delete the archive's checkpoint "
                f"({str(self.checkpoint)!r}): it then begins where the lake ends",
            )
        if start:
            logger.warning(
                "lost: %s offsets of %r between %s and %s left the log before they were archived",
                missing,
                stream,
                start,
                end.offset,
            )

    def _earliest(self, stream: str, end: Position) -> int:
        """The first offset that the log has of a stream; the end, when that stream is no more."""
        with closing(self._log()) as log:
            try:
                spans = log.spans() if stream == EVENTS else log.spans([stream])
            except NotFound:
                return end.offset
        span = by_name(spans, is_messages=stream != EVENTS)[stream]
        return span.earliest if span.number == end.number else end.offset

    def _tend(self) -> None:
        """Now and then, look for small files, beside the batches that continue."""
        is_busy = self._compaction is not None and self._compaction.is_alive()
        if self._plan.format == "parquet" and self._commits >= self._compact_every and not is_busy:
            self._commits = 0
            self._compaction = threading.Thread(target=self._compact, name="penstock-compact", daemon=True)
            self._compaction.start()

    def _compact(self) -> None:
        try:
            with Lake(self._plan.lake).table(self.view) as table:
                compact_table(table, min_files=COMPACT_FILES, is_thorough=False)
        except (PenstockError, OSError) as error:
            logger.warning("small files of %s were not merged: %s", self.view, error)


def _above(df: DataFrame, floors: Mapping[str, int], *, is_messages: bool) -> DataFrame:
    """Only rows from these offsets on."""
    if not is_messages:
        return df.where(F.col("offset") >= floors[EVENTS])
    known = [F.lit(part) for stream, offset in floors.items() if offset for part in (stream, offset)]
    return df.where(F.col("offset") >= F.coalesce(F.create_map(*known)[F.col("stream")], F.lit(0))) if known else df


def _staged(found: Content, date: str, stream: str, number: int) -> Staged:
    return Staged(found.path, found.rows, date, stream, number, found.first, found.last)
