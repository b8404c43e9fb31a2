"""One relation over lake and log: `storage` chooses where rows come from, never which rows."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Message, MessageQueue
from penstock.broker.retention import RETENTION
from penstock.durations import SECOND
from penstock.log.http import HttpLog
from penstock.pipeline.jobs import archive
from penstock.pipeline.relation import messages
from penstock.testing import ManualClock
from penstock.testing.server import LocalServer
from tests.spark.archiving import Place, checksum

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def place(tmp_path: Path, clock: ManualClock) -> Iterator[Place]:
    with LocalServer(data_dir=tmp_path / "data", clock=clock) as server:
        yield Place(server, tmp_path)


def read(spark: SparkSession, place: Place, storage: str, **options: str) -> DataFrame:
    endpoint = None if storage == "lake" else place.server.url
    return messages(spark, "orders,bills", lake=str(place.lake), endpoint=endpoint, storage=storage, **options)


def wait_for_retention(place: Place, earliest: int) -> None:
    """Until the log of orders begins there."""
    deadline = time.monotonic() + 30
    with closing(HttpLog(place.server.url)) as log:
        while (found := log.spans(["orders"]).streams[0].earliest) < earliest:
            assert time.monotonic() < deadline, f"the log begins at {found}"
            place.server.broker.catch_up()
            threading.Event().wait(0.05)


def test_log_lake_and_both_agree(spark: SparkSession, place: Place, clock: ManualClock) -> None:
    place.publish("orders", 30, attributes={"a": "b"}, ordering_key="k")
    place.publish("bills", 10, ttl=60)
    place.archive(spark)
    wanted = checksum(read(spark, place, "log"))
    assert wanted[0] == 40
    assert checksum(read(spark, place, "lake")) == wanted
    assert checksum(read(spark, place, "auto")) == wanted

    place.publish("orders", 5)
    live = checksum(read(spark, place, "log"))
    assert live[0] == 45
    assert checksum(read(spark, place, "auto")) == live, "the lake's part and the log's"
    assert checksum(read(spark, place, "lake")) == wanted

    some = {"startingOffsets": '{"orders": 28, "bills": 9}', "endingOffsets": '{"orders": 32, "bills": 10}'}
    rows = read(spark, place, "auto", **some).select("stream", "offset").orderBy("stream", "offset").collect()
    assert [tuple(row) for row in rows] == [("bills", 9), ("orders", 28), ("orders", 29), ("orders", 30), ("orders", 31)]

    # Retention removes from the log what is old; the lake keeps it.
    place.archive(spark)
    clock.advance((RETENTION + 100 * SECOND) / SECOND)
    place.publish("orders", 3)
    wait_for_retention(place, 35)
    assert read(spark, place, "log").count() < 10
    with pytest.raises(Exception, match="gone"):
        read(spark, place, "log", startingOffsets='{"orders": 0, "bills": 0}').count()
    assert read(spark, place, "auto").count() == 48, "what was archived, and what is in the log"


def test_they_agree_while_the_archive_runs(spark: SparkSession, place: Place) -> None:
    place.publish("orders", 50)
    place.publish("bills", 1)
    queries = archive.start(spark, replace(place.plan, is_once=False, interval="0 seconds", max_rows=7), compact_every=2)
    try:
        for _ in range(3):
            MessageQueue(broker=place.server.broker).publish("orders", [Message(b"more")] * 5)
            assert checksum(read(spark, place, "auto")) == checksum(read(spark, place, "log"))
    finally:
        for query in queries:
            query.stop()
