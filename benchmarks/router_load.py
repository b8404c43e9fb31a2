"""One measurement of the router, in a process of its own: prints its figures as JSON.

The queue is filled before the start; what counts is what the target counted. A run in which the target did not get every message
exactly once, or the queue is not empty at the end, is no measurement.
"""
# ruff: noqa: ASYNC110  # asking now and then costs what is measured less than being told

from __future__ import annotations

import asyncio
import gc
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import uvloop

from penstock import QueueConfig as Settings
from penstock.api.queue_manager import QueueManager
from penstock.broker.aio import AsyncBroker
from penstock.broker.broker import Broker
from penstock.clock import SystemClock
from penstock.http.client.allowed_addresses import AllowedAddresses
from penstock.http.client.client import HttpTransport
from penstock.http.client.transport import Answer, Failure
from penstock.router.broker_records import BrokerRecords
from penstock.router.core.config import PoolConfig, QueueConfig, RouterConfig
from penstock.router.options import RouterOptions
from penstock.router.router import Router
from penstock.router.source import QueueDepth, SourceContext, open_source
from penstock.router.sources.local import BrokerQueues
from penstock.values.queue import NewMessage

IN_FLIGHT = 256
QUEUE = "load"
OPTIONS = RouterOptions(allow_targets=("127.0.0.0/8",), per_target=512)
Figures = dict[str, float]


def body(number: int, url: str, *, pools: int, groups: int) -> bytes:
    """A message for one of the pools, of one of the groups."""
    return (
        b'{"id":"01K9M%010d","poolCode":"P%d","authToken":"secret","mediationType":"HTTP","mediationTarget":"%b",'
        b'"messageGroupId":"group-%d"}'
    ) % (number, number % pools, url.encode(), number % groups)


def counted(url: str) -> int:
    """How many messages the target has got."""
    with urllib.request.urlopen(f"{url.rpartition('/')[0]}/count", timeout=10) as answer:
        return int(json.load(answer)["count"])


class Meter:
    """Time and processor time of this process from its making on."""

    def __init__(self) -> None:
        gc.collect()
        self._cpu, self._start = time.process_time(), time.perf_counter()

    def read(self, number: int) -> Figures:
        cpu, seconds = time.process_time() - self._cpu, time.perf_counter() - self._start
        return {"rate": number / seconds, "cpu_us": cpu / number * 1e6}


async def bare(url: str, number: int) -> Figures:
    """The client alone: as many calls in flight as the pool of the router has workers."""
    transport = HttpTransport(OPTIONS, AllowedAddresses(OPTIONS.allow_targets))
    finished = asyncio.get_running_loop().create_future()
    sent = ended = 0
    headers = b"Authorization: Bearer secret\r\n"

    def send() -> None:
        nonlocal sent
        sent += 1
        transport.post(url, headers, b'{"messageId":"01K9M%010d"}' % sent, 900, done)

    def done(found: Answer | Failure) -> None:
        nonlocal ended
        assert type(found) is Answer, found
        ended += 1
        if sent < number:
            send()
        elif ended == number:
            finished.set_result(None)

    meter = Meter()
    for _ in range(min(IN_FLIGHT, number)):
        send()
    await finished
    figures = meter.read(number)
    await transport.close()
    return figures


class House:
    """A broker, and a router beside it."""

    def __init__(self, directory: Path | None = None) -> None:
        self.broker = Broker(data_dir=directory)
        self.queues = QueueManager(broker=self.broker)
        self.queues.create(QUEUE, Settings(max_depth=10_000_000, max_retries=1_000_000))

    def fill(self, url: str, number: int, *, pools: int = 1, groups: int = 1000) -> None:
        """Put messages on the queue."""
        for start in range(0, number, 5_000):
            stop = min(start + 5_000, number)
            bodies = [body(each, url, pools=pools, groups=groups) for each in range(start, stop)]
            self.queues.publish_many(QUEUE, [NewMessage(one) for one in bodies])

    async def router(self, stack: AsyncExitStack) -> Router:
        """A router, without a configuration; it writes its attempts to the broker's event log."""
        aio = AsyncBroker(self.broker)
        local = BrokerQueues(aio)
        context = SourceContext(environment={}, clock=SystemClock(), local=local)
        transport = HttpTransport(OPTIONS, AllowedAddresses(OPTIONS.allow_targets))
        router = Router(lambda config: open_source(config, context), transport, BrokerRecords(aio, local), OPTIONS)
        stack.push_async_callback(transport.close)
        stack.push_async_callback(router.stop, 0.1)
        return router


def config(uri: str, pools: int = 1) -> RouterConfig:
    """One queue, and pools with as many workers together as one pool would have."""
    each = IN_FLIGHT if pools == 1 else max(IN_FLIGHT * 4 // pools, 4)
    return RouterConfig((QueueConfig(QUEUE, uri),), tuple(PoolConfig(f"P{number}", each) for number in range(pools)))


async def delivered(router: Router, number: int) -> None:
    """Return when the pools have delivered so many messages."""
    while sum(runner.metrics.succeeded for runner in router.runners.values()) < number:
        await asyncio.sleep(0.005)


async def through(url: str, number: int, *, uri: str, house: House, pools: int = 1) -> Figures:
    """All messages of a queue to the target."""
    async with AsyncExitStack() as stack:
        router = await house.router(stack)
        before = await asyncio.to_thread(counted, url)
        meter = Meter()
        await router.apply(config(uri, pools))
        await delivered(router, number)
        figures = meter.read(number)
        feed = router.feeds[QUEUE]
        await feed.source.flush()
        depth = await feed.source.depth()
        if depth is not None and depth.pending + depth.not_visible:
            raise RuntimeError(f"the queue holds {depth} at the end, expected nothing")
        if (got := await asyncio.to_thread(counted, url) - before) != number:
            raise RuntimeError(f"the target got {got} messages, expected {number}")
        return figures


async def embedded(url: str, number: int, directory: str = "", pools: str = "1", groups: str = "1000") -> Figures:
    """A work queue of the same process: in memory, or durable."""
    house = House(Path(directory) if directory else None)
    house.fill(url, number, pools=int(pools), groups=int(groups))
    figures = await through(url, number, uri=f"penstock:///queues/{QUEUE}", house=house, pools=int(pools))
    house.broker.close()
    return figures


async def nats(url: str, number: int, server: str) -> Figures:
    """A stream of a NATS server, filled by somebody else."""
    house = House()
    figures = await through(url, number, uri=server, house=house)
    house.broker.close()
    return figures


async def latency(url: str, number: int) -> Figures:
    """One message at a time through an idle router, and one call at a time without it: what the router adds."""
    house = House()
    transport = HttpTransport(OPTIONS, AllowedAddresses(OPTIONS.allow_targets))
    loop = asyncio.get_running_loop()

    async def call() -> None:
        future: asyncio.Future[object] = loop.create_future()
        transport.post(url, b"", b'{"messageId":"m"}', 900, future.set_result)
        await future

    async with AsyncExitStack() as stack:
        stack.push_async_callback(transport.close)
        router = await house.router(stack)
        await router.apply(config(f"penstock:///queues/{QUEUE}"))
        metrics = router.runners["P0"].metrics

        async def message(each: int) -> None:
            done = metrics.succeeded + 1
            house.queues.publish(QUEUE, body(each, url, pools=1, groups=1000))
            while metrics.succeeded < done:
                await asyncio.sleep(0)

        calls = await _timed(lambda _: call(), number)
        messages = await _timed(message, number)
    house.broker.close()
    base = statistics.median(calls)
    added = sorted(max(each - base, 0.0) for each in messages)
    return {"p50_ms": added[len(added) // 2] * 1e3, "p99_ms": added[len(added) * 99 // 100] * 1e3, "call_ms": base * 1e3}


async def _timed(act: Callable[[int], Awaitable[None]], number: int) -> list[float]:
    found: list[float] = []
    for each in range(number + 50):
        started = time.perf_counter()
        await act(each)
        found.append(time.perf_counter() - started)
        await asyncio.sleep(0.001)
    return found[50:]


async def neighbours(url: str, number: int, slow_url: str, slow: str, healthy: str) -> Figures:
    """The latency of healthy pools, while others hold slow calls, or wait for a target that is dead.

    `slow` messages for the slow target are put on the same queue first; then `number` messages for `healthy` pools, 200 a second.
    """
    house = House()
    pools, count = int(healthy), int(slow)
    async with AsyncExitStack() as stack:
        router = await house.router(stack)
        queue = QueueConfig(QUEUE, f"penstock:///queues/{QUEUE}")
        slow_pool = PoolConfig("SLOW", min(max(count, 1), 500))
        await router.apply(RouterConfig((queue,), (slow_pool, *(PoolConfig(f"P{each}", 10) for each in range(pools)))))
        for start in range(0, count, 1_000):
            target = slow_url.encode()
            bodies = [
                b'{"id":"slow-%d","poolCode":"SLOW","mediationTarget":"%b","messageGroupId":"s%d"}' % (each, target, each)
                for each in range(start, min(start + 1_000, count))
            ]
            house.queues.publish_many(QUEUE, [NewMessage(one) for one in bodies])
        while count and (router.runners["SLOW"].pool.active < min(count, 500) or (await _depth(router)).pending):
            await asyncio.sleep(0.01)
        found = await _paced(house, router, url, number, pools)
    house.broker.close()
    found.sort()
    return {"p50_ms": found[len(found) // 2] * 1e3, "p99_ms": found[len(found) * 99 // 100] * 1e3}


async def _depth(router: Router) -> QueueDepth:
    found = await router.feeds[QUEUE].source.depth()
    assert found is not None
    return found


async def _paced(house: House, router: Router, url: str, number: int, pools: int) -> list[float]:
    """How long each of so many messages took, published 200 a second, from its publish to its delivery."""
    begun: dict[str, float] = {}
    took: list[float] = []
    ack = router.ack

    def watched(item: Any, wall: int) -> None:
        started = begun.pop(item.pointer.message_id, None)
        if started is not None:
            took.append(time.perf_counter() - started)
        ack(item, wall)

    router.ack = watched  # type: ignore[method-assign]  # the one place that every delivery passes
    for each in range(number):
        begun[f"01K9M{each:010}"] = time.perf_counter()
        house.queues.publish(QUEUE, body(each, url, pools=pools, groups=10 * pools))
        await asyncio.sleep(0.005)
    while begun:
        await asyncio.sleep(0.01)
    return took


KINDS: dict[str, Callable[..., Awaitable[Figures]]] = {
    "bare": bare,
    "embedded": embedded,
    "nats": nats,
    "latency": latency,
    "neighbours": neighbours,
}


async def _main(kind: str, url: str, number: str, *rest: str) -> None:
    print(json.dumps(await KINDS[kind](url, int(number), *rest)))


if __name__ == "__main__":
    uvloop.run(_main(*sys.argv[1:]))
