"""What browsers publish to the hub, as Spark reads it."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from penstock.testing.server import LocalServer
from tests.integration.hub.wire import member

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(240)]

ROWS = 5


async def publish(url: str) -> None:
    async with member(url, "@(browser/ui)") as browser:
        for number in range(ROWS):
            await browser.ask("hub:publish", {"topic": f"orders/{number % 2}", "type": "order:placed", "data": {"n": number}})


def test_spark_reads_what_browsers_publish(spark: SparkSession) -> None:
    with LocalServer(hub_bind=("orders/#=orders",)) as server:
        asyncio.run(publish(server.url))
        rows = spark.read.format("penstock").options(endpoint=server.url, subscribe="orders").load().orderBy("offset").collect()

    assert [json.loads(bytes(row.value)) for row in rows] == [{"n": number} for number in range(ROWS)]
    assert [row.attributes["hub.topic"] for row in rows] == [f"orders/{number % 2}" for number in range(ROWS)]
    assert {(row.attributes["hub.type"], row.attributes["hub.from"]) for row in rows} == {("order:placed", "@(browser/ui)")}
