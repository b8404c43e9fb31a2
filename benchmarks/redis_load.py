"""The loads of `client_load` on Redis Streams through redis-py, in a process of its own; its last line is JSON.

redis-py sends what is in flight as a pipeline: a thousand XADDs of one message each, or batches of a hundred. It is measured
blocking, with one connection, and with asyncio and several connections; the faster counts.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import redis
import redis.asyncio
import uvloop

from benchmarks.load import BATCH, BATCHES_IN_FLIGHT, DATA, IN_FLIGHT, warm_up
from benchmarks.process import Meter

GROUP, CONSUMER = "workers", "one"
MESSAGE: dict[Any, Any] = {b"data": DATA}


def stream_name() -> str:
    return f"load-{os.getpid()}"


def publish(client: redis.Redis, number: int, size: int) -> None:
    """Pipelines of `size` messages, one after the other."""
    stream = stream_name()
    for _ in range(number // size):
        pipeline = client.pipeline(transaction=False)
        for _ in range(size):
            pipeline.xadd(stream, MESSAGE)
        pipeline.execute()


async def publish_side_by_side(client: redis.asyncio.Redis, number: int, size: int, workers: int) -> None:
    """Pipelines of `size` messages, some of them in flight, each on a connection of its own."""
    stream = stream_name()
    left = itertools.repeat(None, number // size)

    async def work() -> None:
        for _ in left:
            pipeline: Any = client.pipeline(transaction=False)  # its methods are typed as if they had to be awaited
            for _ in range(size):
                pipeline.xadd(stream, MESSAGE)
            await pipeline.execute()

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


def taken(found: Any) -> list[Any]:
    """The ids of what XREADGROUP brought. How that looks depends on the protocol's version: a mapping, or a list of pairs."""
    entries = next(iter(found.values()))[0] if isinstance(found, dict) else found[0][1]
    return [entry for entry, fields in entries if fields[b"data"]]


def consume(client: redis.Redis, number: int, size: int) -> None:
    """Read up to so many messages at once, and ack them together with the next read."""
    stream, left = stream_name(), number
    acks: list[Any] = []
    while left:
        pipeline = client.pipeline(transaction=False)
        if acks:
            pipeline.xack(stream, GROUP, *acks)
        pipeline.xreadgroup(GROUP, CONSUMER, {stream: ">"}, count=size)
        *_, found = pipeline.execute()
        acks = taken(found)
        left -= len(acks)
    client.xack(stream, GROUP, *acks)


async def consume_side_by_side(client: redis.asyncio.Redis, number: int, size: int, workers: int) -> None:
    """The same, by several readers of one consumer, each on a connection of its own."""
    stream, left = stream_name(), number

    async def work(name: str) -> None:
        nonlocal left
        acks: list[Any] = []
        while left:
            pipeline: Any = client.pipeline(transaction=False)  # its methods are typed as if they had to be awaited
            if acks:
                pipeline.xack(stream, GROUP, *acks)
            pipeline.xreadgroup(GROUP, name, {stream: ">"}, count=size)
            *_, found = await pipeline.execute()
            if not found:
                return
            acks = taken(found)
            left -= len(acks)
        if acks:
            await client.xack(stream, GROUP, *acks)

    async with asyncio.TaskGroup() as group:
        for index in range(workers):
            group.create_task(work(f"{CONSUMER}-{index}"))


def measured(client: redis.Redis, pid: int, kind: str, number: int, run: Callable[[int], None]) -> dict[str, float]:
    stream = stream_name()
    if kind == "drain":
        client.xgroup_create(stream, GROUP, mkstream=True)
        publish(client, number, IN_FLIGHT)
    else:
        run(warm_up(number))
    meter = Meter(pid)
    run(number)
    found = meter.read(number)
    there, wanted = client.xlen(stream), number if kind == "drain" else number + warm_up(number)
    if there != wanted:
        raise RuntimeError(f"{there} messages are at the server, expected {wanted}")
    if kind == "drain" and (pending := client.xpending(stream, GROUP)["pending"]):
        raise RuntimeError(f"{pending} messages are not acked")
    client.delete(stream)
    return found


def blocking(url: str, pid: int, kind: str, number: int) -> dict[str, float]:
    client = redis.Redis.from_url(url)
    size = BATCH if kind == "batches" else IN_FLIGHT
    load = consume if kind == "drain" else publish
    return measured(client, pid, kind, number, lambda count: load(client, count, size))


def with_asyncio(url: str, pid: int, kind: str, number: int) -> dict[str, float]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        client = redis.asyncio.Redis.from_url(url)
        # As many messages in flight as our side has.
        size, workers = (BATCH, BATCHES_IN_FLIGHT) if kind == "batches" else (IN_FLIGHT // 2, 2)
        load = consume_side_by_side if kind == "drain" else publish_side_by_side
        found = measured(
            redis.Redis.from_url(url), pid, kind, number, lambda count: runner.run(load(client, count, size, workers))
        )
        runner.run(client.aclose())
    return found


def main() -> None:
    form, kind, url, pid, number = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    load = blocking if form == "blocking" else with_asyncio
    print(json.dumps(load(url, pid, kind, number)))


if __name__ == "__main__":
    main()
