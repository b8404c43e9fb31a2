"""A Spark driver that routes, as a process that can be killed: `python -m tests.spark.route_driver '{…}'`.

It prints READY when the job begins.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from penstock.pipeline.job import Target
from penstock.pipeline.jobs.route import Route, RouteJob
from penstock.pipeline.session import session
from penstock.router.core.config import parse_config
from penstock.router.options import RouterOptions
from tests.spark.settings import QUICK


def route_of(given: dict[str, Any], *, is_once: bool = False) -> Route:
    """What is routed: small batches, so that there are many."""
    options = RouterOptions(allow_targets=("127.0.0.0/8",), retry_pause=0.01)
    config = parse_config(given["config"])
    return Route(Target(given["endpoint"]), config, options, rows=given["rows"], budget=20, interval=0.1, is_once=is_once)


def main(given: dict[str, Any]) -> None:
    """Route until killed."""
    spark = session("route driver", master="local[2]", driver_memory="512m", conf=QUICK)
    spark.sparkContext.setLogLevel("OFF")
    job = RouteJob(spark, route_of(given))
    print("READY", flush=True)
    job.run(threading.Event(), lambda _: None)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
