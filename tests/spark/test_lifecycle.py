"""The lifecycle on Spark: the same rows from a finite frame, from a stream, and from the fold alone."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as F  # noqa: N812  # as all of Spark's own pages name it

from penstock.ids import message_id
from penstock.pipeline.core.lifecycle import BUCKET, KINDS, Event, Lives
from penstock.pipeline.jobs.lifecycle import transform
from penstock.pipeline.schemas import EVENTS, LIFECYCLE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession

pytestmark = pytest.mark.spark

SECOND = 1_000_000
START = 1_700_000_000 * SECOND
MINUTE = 60 * SECOND

Line = tuple[int, datetime, str, str | None, str | None, int | None, str | None, int | None, str | None, dict[str, str]]


def instant(at: int) -> datetime:
    return datetime.fromtimestamp(at // SECOND, UTC).replace(microsecond=at % SECOND)


def line(offset: int, at: int, kind: str, message: int = 0, *, attempt: int | None = None, **more: Any) -> Line:
    """A row of the events view; `at` is in microseconds after START."""
    subscription = None if kind == "published" else more.get("subscription", "s")
    name = None if kind == "dropped" else message_id(START, 1, message)
    detail = {key: str(value) for key, value in more.items() if key in {"deadline", "due", "cause"}}
    stream = more.get("stream", "orders")
    return (offset, instant(START + at), kind, stream, subscription, message, name, attempt, more.get("consumer"), detail)


def rows_of(frame: DataFrame) -> list[Row]:
    """The rows in the order of their last events, with instants in microseconds."""
    columns = [F.unix_micros(name).alias(name) if kind == "timestamp" else F.col(name) for name, kind in frame.dtypes]
    return sorted(frame.select(*columns).collect(), key=in_order)


def in_order(row: Sequence[Any]) -> tuple[Any, ...]:
    return (row[-1], row[-3])


def test_one_life_with_every_column_by_hand(spark: SparkSession) -> None:
    events = [
        line(0, 0, "published", 5),
        line(1, 250_000, "leased", 5, attempt=1, consumer="w1", deadline=START + MINUTE),
        line(2, 300_000, "nacked", 5, attempt=1, due=START + SECOND),
        line(3, SECOND, "leased", 5, attempt=2, consumer="w2"),
        line(4, SECOND + 1500, "dead_lettered", 5, attempt=2, cause="expired"),
        line(5, SECOND + 1501, "evicted", 5),
        line(6, SECOND + 1502, "paused", stream="orders"),
    ]

    made = transform(spark.createDataFrame(events, EVENTS))

    assert made.columns == [field.split()[0] for field in LIFECYCLE.split(", ")]
    assert rows_of(made) == [
        (
            "orders",
            "s",
            5,
            message_id(START, 1, 5),
            START,
            START + 250_000,
            START + SECOND + 1500,
            START + SECOND + 1500,
            2,
            1,
            1,
            "w2",
            250.0,
            1.5,
            "dead_lettered",
            False,
            4,
        )
    ]


def test_what_is_unknown_is_null_and_what_is_unsettled_is_open(spark: SparkSession) -> None:
    events = [line(0, 0, "dropped", 1), line(1, 10, "leased", 2, attempt=1)]

    dropped, is_open = rows_of(transform(spark.createDataFrame(events, EVENTS)))

    assert (dropped.message_id, dropped.published_at, dropped.first_delivered_at) == (None, None, None)
    assert (dropped.consumer, dropped.wait_ms, dropped.processing_ms) == (None, None, None)
    assert (dropped.outcome, dropped.settled_at) == ("dropped", START)
    assert (is_open.outcome, is_open.settled_at, is_open.processing_ms) == ("open", None, None)
    assert (is_open.wait_ms, is_open.updated_at) == (0.01, START + 10)


def test_any_events_give_on_spark_what_the_fold_gives(spark: SparkSession) -> None:
    draw = random.Random(5)
    events = []
    for offset in range(3000):
        message = draw.choice([0, 1, 2, BUCKET - 1, BUCKET, 3 * BUCKET])
        cause = draw.choice(["nacked", "ttl"])
        events.append(
            line(
                offset,
                offset * 1000,
                draw.choice(KINDS),
                message,
                attempt=draw.choice([None, 1, 2, 3]),
                stream=draw.choice(["orders", "bills"]),
                subscription=draw.choice(["s", "t"]),
                consumer=draw.choice([None, "w"]),
                cause=cause,
            )
        )
    shuffled = draw.sample(events, len(events))

    made = rows_of(transform(spark.createDataFrame(shuffled, EVENTS)))

    assert made == sorted(folded(events), key=in_order)


def folded(events: Sequence[Line]) -> list[tuple[Any, ...]]:
    """The rows of the fold by itself, each stream in one piece."""
    found: list[tuple[Any, ...]] = []
    for stream in ("orders", "bills"):
        lives = Lives()
        mine = [
            Event(offset, micros(at), kind, subscription, message or 0, name, attempt or 0, consumer, 0, detail.get("cause", ""))
            for offset, at, kind, of, subscription, message, name, attempt, consumer, detail in events
            if of == stream
        ]
        found += [(stream, *row) for row in lives.fold(mine) + lives.finish()]
    return found


def micros(at: datetime) -> int:
    return int(at.timestamp()) * SECOND + at.microsecond


class Stream:
    """A streaming lifecycle fed with files: each `feed` is one batch, or more when the watermark has moved."""

    def __init__(self, spark: SparkSession, directory: Path) -> None:
        self._spark, self._directory = spark, directory
        (directory / "in").mkdir()

    def feed(self, events: Sequence[Line]) -> list[Row]:
        """All rows so far, after some more events. Every call is another run from the checkpoint."""
        self._spark.createDataFrame(list(events), EVENTS).coalesce(1).write.mode("append").parquet(str(self._directory / "in"))
        stream = self._spark.readStream.schema(EVENTS).parquet(str(self._directory / "in"))
        query = (
            transform(stream, watermark="10 minutes")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .option("path", str(self._directory / "out"))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(60)
        return rows_of(self._spark.read.schema(LIFECYCLE).parquet(str(self._directory / "out")))


def outcomes(rows: list[Row]) -> list[tuple[Any, ...]]:
    return [(row.message_offset, row.outcome, row.is_late, row.event_offset) for row in rows]


def test_a_stream_remembers_across_batches_gives_up_after_the_watermark_and_marks_what_comes_late(
    spark: SparkSession, tmp_path: Path
) -> None:
    stream = Stream(spark, tmp_path)

    first = stream.feed(
        [
            line(0, 0, "published", 0),
            line(1, 0, "published", 1),
            line(2, 0, "published", 2),
            line(3, 10, "leased", 0, attempt=1, consumer="w", deadline=START + MINUTE),
            line(4, 10, "leased", 1, attempt=1, consumer="w", deadline=START + MINUTE),
            line(5, 10, "leased", 2, attempt=1, consumer="w", deadline=START + 60 * MINUTE),
            line(6, 20, "acked", 0, attempt=1),
        ]
    )
    assert outcomes(first) == [(0, "acked", False, 6)]

    # Twelve minutes later: the watermark (ten less) is past the lease of message 1, not past that of message 2.
    second = stream.feed([line(7, 12 * MINUTE, "published", 3 * BUCKET)])
    assert outcomes(second) == [(1, "open", False, 4), (0, "acked", False, 6)]

    third = stream.feed([line(8, 13 * MINUTE, "acked", 1, attempt=1), line(9, 13 * MINUTE, "acked", 2, attempt=1)])

    assert outcomes(third[-2:]) == [(1, "acked", True, 8), (2, "acked", False, 9)]
    late, remembered = third[-2:]
    assert (late.first_delivered_at, late.wait_ms) == (None, None)
    assert remembered.first_delivered_at == START + 10
    assert len(third) == 4


@pytest.mark.long
def test_a_stream_gives_the_rows_of_a_finite_frame(spark: SparkSession, tmp_path: Path) -> None:
    events = []
    for message in range(50):
        events += [(kind, message) for kind in ("published", "leased", "nacked", "leased", "acked")]
    lines = [
        line(offset, offset * 10, kind, message * 200, attempt=1 + (offset % 5 > 2) if kind != "published" else None)
        for offset, (kind, message) in enumerate(sorted(events, key=lambda pair: (pair[1] % 7, pair[1])))
    ]
    stream = Stream(spark, tmp_path)

    stream.feed(lines[:77])
    made = stream.feed(lines[77:])

    assert made == rows_of(transform(spark.createDataFrame(lines, EVENTS)))
    assert len(made) == 50
