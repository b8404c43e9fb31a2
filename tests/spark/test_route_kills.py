"""Routing under fire: drivers, Python workers and servers are killed while calls fail at random.

What holds for each group is written down in `tests/integration/router/proof.py`; a life here ends with whatever was killed.
PENSTOCK_ROUTE_KILLS says how many kills.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.pipeline.jobs.route import RouteJob
from penstock.testing.target import Behaviour, Request, Target, respond
from tests.integration.log.test_log_api_kill import running
from tests.integration.router.places import QUEUE, dead_of, fill_work_queue, left_in_work_queue
from tests.integration.router.proof import DEFERRED, POOLS, Lives, Plan, Unreliable, check
from tests.integration.router.router_process import until
from tests.spark.copying import Driver, descendants
from tests.spark.route_driver import route_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.long]

KILLS = int(os.environ.get("PENSTOCK_ROUTE_KILLS", "3"))
PLAN = Plan(groups=12, messages=25 + 25 * KILLS)
PATIENCE = 120


class Flaky(Unreliable):
    """Calls that fail are answered with what is tried again soon: those that fail for 30 s would make the test long."""

    def __call__(self, request: Request) -> Behaviour:
        name = request.message_id
        if name in self.bad or self.chance.random() >= self.share:
            self.done.add(name)
            return respond(400) if name in self.bad else respond(200, after=0.002)
        self.faults += 1
        if self.chance.random() < 0.7:
            return respond(500)
        self.deferred.add(request.number)
        return DEFERRED


class Life:
    """A driver in a process of its own, and what is killed while it works."""

    def __init__(self, given: dict[str, Any], folder: Path) -> None:
        self.driver = Driver("tests.spark.route_driver", given, folder / "driver.log")

    def until(self, is_so: Callable[[], bool]) -> None:
        """Return when it is so, or when the driver has ended."""
        deadline = monotonic() + PATIENCE * SECOND
        while not is_so() and self.driver.process.poll() is None:
            assert monotonic() < deadline, "the driver got nowhere"
            threading.Event().wait(0.02)

    def kill_worker(self) -> None:
        """Kill a Python worker. If it delivers, the job fails: on one machine Spark runs a task once."""
        daemons = [pid for pid in descendants(self.driver.process.pid) if b"pyspark.daemon" in command(pid)]
        workers = [pid for pid in daemons if parent(pid) in daemons]
        for pid in workers[:1]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def command(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def parent(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return 0


@pytest.mark.timeout(300 + 120 * KILLS)
def test_nothing_is_lost_or_overtaken_whatever_is_killed(spark: SparkSession, tmp_path: Path) -> None:
    unreliable, lives = Flaky(PLAN.bad()), Lives()
    with Target(unreliable) as target:
        fill_work_queue(tmp_path / "data", PLAN.bodies(target.url))
        with running(tmp_path / "data") as (server, log):
            given = {
                "endpoint": server.url,
                "rows": PLAN.total // (2 * KILLS + 2),
                "config": {
                    "queues": [{"queueName": QUEUE, "queueUri": f"penstock:///queues/{QUEUE}"}],
                    "processingPools": [{"code": f"P{number}", "concurrency": 4, "engine": "spark"} for number in range(POOLS)],
                },
            }
            done = 0
            while done < KILLS:
                lives.begin()
                life = Life(given, tmp_path)
                try:
                    while done < KILLS and life.driver.process.poll() is None:
                        done += 1
                        wanted = PLAN.total * done // (KILLS + 2)
                        life.until(lambda wanted=wanted: len(unreliable.done) >= wanted)  # type: ignore[misc]
                        threading.Event().wait(random.uniform(0, 0.5))
                        if done % 3 == 1:
                            server.kill_and_restart()
                        elif done % 3 == 2:
                            life.kill_worker()
                        else:
                            break
                finally:
                    life.driver.kill()
                until(lambda: target.connections == 0, PATIENCE, "the target knows that the driver is gone")
                lives.end(by_kill=True)
            lives.begin()
            while log.leases("route:queue:orders", f"queue:{QUEUE}").rows:
                RouteJob(spark, route_of(given, is_once=True)).run(threading.Event(), lambda _: None)
            lives.end(by_kill=False)
            found = check(target.requests, unreliable, lives, PLAN)
            assert found.is_right, f"{unreliable.faults} calls failed\n{found}"
    dead = dead_of(tmp_path / "data", QUEUE)
    assert set(dead) == unreliable.bad
    assert left_in_work_queue(tmp_path / "data") == 0
