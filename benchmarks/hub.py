"""The hub: one publisher to many subscribers beside bare WebSocket servers that pass on the same bytes, latency, memory, a crowd.

Server and clients are processes of their own. A publisher has a few messages under way at a time, as one that does not wait for
each answer; the bare servers are driven in exactly the same way. Published figures for one process and 1,000 subscribers, frames
a second: picows 137,000, aiohttp 72,000, websockets 69,000, uvicorn 33,000 to 60,000.
"""

from __future__ import annotations

import importlib.util
import statistics
from collections.abc import Iterator
from functools import partial

from benchmarks.bare_server import bare_server
from benchmarks.row import Benchmark, Row, Run, in_fresh_process, paired_ratio, spread
from benchmarks.server import Figures, column, goal, rounds
from penstock.testing.server import ServerProcess

WINDOW = 16
MODULE = "benchmarks.hub_load"
ROOM = 12_000
"""Connections that a server of these benchmarks takes."""


def server() -> ServerProcess:
    """A server whose hub counts no messages: one publisher sends what thousands would."""
    return ServerProcess(hub_rate_limit=0, max_connections=ROOM)


def fan_out(run: Run) -> Iterator[Row]:
    libraries = ["aiohttp", *(["picows"] if importlib.util.find_spec("picows") is not None else [])]
    for subscribers, full, quick in ((10, 20_000, 4_000), (100, 4_000, 1_000), (1_000, 400, 100)):
        number = run.of(full, quick)
        with server() as hub:
            variants = {"hub": partial(_hub, hub, subscribers, number)}
            variants |= {library: partial(_bare, library, subscribers, number) for library in libraries}
            found = rounds(run.of(5, 3), variants)
        ours = column(found["hub"], "rate")
        for library in libraries:
            theirs = column(found[library], "rate")
            ratio = paired_ratio(ours, theirs)
            yield Row(
                f"hub-fan-out-{subscribers}-{library}",
                f"1 → {subscribers:,} subscribers, 200 B of data",
                statistics.median(ours),
                "frames/s",
                statistics.median(theirs),
                f"bare {library}",
                ratio,
                "≥ 0.7 of the bare library",
                ratio >= 0.7,
                spread(ours),
            )


def _hub(hub: ServerProcess, subscribers: int, messages: int) -> Figures:
    return in_fresh_process(MODULE, "fan-out", hub.port, hub.process.pid, subscribers, messages, WINDOW)


def _bare(kind: str, subscribers: int, messages: int) -> Figures:
    with bare_server(kind, "benchmarks.hub_bare") as (port, pid):
        return in_fresh_process(MODULE, "bare", port, pid, subscribers, messages, WINDOW)


def latency(run: Run) -> Iterator[Row]:
    with server() as hub:
        found = rounds(
            run.of(5, 3),
            {"hub": lambda: in_fresh_process(MODULE, "latency", hub.port, hub.process.pid, 1_000, 10, run.of(10, 3))},
        )["hub"]
    what = "publish → receive, 1,000 messages/s to 10 subscribers"
    yield goal("hub-latency-p50", f"{what}, median", column(found, "p50"), "ms", 2, at_most=True)
    yield goal("hub-latency-p99", f"{what}, 99 of 100", column(found, "p99"), "ms", 15, at_most=True)


def memory(run: Run) -> Iterator[Row]:
    found: list[float] = []
    for _ in range(run.of(3, 1)):
        with server() as hub:
            found.append(in_fresh_process(MODULE, "memory", hub.port, hub.process.pid, run.of(5_000, 2_000))["bytes"] / 1024)
    yield goal("hub-memory", "memory of an idle connection, registered and subscribed", found, "KiB", 30, at_most=True)


def crowd(run: Run) -> Iterator[Row]:
    connections, active, seconds = 5_000, 50, run.of(5, 2)

    def measured(number: int) -> Figures:
        with server() as hub:
            return in_fresh_process(MODULE, "crowd", hub.port, hub.process.pid, number, active, seconds)

    found = rounds(run.of(5, 3), {"crowd": lambda: measured(connections), "few": lambda: measured(active)})
    ours, theirs = column(found["crowd"], "rate"), column(found["few"], "rate")
    ratio = paired_ratio(ours, theirs)
    yield Row(
        "hub-crowd",
        "publishes of 50 connections among 5,000",
        statistics.median(ours),
        "messages/s",
        statistics.median(theirs),
        "50 connections alone",
        ratio,
        "≥ 0.8 of 50 connections",
        ratio >= 0.8,
        spread(ours),
    )


BENCHMARKS: dict[str, Benchmark] = {
    "hub-fan-out": fan_out,
    "hub-latency": latency,
    "hub-memory": memory,
    "hub-crowd": crowd,
}
