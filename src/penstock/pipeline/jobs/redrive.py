"""The redrive job: Spark selects dead letters, the server requeues them in slices, each letter once for a redrive id.

    begin ──> the server stores the selection's end in the event log ──────> select (Spark) ──> slice by slice (the server)
                                          └── a repeated command selects up to the same end: what is left

The letters are moved by `penstock.pipeline.redriving`, which needs no Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's own pages name it

from penstock.durations import SECOND, to_datetime
from penstock.pipeline.core.redrive import Letter, Redrive, RedrivePlan, TargetState, ordered
from penstock.pipeline.jobs import dead_letters
from penstock.pipeline.jobs.triage import Triage, between
from penstock.pipeline.jobs.wiring import where
from penstock.pipeline.redriving import Note

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from penstock.pipeline.job import Target

LOOK_BACK = 15 * 60 * SECOND
"""The time span of the deliveries that determine whether a target is failing."""
_HELD = ("stream", "subscription", "message_offset", "message_id", "at")
_FAILED = ("nacked", "expired", "dead_lettered")


def note_of(target: Target, redrive: Redrive) -> Note:
    """The note of a redrive that starts now."""
    return Note(redrive.arguments(), dead_letters.end_of_events(target))


def plan(spark: SparkSession, target: Target, redrive: Redrive, note: Note, now: int) -> RedrivePlan:
    """The remaining letters of a redrive, and the state of their targets."""
    letters = dead_letters.read(spark, target, redrive.streams, note.stop)
    found = dead_letters.with_traits(
        between(letters, Triage(since=redrive.since, until=redrive.until)), redrive.version_attributes, keeps_payload=True
    )
    chosen = select(found, redrive.sql).select(*_HELD, "target", "is_gone").withColumn("at", F.unix_micros("at"))
    rows = chosen.toArrow().to_pydict()
    selected = [Letter(*row) for row in zip(*(rows[name] for name in (*_HELD, "is_gone")), strict=True)]
    # Letters that are gone count too: when a redrive continues, its limit must not select others in their place.
    meant = [letter for letter in ordered(selected, redrive.limit) if not letter.is_gone]
    names = {letter.source for letter in meant} | {name for name in rows["target"] if name}
    states = [state for state in targets(spark, target, redrive, now) if state.name in names] if meant else []
    return RedrivePlan(meant, states)


def select(letters: DataFrame, sql: str | None) -> DataFrame:
    """The letters that match a condition. `payload` is the value as a variant, null if it is not JSON."""
    shown = letters.withColumn("payload", F.expr("try_parse_json(try_validate_utf8(CAST(value AS STRING)))"))
    return shown if sql is None else where(shown, sql, "status = 503 AND payload:amount::int > 100")


def targets(spark: SparkSession, target: Target, redrive: Redrive, now: int) -> list[TargetState]:
    """The recent results of deliveries: by queue or subscription, and by target if a router delivers."""
    reader = spark.read.format("penstock").options(**target.options()).options(view="events", failOnDataLoss=False)
    if redrive.streams:
        reader = reader.option("subscribe", ",".join(redrive.streams))
    reader = reader.option("startingTimestamp", to_datetime(max(now - LOOK_BACK, 0)).isoformat())
    recent = reader.load().where(F.col("kind").isin("acked", "attempted", *_FAILED))
    is_queue = F.col("stream") == F.concat(F.lit("queue:"), F.col("subscription"))
    source = F.when(is_queue, F.col("stream")).otherwise(F.concat(F.lit("subscription:"), F.col("subscription")))
    is_attempt = F.col("kind") == "attempted"
    failed = F.when(is_attempt, F.col("detail")["outcome"] != "SUCCESS").otherwise(F.col("kind") != "acked")
    named = recent.select(
        F.when(is_attempt, F.col("detail")["target"]).otherwise(source).alias("name"),
        "at",
        failed.alias("failed"),
        F.coalesce(F.col("detail")["error"], F.lit("")).alias("error"),
    )
    counted = named.where("name IS NOT NULL").groupBy("name")
    found = counted.agg(
        F.count_if(~F.col("failed")).alias("successes"),
        F.count_if("failed").alias("failures"),
        F.unix_micros(F.max(F.when(~F.col("failed"), F.col("at")))).alias("last_success"),
        F.unix_micros(F.max(F.when(F.col("failed"), F.col("at")))).alias("last_failure"),
        F.max_by(F.when(F.col("failed"), F.col("error")), F.when(F.col("failed"), F.col("at"))).alias("error"),
    )
    states = []
    for row in found.orderBy("name").collect():
        times = {name: row[name] and to_datetime(row[name]) for name in ("last_success", "last_failure")}
        states.append(TargetState(**{**row.asDict(), **times, "error": row["error"] or ""}))
    return states
