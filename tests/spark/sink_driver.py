"""A Spark driver that copies a topic to another, as a process that can be killed: `python sink_driver.py '{…}'`.

It prints READY when the query runs. `once`: it ends when everything there was has been copied.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from penstock.pipeline.session import session


def main(given: dict[str, Any]) -> None:
    """Copy until killed, or until the end."""
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", **given.get("conf", {})}
    spark = session("sink driver", master=given.get("master", "local[2]"), driver_memory="512m", conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    table = (
        spark.readStream.format("penstock")
        .option("endpoint", given["endpoint"])
        .option("subscribe", given["source"])
        .option("startingOffsets", "earliest")
        .option("maxOffsetsPerTrigger", str(given.get("rows", 5000)))
        .option("minPartitions", "2")
        .load()
    )
    writer = (
        table.select("value", "key", "attributes")
        .writeStream.format("penstock")
        .option("endpoint", given["endpoint"])
        .option("topic", given["target"])
        .option("checkpointLocation", given["checkpoint"])
    )
    query = (writer.trigger(availableNow=True) if given.get("once") else writer.trigger(processingTime="0 seconds")).start()
    print("READY", flush=True)
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
