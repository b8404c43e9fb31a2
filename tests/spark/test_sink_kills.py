"""Exactly once under fire: a driver that copies a topic is killed at random moments while publishing goes on."""

from __future__ import annotations

import hashlib
import os
import random
import threading
from contextlib import closing
from pathlib import Path

import pytest

from penstock import MessageQueue
from penstock.log.http import HttpLog
from penstock.testing.server import LocalServer
from tests.spark.copying import Driver, publishing, wait_for_growth
from tests.spark.sink_place import rows

pytestmark = [pytest.mark.spark, pytest.mark.crash]

KILLS = int(os.environ.get("PENSTOCK_SPARK_KILLS", "4"))


def checksum(values: list[bytes]) -> str:
    return hashlib.sha256(b"\n".join(values)).hexdigest()


@pytest.mark.timeout(300 + 120 * KILLS)
def test_what_is_published_is_copied_once_whenever_the_driver_dies(tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path / "data") as server, closing(HttpLog(server.url)) as log:
        queue = MessageQueue(broker=server.broker)
        queue.register_topic("source")
        queue.register_topic("target")
        given = {"endpoint": server.url, "source": "source", "target": "target", "checkpoint": str(tmp_path / "checkpoint")}

        with publishing(queue, "source") as published:
            for number in range(KILLS):
                driver = Driver(given, tmp_path / "driver.log")
                try:
                    if number % 2:  # every other time it dies before, or in, its first batch
                        wait_for_growth(log, "target")
                    threading.Event().wait(random.uniform(0, 1.5))
                finally:
                    driver.kill()
        last = Driver(given | {"once": True}, tmp_path / "driver.log")
        assert last.end() == 0, last.said()

        found = [row["value"] for row in rows(log, "target")]
        assert len(found) == len(published)
        assert sorted(found, key=int) == published, "each once"
        assert checksum(sorted(found)) == checksum(sorted(published))
