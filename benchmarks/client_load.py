"""Load from Penstock's own client, as a user writes it, in a process of its own; its last line is JSON.

The loop is uvloop, as `penstock[server]` installs it; `PENSTOCK_BENCH_LOOP=asyncio` takes the standard library's.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import uvloop

from benchmarks.load import AWAITS, BATCH, BATCHES_IN_FLIGHT, DATA, DEADLINE, IN_FLIGHT, warm_up
from benchmarks.process import Meter
from benchmarks.row import PAYLOAD
from penstock import FlowControl, Message, PubSub
from penstock.client import Subscription, Topic

RATE = 1_000
"""Messages a second of the latency load."""


def run(work: Coroutine[Any, Any, dict[str, float]]) -> dict[str, float]:
    if os.environ.get("PENSTOCK_BENCH_LOOP") == "asyncio":
        return asyncio.run(work)
    return uvloop.run(work)


async def side_by_side(workers: int, number: int, publish: Callable[[], Awaitable[object]]) -> None:
    """So many workers, each of which publishes and waits for the answer, until `number` are published."""
    left = itertools.repeat(None, number)

    async def work() -> None:
        for _ in left:
            await publish()

    async with asyncio.timeout(DEADLINE), asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())


async def make(pubsub: PubSub, name: str, **options: Any) -> tuple[Topic, Subscription]:
    """A new topic, and a subscription of it."""
    topic = pubsub.topic(f"{name}-{os.getpid()}")
    await topic.create()
    return topic, await topic.subscription(topic.name, **options).create()


async def publish_many(topic: Topic, number: int) -> None:
    """Publish in batches of 100, some of them in flight."""
    await side_by_side(BATCHES_IN_FLIGHT, number // BATCH, lambda: topic.publish_many([Message(DATA) for _ in range(BATCH)]))


async def publish_one_by_one(topic: Topic, number: int, in_flight: int) -> None:
    """Publish one message a call; every caller waits for its id."""
    await side_by_side(in_flight, number, lambda: topic.publish_message(DATA))


async def published(server: str, pid: int, kind: str, number: int) -> dict[str, float]:
    """Publish, durable or not as the server is."""
    async with PubSub(server) as pubsub:
        topic, subscription = await make(pubsub, "load")

        async def publish(count: int) -> None:
            if kind == "batches":
                await publish_many(topic, count)
            else:
                await publish_one_by_one(topic, count, AWAITS if kind == "awaits" else IN_FLIGHT)

        warm = warm_up(number)
        await publish(warm)
        meter = Meter(pid)
        await publish(number)
        found = meter.read(number)
        there = (await subscription.stats()).backlog
        if there != number + warm:
            raise RuntimeError(f"{there} messages are at the server, expected {number + warm}")
        await subscription.delete()
        await topic.delete()
    return found


async def consume(subscription: Subscription, number: int) -> None:
    """Take and ack until so many have come, and every ack is at the server."""
    left = number
    done = asyncio.get_running_loop().create_future()

    def handle(message: Any) -> None:
        nonlocal left
        message.ack()
        left -= 1
        if not left:
            done.set_result(None)

    subscription.on("message", handle)
    subscription.open()
    async with asyncio.timeout(DEADLINE):
        await done
        await subscription.close()
    subscription.off("message", handle)


async def drained(server: str, pid: int, number: int) -> dict[str, float]:
    """Streaming pull over a backlog, every message acked by its handler."""
    async with PubSub(server) as pubsub:
        topic, subscription = await make(pubsub, "drain", flow_control=FlowControl(max_messages=IN_FLIGHT))
        await publish_many(topic, number)
        meter = Meter(pid)
        await consume(subscription, number)
        found = meter.read(number)
        if there := (await subscription.stats()).backlog:
            raise RuntimeError(f"{there} messages are still at the server, expected none")
        await subscription.delete()
        await topic.delete()
    return found


async def embedded(number: int) -> dict[str, float]:
    """Publish, stream and ack at once, with a broker in this process and in memory."""
    async with PubSub() as pubsub:
        topic, subscription = await make(pubsub, "load", flow_control=FlowControl(max_messages=IN_FLIGHT))
        start = time.perf_counter()
        await asyncio.gather(consume(subscription, number), publish_one_by_one(topic, number, AWAITS))
        one_by_one = number / (time.perf_counter() - start)
        start = time.perf_counter()
        await asyncio.gather(consume(subscription, number), publish_many(topic, number))
        return {"rate": one_by_one, "batched": number / (time.perf_counter() - start)}


async def send(topic: Topic, number: int) -> list[float]:
    """1,000 messages a second, one by one, each with the instant it was due; returns how late each was sent."""
    late: list[float] = []
    published: list[asyncio.Future[str]] = []
    start = time.perf_counter()
    for index in range(number):
        due = start + index / RATE
        while (wait := due - time.perf_counter()) > 0:  # noqa: ASYNC110  # a timer may ring too early
            await asyncio.sleep(wait)
        # The instant at which it was due, not that at which it was sent: a client that falls behind must not hide it.
        published.append(topic.publish_message((b"%.9f" % due).ljust(PAYLOAD)))
        late.append((time.perf_counter() - due) * 1e3)
    await asyncio.gather(*published)
    return late


async def receive(subscription: Subscription, number: int) -> list[float]:
    """How long each of `number` messages took, in milliseconds."""
    took: list[float] = []
    done = asyncio.get_running_loop().create_future()

    def handle(message: Any) -> None:
        took.append((time.perf_counter() - float(message.data)) * 1e3)
        message.ack()
        if len(took) == number:
            done.set_result(None)

    subscription.on("message", handle)
    subscription.open()
    async with asyncio.timeout(DEADLINE):
        await done
    await subscription.close()
    return took


def quantiles(took: list[float]) -> dict[str, float]:
    # The first tenth makes connections and lets both sides grow warm.
    cuts = statistics.quantiles(took[len(took) // 10 :], n=100)
    return {"p50": cuts[49], "p99": cuts[98], "max": max(took)}


async def latency(server: str, pid: int, number: int) -> dict[str, float]:
    """Publisher and subscriber in this process."""
    async with PubSub(server) as pubsub:
        topic, subscription = await make(pubsub, "latency")
        meter = Meter(pid)
        took, late = await asyncio.gather(receive(subscription, number), send(topic, number))
        found = quantiles(took) | {"late": statistics.quantiles(late, n=100)[98], "busy": meter.read(number)["busy"]}
        await subscription.delete()
        await topic.delete()
    return found


async def apart(server: str, pid: int, number: int) -> dict[str, float]:
    """The subscriber here, the publisher in a process of its own: time is the machine's monotonic clock, which they share."""
    async with PubSub(server) as pubsub:
        topic, subscription = await make(pubsub, "latency")
        command = [sys.executable, "-m", "benchmarks.client_load", "send", server, str(pid), str(number), topic.name]
        meter = Meter(pid)
        sender = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        took, (out, _) = await asyncio.gather(receive(subscription, number), sender.communicate())
        late: dict[str, float] = json.loads(out)
        found = quantiles(took) | late | {"busy": meter.read(number)["busy"]}
        await subscription.delete()
        await topic.delete()
    return found


async def sent(server: str, number: int, name: str) -> dict[str, float]:
    """The publisher of `apart`."""
    async with PubSub(server) as pubsub:
        late = await send(pubsub.topic(name), number)
    return {"late": statistics.quantiles(late, n=100)[98]}


def main() -> None:
    kind, server, pid, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    match kind:
        case "embedded":
            found = run(embedded(number))
        case "drain":
            found = run(drained(server, pid, number))
        case "latency":
            found = run(latency(server, pid, number))
        case "apart":
            found = run(apart(server, pid, number))
        case "send":
            found = run(sent(server, number, sys.argv[5]))
        case _:
            found = run(published(server, pid, kind, number))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
