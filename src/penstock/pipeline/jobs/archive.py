"""Archive: writes all streams and the event log to the lake, each row once, continuously or until it has caught up."""

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
"""The default maximum of rows in a batch, which a killed archive has to repeat."""
VIEWS = ("messages", "events")


def start(spark: SparkSession, plan: Plan, *, compact_every: int = COMPACT_EVERY) -> list[StreamingQuery]:
    """Start to archive messages and events, and return the two queries; with `is_once` they end when they have caught up.

    With `hold`, the broker retains messages until they are archived.
    """
    checkpoints = local_path(plan.checkpoints, "checkpoint")
    archivers = [Archiver(plan, view, checkpoints / f"archive-{view}", compact_every=compact_every) for view in VIEWS]
    queries: list[StreamingQuery] = []
    with ExitStack() as failure:  # if the second query fails to start, stop the first
        for archiver in archivers:
            queries.append(_query(spark, plan, archiver))
            failure.callback(queries[-1].stop)
        failure.pop_all()
    return queries


def _query(spark: SparkSession, plan: Plan, archiver: Archiver) -> StreamingQuery:
    reader = (
        spark.readStream.format("penstock")
        # A deleted stream must not end the archive of the others; the archiver reports lost rows.
        .options(**archiver.reader_options())
        .option("startingOffsets", json.dumps(archiver.start_offsets()))
        .option("maxOffsetsPerTrigger", str(plan.max_rows or BATCH_ROWS))
    )
    archiver.catch_up(spark)
    FETCHED.pop(archiver.cursor, None)  # row counts of an earlier query, whose batches had the same numbers
    writer = (
        reader.load()
        .writeStream.foreachBatch(archiver)
        .option("checkpointLocation", archiver.checkpoint.as_uri())
        .queryName(archiver.cursor)
    )
    return (writer.trigger(availableNow=True) if plan.is_once else writer.trigger(processingTime=plan.interval)).start()
