"""Helpers for jobs with their own tables: the event log as a stream, batches written once, rows as messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's own pages name it

from penstock.errors import InvalidArgument
from penstock.pipeline.lake.table import SHAPES, Lake, local_path
from penstock.pipeline.lake.writing import append
from penstock.pipeline.schemas import LEVELS_STREAM

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipeline.job import Plan

Write = Callable[["DataFrame", str, int], None]
"""Writes a batch: its rows, the id of the query and the number of the batch. It may be called again for the same batch."""


_ISO = "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX"


class _Metadata(msgspec.Struct):
    """The file in which Spark stores the id of a query."""

    id: str


def event_stream(spark: SparkSession, plan: Plan, name: str) -> DataFrame:
    """The event log from its beginning. For a job that reads from a server, the cursor `name` there shows its lag."""
    reader = spark.readStream.format("penstock").options(**plan.target.reading())
    # Events that retention has removed are skipped: a life that has lost its beginning is marked.
    reader = reader.options(view="events", startingOffsets="earliest", failOnDataLoss=False)
    if plan.target.endpoint is not None:
        reader = reader.option("cursor", name)
    if plan.max_rows is not None:
        reader = reader.option("maxOffsetsPerTrigger", plan.max_rows)
    return chosen(reader.load(), plan.streams)


def chosen(events: DataFrame, pattern: str) -> DataFrame:
    """The events of streams whose whole name matches, and those of the levels stream, which advance event time."""
    if pattern == ".*":
        return events
    return events.where(F.col("stream").rlike(f"^(?:{pattern})$") | (F.col("stream") == LEVELS_STREAM))


def where(rows: DataFrame, condition: str, example: str) -> DataFrame:
    """The rows that match a SQL condition. Raises InvalidArgument if Spark does not accept the condition."""
    try:
        chosen = rows.where(condition)
        _ = chosen.schema  # makes Spark analyse the condition
    except (AnalysisException, ParseException) as error:
        raise InvalidArgument(
            f"the condition {condition!r} is wrong: {_sentence(error)}",
            hint=f"the columns are {', '.join(rows.columns)}; as in: {example}",
        ) from None
    return chosen


def _sentence(error: Exception) -> str:
    """Spark's error text for a condition, without codes and plan."""
    return str(error).partition("] ")[2].partition(" SQLSTATE")[0].partition("\n")[0].strip() or str(error).partition("\n")[0]


def begin(rows: DataFrame, plan: Plan, name: str, write: Write) -> StreamingQuery:
    """Start a query that calls `write` for every batch."""
    checkpoint = local_path(plan.checkpoints, "checkpoint") / name

    def each(batch: DataFrame, number: int) -> None:
        # The id and the numbers of batches stay the same as long as the checkpoint exists.
        stored = (checkpoint / "metadata").read_bytes()
        write(batch, msgspec.json.decode(stored, type=_Metadata).id, number)

    writer = rows.writeStream.queryName(name).foreachBatch(each).option("checkpointLocation", checkpoint.as_uri())
    writer = writer.trigger(availableNow=True) if plan.is_once else writer.trigger(processingTime=plan.interval)
    return writer.start()


def add(rows: DataFrame, plan: Plan, table: str, day: str, *, query: str, batch: int) -> int:
    """Add rows to a table of the lake, by the day of a column, once for each batch; returns the number of added rows."""
    return append(rows, Lake(plan.lake).table(table), SHAPES[table], day=day, query=query, batch=batch)


def as_messages(rows: DataFrame, schema: str) -> DataFrame:
    """Rows of LIFECYCLE or METRICS (`schema`) as messages: JSON objects with the stream and the subscription as ordering key."""
    columns = [field.split()[0] for field in schema.split(", ")]
    body = F.to_json(F.struct(*columns), {"ignoreNullFields": "false", "timestampFormat": _ISO, "timeZone": "UTC"})
    return rows.select(body.alias("value"), F.concat_ws("/", "stream", "subscription").alias("key"))
