"""Load on the gRPC port from the lightest client there is: requests made beforehand, answers scanned and not parsed.

It runs in a process of its own, so that client and server share the machine's cores and nothing else; its last line is JSON.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from itertools import islice
from typing import Any

import grpc
import uvloop

from benchmarks.process import Meter
from benchmarks.row import PAYLOAD
from penstock.google import messages

BATCH = 100
IN_FLIGHT = 8
SINGLE_IN_FLIGHT = 64
PROJECT = "projects/bench"
TOPIC = f"{PROJECT}/topics/load"
SUBSCRIPTION = f"{PROJECT}/subscriptions/load"
PUBLISH = "/google.pubsub.v1.Publisher/Publish"
STREAMING_PULL = "/google.pubsub.v1.Subscriber/StreamingPull"
ACK_SECONDS = 600
DEADLINE = 120
"""Seconds after which a run that has not ended has lost something."""


def publish_request(size: int, payload: bytes = b"x" * PAYLOAD) -> bytes:
    """A PublishRequest of so many messages, as it is on the wire."""
    data: bytes = messages.PublishRequest(topic=TOPIC, messages=[messages.PubsubMessage(data=payload)] * size).SerializeToString()
    return data


def scanned(answer: bytes) -> tuple[int, bytes]:
    """How many deliveries a StreamingPullResponse has, and the request that acks them all.

    A delivery starts with its ack id; in a request an ack id is the same bytes under another field number.
    """
    acks: list[bytes] = []
    at, end = 0, len(answer)
    while at < end and answer[at] == 0x0A:
        size, at = answer[at + 1], at + 2
        shift = 7
        if size > 127:
            size &= 127
            while True:
                part, at = answer[at], at + 1
                size |= (part & 127) << shift
                if part < 128:
                    break
                shift += 7
        acks.append(answer[at + 1 : at + 2 + answer[at + 1]])
        at += size
    return len(acks), b"".join([b"\x12" + ack for ack in acks])


class Client:
    """Raw calls on one channel, with a topic and a subscription of its own."""

    def __init__(self, address: str) -> None:
        options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
        self.channel = grpc.aio.insecure_channel(address, options=options)
        self.publish = self.channel.unary_unary(PUBLISH)

    async def set_up(self) -> None:
        """A topic and a subscription, new ones."""
        for call, name, field in (
            ("Subscriber/DeleteSubscription", SUBSCRIPTION, "subscription"),
            ("Publisher/DeleteTopic", TOPIC, "topic"),
        ):
            try:
                await self._call(f"/google.pubsub.v1.{call}", **{field: name})
            except grpc.aio.AioRpcError as error:
                if error.code() != grpc.StatusCode.NOT_FOUND:
                    raise
        await self._call("/google.pubsub.v1.Publisher/CreateTopic", name=TOPIC)
        await self._call(
            "/google.pubsub.v1.Subscriber/CreateSubscription",
            name=SUBSCRIPTION,
            topic=TOPIC,
            ack_deadline_seconds=ACK_SECONDS,
        )

    async def _call(self, path: str, **fields: Any) -> None:
        request = messages.METHODS[path].request(**fields)
        await self.channel.unary_unary(path)(request.SerializeToString())

    async def stream(self, wanted: int, seen: Callable[[bytes], None] | None = None) -> None:
        """Take deliveries from one stream and ack them on it until `wanted` have come."""
        opening = messages.StreamingPullRequest(subscription=SUBSCRIPTION, stream_ack_deadline_seconds=ACK_SECONDS)
        call = self.channel.stream_stream(STREAMING_PULL)()
        await call.write(opening.SerializeToString())
        received = 0
        while received < wanted:
            answer = await call.read()
            if answer is grpc.aio.EOF:
                raise RuntimeError(f"the stream ended: {await call.code()} {await call.details()}")
            if seen is not None:
                seen(answer)
            number, acks = scanned(answer)
            received += number
            if acks:
                await call.write(acks)
        # The server ends the stream when it has taken the last ack: what it has yet to do is part of the work.
        await call.done_writing()
        while await call.read() is not grpc.aio.EOF:
            pass

    async def publish_all(self, requests: Iterator[bytes], in_flight: int) -> None:
        """Publish them all, so many at a time."""

        async def work() -> None:
            for request in requests:
                await self.publish(request)

        async with asyncio.TaskGroup() as group:
            for _ in range(in_flight):
                group.create_task(work())


async def through(address: str, pid: int, number: int) -> dict[str, float]:
    """Publish and take at once: messages a second from the first publish to the last delivery."""
    client = Client(address)
    await client.set_up()
    request = publish_request(BATCH)
    await asyncio.gather(client.stream(50 * BATCH), client.publish_all(islice(_same(request), 50), IN_FLIGHT))
    await client.set_up()
    meter = Meter(pid)
    await asyncio.gather(client.stream(number), client.publish_all(islice(_same(request), number // BATCH), IN_FLIGHT))
    return meter.read(number)


async def drain(address: str, pid: int, number: int) -> dict[str, float]:
    """One stream that takes a backlog and acks it."""
    client = Client(address)
    await client.set_up()
    await client.publish_all(islice(_same(publish_request(BATCH)), number // BATCH), IN_FLIGHT)
    meter = Meter(pid)
    await client.stream(number)
    return meter.read(number)


async def single(address: str, pid: int, number: int) -> dict[str, float]:
    """One message a publish, many publishes at a time."""
    client = Client(address)
    await client.set_up()
    request = publish_request(1)
    await client.publish_all(islice(_same(request), number // 10), SINGLE_IN_FLIGHT)
    meter = Meter(pid)
    await client.publish_all(islice(_same(request), number), SINGLE_IN_FLIGHT)
    return meter.read(number)


async def bare(address: str, pid: int, number: int) -> dict[str, float]:
    """The same against a server that has nothing to set up."""
    client = Client(address)
    request = publish_request(1)
    await client.publish_all(islice(_same(request), number // 10), SINGLE_IN_FLIGHT)
    meter = Meter(pid)
    await client.publish_all(islice(_same(request), number), SINGLE_IN_FLIGHT)
    return meter.read(number)


async def latency(address: str, pid: int, number: int, rate: int = 1_000) -> dict[str, float]:
    """One message a publish at a steady rate: milliseconds from the send to the delivery."""
    client = Client(address)
    await client.set_up()
    marker, width = b"at=", 8
    template = publish_request(1, marker + bytes(width) + b"x" * (PAYLOAD - width - len(marker)))
    head, tail = template.split(marker + bytes(width))
    took: list[float] = []
    late: list[float] = []

    def seen(answer: bytes) -> None:
        now, at = time.perf_counter_ns(), 0
        while (at := answer.find(marker, at) + len(marker)) >= len(marker):
            took.append((now - struct.unpack_from("<q", answer, at)[0]) / 1e6)

    async def pace() -> None:
        publishes: list[asyncio.Future[bytes]] = []
        start = time.perf_counter()
        for index in range(number):
            due = start + index / rate
            if (early := due - time.perf_counter()) > 0:
                await asyncio.sleep(early)
            late.append((time.perf_counter() - due) * 1e3)
            sent = marker + struct.pack("<q", time.perf_counter_ns())
            publishes.append(asyncio.ensure_future(_awaited(client.publish(head + sent + tail))))
        await asyncio.gather(*publishes)

    meter = Meter(pid)
    await asyncio.gather(client.stream(number, seen), pace())
    found = meter.read(number)
    cuts = statistics.quantiles(took[number // 20 :], n=1000)
    return {**found, "p50": cuts[499], "p99": cuts[989], "max": max(took), "late": statistics.quantiles(late, n=100)[98]}


async def _awaited(call: Awaitable[bytes]) -> bytes:
    return await call


def _same(request: bytes) -> Iterator[bytes]:
    while True:
        yield request


LOADS: dict[str, Callable[[str, int, int], Awaitable[dict[str, float]]]] = {
    "through": through,
    "drain": drain,
    "single": single,
    "bare": bare,
    "latency": latency,
}


async def _within_deadline(load: Awaitable[dict[str, float]]) -> dict[str, float]:
    async with asyncio.timeout(DEADLINE):
        return await load


def main() -> None:
    kind, address, pid, number = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    print(json.dumps(uvloop.run(_within_deadline(LOADS[kind](address, pid, number)))))


if __name__ == "__main__":
    main()
