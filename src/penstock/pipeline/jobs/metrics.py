"""The metrics job: rates, waiting and processing times, failures, in windows by stream, subscription and consumer.

Deliveries and publishes are counted from the events, in the window in which they happened. Values that need the whole life of a
message (outcome, failures, waiting and processing time) are computed from the lifecycle, in the window in which the message was
settled, for its last consumer; open lives are not counted.
Percentiles are `percentile_approx` with an accuracy of 10,000: an actual value, whose rank is off by at most 0.01 %.
Streams that begin with `_penstock.` are left out: the metrics are published to one, and would otherwise measure themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's own pages name it

from penstock.pipeline import level_sampler
from penstock.pipeline.jobs import lifecycle
from penstock.pipeline.jobs.wiring import add, as_messages, begin, event_stream
from penstock.pipeline.lake.table import SHAPES, Lake
from penstock.pipeline.own_topics import log_with_topic
from penstock.pipeline.schemas import METRICS, METRICS_STREAM

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from penstock.pipeline.job import Plan

NAME = "metrics"
"""Of the query, its cursor at the server, and its table."""

OWN_STREAMS = "_penstock."
ACCURACY = 10_000
_PARTS = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
_COUNTS = ("published", "delivered", "acked", "nacked", "expired", "dead_lettered", "dropped", "redelivered")
_TIMES = ("wait", "processing")
_BY = ("stream", "subscription", "consumer")


def transform(
    lives: DataFrame,
    events: DataFrame,
    *,
    window: str = "1 minute",
    watermark: str = "10 minutes",
    is_streaming: bool | None = None,
) -> DataFrame:
    """Rows with the columns of METRICS from rows with those of LIFECYCLE and EVENTS, for finite and streaming frames.

    In streams, a window is emitted once, when the watermark of both has passed its end. Set `is_streaming` in a declarative
    pipeline, where the frame cannot be asked.
    """
    # The time of an open life is that of its last event.
    lives = lives.withColumn("moment", F.coalesce("settled_at", "updated_at"))
    events = events.withColumn("moment", F.col("at"))
    if lives.isStreaming if is_streaming is None else is_streaming:
        # Each has its own watermark: the slower one decides when a window is complete. Rows that are not counted advance it too.
        lives, events = lives.withWatermark("moment", watermark), events.withWatermark("moment", watermark)
    rows = _settled(lives).unionByName(_happened(events))
    grouped = rows.groupBy(F.window("moment", window).alias("window"), *_BY).agg(
        *(F.sum(name).cast("bigint").alias(name) for name in _COUNTS),
        *(
            F.percentile_approx(f"{time}_ms", F.array(*(F.lit(part) for part in _PARTS.values())), ACCURACY).alias(time)
            for time in _TIMES
        ),
        F.max("age_ms").alias("oldest_age_ms"),
    )
    start, end = F.col("window.start"), F.col("window.end")
    seconds = (F.unix_micros(end) - F.unix_micros(start)) / 1_000_000
    failed = F.col("nacked") + F.col("expired")
    ended = F.col("acked") + F.col("dead_lettered") + F.col("dropped")
    return grouped.select(
        start.alias("window_start"),
        end.alias("window_end"),
        *_BY,
        *_COUNTS,
        *((F.col(name) / seconds).alias(f"{name}_per_second") for name in ("published", "delivered", "acked")),
        *(F.get(time, F.lit(index)).alias(f"{time}_{part}_ms") for time in _TIMES for index, part in enumerate(_PARTS)),
        F.try_divide("redelivered", "delivered").alias("redelivery_ratio"),
        F.try_divide(F.col("dead_lettered"), ended).alias("dead_letter_ratio"),
        F.try_divide(failed, failed + F.col("acked")).alias("error_ratio"),
        "oldest_age_ms",
    )


def start(spark: SparkSession, plan: Plan) -> list[StreamingQuery]:
    """Compute metrics from the table `lifecycle` and the event log, for the table `metrics` and the stream `_penstock.metrics`.

    A data directory, which cannot be written to, gets no stream.
    """
    Lake(plan.lake).table(lifecycle.NAME).create(SHAPES[lifecycle.NAME])  # read even before the first life has ended
    lives = read_lives(spark, plan.lake)
    events = event_stream(spark, plan, NAME)
    if plan.target.endpoint is not None:
        with log_with_topic(plan.target, METRICS_STREAM):
            pass
    rows = transform(lives, events, window=plan.window, watermark=plan.watermark)
    measuring = begin(rows, plan, NAME, lambda batch, query, number: _write(batch, plan, query, number))
    if plan.target.endpoint is not None and not plan.is_once:
        level_sampler.start(plan, lambda: _is_over(measuring))
    return [measuring]


def _is_over(query: StreamingQuery) -> bool:
    try:
        return not query.isActive
    except Exception:  # noqa: BLE001  # Spark has ended
        return True


def read_lives(spark: SparkSession, lake: str) -> DataFrame:
    """The rows of the table `lifecycle` as a stream."""
    return spark.readStream.format("penstock").options(lake=lake, table=lifecycle.NAME).load().drop("date")


def _write(batch: DataFrame, plan: Plan, query: str, number: int) -> None:
    """Write to the table and the stream. Both writes happen once for each batch, even if it is repeated after one of them."""
    # Persisted, since a percentile may be slightly different when it is computed again.
    kept = batch.persist()
    try:
        add(kept, plan, NAME, "window_start", query=query, batch=number)
        if plan.target.endpoint is not None:
            writer = as_messages(kept, METRICS).write.format("penstock").options(**plan.target.options())
            writer.options(stream=METRICS_STREAM, query=query, batch=number).mode("append").save()
    finally:
        kept.unpersist()


def _settled(lives: DataFrame) -> DataFrame:
    settled = lives.where(_counts(F.col("settled_at").isNotNull() & _is_foreign()))
    outcomes = {name: _one(F.col("outcome") == name) for name in ("acked", "dead_lettered", "dropped")}
    age = _age("settled_at", F.unix_micros("published_at"))
    failures = {"nacked": F.col("nacks"), "expired": F.col("expiries")}
    return _shaped(settled, outcomes | failures, {time: F.col(f"{time}_ms") for time in _TIMES}, age)


def _happened(events: DataFrame) -> DataFrame:
    happened = events.where(_counts(F.col("stream").isNotNull() & _is_foreign() & F.col("kind").isin("published", "leased")))
    is_leased = F.col("kind") == "leased"
    counts = {
        "published": _one(~is_leased),
        "delivered": _one(is_leased),
        "redelivered": _one(is_leased & (F.col("attempt") > 1)),
    }
    # The first fourteen digits of a message id are its publish time.
    published = F.conv(F.substring("message_id", 1, 14), 16, 10).cast("bigint")
    return _shaped(happened, counts, {}, F.when(is_leased, _age("at", published)))


def _shaped(rows: DataFrame, counts: dict[str, Column], times: dict[str, Column], age: Column) -> DataFrame:
    """The columns to aggregate, the same for both inputs."""
    return rows.select(
        "moment",
        *_BY,
        *(counts.get(name, F.lit(0)).cast("bigint").alias(name) for name in _COUNTS),
        *(times.get(time, F.lit(None)).cast("double").alias(f"{time}_ms") for time in _TIMES),
        age.alias("age_ms"),
    )


def _is_foreign() -> Column:
    return ~F.startswith(F.col("stream"), F.lit(OWN_STREAMS))


def _counts(condition: Column) -> Column:
    """A condition that Spark does not evaluate before the watermark operator, because it uses the column of the watermark too."""
    return F.when(F.col("moment") > F.timestamp_micros(F.lit(0)), condition).otherwise(F.lit(False))


def _one(condition: Column) -> Column:
    return F.when(condition, 1).otherwise(0)


def _age(instant: str, published: Column) -> Column:
    return (F.unix_micros(instant) - published) / 1000
