"""A fixed rate of messages through a server, while consoles are open and while none is: the server's processor time of each.

It runs in a process of its own; its last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import uvloop

from benchmarks.client_load import make
from benchmarks.load import BATCH, DATA
from benchmarks.process import cpu_seconds
from penstock import FlowControl, Message, PubSub
from penstock.client import Topic

RATE = 10_000
WARM_UP = 1.5
"""Seconds in which connections are made and rates become steady."""
VIEWS: tuple[dict[str, Any], ...] = (
    *({"view": "overview"} for _ in range(4)),
    {"view": "queues"},
    {"view": "subscriptions"},
    {"view": "topics"},
    {"view": "workers"},
    {"view": "dead"},
    {"view": "settings"},
)
"""What ten people look at: most of them the overview, the last one a page on which only the badge is live."""


async def publish(topic: Topic) -> None:
    """`RATE` messages a second in batches, until it is cancelled. A batch that is late is not left out."""
    loop = asyncio.get_running_loop()
    due = loop.time()
    async with asyncio.TaskGroup() as group:
        while True:
            group.create_task(topic.publish_many([Message(DATA) for _ in range(BATCH)]))
            due += BATCH / RATE
            await asyncio.sleep(due - loop.time())


async def look(session: aiohttp.ClientSession, server: str, view: dict[str, Any]) -> None:
    """One console, until it is cancelled."""
    async with session.ws_connect(f"{server}/console/live") as socket:
        await socket.send_json({})
        await socket.receive()
        # The page of settings is not live: it follows the overview for the badge.
        await socket.send_json({"watch": {"key": view["view"], **(view if view["view"] != "settings" else VIEWS[0])}})
        async for _ in socket:
            pass


@asynccontextmanager
async def consoles(server: str, count: int) -> AsyncIterator[None]:
    """So many open consoles."""
    async with aiohttp.ClientSession() as session:
        tasks = [asyncio.create_task(look(session, server, view)) for view in VIEWS[:count]]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def used(server: str, pid: int, seconds: float, count: int) -> float:
    """The share of a core that the server takes while so many consoles are open."""
    async with consoles(server, count):
        await asyncio.sleep(WARM_UP)
        before, start = cpu_seconds(pid), time.perf_counter()
        await asyncio.sleep(seconds)
        return (cpu_seconds(pid) - before) / (time.perf_counter() - start)


async def measure(server: str, pid: int, seconds: float, rounds: int) -> dict[str, list[float]]:
    """That share in each round, without consoles and with all of them, in turns: at a fixed rate, and with no messages."""
    found: dict[str, list[float]] = {"rate": []}
    acked = 0

    def handle(message: Any) -> None:
        nonlocal acked
        acked += 1
        message.ack()

    async def in_turns(suffix: str, times: int) -> None:
        for number in range(2 * times):
            count = len(VIEWS) if number % 4 in {1, 2} else 0
            name = f"{'with' if count else 'without'}{suffix}"
            found.setdefault(name, []).append(await used(server, pid, seconds, count))

    async with PubSub(server) as pubsub:
        topic, subscription = await make(pubsub, "load", flow_control=FlowControl(max_messages=1_000))
        await in_turns(" idle", max(rounds // 4, 2))
        subscription.on("message", handle)
        subscription.open()
        load, start = asyncio.create_task(publish(topic)), time.perf_counter()
        await in_turns("", rounds)
        found["rate"].append(acked / (time.perf_counter() - start))
        load.cancel()
    return found


if __name__ == "__main__":
    print(json.dumps(uvloop.run(measure(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])))))
