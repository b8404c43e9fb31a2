"""Workers with an empty task: Penstock's on its own server, Celery's and dramatiq's on Redis, one worker process each.

Tasks with 100 bytes are waiting when a worker starts. It is watched from outside, through its server: the clock runs from the
moment a tenth of them is done until none is left, so that starting costs nobody anything. Each library has the settings that
were fastest for it on this kind of machine, of those that its users would choose: results off, much fetched in advance.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from typing import Any

from benchmarks.load import DEADLINE
from benchmarks.redis_server import is_installed, redis_server
from benchmarks.row import Benchmark, Row, Run, alternate, missing, paired_ratio, spread
from penstock import PubSub
from penstock.testing.server import ServerProcess
from penstock.values.queue import QueueStats

REACH = 2
POLL_SECONDS = 0.01
"""How often a server is asked how many tasks are left."""
DURABLE, RELAXED = "always", "everysec"
OURS = "ours"


@dataclass(frozen=True, slots=True)
class Contender:
    """A worker that can be measured: how tasks are sent, what works on them, and how many are left."""

    module: str
    """Run with a number it sends so many tasks."""
    command: list[str]
    left: Callable[[Any], int]
    tasks: int
    settings: dict[str, str] = field(default_factory=dict)


def backlog(stats: QueueStats) -> int:
    """What waits, and what a worker has and did not ack yet."""
    return stats.depth + stats.in_flight


def celery_left(redis: Any) -> int:
    """What waits, and what a worker has and did not ack yet."""
    return int(redis.llen("celery") + redis.hlen("unacked"))


def dramatiq_left(redis: Any) -> int:
    """A message is here until it was acked."""
    return int(redis.hlen("dramatiq:default.msgs"))


CELERY = ["celery", "--app", "benchmarks.celery_app", "worker", "--without-gossip", "--without-mingle", "--without-heartbeat"]
DRAMATIQ = ["dramatiq", "benchmarks.dramatiq_app", "--processes", "1"]


def peers(run: Run) -> dict[str, Contender]:
    """The peers that are installed."""
    many = {"dramatiq_queue_prefetch": "1000"}
    celery, dramatiq = run.of(2_000, 1_000), run.of(10_000, 4_000)
    known = {
        "Celery": Contender("benchmarks.celery_app", [*CELERY, "--pool", "solo"], celery_left, celery),
        "dramatiq, 1 thread": Contender("benchmarks.dramatiq_app", [*DRAMATIQ, "--threads", "1"], dramatiq_left, dramatiq, many),
        "dramatiq, 4 threads": Contender("benchmarks.dramatiq_app", [*DRAMATIQ, "--threads", "4"], dramatiq_left, dramatiq, many),
    }
    return {name: one for name, one in known.items() if find_spec(name.partition(",")[0].lower()) is not None}


def rate(left: Callable[[], int], tasks: int) -> float:
    """Tasks a second, of a worker that has just been started."""
    until = time.perf_counter() + DEADLINE
    began: tuple[float, int] | None = None
    while (now := time.perf_counter()) < until:
        there = left()
        if began is None and there <= tasks * 0.9:
            began = now, there
        if not there:
            assert began is not None, "the end comes after the beginning"
            return began[1] / max(now - began[0], POLL_SECONDS)
        time.sleep(POLL_SECONDS)
    raise RuntimeError(f"{left()} of {tasks} tasks are not done after {DEADLINE} s")


@contextmanager
def working(command: list[str], settings: dict[str, str]) -> Iterator[None]:
    """A worker process, ended in the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", *command], env=os.environ | settings, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def on_redis(run: Run, contender: Contender, fsync: str) -> float:
    """One measurement of a peer, on a server of its own that is as durable as asked."""
    import redis

    with redis_server(run.directory("redis"), fsync="no") as server:
        settings = {"PENSTOCK_BENCH_REDIS": server.url, **contender.settings}
        send = [sys.executable, "-m", contender.module, str(contender.tasks)]
        subprocess.run(send, env=os.environ | settings, check=True)
        client = redis.Redis.from_url(server.url)
        client.config_set("appendfsync", fsync)  # from here on: how long sending takes is not the question
        with working(contender.command, settings):
            return rate(lambda: contender.left(client), contender.tasks)


def on_penstock(run: Run, task: str, tasks: int) -> float:
    """One measurement of our worker, on a durable server of its own."""
    with ServerProcess(run.directory("server")) as server, asyncio.Runner() as runner:
        settings = {"PENSTOCK_SERVER": server.url}
        send = [sys.executable, "-m", "benchmarks.penstock_app", "send", task, str(tasks)]
        subprocess.run(send, env=os.environ | settings, check=True)
        pubsub = runner.run(PubSub(server.url).open())
        try:
            queue = pubsub.queue(task)
            with working(["benchmarks.penstock_app", "work", task], settings):
                return rate(lambda: backlog(runner.run(queue.stats())), tasks)
        finally:
            runner.run(pubsub.close())


def empty(run: Run) -> Iterator[Row]:
    reach = f"≥ {REACH} × the faster"
    what = "worker, empty handler, durable"
    if not is_installed():
        yield missing("workers", what, reach, "redis-server is not installed")
        return
    tasks = run.of(100_000, 30_000)
    for fsync, promise in ((DURABLE, "as durable: fsync always"), (RELAXED, "which may lose a second: fsync everysec")):
        variants: dict[str, Callable[[], float]] = {
            f"{OURS}, {task}": partial(on_penstock, run, task, tasks) for task in ("coroutine", "function")
        }
        variants |= {name: partial(on_redis, run, one, fsync) for name, one in peers(run).items()}
        found = alternate(run.of(3, 2), variants)
        rates = {name: statistics.median(values) for name, values in found.items()}
        best = max((name for name in rates if not name.startswith(OURS)), key=rates.__getitem__)
        others = ", ".join(f"{name} {each:,.0f}/s" for name, each in rates.items() if not name.startswith(OURS))
        for task in ("coroutine", "function"):
            ours = found[f"{OURS}, {task}"]
            ratio = paired_ratio(ours, found[best])
            yield Row(
                "workers",
                f"{what}, a {task}; Redis {promise}",
                statistics.median(ours),
                "tasks/s",
                rates[best],
                f"{best}, the fastest",
                ratio,
                reach,
                ratio >= REACH,
                spread(ours),
                others,
            )


BENCHMARKS: dict[str, Benchmark] = {"workers": empty}
