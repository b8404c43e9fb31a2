"""Exactly once under fire: a driver that copies a topic is killed at random moments while publishing goes on."""

from __future__ import annotations

import os
import random
import threading
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock import MessageQueue
from penstock.log.http import HttpLog
from penstock.testing.server import LocalServer
from tests.spark.copying import Driver, publishing, wait_for_growth
from tests.spark.sink_driver import copying
from tests.spark.sink_place import rows

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

KILLS = int(os.environ.get("PENSTOCK_SPARK_KILLS", "1"))


@pytest.mark.timeout(300 + 120 * KILLS)
def test_what_is_published_is_copied_once_whenever_the_driver_dies(spark: SparkSession, tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path / "data") as server, closing(HttpLog(server.url)) as log:
        queue = MessageQueue(broker=server.broker)
        queue.register_topic("source")
        queue.register_topic("target")
        given = {"endpoint": server.url, "source": "source", "target": "target", "checkpoint": str(tmp_path / "checkpoint")}

        with publishing(queue, "source") as published:
            for number in range(KILLS):
                driver = Driver("tests.spark.sink_driver", given, tmp_path / "driver.log")
                try:
                    if number % 2 == 0:  # every other time it dies before, or in, its first batch
                        wait_for_growth(log, "target", driver)
                    threading.Event().wait(random.uniform(0, 1))
                finally:
                    driver.kill()
        copying(spark, given).trigger(availableNow=True).start().awaitTermination()

        found = [row["value"] for row in rows(log, "target")]
        assert sorted(found, key=int) == published, "each once"
