"""`penstock bench`: messages a second that the target takes and delivers, and the latency from end to end."""

from __future__ import annotations

import argparse
import asyncio
import math
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from penstock.cli.arguments import duration, size, whole
from penstock.cli.command import Parser
from penstock.cli.output import Progress, complain, say, say_json, short
from penstock.cli.session import add_target
from penstock.cli.session import run as run_with_client
from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.errors import InvalidArgument, NotFound
from penstock.values.wording import octets, span

if TYPE_CHECKING:
    from penstock.client.message import IncomingMessage
    from penstock.client.pubsub import PubSub
    from penstock.client.subscription import Subscription
    from penstock.client.topic import Topic

LONGEST_SECONDS = 600
LARGEST = 2**20
PACED = 200
"""Messages a second while end-to-end latency is measured: few enough that none waits for another."""
PACED_SECONDS = 2.0
NUMBER = 8
"""Bytes of a message's number."""
PATIENCE = 30.0
"""Seconds without a message after which consuming is given up."""


@dataclass(frozen=True, slots=True)
class Result:
    """One measured row. Latencies are seconds."""

    name: str
    messages: int
    seconds: float
    bytes_per_second: float
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / max(self.seconds, 1e-6)


def configure(parser: Parser) -> None:
    """Add the flags of the load."""
    parser.add_argument("--seconds", type=duration, metavar="DURATION", default=5.0, help="how long to publish (default: 5s)")
    parser.add_argument("--size", type=size, metavar="SIZE", default=100, help="bytes of a message (default: 100)")
    parser.add_argument("--batch", type=whole(1, 1_000), metavar="N", default=100, help="messages in a publish (default: 100)")
    parser.add_argument("--publishers", type=whole(1, 1_000), metavar="N", default=4, help="concurrent publishes (default: 4)")
    parser.add_argument("--subscribers", type=whole(1, 100), metavar="N", default=1, help="streams that consume (default: 1)")
    add_target(parser)
    parser.set_defaults(run=run)


def run(found: argparse.Namespace) -> int:
    """Publish, consume, then time single messages, in a topic of its own, which is deleted afterwards."""
    if not 0 < found.seconds <= LONGEST_SECONDS:
        raise InvalidArgument.of("--seconds", found.seconds, f"a duration above 0, of at most {LONGEST_SECONDS} s")
    if not 1 <= found.size <= LARGEST:
        raise InvalidArgument.of("--size", found.size, f"a size from 1 to {LARGEST} bytes")

    async def work(pubsub: PubSub) -> int:
        info = await pubsub.info()
        if not found.json:
            kept = "on disk" if info.is_durable else "in memory"
            load = f"{octets(found.size)} a message, {found.batch} a publish, {found.publishers} at once"
            complain(f"{pubsub.link.address}, {kept}: {load}")
        async with _ground(pubsub, found.subscribers) as (topic, subscription):
            published = await _publish(topic, found)
            results = [published, await _consume(subscription, published.messages, found.size)]
            results.append(await _end_to_end(topic, subscription, min(found.seconds, PACED_SECONDS), found.size))
        if found.json:
            plain = [asdict(one) | {"rate": one.rate} for one in results]
            say_json({"server": info, "size": found.size, "batch": found.batch, "publishers": found.publishers, "results": plain})
        else:
            say(report(results))
        return 0

    return run_with_client(found, work)


@asynccontextmanager
async def _ground(pubsub: PubSub, streams: int) -> AsyncIterator[tuple[Topic, Subscription]]:
    """A topic and a subscription for this run only, deleted in any case."""
    topic = pubsub.topic(f"penstock-bench-{secrets.token_hex(6)}")
    # Everything published must stay, whatever its size, also in memory.
    subscription = topic.subscription(topic.name, max_streams=streams, close_behavior="nack", overflow="spill")
    try:
        await topic.create()
        await subscription.create()
        yield topic, subscription
    finally:
        await subscription.close()
        for made in (subscription, topic):
            try:
                await made.delete()
            except NotFound:
                continue  # it was not created, or is already deleted


async def _publish(topic: Topic, found: argparse.Namespace) -> Result:
    from penstock import Message  # noqa: PLC0415  # `--help` needs none of it

    batch = [Message(secrets.token_bytes(found.size)) for _ in range(found.batch)]
    spans: list[float] = []
    began = monotonic()
    until = began + round(found.seconds * SECOND)
    with Progress("publishing") as progress:

        async def publisher() -> None:
            while (at := monotonic()) < until:
                await topic.publish_many(batch)
                spans.append((monotonic() - at) / SECOND)
                progress.advance(found.batch)

        async with asyncio.TaskGroup() as group:
            for _ in range(found.publishers):
                group.create_task(publisher())
    return _result("publish", len(spans) * found.batch, began, found.size, spans)


async def _consume(subscription: Subscription, expected: int, octets_each: int) -> Result:
    """Consume everything that was published, or as much as arrives."""
    finished, arrived = asyncio.Event(), 0
    with Progress("consuming", expected) as progress:

        def take(message: IncomingMessage) -> None:
            nonlocal arrived
            message.ack()
            arrived += 1
            progress.advance(1)
            if arrived >= expected:
                finished.set()

        subscription.on("message", take)
        began = monotonic()
        subscription.open()
        before = -1
        while not finished.is_set() and before != arrived:
            before = arrived
            await _wait(finished, PATIENCE)
        subscription.off("message", take)
    if not finished.is_set():
        complain(f"of {expected:,} messages {arrived:,} arrived, and nothing more in {PATIENCE:g} s")
    return _result("consume", arrived, began, octets_each)


async def _end_to_end(topic: Topic, subscription: Subscription, seconds: float, octets_each: int) -> Result:
    """Single messages at a low rate, each timed from the publishing call to the handler."""
    sent: dict[bytes, int] = {}
    spans: list[float] = []
    total = max(round(seconds * PACED), 1)
    finished = asyncio.Event()
    began = monotonic()
    with Progress("end to end", total) as progress:

        def take(message: IncomingMessage) -> None:
            message.ack()
            at = sent.pop(message.data[:NUMBER], None)
            if at is not None:
                spans.append((monotonic() - at) / SECOND)
                progress.advance(1)
                if len(spans) >= total:
                    finished.set()

        subscription.on("message", take)
        confirmed = []
        for index in range(total):
            await asyncio.sleep(max(began + index * SECOND // PACED - monotonic(), 0) / SECOND)
            number = index.to_bytes(NUMBER, "big")
            sent[number] = monotonic()
            confirmed.append(topic.publish_message(number.ljust(octets_each, b"\0")))
        await asyncio.gather(*confirmed)
        await _wait(finished, PATIENCE)
        subscription.off("message", take)
    return _result("end to end", len(spans), began, octets_each, spans)


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event with a time limit."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return


def _result(name: str, messages: int, began: int, octets_each: int, spans: Sequence[float] = ()) -> Result:
    seconds = (monotonic() - began) / SECOND
    p50, p95, p99 = (percentile(spans, share) for share in (0.5, 0.95, 0.99))
    return Result(name, messages, seconds, messages * octets_each / max(seconds, 1e-6), p50, p95, p99)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that at least this share of all does not exceed; None if there are none."""
    return sorted(values)[max(math.ceil(share * len(values)) - 1, 0)] if values else None


def report(results: Sequence[Result]) -> str:
    """The results as a table."""
    rows = [["", "MESSAGES", "SECONDS", "MESSAGES/s", "BYTES/s", "P50", "P95", "P99"]]
    rows += [
        [
            one.name,
            f"{one.messages:,}",
            f"{one.seconds:.1f}",
            short(one.rate),
            octets(one.bytes_per_second),
            *("-" if value is None else span(value) for value in (one.p50, one.p95, one.p99)),
        ]
        for one in results
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))])
        for row in rows
    ]
    return "\n".join([*lines, "publish: until a batch is confirmed; end to end: single messages, from publishing to the handler"])
