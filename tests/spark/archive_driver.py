"""A Spark driver that archives until it is killed, as a process of its own: `python -m tests.spark.archive_driver '{…}'`.

It prints READY when the queries run.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from penstock.pipeline.job import Plan, Target
from penstock.pipeline.jobs import archive
from penstock.pipeline.session import session
from tests.spark.settings import QUICK


def main(given: dict[str, Any]) -> None:
    """Archive until killed."""
    spark = session("archive driver", master="local[2]", driver_memory="512m", conf=QUICK)
    spark.sparkContext.setLogLevel("OFF")
    plan = Plan(Target(endpoint=given["endpoint"]), given["lake"], given["checkpoints"], interval="0 seconds")
    # Merging often, so that some kills come in the middle of it.
    queries = archive.start(spark, plan, compact_every=3)
    print("READY", flush=True)
    for query in queries:
        query.awaitTermination()


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
