"""Archive: all streams and the event log into the lake, each row once, as long as it runs or until it has caught up."""

from __future__ import annotations

import json
from contextlib import ExitStack
from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # what everybody calls it

from penstock.pipeline.job import Plan
from penstock.pipeline.lake.archiver import COMPACT_EVERY, Archiver
from penstock.pipeline.lake.files import lake_path
from penstock.pipeline.lake.table import Lake
from penstock.pipeline.lake.writing import day_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BATCH_ROWS = 2_000_000
"""At most this many rows in a batch, unless the plan says otherwise: what a killed archive does again."""


def transform_messages(df: DataFrame) -> DataFrame:
    """Messages as the lake keeps them: with the day of their publication, in UTC, which is a directory."""
    return df.withColumn("date", day_of(F.col("publish_time")))


def transform_events(df: DataFrame) -> DataFrame:
    """Events as the lake keeps them: with their day, in UTC, which is a directory."""
    return df.withColumn("date", day_of(F.col("at")))


TRANSFORMS = {"messages": transform_messages, "events": transform_events}


def start(spark: SparkSession, plan: Plan, *, compact_every: int = COMPACT_EVERY) -> list[StreamingQuery]:
    """Start archiving messages and events, and return the two queries; with `is_once` they end when they have caught up.

    Whatever a killed archive left is finished first. With `hold`, retention at the broker waits for what is not archived yet.
    """
    checkpoints = lake_path(plan.checkpoints)
    archivers = [Archiver(plan, view, checkpoints / f"archive-{view}", compact_every=compact_every) for view in TRANSFORMS]
    queries: list[StreamingQuery] = []
    with ExitStack() as failure:  # of the second to start: the first is stopped
        for archiver in archivers:
            queries.append(_query(spark, plan, archiver))
            failure.callback(queries[-1].stop)
        failure.pop_all()
    return queries


def _query(spark: SparkSession, plan: Plan, archiver: Archiver) -> StreamingQuery:
    view = archiver.view
    with Lake(plan.lake).table(view) as table:
        table.recover()
        watermark = table.watermark()
    reader = (
        spark.readStream.format("penstock")
        .options(**plan.target.options())
        .option("view", view)
        .option("startingOffsets", json.dumps(archiver.start_offsets()))
        .option("maxOffsetsPerTrigger", str(plan.max_rows or BATCH_ROWS))
        # A stream that is deleted must not end the archive of all others; what is lost is reported by the archiver.
        .option("failOnDataLoss", "false")
    )
    if view == "messages":
        reader = reader.option("subscribePattern", plan.streams)
    archiver.report(watermark)
    writer = (
        TRANSFORMS[view](reader.load())
        .writeStream.foreachBatch(archiver)
        .option("checkpointLocation", archiver.checkpoint.as_uri())
        .queryName(archiver.cursor)
    )
    return (writer.trigger(availableNow=True) if plan.is_once else writer.trigger(processingTime=plan.interval)).start()
