"""A Spark driver that archives until it is killed, as a process of its own: `python archive_driver.py '{…}'`.

It prints READY when the queries run. `once`: it ends when everything there was is archived.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from penstock.pipeline.job import Plan, Target
from penstock.pipeline.jobs import archive
from penstock.pipeline.session import session


def main(given: dict[str, Any]) -> None:
    """Archive until killed, or until the end."""
    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    spark = session("archive driver", master="local[2]", driver_memory="512m", conf=conf)
    spark.sparkContext.setLogLevel("OFF")
    once = bool(given.get("once"))
    plan = Plan(Target(endpoint=given["endpoint"]), given["lake"], given["checkpoints"], is_once=once, interval="0 seconds")
    # Merging often, so that some kills come in the middle of it.
    queries = archive.start(spark, plan, compact_every=3)
    print("READY", flush=True)
    for query in queries:
        query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
