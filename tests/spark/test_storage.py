"""One relation over lake and log: `storage` chooses where rows come from, never which rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import Message, MessageQueue
from penstock.pipeline import messages
from penstock.pipeline.jobs import archive
from penstock.testing.server import LocalServer
from tests.spark.archiving import Place, checksum

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with LocalServer(data_dir=tmp_path / "data") as server:
        yield Place(server, tmp_path)


def read(spark: SparkSession, place: Place, storage: str, **options: str) -> DataFrame:
    endpoint = None if storage == "lake" else place.server.url
    return messages(spark, "orders,bills", lake=str(place.lake), endpoint=endpoint, storage=storage, **options)


def test_log_lake_and_both_agree(spark: SparkSession, place: Place) -> None:
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


@pytest.mark.long
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
