"""The archive on Spark: whatever is repeated, deleted or half done, the lake is the log, row by row."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

from penstock import QueueManager
from penstock.errors import InvalidArgument
from penstock.log.http import HttpLog
from penstock.log.log import EVENTS
from penstock.pipeline.jobs import archive
from penstock.pipeline.jobs.compact import compact
from penstock.pipeline.lake.files import HIDDEN, escaped
from penstock.pipeline.lake.table import Lake
from penstock.pipeline.lake.writing import append, write
from penstock.testing.server import LocalServer
from tests.spark.archiving import Place, checksum

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STREAMS = ["orders", "007", "2026-01-01", "null", "a b=c{d}", "größe", "x" * 250, "true", "1e5"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with LocalServer(data_dir=tmp_path / "data") as server:
        yield Place(server, tmp_path)


def test_days_are_those_of_utc_whatever_the_session_thinks(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")
    try:
        times = spark.sql(
            "select timestamp_micros(m) publish_time, timestamp_micros(m) at"
            " from values (0L), (86399999999L), (86400000000L), (-1L) as t(m)"
        )
        for transform in (archive.transform_messages, archive.transform_events):
            days = [row["date"] for row in transform(times).collect()]
            assert days == [date(1970, 1, 1), date(1970, 1, 1), date(1970, 1, 2), date(1969, 12, 31)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")


def test_the_lake_is_the_log_and_every_reader_sees_its_streams(spark: SparkSession, place: Place) -> None:
    for stream in STREAMS:
        place.publish(stream, 5, attributes={"a": "1"}, ordering_key="k", ttl=3600)
    queues = QueueManager(broker=place.server.broker)
    queues.create("orders")
    queues.publish("orders", {"job": 1})
    place.archive(spark, hold=True)
    place.check()

    names = {*STREAMS, "queue:orders"} - {"x" * 250} | {escaped("x" * 250)}  # too long for a directory: cut there
    read = spark.read.parquet(str(place.lake / "messages"))
    assert dict(read.dtypes)["stream"] == "string"
    assert dict(read.dtypes)["publish_time"] == "timestamp"
    assert {row["stream"] for row in read.select("stream").distinct().collect()} == names
    assert read.count() == 5 * len(STREAMS) + 1
    for table in (pq.read_table(place.lake / "messages"), ds.dataset(place.lake / "messages", partitioning="hive").to_table()):
        assert set(table["stream"].to_pylist()) == names
        assert table.num_rows == 5 * len(STREAMS) + 1

    with closing(HttpLog(place.server.url)) as log:
        cursors = {cursor.name: cursor for cursor in log.cursors()}
    assert cursors["archive-messages"].lag["orders"] == 0
    assert cursors["archive-messages"].holds
    assert EVENTS in cursors["archive-events"].offsets


def test_batches_that_come_again_add_nothing(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 20)
    place.archive(spark)
    checkpoints = Path(place.plan.checkpoints)
    for query in ("archive-messages", "archive-events"):  # as if killed before Spark wrote down that the last batch was done
        newest = max((path for path in (checkpoints / query / "commits").glob("[0-9]*")), key=lambda path: int(path.name))
        newest.unlink()
        (newest.parent / f".{newest.name}.crc").unlink(missing_ok=True)
    place.publish("orders", 5)
    place.archive(spark)

    place.check()


@pytest.mark.long
def test_another_checkpoint_and_a_lost_one_add_nothing_twice(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 25)
    place.archive(spark)
    place.publish("orders", 7)
    place.archive(spark, checkpoints=f"{place.plan.checkpoints}-other")
    place.publish("orders", 4)
    place.publish("bills", 3)
    place.archive(spark)  # this one knows of 25 rows, the lake has 32, the log 36
    place.check()

    shutil.rmtree(place.plan.checkpoints)
    place.publish("orders", 1)
    place.archive(spark, max_rows=2)
    place.check()
    assert place.offset("orders") == 37


@pytest.mark.long
def test_a_stream_that_was_made_again_is_archived_beside_its_older_self(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 6)
    place.archive(spark)
    old = Lake(place.lake).table("messages").watermark()["orders"].number
    place.topics.unregister_topic("orders")
    place.publish("orders", 4)
    place.archive(spark)
    place.check()

    assert len(place.rows("messages", "orders", old)) == 6
    rows = spark.read.parquet(str(place.lake / "messages"))
    assert rows.count() == rows.select("message_id").distinct().count() == 10


@pytest.mark.long
def test_a_lake_that_was_replaced_under_its_checkpoint_is_told(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 6)
    place.archive(spark)
    shutil.rmtree(place.lake)
    place.publish("orders", 2)

    with pytest.raises(Exception, match="delete the archive's checkpoint"):
        place.archive(spark)
    shutil.rmtree(place.plan.checkpoints)
    place.archive(spark)
    place.check()


@pytest.mark.long
@pytest.mark.parametrize("name", ["orc", "json"])
def test_other_formats(spark: SparkSession, place: Place, name: str) -> None:
    place.publish("orders", 9)
    place.archive(spark, format=name, max_rows=6)

    assert spark.read.format(name).load(str(place.lake / "messages")).count() == 9
    assert [(file.first, file.last) for file in Lake(place.lake).table("messages").files()] == [(0, 5), (6, 8)]


def test_a_format_that_cannot_hold_the_rows_is_told(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.sql("select map('a', 'b') m, 'x' as d")
    for name in ("csv", "nonsense"):
        with pytest.raises(InvalidArgument, match=f"format is '{name}'"):
            write(rows, tmp_path, name, partitions=["d"])


def test_compaction_keeps_rows_and_their_order(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 12, attributes={"a": "b"})
    place.publish("bills", 6)
    place.archive(spark, max_rows=6)
    before, count = checksum(spark.read.parquet(str(place.lake / "messages"))), place.files()
    report = compact(spark, str(place.lake))

    assert count > 3
    assert place.files() == 2
    assert report.files_before >= count
    assert checksum(spark.read.parquet(str(place.lake / "messages"))) == before
    place.publish("orders", 4)
    place.archive(spark)
    place.check()
    with pytest.raises(InvalidArgument, match="lake"):
        compact(spark, str(place.lake / "nothing"))


@pytest.mark.long
def test_a_running_archive_merges_small_files_by_itself(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 24)
    queries = archive.start(spark, replace(place.plan, is_once=False, interval="0 seconds", max_rows=1), compact_every=8)
    try:
        deadline = time.monotonic() + 100
        while not (place.lake / HIDDEN / "removed" / "messages").exists():
            assert all(query.isActive for query in queries), [query.exception() for query in queries]
            assert time.monotonic() < deadline, "nothing was merged"
            threading.Event().wait(0.1)
        queries[0].processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    with Lake(place.lake).table("messages") as table:
        table.recover()
    assert place.files() < 24
    assert [row["offset"] for row in place.rows("messages", "orders", 1)] == list(range(24))


def test_rows_of_a_query_are_appended_once(spark: SparkSession, tmp_path: Path) -> None:
    with Lake(tmp_path).table("metrics") as table:
        rows = spark.sql("select 1 as n, date'2026-01-31' as date union all select 2, date'2026-02-01'")
        assert [append(rows, table, query="q", batch=batch) for batch in (0, 0, 1, 0)] == [2, 0, 2, 0]
        assert append(rows, table, query="other", batch=0, format="json") == 2
    assert (
        sorted(tuple(row) for row in spark.read.parquet(str(tmp_path / "metrics/date=2026-01-31/*.parquet")).collect())
        == [(1,)] * 2
    )
