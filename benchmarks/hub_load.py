"""One measurement of the hub, or of a bare WebSocket server, in a process of its own: prints its figures as JSON.

The clients are as bare as they can be, so that the server is what is measured: a protocol that counts a mark in what arrives.
Their frames are masked with zeros, which is a legal key and saves the masking.
"""
# ruff: noqa: ASYNC110  # asking now and then costs what is measured less than being told

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import sys
import time
from collections.abc import Awaitable, Callable

import uvloop

from benchmarks.hub_bare import SUBSCRIBE
from benchmarks.process import cpu_seconds, resident

UPGRADE = (
    b"GET /ws HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n"
)
PUBLISHER = "@(bench/publisher)"
MARK = b'"from":"@(bench/publisher)"'
DATA = "x" * 200
TOGETHER = 200
"""How many connections are made at a time."""
PATIENCE = 60.0

Figures = dict[str, float]


def frame(text: str) -> bytes:
    """A text frame as a client sends it."""
    data = text.encode()
    size = len(data)
    head = struct.pack("!BB", 0x81, 0x80 | size) if size < 126 else struct.pack("!BBH", 0x81, 0x80 | 126, size)
    return head + b"\0\0\0\0" + data


def said(kind: str, **payload: object) -> bytes:
    return frame(json.dumps({"type": kind, "payload": payload}))


class Client(asyncio.Protocol):
    """One connection: counts a mark, and says when it has seen a word."""

    def __init__(self, mark: bytes) -> None:
        self.mark, self.count, self.rest = mark, 0, b""
        self.word: bytes | None = None
        self.seen: asyncio.Future[None] | None = None
        self.heard: Callable[[bytes], None] | None = None
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's is one in all but name

    def data_received(self, data: bytes) -> None:
        if self.word is not None and self.seen is not None:
            self.rest += data
            if self.word in self.rest:
                self.word, self.rest = None, b""
                self.seen.set_result(None)
            return
        text = self.rest + data
        self.count += text.count(self.mark)
        self.rest = text[-len(self.mark) + 1 :]
        if self.heard is not None:
            self.heard(data)

    async def until(self, word: bytes, *sent: bytes) -> None:
        """Send something, and return when a word has come."""
        self.word, self.seen = word, asyncio.get_running_loop().create_future()
        self.transport.write(b"".join(sent))
        async with asyncio.timeout(PATIENCE):
            await self.seen


async def connected(port: int, address: str, mark: bytes = MARK, topic: str | None = None, *, bare: bool = False) -> Client:
    """A connection that is registered, and subscribed if a topic is given."""
    _, client = await asyncio.get_running_loop().create_connection(lambda: Client(mark), "127.0.0.1", port)
    await client.until(b"\r\n\r\n", UPGRADE)
    if bare:
        if topic is not None:
            await client.until(b"subscribed", frame(SUBSCRIBE))
        return client
    words = [
        said("hub:connect", version="1.0"),
        said("hub:register", actorAddress=address, capabilities=["bench"], ttl=3_600_000),
    ]
    if topic is not None:
        words.append(said("hub:subscribe", topic=topic))
    await client.until(b'"hub:subscribed"' if topic is not None else b'"hub:registered"', *words)
    return client


async def many(number: int, make: Callable[[int], Awaitable[Client]]) -> list[Client]:
    found: list[Client] = []
    while len(found) < number:
        some = range(len(found), min(len(found) + TOGETHER, number))
        found += await asyncio.gather(*(make(each) for each in some))
    return found


async def fan_out(port: int, pid: int, subscribers: int, messages: int, window: int, *, bare: bool) -> Figures:
    """Frames a second from one publisher to all subscribers, with so many messages under way."""
    clients = await many(subscribers, lambda each: connected(port, f"@(bench/s{each:05d})", topic="bench/fan-out", bare=bare))
    publisher = await connected(port, PUBLISHER, b'"subscriberCount"', bare=bare)
    if bare:
        # As large as what the hub sends for the same data.
        text = json.dumps({"type": "event:created", "from": PUBLISHER, "to": "@(bench/s00000)", "payload": {"x": DATA}})
        text = text[:-1] + ',"timestamp":1700000000000,"metadata":{"forwarded":true,"via":"@(cloudflare/signal-hub)","topic":'
        text += '"bench/fan-out","messageId":"00000000-0000-0000-0000-000000000000","offset":10000,"epoch":"0000000000.1"}}'
        message = frame(text.replace('": ', '":').replace(', "', ',"'))
    else:
        message = said("hub:publish", topic="bench/fan-out", type="event:created", data={"x": DATA})
    sent, cpu, start = 0, cpu_seconds(pid), time.perf_counter()
    while sent < messages or any(client.count < messages for client in clients):
        slowest = min(client.count for client in clients)
        room = min(window - (sent - slowest), messages - sent)
        if room > 0:
            publisher.transport.write(message * room)
            sent += room
        await asyncio.sleep(0)
    seconds, frames = time.perf_counter() - start, messages * subscribers
    return {"rate": frames / seconds, "server_us": (cpu_seconds(pid) - cpu) / frames * 1e6}


async def latency(port: int, per_second: int, subscribers: int, seconds: float) -> Figures:
    """From the moment a message is sent to the moment that a subscriber has it."""
    clients = await many(subscribers, lambda each: connected(port, f"@(bench/s{each:05d})", topic="bench/latency"))
    publisher = await connected(port, PUBLISHER)
    took: list[float] = []

    def heard(data: bytes) -> None:
        now, at = time.perf_counter_ns(), 0
        while (at := data.find(b'"at":', at)) >= 0:
            at += 5
            took.append((now - int(data[at : data.index(b"}", at)])) / 1e6)

    for client in clients:
        client.heard = heard
    begin, number = time.perf_counter(), int(per_second * seconds)
    for each in range(number):
        wait = begin + each / per_second - time.perf_counter()
        if wait > 0:
            await asyncio.sleep(wait)
        data = {"x": DATA, "at": time.perf_counter_ns()}
        publisher.transport.write(said("hub:publish", topic="bench/latency", type="event:created", data=data))
    async with asyncio.timeout(PATIENCE):
        while len(took) < number * subscribers:
            await asyncio.sleep(0.01)
    parts = statistics.quantiles(took, n=100)
    return {"p50": statistics.median(took), "p99": parts[98], "worst": max(took)}


async def memory(port: int, pid: int, connections: int) -> Figures:
    """What an idle connection costs that is registered and subscribed to a topic of its own."""
    await connected(port, "@(bench/first)", topic="bench/first")
    before = resident(pid)
    await many(connections, lambda each: connected(port, f"@(bench/m{each:05d})", topic=f"bench/idle-{each}"))
    await asyncio.sleep(1)
    return {"bytes": (resident(pid) - before) / connections}


async def crowd(port: int, pid: int, connections: int, active: int, seconds: float) -> Figures:
    """Publishes a second of the active among many connections, each to a topic of its own that it subscribes to."""
    clients = await many(
        connections, lambda each: connected(port, f"@(bench/c{each:05d})", b'"subscriberCount"', topic=f"bench/own-{each}")
    )
    workers = clients[:: connections // active][:active]
    message = {
        client: said("hub:publish", topic=f"bench/own-{each * (connections // active)}", type="event:created", data={"x": DATA})
        for each, client in enumerate(workers)
    }
    window, sent = 16, dict.fromkeys(workers, 0)
    cpu, start = cpu_seconds(pid), time.perf_counter()
    while time.perf_counter() - start < seconds:
        for client in workers:
            room = window - (sent[client] - client.count)
            if room >= window // 2:
                client.transport.write(message[client] * room)
                sent[client] += room
        await asyncio.sleep(0)
    done, took = sum(client.count for client in workers), time.perf_counter() - start
    return {"rate": done / took, "server_us": (cpu_seconds(pid) - cpu) / done * 1e6}


def main() -> None:
    kind, port, pid, *rest = sys.argv[1:]
    numbers = [float(one) for one in rest]
    whole = [int(one) for one in numbers]
    calls: dict[str, Callable[[], Awaitable[Figures]]] = {
        "fan-out": lambda: fan_out(int(port), int(pid), whole[0], whole[1], whole[2], bare=False),
        "bare": lambda: fan_out(int(port), int(pid), whole[0], whole[1], whole[2], bare=True),
        "latency": lambda: latency(int(port), whole[0], whole[1], numbers[2]),
        "memory": lambda: memory(int(port), int(pid), whole[0]),
        "crowd": lambda: crowd(int(port), int(pid), whole[0], whole[1], numbers[2]),
    }

    async def run() -> Figures:
        return await calls[kind]()

    print(json.dumps(uvloop.run(run())))


if __name__ == "__main__":
    main()
