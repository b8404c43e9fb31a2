"""Exactly once under fire: a driver that archives is killed at random moments while publishing goes on."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.pipeline.lake.table import Lake
from penstock.testing.server import LocalServer
from tests.spark.archiving import Place
from tests.spark.copying import Driver, publishing, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("PENSTOCK_SPARK_KILLS", "1"))


def wait_for_commit(lake: Path, driver: Driver) -> None:
    """Until the lake has got something that it did not have, or the driver has died."""
    table = Lake(lake).table("messages")
    before = table.watermark().commits
    wait_until(lambda: table.watermark().commits > before, driver)


@pytest.mark.timeout(300 + 120 * KILLS)
def test_what_is_published_is_archived_once_whenever_the_driver_dies(spark: SparkSession, tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path / "data") as server:
        place = Place(server, tmp_path)
        place.topics.register_topic("orders")
        given = {"endpoint": server.url, "lake": str(place.lake), "checkpoints": place.plan.checkpoints}
        with publishing(place.topics, "orders") as published:
            for number in range(KILLS):
                driver = Driver("tests.spark.archive_driver", given, tmp_path / "driver.log")
                try:
                    if number % 3 != 2:  # every third time it dies before, or in, its first batch
                        wait_for_commit(place.lake, driver)
                    threading.Event().wait(random.uniform(0, 1))
                finally:
                    driver.kill()
        place.archive(spark)

        place.check()
        assert [row["value"] for row in place.rows("messages", "orders", 1)] == published
