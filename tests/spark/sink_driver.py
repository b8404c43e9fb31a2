"""A Spark driver that copies a topic to another, as a process that can be killed: `python -m tests.spark.sink_driver '{…}'`.

It prints READY when the query runs.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from penstock.pipeline.session import session
from tests.spark.settings import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter


def copying(spark: SparkSession, given: dict[str, Any]) -> DataStreamWriter:
    """The query that copies, to be started with a trigger."""
    table = (
        spark.readStream.format("penstock")
        .option("endpoint", given["endpoint"])
        .option("subscribe", given["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", "5000")
        .option("minPartitions", "2")
        .load()
    )
    return (
        table.select("value", "key", "attributes")
        .writeStream.format("penstock")
        .option("endpoint", given["endpoint"])
        .option("topic", given["target"])
        .option("checkpointLocation", given["checkpoint"])
    )


def main(given: dict[str, Any]) -> None:
    """Copy until killed."""
    conf = QUICK | given.get("conf", {})
    spark = session("sink driver", master=given.get("master", "local[2]"), driver_memory="512m", conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    query = copying(spark, given).trigger(processingTime="0 seconds").start()
    print("READY", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
