"""The router: from a queue that was filled before, through pools, to a target that answers at once; beside the client alone.

Every measurement is a process of its own, the target another one. Published figures of the original, one processor, NATS, and a
target of 0 ms: Rust 35,000 deliveries a second, Go 25,600, Java 25,600, Node 8,300.
"""

from __future__ import annotations

import asyncio
import shutil
import statistics
from collections.abc import Callable, Iterator
from contextlib import suppress

from benchmarks.router_load import QUEUE, body
from benchmarks.router_target import RouterTarget, router_target
from benchmarks.row import Benchmark, Row, Run, in_fresh_process, missing, paired_ratio, spread
from benchmarks.server import Figures, column, goal, rounds
from penstock import NewMessage, QueueManager
from penstock.testing.server import ServerProcess
from penstock.values.policy import ROUTER_QUEUE

ANCHORS = "the original, NATS, 1 CPU: Rust 35,000/s, Go 25,600, Java 25,600, Node 8,300"
STREAM = "LOAD"


def load(kind: str, target: RouterTarget, number: int, *rest: object) -> Callable[[], Figures]:
    """One measurement of `router_load`."""
    return lambda: in_fresh_process("benchmarks.router_load", kind, target.url, number, *rest)


def against(name: str, what: str, ours: list[float], theirs: list[float], reach: float) -> Row:
    """A row of deliveries a second beside the client alone."""
    ratio = paired_ratio(ours, theirs)
    figure, other = statistics.median(ours), statistics.median(theirs)
    asked = f"≥ {reach:g} of the client alone"
    return Row(name, what, figure, "messages/s", other, "the client alone", ratio, asked, ratio >= reach, spread(ours), ANCHORS)


def router_embedded(run: Run) -> Iterator[Row]:
    number = run.of(200_000, 40_000)
    with router_target() as target:
        found = rounds(
            run.of(5, 3),
            {
                "bare": load("bare", target, number),
                "memory": load("embedded", target, number),
                "durable": lambda: _durable(run, target, number),
            },
        )
    bare = column(found["bare"], "rate")
    yield against(
        "router-embedded", "Penstock queue → pool of 256 → target, in memory", column(found["memory"], "rate"), bare, 0.7
    )
    durable = column(found["durable"], "rate")
    yield Row(
        "router-durable",
        "the same, queue and events on disk",
        statistics.median(durable),
        "messages/s",
        statistics.median(bare),
        "the client alone",
        paired_ratio(durable, bare),
        "",
        None,
        spread(durable),
    )
    ours, theirs = column(found["memory"], "cpu_us"), column(found["bare"], "cpu_us")
    beyond = [mine / other - 1 for mine, other in zip(ours, theirs, strict=True)]
    yield goal("router-cpu", "processor time of a delivery beyond the client's own", beyond, "× the client's", 0.5, at_most=True)


def _durable(run: Run, target: RouterTarget, number: int) -> Figures:
    return in_fresh_process("benchmarks.router_load", "embedded", target.url, number, run.directory("router"))


def router_nats(run: Run) -> Iterator[Row]:
    what, reach = "NATS JetStream → pool of 256 → target", "≥ 0.6 of the client alone"
    if shutil.which("nats-server", path="/usr/sbin:/usr/bin:/usr/local/bin") is None:
        yield missing("router-nats", what, reach, "there is no nats-server")
        return
    from tests.integration.router.nats_server import NatsServer

    number = run.of(200_000, 40_000)
    with router_target() as target, NatsServer(run.directory("nats")) as server:
        found = rounds(
            run.of(5, 3),
            {"bare": load("bare", target, number), "nats": lambda: _nats(server.place, target, number)},
        )
    yield against("router-nats", what, column(found["nats"], "rate"), column(found["bare"], "rate"), 0.6)


def _nats(place: str, target: RouterTarget, number: int) -> Figures:
    asyncio.run(_fill(place, target.url, number))
    return in_fresh_process(
        "benchmarks.router_load", "nats", target.url, number, f"nats://{place}/{STREAM}/router?subject=load.messages"
    )


async def _fill(place: str, url: str, number: int) -> None:
    """Make the stream anew and put messages into it, by a client that is not ours."""
    import nats
    from nats.js.errors import NotFoundError

    client = await nats.connect(f"nats://{place}")
    stream = client.jetstream()
    with suppress(NotFoundError):
        await stream.delete_stream(STREAM)
    await stream.add_stream(name=STREAM, subjects=["load.messages"])
    for each in range(number):
        await client.publish("load.messages", body(each, url, pools=1, groups=1000))
        if each % 1_000 == 999:
            await client.flush()
    await client.flush()
    while (await stream.stream_info(STREAM)).state.messages < number:  # noqa: ASYNC110  # the server tells nobody
        await asyncio.sleep(0.05)
    await client.close()


def router_groups(run: Run) -> Iterator[Row]:
    number = run.of(200_000, 100_000)
    with router_target() as target:
        found = rounds(
            run.of(5, 3),
            {
                "few": load("embedded", target, number, "", 1, 100),
                "many": load("embedded", target, number, "", 1_000, 100_000),
            },
        )
    ours, theirs = column(found["many"], "cpu_us"), column(found["few"], "cpu_us")
    ratio = paired_ratio(ours, theirs)
    yield Row(
        "router-groups",
        "processor time of a message, 1,000 pools and 100,000 groups",
        statistics.median(ours),
        "µs",
        statistics.median(theirs),
        "1 pool, 100 groups",
        ratio,
        "≤ 1.5 × of 1 pool and 100 groups",
        ratio <= 1.5,
        spread(ours),
    )


def router_latency(run: Run) -> Iterator[Row]:
    with router_target() as target:
        found = rounds(run.of(5, 3), {"latency": load("latency", target, run.of(2_000, 300))})["latency"]
    what = "what the router adds to a call, one message, idle"
    yield goal("router-latency-p50", f"{what}, p50", column(found, "p50_ms"), "ms", 2, at_most=True)
    yield goal("router-latency-p99", f"{what}, p99", column(found, "p99_ms"), "ms", 10, at_most=True)


def _neighbours(name: str, what: str, run: Run, *, kind: str, slow: int, healthy: int, limit: float) -> Iterator[Row]:
    number = run.of(2_000, 500)
    with router_target() as target, router_target(kind) as other:
        found = rounds(
            run.of(5, 3),
            {
                "quiet": load("neighbours", target, number, other.url, 0, healthy),
                "beside": load("neighbours", target, number, other.url, slow, healthy),
            },
        )
    ours, theirs = column(found["beside"], "p99_ms"), column(found["quiet"], "p99_ms")
    ratio = paired_ratio(ours, theirs)
    reached = ratio <= limit
    yield Row(
        name,
        what,
        statistics.median(ours),
        "ms",
        statistics.median(theirs),
        "without them",
        ratio,
        f"≤ {limit:g} × without",
        reached,
        spread(ours),
    )


def router_slow(run: Run) -> Iterator[Row]:
    what = "p99 of another pool's delivery beside 500 calls of 1 s"
    # As many as are worked on, and a second as many again that wait: the calls are there all the while.
    yield from _neighbours("router-slow", what, run, kind="slow", slow=run.of(6_000, 2_000), healthy=1, limit=1.5)


def router_noisy(run: Run) -> Iterator[Row]:
    what = "p99 of 50 healthy targets beside a dead one with 20,000 messages"
    yield from _neighbours("router-noisy", what, run, kind="dead", slow=20_000, healthy=50, limit=2)


def route(run: Run) -> Iterator[Row]:
    """The same on Spark, from a server in a process of its own."""
    number, rows = run.of(200_000, 100_000), 50_000
    with router_target() as target:
        found = rounds(
            run.of(3, 2),
            {"local": lambda: _durable(run, target, number), "spark": lambda: _on_spark(run, target, number, rows)},
        )
    ours, theirs = column(found["spark"], "rate"), column(found["local"], "rate")
    ratio = paired_ratio(ours, theirs)
    yield Row(
        "route",
        f"{number:,} messages in batches of {rows:,} on local[2]",
        statistics.median(ours),
        "messages/s",
        statistics.median(theirs),
        "the local router, its queue on disk",
        ratio,
        "≥ 0.7 of the local router",
        ratio >= 0.7,
        spread(ours),
    )


def _on_spark(run: Run, target: RouterTarget, number: int, rows: int) -> Figures:
    directory = run.directory("route")
    with QueueManager(data_dir=directory) as queues:
        for name, count in (("warm", 2_000), (QUEUE, number)):
            queues.create(name, ROUTER_QUEUE)
            for start in range(0, count, 5_000):
                bodies = [body(each, target.url, pools=1, groups=1000) for each in range(start, min(start + 5_000, count))]
                queues.publish_many(name, [NewMessage(one) for one in bodies])
    with ServerProcess(directory) as server:
        return in_fresh_process("benchmarks.route_load", server.url, target.url, QUEUE, number, rows, "local[2]")


BENCHMARKS: dict[str, Benchmark] = {
    "router-embedded": router_embedded,
    "router-nats": router_nats,
    "router-groups": router_groups,
    "router-latency": router_latency,
    "router-slow": router_slow,
    "router-noisy": router_noisy,
    "route": route,
}
