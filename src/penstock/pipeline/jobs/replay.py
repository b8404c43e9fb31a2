"""The replay job: publishes a range of a stream again, from the log or the lake, once.

The broker controls the pace: every message is published at once, with a `deliver_at` that keeps the intervals of the original. So
a replay that takes a week needs Spark for seconds, survives restarts of the server, and is one atomic commit.
"""

from __future__ import annotations

import json
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's own pages name it

from penstock.durations import to_datetime
from penstock.errors import InvalidArgument
from penstock.log.http import HttpLog
from penstock.pipeline.core.replay import REPLAY, REPLAYED_FROM, Replay, ReplayExtent
from penstock.pipeline.jobs.wiring import where

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Target


def read(spark: SparkSession, target: Target, lake: str | None, replay: Replay) -> DataFrame:
    """The messages of a replay, in the order of their offsets."""
    reader = spark.read.format("penstock").options(**target.reading()).option("subscribe", replay.stream)
    if replay.storage != "log":
        reader = reader.option("storage", replay.storage)
        reader = reader if lake is None else reader.option("lake", lake)
    for option, bound in (("startingOffsets", replay.from_offset), ("endingOffsets", replay.to_offset)):
        if bound is not None:
            reader = reader.option(option, json.dumps({replay.stream: bound}))
    if replay.since is not None and replay.from_offset is None:
        # Avoids reading earlier messages. The end is filtered: if the clock was set back, later offsets may have earlier times.
        reader = reader.option("startingTimestamp", to_datetime(replay.since).isoformat())
    return select(reader.load(), replay)


def select(messages: DataFrame, replay: Replay) -> DataFrame:
    """The rows that match the times and the condition."""
    chosen = messages
    if replay.since is not None:
        chosen = chosen.where(F.col("publish_time") >= F.timestamp_micros(F.lit(replay.since)))
    if replay.until is not None:
        chosen = chosen.where(F.col("publish_time") < F.timestamp_micros(F.lit(replay.until)))
    if replay.where is not None:
        chosen = where(chosen, replay.where, "key = 'x' AND attributes['a'] = 'b'")
    return chosen


def transform(messages: DataFrame, replay_id: str, *, speed: float | None = None, first: int = 0, now: int = 0) -> DataFrame:
    """Rows for the sink: with unchanged payload, key and priority, the attributes with marks, and paced delivery.

    The message published at `first` is delivered at `now`, the others after their original distance to it, divided by `speed`.
    The TTL is not copied: it would have expired.
    """
    marks = F.create_map(F.lit(REPLAYED_FROM), F.col("message_id"), F.lit(REPLAY), F.lit(replay_id))
    others = F.map_filter(F.coalesce("attributes", F.expr("map()")), lambda name, _: ~name.isin(REPLAYED_FROM, REPLAY))
    columns = [F.col("value"), F.col("key"), F.map_concat(others, marks).alias("attributes"), F.col("priority").cast("int")]
    if speed is not None:
        after = (F.unix_micros("publish_time") - F.lit(first)) / F.lit(speed)
        # Publish times may step back with the broker's clock; nothing is delivered before the replay starts.
        columns.append(F.timestamp_micros(F.lit(now) + F.greatest(F.round(after), F.lit(0)).cast("bigint")).alias("deliver_at"))
    return messages.select(*columns)


def extent(messages: DataFrame) -> ReplayExtent:
    found = messages.agg(
        F.count("*").alias("rows"),
        F.sum(F.octet_length("value")).alias("bytes"),
        F.min("offset").alias("first_offset"),
        F.max("offset").alias("last_offset"),
        F.unix_micros(F.min("publish_time")).alias("first"),
        F.unix_micros(F.max("publish_time")).alias("last"),
    ).first()
    assert found is not None, "an aggregate has one row"
    return ReplayExtent(**{**found.asDict(), "bytes": found["bytes"] or 0})


def run(spark: SparkSession, target: Target, lake: str | None, replay: Replay, now: int) -> ReplayExtent:
    """Publish the range again; returns its extent. A replay id that was used before adds nothing; the result reports that.

    With other arguments it is an error. So the server stores the id with its arguments before anything is read.
    """
    if target.endpoint is None:
        raise InvalidArgument(
            "a replay writes, and a data directory can be read only", hint="name the server that has it open: --server URL"
        )
    messages = read(spark, target, lake, replay)
    query = f"replay-{replay.replay_id}"
    with HttpLog(target.endpoint, token=target.token, project=target.project) as log:
        note = msgspec.json.encode(replay.arguments()).decode()
        used = log.commit(secrets.token_hex(16), [], query=f"{query}:arguments", note=note)
    replay.check_arguments(msgspec.json.decode(used.note, type=dict[str, str]))
    found = extent(messages)
    if found.rows == 0:
        return found
    # Messages that arrive during the replay are not part of it, so that exactly the counted messages are published.
    assert found.first is not None
    assert found.last_offset is not None
    counted = messages.where(F.col("offset") <= found.last_offset)
    # The files of the lake have no order; the log returns rows and partitions by offset.
    ordered = counted if replay.storage == "log" else counted.orderBy("offset")
    rows = transform(ordered, replay.replay_id, speed=replay.speed, first=found.first, now=now)
    writer = rows.write.format("penstock").mode("append").options(**target.options()).option("stream", replay.to)
    writer.option("query", query).option("batch", "0").save()
    # Spark does not pass on the server's answer. A batch without rows ends the replay; it is recognised if it is repeated.
    with HttpLog(target.endpoint, token=target.token, project=target.project) as log:
        ended = log.commit(secrets.token_hex(16), [], query=query, batch=1)
    return replace(found, is_repeat=ended.is_repeat)
