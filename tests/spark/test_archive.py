"""The archive on Spark: whatever is repeated, deleted or half done, the lake is the log, row by row."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable

from penstock import QueueManager
from penstock.errors import InvalidArgument
from penstock.log.http import HttpLog
from penstock.log.log import EVENTS
from penstock.pipeline.arrow_types import arrow_schema
from penstock.pipeline.jobs import archive
from penstock.pipeline.jobs.compact import compact
from penstock.pipeline.lake.table import Lake, Shape
from penstock.pipeline.lake.writing import append
from penstock.testing.server import LocalServer
from tests.spark.archiving import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

STREAMS = ["orders", "007", "2026-01-01", "null", "a b=c{d}", "größe", "x" * 250, "true", "1e5"]


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with LocalServer(data_dir=tmp_path / "data") as server:
        yield Place(server, tmp_path)


def test_the_lake_is_the_log_and_every_reader_sees_its_streams(spark: SparkSession, place: Place) -> None:
    for stream in STREAMS:
        place.publish(stream, 5, attributes={"a": "1"}, ordering_key="k", ttl=3600)
    queues = QueueManager(broker=place.server.broker)
    queues.create("orders")
    queues.publish("orders", {"job": 1})
    place.archive(spark, hold=True)
    place.check()

    read = DeltaTable(str(place.lake / "messages")).to_pyarrow_dataset().to_table()
    assert set(read["stream"].to_pylist()) == {*STREAMS, "queue:orders"}
    assert read.num_rows == 5 * len(STREAMS) + 1

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
    old = Lake(place.lake).table("messages").watermark().streams["orders"].number
    place.topics.unregister_topic("orders")
    place.publish("orders", 4)
    place.archive(spark)
    place.check()

    assert len(place.rows("messages", "orders", old)) == 6
    ids = DeltaTable(str(place.lake / "messages")).to_pyarrow_dataset().to_table()["message_id"].to_pylist()
    assert len(ids) == len(set(ids)) == 10


def test_a_lake_that_lies_behind_its_checkpoint_catches_up(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 6)
    place.archive(spark)
    shutil.rmtree(place.lake)

    place.archive(spark)
    place.check()


def test_compaction_keeps_rows_and_their_order(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 12, attributes={"a": "b"})
    place.publish("bills", 6)
    place.archive(spark, max_rows=6)
    before, count = place.rows("messages", "orders", 1), place.files()
    report = compact(str(place.lake))

    assert count > 3
    assert place.files() == 2
    assert report.files_before >= count
    assert place.rows("messages", "orders", 1) == before
    place.publish("orders", 4)
    place.archive(spark)
    place.check()
    with pytest.raises(InvalidArgument, match="lake"):
        compact(str(place.lake / "nothing"))


@pytest.mark.long
def test_a_running_archive_merges_small_files_by_itself(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 24)
    queries = archive.start(spark, replace(place.plan, is_once=False, interval="0 seconds", max_rows=1), compact_every=8)
    try:
        deadline = time.monotonic() + 100
        while not any(commit["operation"] == "OPTIMIZE" for commit in DeltaTable(str(place.lake / "messages")).history()):
            assert all(query.isActive for query in queries), [query.exception() for query in queries]
            assert time.monotonic() < deadline, "nothing was merged"
            threading.Event().wait(0.1)
        queries[0].processAllAvailable()
    finally:
        for query in queries:
            query.stop()
    assert place.files() < 24
    assert [row["offset"] for row in place.rows("messages", "orders", 1)] == list(range(24))


def test_rows_of_a_query_are_appended_once(spark: SparkSession, tmp_path: Path) -> None:
    shape = Shape(arrow_schema("n int not null, at timestamp not null, date date"), ("date",), ("at",))
    rows = spark.sql("select 1 as n, timestamp'2026-01-31 23:59:59.999999' as at union all select 2, timestamp'2026-02-01'")
    table = Lake(tmp_path).table("metrics")
    spark.conf.set("spark.sql.session.timeZone", "Pacific/Auckland")  # days are those of UTC whatever the session thinks
    try:
        done = [append(rows, table, shape, day="at", query="q", batch=batch) for batch in (0, 0, 1, 0)]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert done == [2, 0, 2, 0]
    assert append(rows.where("n > 5"), table, shape, day="at", query="other", batch=0) == 0
    found = DeltaTable(str(tmp_path / "metrics")).to_pyarrow_dataset().to_table().to_pylist()
    assert sorted((row["n"], str(row["date"])) for row in found) == [(1, "2026-01-31")] * 2 + [(2, "2026-02-01")] * 2
