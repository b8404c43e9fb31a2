"""Penstock's client: a broker in its process, and a durable server in another, beside Redis Streams through redis-py.

Both servers have the disk of this run and put every message on it before they answer; clients and servers have the same cores.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Iterator

from benchmarks.load import AWAITS, BATCH, BATCHES_IN_FLIGHT, IN_FLIGHT
from benchmarks.redis_server import RedisServer, is_installed, redis_server
from benchmarks.row import Benchmark, Row, Run, in_fresh_process, missing, paired_ratio, spread
from benchmarks.server import Figures, beside_disk, column, disk, goal, rounds
from penstock.testing.server import ServerProcess

REDIS_REACH = 1.5

PUBLISHES = {
    "awaits": (f"{AWAITS} callers, each awaits its publish", 10_000),
    "inflight": (f"one message a publish, {IN_FLIGHT:,} in flight", 30_000),
    "batches": (f"explicit batches of {BATCH}, {BATCHES_IN_FLIGHT} in flight", 80_000),
}
AGAINST_REDIS = {
    "inflight": f"publish, {IN_FLIGHT:,} in flight (Redis: pipelines of XADD)",
    "batches": f"publish, batches of {BATCH} (Redis: pipelines of XADD)",
    "drain": "streaming pull and ack (Redis: XREADGROUP and XACK, batched)",
}
DRAIN = "drain"


def ours(server: ServerProcess, kind: str, number: int) -> Figures:
    return in_fresh_process("benchmarks.client_load", kind, server.url, server.process.pid, number)


def theirs(server: RedisServer, form: str, kind: str, number: int) -> Figures:
    return in_fresh_process("benchmarks.redis_load", form, kind, server.url, server.pid, number)


def embedded(run: Run) -> Iterator[Row]:
    number = run.of(200_000, 50_000)
    found = rounds(run.of(5, 3), {"ours": lambda: in_fresh_process("benchmarks.client_load", "embedded", "-", 0, number)})["ours"]
    yield goal(
        "client-embedded",
        f"embedded client, in memory: publish ({AWAITS} callers), stream, ack",
        column(found, "rate"),
        "messages/s",
        60_000,
        note=f"published in batches of {BATCH}: {statistics.median(column(found, 'batched')):,.0f} messages/s",
    )


def costs(found: list[Figures]) -> str:
    server, client = (statistics.median(column(found, name)) for name in ("server_us", "client_us"))
    return f"processor time a message: server {server:.1f} µs, client {client:.1f} µs"


def remote(run: Run) -> Iterator[Row]:
    numbers = {
        "awaits": run.of(100_000, 20_000),
        "inflight": run.of(200_000, 50_000),
        "batches": run.of(400_000, 100_000),
        DRAIN: run.of(400_000, 100_000),
    }
    redis_numbers = {kind: number // 2 for kind, number in numbers.items()}
    with ServerProcess(run.directory("server")) as server:
        variants: dict[str, Callable[[], Figures]] = {
            kind: lambda kind=kind, number=number: ours(server, kind, number)  # type: ignore[misc]  # a default cannot be typed
            for kind, number in numbers.items()
        }
        if not is_installed():
            found = rounds(run.of(5, 3), variants)
        else:
            with redis_server(run.directory("redis")) as redis:
                for kind in AGAINST_REDIS:
                    for form in ("blocking", "asyncio"):
                        variants[f"{form} {kind}"] = lambda form=form, kind=kind: theirs(  # type: ignore[misc]  # likewise
                            redis, form, kind, redis_numbers[kind]
                        )
                found = rounds(run.of(5, 3), _side_by_side(variants))
    for kind, (what, limit) in PUBLISHES.items():
        yield goal(
            "client-remote",
            f"remote client, durable: {what}",
            column(found[kind], "rate"),
            "messages/s",
            limit,
            note=costs(found[kind]),
        )
    yield goal(
        "client-remote",
        "remote client, durable: streaming pull over a backlog, every message acked",
        column(found[DRAIN], "rate"),
        "messages/s",
        50_000,
        note=costs(found[DRAIN]),
    )
    for kind, what in AGAINST_REDIS.items():
        reach = f"≥ {REDIS_REACH} × Redis Streams"
        if f"blocking {kind}" not in found:
            yield missing("client-remote", f"remote client, durable: {what}", reach, "redis-server is not installed")
            continue
        yield _against(found, kind, what, reach)


def _against(found: dict[str, list[Figures]], kind: str, what: str, reach: str) -> Row:
    best = max(("blocking", "asyncio"), key=lambda form: statistics.median(column(found[f"{form} {kind}"], "rate")))
    mine, other = column(found[kind], "rate"), column(found[f"{best} {kind}"], "rate")
    ratio = paired_ratio(mine, other)
    return Row(
        "client-remote",
        f"remote client, durable: {what}",
        statistics.median(mine),
        "messages/s",
        statistics.median(other),
        f"Redis Streams, fsync always, redis-py {best}",
        ratio,
        reach,
        ratio >= REDIS_REACH,
        spread(mine),
        f"Redis: {costs(found[f'{best} {kind}'])}",
    )


def _side_by_side(variants: dict[str, Callable[[], Figures]]) -> dict[str, Callable[[], Figures]]:
    """What is compared comes right after what it is compared with: a disturbance hits both."""
    return dict(sorted(variants.items(), key=lambda each: each[0].rpartition(" ")[2]))


def latency(run: Run) -> Iterator[Row]:
    number = run.of(10_000, 3_000)
    os.sync()  # the disk is still busy with what the rows before have left, which is not what is measured here
    with ServerProcess(run.directory("server")) as server:
        found = rounds(
            run.of(3, 2),
            {
                "latency": lambda: ours(server, "latency", number),
                "apart": lambda: ours(server, "apart", number),
                "disk": lambda: disk(run.where, number / 4_000),
            },
        )
    for kind, where in (("latency", "one process"), ("apart", "two processes")):
        figures = found[kind]
        note = (
            f"longest {max(column(figures, 'max')):.0f} ms; server {statistics.median(column(figures, 'busy')):.2f} of a core; "
            f"the publisher itself was up to {statistics.median(column(figures, 'late')):.1f} ms late (p99)"
        )
        what = f"remote client, durable, 1,000 messages/s, publish to handler, {where}"
        yield from beside_disk("client-latency", what, figures, found["disk"], {"p50": 3, "p99": 15}, note)


BENCHMARKS: dict[str, Benchmark] = {
    "client-embedded": embedded,
    "client-remote": remote,
    "client-latency": latency,
}
