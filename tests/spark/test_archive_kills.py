"""Exactly once under fire: a driver that archives is killed at random moments while publishing goes on."""

from __future__ import annotations

import hashlib
import os
import random
import threading
import time
from pathlib import Path

import pytest

from penstock.pipeline.lake.table import Lake
from penstock.testing.server import LocalServer
from tests.spark.archiving import Place
from tests.spark.copying import START_SECONDS, Driver, publishing

pytestmark = [pytest.mark.spark, pytest.mark.crash]

KILLS = int(os.environ.get("PENSTOCK_SPARK_KILLS", "6"))
SCRIPT = Path(__file__).with_name("archive_driver.py")


SLOW = "Python worker failed to connect back"
"""Spark gives its Python ten seconds to start. On a busy machine a driver may die of that: it is one death more."""


def wait_for_commit(lake: Path, driver: Driver) -> None:
    """Until the lake has got something that it did not have, or the driver was too slow for Spark."""
    table, deadline = Lake(lake).table("messages"), time.monotonic() + START_SECONDS
    before = table.state().version
    while table.state().version == before and driver.process.poll() is None:
        assert time.monotonic() < deadline, f"nothing was archived in {START_SECONDS} s"
        threading.Event().wait(0.02)
    assert driver.process.poll() is None or SLOW in driver.said(), driver.said()


@pytest.mark.timeout(200 + 40 * KILLS)
def test_what_is_published_is_archived_once_whenever_the_driver_dies(tmp_path: Path) -> None:
    with LocalServer(data_dir=tmp_path / "data") as server:
        place = Place(server, tmp_path)
        place.topics.register_topic("orders")
        given = {"endpoint": server.url, "lake": str(place.lake), "checkpoints": place.plan.checkpoints}
        with publishing(place.topics, "orders") as published:
            for number in range(KILLS):
                driver = Driver(given, tmp_path / "driver.log", SCRIPT)
                try:
                    if number % 3:  # every third time it dies before, or in, its first batch
                        wait_for_commit(place.lake, driver)
                    threading.Event().wait(random.uniform(0, 1))
                finally:
                    driver.kill()
        code, tries = 1, 0
        while code and tries < 3:
            last = Driver(given | {"once": True}, tmp_path / "driver.log", SCRIPT)
            code, tries = last.end(START_SECONDS), tries + 1
            assert code == 0 or SLOW in last.said(), last.said()
        assert code == 0

        place.check()
        found = [row["value"] for row in place.rows("messages", "orders", 1)]
        assert len(found) == len(published)
        assert hashlib.sha256(b"\n".join(found)).digest() == hashlib.sha256(b"\n".join(published)).digest()
