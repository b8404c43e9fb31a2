"""Thousands of connections, some of which stop reading: those are cut off and told why, the others notice nothing.

A client that stopped reading is told the close code 4003 if it reads again within the grace of the door. Beyond that nobody can
promise it: the code waits behind what the client does not take. Its connection is cut then, and what it finds when it reads at
last are the first messages without a hole among them, and an end without a word.
"""

from __future__ import annotations

import asyncio
import os
import re
import resource
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import aiohttp
import pytest
import uvloop

from benchmarks.process import resident
from penstock.clock import monotonic
from penstock.doors.hub.socket import FULL
from penstock.durations import SECOND
from penstock.hub.core.closing import SLOW_READER
from penstock.hub.core.rules import HubRules
from penstock.testing.server import ServerProcess
from tests.integration.hub.crowd import Client, Heard, Json, joined

CONNECTIONS = int(os.environ.get("PENSTOCK_HUB_CONNECTIONS", "5000"))
GROUP = 100
"""So many subscribe to one topic."""
ONE_IN = 20
"""One connection in so many stops reading: 5 %."""
TOGETHER = 200
"""How many connections are made at a time."""
PER_SECOND = 100
"""How many messages are published to the groups, one after the other."""
LARGE = "x" * 32 * 1024
LARGE_EACH = 40
"""How many large messages each of those gets that are to be slow later, while they still read."""
AT_ONCE = 4
"""How many large messages are under way."""
PUBLISHERS = 25
SMALL_BUFFER = None
IDLE_BYTES = 30 * 1000
"""What an idle connection may cost."""
MARGIN = 64 * 1024 * 1024
MOST_LATENCY_MS = 1000.0
"""Generous: a machine that is busy with other tests must not fail this one."""
PATIENCE = 60.0


@dataclass
class Log:
    """What one client has received: numbers by topic, which must follow each other."""

    took: list[float]
    """How long messages to groups took, in milliseconds; shared."""
    is_timed: bool
    next: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def note(self, frame: Heard) -> None:
        assert frame.metadata is not None
        topic, number = frame.metadata.topic, frame.payload["n"]
        wanted = self.next.get(topic, 0)
        if number != wanted:
            self.faults.append(f"{topic}: {number} came, not {wanted}")
        self.next[topic] = number + 1
        if self.is_timed and "at" in frame.payload:
            self.took.append((monotonic() - frame.payload["at"]) / 1000)


@dataclass
class Reader:
    """A connection, and what it has received."""

    client: Client
    log: Log
    group: str
    own: str | None
    """The topic of the large messages, of those that are to be slow."""


class Publisher:
    """Publishes and says when it is confirmed. Confirmations come in the order of publishing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: list[asyncio.Future[int]] = []
        client.confirmed = self._confirmed

    def _confirmed(self, payload: Json) -> None:
        self._waiting.pop(0).set_result(payload["subscriberCount"])

    def publish(self, topic: str, data: Json) -> asyncio.Future[int]:
        """The number of subscribers it was sent to."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self._client.publish(topic, data)
        return done


class Crowd:
    """All connections to one server."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.took: list[float] = []
        self.readers: list[Reader] = []
        self.publishers: list[Publisher] = []
        self.sent: dict[str, int] = {}
        self.peak = 0

    @property
    def slow(self) -> list[Reader]:
        return [one for one in self.readers if one.own is not None]

    @property
    def quick(self) -> list[Reader]:
        return [one for one in self.readers if one.own is None]

    async def gather(self) -> None:
        """Make all connections."""
        while len(self.readers) < CONNECTIONS:
            some = range(len(self.readers), min(len(self.readers) + TOGETHER, CONNECTIONS))
            self.readers += await asyncio.gather(*(self._reader(number) for number in some))
        clients = await asyncio.gather(*(joined(self.server.port, f"@(crowd/p{number})") for number in range(PUBLISHERS + 1)))
        self.publishers = [Publisher(client) for client in clients]

    async def _reader(self, number: int) -> Reader:
        is_slow = number % ONE_IN == 0
        log = Log(self.took, is_timed=not is_slow)
        client = await joined(self.server.port, f"@(crowd/r{number})", log.note, buffer=SMALL_BUFFER if is_slow else None)
        group, own = f"crowd/group-{number // GROUP}", f"crowd/own-{number}" if is_slow else None
        await client.ask("hub:subscribe", topic=group)
        if own is not None:
            await client.ask("hub:subscribe", topic=own)
        return Reader(client, log, group, own)

    def publish(self, publisher: Publisher, topic: str, **data: object) -> asyncio.Future[int]:
        """Publish the next number to a topic."""
        number = self.sent.get(topic, 0)
        self.sent[topic] = number + 1
        return publisher.publish(topic, {"n": number, **data})

    @asynccontextmanager
    async def talk(self) -> AsyncIterator[None]:
        """Publish to the groups, one after the other, and watch the memory of the server meanwhile."""
        groups = sorted({one.group for one in self.readers})

        async def publish() -> None:
            begin, count = monotonic(), 0
            while True:
                await asyncio.sleep(0.005)
                while count < (monotonic() - begin) * PER_SECOND / SECOND:
                    self.publish(self.publishers[-1], groups[count % len(groups)], at=monotonic())
                    count += 1
                self.peak = max(self.peak, resident(self.server.process.pid))

        task = asyncio.create_task(publish())
        yield
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    async def send_large(self, each: Callable[[Reader, Callable[[], Awaitable[int]]], Awaitable[None]]) -> None:
        """Publish large messages to the topics of those that are to be slow: `each` says when one has had enough."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(number: int, reader: Reader) -> None:
            own, publisher = reader.own, self.publishers[number % PUBLISHERS]
            assert own is not None

            async def send() -> int:
                async with turns, asyncio.timeout(PATIENCE):
                    return await self.publish(publisher, own, large=LARGE)

            await each(reader, send)

        await asyncio.gather(*(one(number, reader) for number, reader in enumerate(self.slow)))

    async def received(self, readers: list[Reader]) -> None:
        """Wait until some have everything that was sent to them."""

        def is_behind(one: Reader) -> bool:
            topics = [one.group] if one.own is None else [one.group, one.own]
            return any(one.log.next.get(topic, 0) < self.sent.get(topic, 0) for topic in topics)

        await until(lambda: not any(is_behind(one) for one in readers))

    async def number(self, name: str) -> int:
        """A number of /metrics."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.server.url}/metrics") as answer:
            found = re.search(rf"^{re.escape(name)} (\d+)", await answer.text(), re.MULTILINE)
        assert found is not None, name
        return int(found[1])

    def latency(self) -> str:
        """p50 and p99 in words, and forget."""
        self.p99 = statistics.quantiles(self.took, n=100)[98]
        words = f"p50 {statistics.median(self.took):.1f} ms, p99 {self.p99:.1f} ms, {len(self.took)} deliveries"
        self.took.clear()
        return words


async def until(is_so: Callable[[], bool]) -> None:
    """Return when something is so."""
    async with asyncio.timeout(PATIENCE):
        while not is_so():
            await asyncio.sleep(0.02)


@pytest.fixture
def enough_files() -> None:
    """Room for both ends of all connections; the server inherits it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 500
    if soft < wanted:
        if hard != resource.RLIM_INFINITY and hard < wanted:
            pytest.skip(f"{hard} files may be open here, {wanted} are needed")
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


@pytest.mark.slow
@pytest.mark.usefixtures("enough_files")
def test_who_does_not_read_is_cut_off_and_nobody_else_notices() -> None:
    with ServerProcess() as server:
        uvloop.run(scenario(Crowd(server)))


async def scenario(crowd: Crowd) -> None:
    pid = crowd.server.process.pid
    empty = resident(pid)
    t=monotonic()
    await crowd.gather()
    print("gathered", (monotonic()-t)/1e6)
    idle = resident(pid)
    slow, quick = crowd.slow, crowd.quick

    async def some(_: Reader, send: Callable[[], Awaitable[int]]) -> None:
        for _ in range(LARGE_EACH):
            assert await send() == 1

    t=monotonic()
    async with crowd.talk():
        await crowd.send_large(some)
    await crowd.received(crowd.readers)
    print("phase1", (monotonic()-t)/1e6)
    peak_before, crowd.peak = crowd.peak, 0
    print(f"all read: {crowd.latency()}")
    p99_before = crowd.p99

    for one in slow:
        one.client.hold()
    repentant = {id(one) for one in slow[::2]}

    async def until_gone(one: Reader, send: Callable[[], Awaitable[int]]) -> None:
        while await send():
            pass
        if id(one) in repentant:
            one.client.go_on()

    t=monotonic()
    async with crowd.talk():
        await crowd.send_large(until_gone)
        print("cut", (monotonic()-t)/1e6)
        async with asyncio.timeout(PATIENCE):
            codes = [await one.client.over for one in slow if id(one) in repentant]
        print("codes", (monotonic()-t)/1e6)
        rest = len(quick) + len(crowd.publishers)
        async with asyncio.timeout(PATIENCE):
            while await crowd.number("penstock_hub_connections") > rest:
                await asyncio.sleep(0.1)
        print("gone", (monotonic()-t)/1e6)
    await crowd.received(quick)
    print("phase2", (monotonic()-t)/1e6)
    print(f"{len(slow)} of {CONNECTIONS} do not read: {crowd.latency()}")
    print([sorted(crowd.sent[one.own] for one in slow)[k] for k in (0,-1)], len(slow))
    after = resident(pid)
    print(f"empty {empty>>20} idle {idle>>20} ({(idle-empty)/CONNECTIONS:.0f} B) peak1 {peak_before>>20} peak2 {crowd.peak>>20} after {after>>20}")
    from collections import Counter
    print(Counter(codes))
    for one in slow:
        if id(one) not in repentant: one.client.go_on()
    print(Counter([await one.client.over for one in slow if id(one) not in repentant]))
    print([o.log.faults for o in crowd.readers if o.log.faults][:5])
    print(await crowd.number("penstock_hub_slow_readers_total"))
    for i in range(3):
        await asyncio.sleep(1); print(resident(pid)>>20)
