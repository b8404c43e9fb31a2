"""One measurement of `penstock pipeline route`, in a process of its own: prints its figures as JSON.

Two queues of a server were filled before: a small one, which warms Spark up, and the one that counts.
"""

from __future__ import annotations

import json
import sys
import threading
import time

from benchmarks.router_load import IN_FLIGHT, OPTIONS, counted
from penstock.pipeline.job import Target
from penstock.pipeline.jobs.route import Batch, Route, RouteJob
from penstock.pipeline.session import session
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig

WARM = "warm"


def main(server: str, target: str, queue: str, number: str, rows: str, master: str) -> None:
    """Deliver the messages of both queues, and measure the second."""
    spark = session("route", master=master, conf={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("OFF")
    seconds, before, batches = 0.0, 0, list[Batch]()
    for name in (WARM, queue):
        config = RouterConfig((QueueConfig(name, f"penstock:///queues/{name}"),), (PoolConfig("P0", IN_FLIGHT, engine="spark"),))
        job = RouteJob(spark, Route(Target(server), config, OPTIONS, rows=int(rows), is_once=True))
        batches = []
        before, begun = counted(target), time.perf_counter()
        job.run(threading.Event(), batches.append)
        seconds = time.perf_counter() - begun
    if (got := counted(target) - before) != int(number):
        raise RuntimeError(f"the target got {got} messages, expected {number}")
    print(json.dumps({"rate": int(number) / seconds, "batches": len(batches), "batch_seconds": batches[-1].seconds}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
