"""Archive: all streams and the event log into the lake, each row once, as long as it runs or until it has caught up."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from penstock.pipeline.job import Plan
from penstock.pipeline.lake.archiver import COMPACT_EVERY, Archiver
from penstock.pipeline.lake.table import local_path
from penstock.pipeline.progress import FETCHED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_ROWS = 2_000_000
"""At most this many rows in a batch, unless the plan says otherwise: what a killed archive does again."""
VIEWS = ("messages", "events")


def start(spark: SparkSession, plan: Plan, *, compact_every: int = COMPACT_EVERY) -> list[StreamingQuery]:
    """Start archiving messages and events, and return the two queries; with `is_once` they end when they have caught up.

    With `hold`, retention at the broker waits for what is not archived yet.
    """
    checkpoints = local_path(plan.checkpoints, "checkpoint")
    archivers = [Archiver(plan, view, checkpoints / f"archive-{view}", compact_every=compact_every) for view in VIEWS]
    queries: list[StreamingQuery] = []
    with ExitStack() as failure:  # of the second to start: the first is stopped
        for archiver in archivers:
            queries.append(_query(spark, plan, archiver))
            failure.callback(queries[-1].stop)
        failure.pop_all()
    return queries


def _query(spark: SparkSession, plan: Plan, archiver: Archiver) -> StreamingQuery:
    reader = (
        spark.readStream.format("penstock")
        # A stream that is deleted must not end the archive of all others; the archiver reports what is lost.
        .options(**archiver.reader_options())
        .option("startingOffsets", json.dumps(archiver.start_offsets()))
        .option("maxOffsetsPerTrigger", str(plan.max_rows or BATCH_ROWS))
    )
    archiver.catch_up(spark)
    FETCHED.pop(archiver.cursor, None)  # of a query before this one, whose batches had the same numbers
    writer = (
        reader.load()
        .writeStream.foreachBatch(archiver)
        .option("checkpointLocation", archiver.checkpoint.as_uri())
        .queryName(archiver.cursor)
    )
    return (writer.trigger(availableNow=True) if plan.is_once else writer.trigger(processingTime=plan.interval)).start()
