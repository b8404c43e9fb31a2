"""Thousands of connections, some of which stop reading: those are cut off and told why, the others notice nothing.

A client that stopped reading is told the close code 4003 if it reads again within `TAKE_SECONDS`. Beyond that nobody can promise
it: the code waits behind what the client does not take. Its connection is cut then, and what it finds when it reads at last are
the first messages without a hole among them, and an end without a word. A small version of it is in `test_hub_server.py`.

PENSTOCK_CROWD is how many connections there are.
"""
# ruff: noqa: ASYNC110  # asking now and then costs thousands of clients less than being told

from __future__ import annotations

import asyncio
import os
import re
import resource
import statistics
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

import aiohttp
import pytest
import uvloop

from benchmarks.process import resident
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.hub.core.close_codes import SLOW_READER
from penstock.hub.core.rules import HubRules
from penstock.hub.server.socket import FULL
from penstock.testing.server import ServerProcess
from tests.integration.hub.crowd import Client, Heard, Json, joined

pytestmark = [pytest.mark.long, pytest.mark.alone]

CONNECTIONS = int(os.environ.get("PENSTOCK_CROWD", "5000"))
GROUP = 100
"""So many subscribe to one topic."""
ONE_IN = 20
"""One connection in so many stops reading: 5 %."""
TOGETHER = 200
"""How many connections are made at a time."""
PER_SECOND = 100
"""How many messages are published to the groups, one after the other."""
LARGE = "x" * 60_000
LARGE_EACH = 24
"""How many large messages each of those gets that are to be slow later, while they still read."""
AT_ONCE = 16
"""How many large messages are under way."""
PUBLISHERS = 25
IDLE_BYTES = 30 * 1000
"""What an idle connection may cost."""
MARGIN = 64 * 1024 * 1024
MOST_LATENCY_MS = 5000.0
"""Generous: a machine that is busy with other tests must not fail this one."""
PATIENCE = 60.0
RULES = HubRules()


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
        self.client = client
        self._waiting: list[asyncio.Future[int]] = []
        client.confirmed = self._confirmed

    def _confirmed(self, payload: Json) -> None:
        self._waiting.pop(0).set_result(payload["subscriberCount"])

    def publish(self, topic: str, data: Json) -> asyncio.Future[int]:
        """The number of subscribers it was sent to."""
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        self.client.publish(topic, data)
        return done


class Crowd:
    """All connections to one server."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.took: list[float] = []
        self.readers: list[Reader] = []
        self.publishers: list[Publisher] = []
        self.sent: dict[str, int] = {}
        self.under_load = 0
        """How many of `took` are from while large messages were published."""
        self.peak = 0
        """Of the server's memory, while there was talk."""

    @property
    def slow(self) -> list[Reader]:
        return [one for one in self.readers if one.own is not None]

    @property
    def quick(self) -> list[Reader]:
        return [one for one in self.readers if one.own is None]

    async def gather(self, count: int) -> None:
        """Make so many connections, and those that publish."""
        while len(self.readers) < count:
            some = range(len(self.readers), min(len(self.readers) + TOGETHER, count))
            self.readers += await asyncio.gather(*(self._reader(number) for number in some))
        clients = await asyncio.gather(*(joined(self.server.port, f"@(crowd/p{number})") for number in range(PUBLISHERS + 1)))
        self.publishers = [Publisher(client) for client in clients]

    async def _reader(self, number: int) -> Reader:
        is_slow = number % ONE_IN == 0
        log = Log(self.took, is_timed=not is_slow)
        client = await joined(self.server.port, f"@(crowd/r{number})", log.note)
        group, own = f"crowd/group-{number // GROUP}", f"crowd/own-{number}" if is_slow else None
        await client.ask("hub:subscribe", topic=group)
        if own is not None:
            await client.ask("hub:subscribe", topic=own)
        return Reader(client, log, group, own)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in (*(one.client for one in self.readers), *(one.client for one in self.publishers)):
            client.drop()
        await asyncio.sleep(0)  # the connections are closed in the next turn of the loop

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
                    _ = self.publish(self.publishers[-1], groups[count % len(groups)], at=monotonic())
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
        self.under_load = len(self.took)

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

    def latency(self) -> float:
        """p99 of what was delivered under load since the last call, in milliseconds; printed with p50."""
        took = self.took[: self.under_load]
        p99 = statistics.quantiles(took, n=100)[98]
        print(f"p50 {statistics.median(took):.1f} ms, p99 {p99:.1f} ms, {len(took)} deliveries")
        self.took.clear()
        return p99


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


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("enough_files")
def test_who_does_not_read_is_cut_off_and_nobody_else_notices() -> None:
    with ServerProcess() as server:
        uvloop.run(scenario(server))


def test_the_memory_of_those_who_were_cut_off_is_used_again() -> None:
    """The allocator may keep what is free; nobody takes more for the next ones."""

    async def rounds(server: ServerProcess) -> list[int]:
        peaks: list[int] = []
        for _ in range(3):
            async with Crowd(server) as crowd:
                await crowd.gather(20 * ONE_IN)
                await some_stop(crowd, crowd.slow)
                peaks.append(crowd.peak)
        return peaks

    with ServerProcess() as server:
        first, *others = uvloop.run(rounds(server))
    assert max(others) < first + 10 * 1024 * 1024


async def scenario(server: ServerProcess) -> None:
    pid = server.process.pid
    empty = resident(pid)
    async with Crowd(server) as crowd:
        await crowd.gather(CONNECTIONS)
        idle = resident(pid)
        slow, quick = crowd.slow, crowd.quick
        repentant, deaf = slow[::2], slow[1::2]

        before = await all_read(crowd)
        codes = await some_stop(crowd, repentant)
        during = crowd.latency()
        for one in deaf:
            one.client.go_on()
        async with asyncio.timeout(PATIENCE):
            ends = {await one.client.over for one in deaf}
        print(f"memory: {empty >> 20} MiB empty, {idle >> 20} idle, {crowd.peak >> 20} at most")

        cut = await crowd.number("penstock_hub_slow_readers_total")
        lost = sum(one.client.over.done() for one in quick)
        faults = [fault for one in crowd.readers for fault in one.log.faults]
    assert (cut, lost, faults) == (len(slow), 0, [])
    assert codes == [SLOW_READER.code] * len(repentant)
    assert ends <= {SLOW_READER.code, None}
    assert idle - empty < CONNECTIONS * IDLE_BYTES
    assert crowd.peak < idle + len(slow) * (RULES.max_outbox_bytes + FULL + 2 * len(LARGE)) + MARGIN
    assert max(before, during) < MOST_LATENCY_MS


async def all_read(crowd: Crowd) -> float:
    """Talk while everybody reads; returns the p99."""

    async def some(_reader: Reader, send: Callable[[], Awaitable[int]]) -> None:
        for _ in range(LARGE_EACH):
            assert await send() == 1

    async with crowd.talk():
        await crowd.send_large(some)
    await crowd.received(crowd.readers)
    crowd.peak = 0
    return crowd.latency()


async def some_stop(crowd: Crowd, repentant: list[Reader]) -> list[int | None]:
    """Talk while the slow ones do not read. The repentant read again when they are cut off; returns how they were closed."""
    again = {id(one) for one in repentant}

    async def until_gone(one: Reader, send: Callable[[], Awaitable[int]]) -> None:
        while await send():
            pass
        if id(one) in again:
            one.client.go_on()

    for one in crowd.slow:
        one.client.hold()
    async with crowd.talk():
        await crowd.send_large(until_gone)
        async with asyncio.timeout(PATIENCE):
            codes = [await one.client.over for one in repentant]
            while await crowd.number("penstock_hub_connections") > len(crowd.quick) + len(crowd.publishers):
                await asyncio.sleep(0.1)
    await crowd.received(crowd.quick)
    return codes
