"""The metrics on Spark, with expected rows by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.ids import message_id
from penstock.pipeline.jobs.metrics import read_lives, transform
from penstock.pipeline.lake.table import SHAPES, Lake
from penstock.pipeline.lake.writing import append
from penstock.pipeline.schemas import EVENTS, LIFECYCLE, METRICS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

START = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
START_US = int(START.timestamp()) * 1_000_000
Key = tuple[str, str | None, str | None, int]
PUBLISHED = START_US - 500_000
"""Every message here was published half a second before twelve."""


def moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(START.timestamp() + seconds, UTC)


def event(
    offset: int, seconds: float, kind: str, *, stream: str = "orders", attempt: int | None = None, consumer: str | None = None
) -> tuple[Any, ...]:
    subscription = None if kind == "published" else "s"
    return (offset, moment(seconds), kind, stream, subscription, offset, message_id(PUBLISHED, 1, offset), attempt, consumer, {})


def life(seconds: float, outcome: str, *, wait: float | None, work: float | None, **more: Any) -> tuple[Any, ...]:
    """A row of the lifecycle, settled so many seconds after twelve."""
    settled = None if outcome == "open" else moment(seconds)
    return (
        more.get("stream", "orders"),
        "s",
        int(seconds * 1000),
        "id",
        moment(-0.5),
        moment(0),
        settled,
        moment(seconds),
        more.get("attempts", 1),
        more.get("nacks", 0),
        more.get("expiries", 0),
        more.get("consumer", "w"),
        wait,
        work,
        outcome,
        False,
        int(seconds * 1000),
    )


def measured(
    spark: SparkSession, lives: Sequence[Any], events: Sequence[Any], **how: Any
) -> dict[tuple[str, Any, Any, int], Row]:
    """The rows by (stream, subscription, consumer, seconds after twelve)."""
    made = transform(spark.createDataFrame(list(lives), LIFECYCLE), spark.createDataFrame(list(events), EVENTS), **how)
    return by_window(made)


def by_window(made: DataFrame) -> dict[Key, Row]:
    rows = made.selectExpr("*", "unix_seconds(window_start) as start", "unix_seconds(window_end) as end").collect()
    return {(row.stream, row.subscription, row.consumer, row.start - START_US // 1_000_000): row for row in rows}


def test_one_window_with_every_column_by_hand(spark: SparkSession) -> None:
    lives = [
        life(10, "acked", wait=10.0, work=1.0),
        life(20, "acked", wait=20.0, work=2.0, nacks=1, expiries=1),
        life(30, "acked", wait=30.0, work=3.0),
        life(59.999, "dead_lettered", wait=40.0, work=None, nacks=3),
        life(40, "dropped", wait=None, work=None),
        life(50, "open", wait=1.0, work=None, nacks=100),
    ]
    events = [
        event(0, 1, "published"),
        event(1, 2, "published"),
        event(2, 3, "published"),
        event(3, 4, "leased", attempt=1, consumer="w"),
        event(4, 5, "leased", attempt=1, consumer="w"),
        event(5, 6, "leased", attempt=2, consumer="w"),
        event(6, 7, "leased", attempt=3, consumer="w"),
        event(7, 8, "nacked", attempt=3),
    ]

    rows = measured(spark, lives, events)

    assert set(rows) == {("orders", None, None, 0), ("orders", "s", "w", 0)}
    work = rows["orders", "s", "w", 0].asDict()
    assert work.pop("end") - work.pop("start") == 60
    work.pop("window_start")
    work.pop("window_end")
    assert work == {
        "stream": "orders",
        "subscription": "s",
        "consumer": "w",
        "published": 0,
        "delivered": 4,
        "acked": 3,
        "nacked": 4,
        "expired": 1,
        "dead_lettered": 1,
        "dropped": 1,
        "redelivered": 2,
        "published_per_second": 0.0,
        "delivered_per_second": 4 / 60,
        "acked_per_second": 3 / 60,
        "wait_p50_ms": 20.0,
        "wait_p95_ms": 40.0,
        "wait_p99_ms": 40.0,
        "processing_p50_ms": 2.0,
        "processing_p95_ms": 3.0,
        "processing_p99_ms": 3.0,
        "redelivery_ratio": 0.5,
        "dead_letter_ratio": 1 / 5,
        "error_ratio": 5 / 8,
        "oldest_age_ms": 60_499.0,
    }
    published = rows["orders", None, None, 0]
    assert (published.published, published.published_per_second) == (3, 3 / 60)


def test_the_columns_are_those_of_the_schema(spark: SparkSession) -> None:
    made = transform(spark.createDataFrame([], LIFECYCLE), spark.createDataFrame([], EVENTS))

    wanted = spark.createDataFrame([], METRICS)
    assert made.dtypes == wanted.dtypes


def test_ratios_and_percentiles_of_nothing_are_null(spark: SparkSession) -> None:
    rows = measured(spark, [], [event(0, 1, "published")])

    (row,) = rows.values()
    empty = [name for name in row.asDict() if name.endswith(("_ratio", "_ms"))]
    assert len(empty) == 10
    assert all(row[name] is None for name in empty)


def test_a_window_begins_at_its_first_instant_and_ends_before_its_last(spark: SparkSession) -> None:
    events = [event(0, 0, "published"), event(1, 29.999, "published"), event(2, 30, "published")]

    rows = measured(spark, [], events, window="30 seconds")

    counts = {key[3]: (row.published, row.published_per_second) for key, row in rows.items()}
    assert counts == {0: (2, 2 / 30), 30: (1, 1 / 30)}


def test_streams_subscriptions_and_consumers_are_apart_and_our_own_streams_left_out(spark: SparkSession) -> None:
    lives = [
        life(1, "acked", wait=1.0, work=1.0, consumer="a"),
        life(1, "acked", wait=1.0, work=1.0, consumer=None),
        life(1, "acked", wait=1.0, work=1.0, stream="_penstock.metrics"),
    ]
    events = [
        event(0, 1, "published", stream="bills"),
        event(1, 1, "published", stream="_penstock.metrics"),
        event(2, 1, "leased", stream="_penstock.metrics", attempt=1),
        event(3, 1, "leased", attempt=1, consumer="a"),
    ]

    rows = measured(spark, lives, events)

    assert set(rows) == {("orders", "s", "a", 0), ("orders", "s", None, 0), ("bills", None, None, 0)}


@pytest.mark.long
def test_streams_give_each_window_once_with_what_both_of_them_say(spark: SparkSession, tmp_path: Path) -> None:
    lives = [[life(10, "acked", wait=10.0, work=1.0)], [life(70, "acked", wait=30.0, work=1.0)]]
    events = [
        [event(0, 5, "leased", attempt=1, consumer="w"), event(1, 65, "leased", attempt=2, consumer="w")],
        [event(2, 8, "leased", attempt=1, consumer="w")],
    ]
    last = [[life(2000, "acked", wait=1.0, work=1.0)], [event(9, 2000, "leased", attempt=1, consumer="w")]]

    for batch in range(2):
        run(spark, tmp_path, lives[batch], events[batch])
    assert by_window(spark.read.schema(METRICS).parquet(str(tmp_path / "out"))) == {}
    run(spark, tmp_path, *last)

    rows = by_window(spark.read.schema(METRICS).parquet(str(tmp_path / "out")))
    found = {key: (row.delivered, row.redelivered, row.acked, row.wait_p50_ms) for key, row in rows.items()}
    assert found == {("orders", "s", "w", 0): (2, 0, 1, 10.0), ("orders", "s", "w", 60): (1, 1, 1, 30.0)}


def test_windows_close_also_when_nothing_is_settled(spark: SparkSession, tmp_path: Path) -> None:
    # The end of a window of levels is an event, and an open life in which nothing happens but that time passes.
    tick = life(2000, "open", wait=None, work=None, stream="_penstock.levels")
    run(spark, tmp_path, [tick], [event(0, 5, "published"), event(1, 2000, "published", stream="_penstock.levels")])
    # The window comes out with the batch after the one that saw the time.
    run(spark, tmp_path, [], [event(2, 2001, "published", stream="_penstock.levels")])

    rows = by_window(spark.read.schema(METRICS).parquet(str(tmp_path / "out")))
    assert {key: row.published for key, row in rows.items()} == {("orders", None, None, 0): 1}


def test_lives_are_followed_from_before_the_first_of_them(spark: SparkSession, tmp_path: Path) -> None:
    table, shape = Lake(tmp_path).table("lifecycle"), SHAPES["lifecycle"]
    table.create(shape)
    lives = read_lives(spark, str(tmp_path))
    query = lives.writeStream.format("memory").queryName("early_lives").start()
    try:
        for batch in range(3):
            rows = spark.createDataFrame([life(10 + batch, "acked", wait=10.0, work=1.0)], LIFECYCLE)
            append(rows, table, shape, day="updated_at", query="q", batch=batch)
            query.processAllAvailable()
            if batch == 1:
                assert table.compact(1 << 20).files_after == 1, "merged rows are not new"
    finally:
        query.stop()

    rows = spark.table("early_lives")
    assert (rows.columns, rows.count()) == (spark.createDataFrame([], LIFECYCLE).columns, 3)
    assert spark.read.format("penstock").options(lake=str(tmp_path), table="lifecycle").load().count() == 3


def run(spark: SparkSession, directory: Path, lives: Sequence[Any], events: Sequence[Any]) -> None:
    """One run of the streaming metrics from its checkpoint, with some more rows at each side."""
    inputs = []
    for name, schema, rows in (("lives", LIFECYCLE, lives), ("events", EVENTS, events)):
        spark.createDataFrame(list(rows), schema).coalesce(1).write.mode("append").parquet(str(directory / name))
        inputs.append(spark.readStream.schema(schema).parquet(str(directory / name)))
    query = (
        transform(*inputs)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .option("path", str(directory / "out"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
