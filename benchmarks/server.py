"""The server as a user runs it: `penstock serve` in a process of its own, its clients in others, real sockets between them.

Rates include the client, which has the same cores; the server's processor time for each message does not. Where the library
that an API stands on is the limit, a server that only answers is measured beside it, with the same client.
"""

from __future__ import annotations

import os
import re
import shutil
import statistics
import struct
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from benchmarks import grpc_load
from benchmarks.bare_server import bare_server
from benchmarks.process import cpu_seconds, resident
from benchmarks.row import Benchmark, Row, Run, alternate, in_fresh_process, missing, paired_ratio, spread
from penstock.testing.server import ServerProcess

Figures = dict[str, float]

MEGABYTE = 1_000_000


def rounds(count: int, variants: Mapping[str, Callable[[], Figures]]) -> dict[str, list[Figures]]:
    """The figures of every round, by variant; variants take turns."""
    found: dict[str, list[Figures]] = {name: [] for name in variants}

    def measure(name: str) -> float:
        found[name].append(variants[name]())
        return 0.0

    alternate(count, {name: lambda name=name: measure(name) for name in variants})  # type: ignore[misc]  # a default cannot be typed
    return found


def column(figures: list[Figures], name: str) -> list[float]:
    return [each[name] for each in figures]


def goal(name: str, what: str, values: list[float], unit: str, limit: float, *, at_most: bool = False, note: str = "") -> Row:
    """A row whose goal is the issue's figure."""
    figure = statistics.median(values)
    sign = "≤" if at_most else "≥"
    reached = figure <= limit if at_most else figure >= limit
    asked = f"{sign} {limit:,g} {unit}"
    return Row(name, what, figure, unit, limit, "the issue's figure", figure / limit, asked, reached, spread(values), note)


def metric(server: ServerProcess, name: str) -> int:
    """One figure of the load's topic or subscription, as the server itself reports it."""
    with urllib.request.urlopen(f"{server.url}/metrics") as answer:
        text = answer.read().decode()
    found = re.search(rf'^penstock_{name}{{[^}}]*="load"[^}}]*}} (\d+)', text, re.MULTILINE)
    assert found is not None, f"the server reports {name}"
    return int(found[1])


def grpc_client(server: ServerProcess, kind: str, number: int) -> Figures:
    """Run a load of `grpc_load`; what it says it sent and took is compared with what the server counted."""
    found = in_fresh_process("benchmarks.grpc_load", kind, server.grpc, server.process.pid, number)
    if kind in ("through", "drain", "latency"):
        counts = [metric(server, f"{each}_total") for each in ("topic_published", "subscription_delivered", "subscription_acked")]
        if counts != [number] * 3:
            raise RuntimeError(f"the server counted {counts} messages published, delivered and acked, expected {number} of each")
    return found


def through(run: Run) -> Iterator[Row]:
    number = run.of(200_000, 50_000)
    with ServerProcess() as memory, ServerProcess(run.directory("server")) as durable:
        found = rounds(
            run.of(5, 3),
            {
                "in memory": lambda: grpc_client(memory, "through", number),
                "durable": lambda: grpc_client(durable, "through", number),
            },
        )
    for where, limit in (("in memory", 45_000), ("durable", 30_000)):
        yield goal(
            "server-through",
            f"gRPC, batches of 100, 8 in flight, publish and streaming pull at once, {where}",
            column(found[where], "rate"),
            "messages/s",
            limit,
            note=f"processor time a message: server {statistics.median(column(found[where], 'server_us')):.1f} µs, "
            f"client {statistics.median(column(found[where], 'client_us')):.1f} µs",
        )
    yield goal(
        "server-through",
        "the same, in memory: the server's processor time",
        column(found["in memory"], "server_us"),
        "µs a message",
        20,
        at_most=True,
    )


def drain(run: Run) -> Iterator[Row]:
    number = run.of(300_000, 100_000)
    with ServerProcess() as server:
        found = rounds(run.of(5, 3), {"ours": lambda: grpc_client(server, "drain", number)})
    yield goal(
        "server-stream",
        "gRPC, one StreamingPull stream over a backlog, with acks",
        column(found["ours"], "rate"),
        "messages/s",
        30_000,
        note=f"server {statistics.median(column(found['ours'], 'server_us')):.1f} µs a message",
    )


def single(run: Run) -> Iterator[Row]:
    number = run.of(10_000, 3_000)
    what = f"gRPC, one message a publish, {grpc_load.SINGLE_IN_FLIGHT} in flight, in memory"
    with ServerProcess() as server, bare_server("grpc") as (port, pid):
        address = f"127.0.0.1:{port}"
        variants: dict[str, Callable[[], Figures]] = {
            "ours": lambda: grpc_client(server, "single", number),
            "bare": lambda: in_fresh_process("benchmarks.grpc_load", "bare", address, pid, number),
        }
        if shutil.which("h2load"):
            body = run.where / "publish.bin"
            request = grpc_load.publish_request(1)
            body.write_bytes(b"\0" + struct.pack(">I", len(request)) + request)
            grpc_client(server, "single", 100)  # it makes the topic
            variants["ours, C"] = lambda: h2load(server.grpc_port, server.process.pid, body, number, server)
            variants["bare, C"] = lambda: h2load(port, pid, body, number)
        found = rounds(run.of(5, 3), variants)
    for client, suffix in (("a Python client (grpc.aio)", ""), ("a C client (h2load)", ", C")):
        if f"ours{suffix}" not in found:
            yield missing("server-unary", f"{what}, {client}", "≥ 2,500/s", "h2load is not installed")
            continue
        ours, bare = column(found[f"ours{suffix}"], "rate"), column(found[f"bare{suffix}"], "rate")
        rate = statistics.median(ours)
        yield Row(
            "server-unary",
            f"{what}, {client}",
            rate,
            "messages/s",
            statistics.median(bare),
            "grpc.aio with a constant answer",
            paired_ratio(ours, bare),
            "≥ 2,500/s",
            rate >= 2_500,
            spread(ours),
            f"server {statistics.median(column(found[f'ours{suffix}'], 'server_us')):.0f} µs a call, "
            f"bare {statistics.median(column(found[f'bare{suffix}'], 'server_us')):.0f} µs",
        )


def h2load(port: int, pid: int, body: Path, number: int, server: ServerProcess | None = None) -> Figures:
    """The same publishes from nghttp2's load generator. It counts answers; that they are good the server's count shows."""
    before = metric(server, "topic_published_total") if server is not None else 0
    cpu = cpu_seconds(pid)
    done = subprocess.run(
        [
            *("h2load", f"http://127.0.0.1:{port}{grpc_load.PUBLISH}", "-d", str(body)),
            *("-H", "content-type: application/grpc", "-H", "te: trailers"),
            *("-c", "1", "-m", str(grpc_load.SINGLE_IN_FLIGHT), "-n", str(number)),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    found = re.search(r"([\d.]+) req/s", done.stdout)
    assert found is not None, done.stdout
    if server is not None and (after := metric(server, "topic_published_total")) != before + number:
        raise RuntimeError(f"{after - before} messages were published, expected {number}")
    return {"rate": float(found[1]), "server_us": (cpu_seconds(pid) - cpu) / number * 1e6}


def google(run: Run) -> Iterator[Row]:
    number = run.of(20_000, 5_000)
    with ServerProcess() as server:
        found = rounds(
            run.of(5, 3),
            {"ours": lambda: in_fresh_process("benchmarks.google_load", server.grpc, server.process.pid, number)},
        )["ours"]
    server_us, client_us = column(found, "server_us"), column(found, "client_us")
    ratio = paired_ratio(server_us, client_us)
    yield Row(
        "server-google",
        "google-cloud-pubsub, publisher and subscriber with their defaults: the server's processor time",
        statistics.median(server_us),
        "µs a message",
        statistics.median(client_us),
        "the client's",
        ratio,
        "≤ 0.6 of the client's",
        ratio <= 0.6,
        spread(server_us),
        f"{statistics.median(column(found, 'rate')):,.0f} messages/s",
    )


def http(run: Run) -> Iterator[Row]:
    number, many = run.of(10_000, 4_000), run.of(200_000, 50_000)
    with ServerProcess() as server, bare_server("http") as (port, pid):
        url, own = server.url, server.process.pid
        found = rounds(
            run.of(5, 3),
            {
                "single": lambda: in_fresh_process("benchmarks.http_load", "single", url, own, number),
                "batch": lambda: in_fresh_process("benchmarks.http_load", "batch", url, own, many),
                "bare": lambda: in_fresh_process("benchmarks.http_load", "bare", f"http://127.0.0.1:{port}", pid, number),
            },
        )
    bare = column(found["bare"], "publish")
    # To take a message is two commands.
    for what, name, commands in (("queue.publish", "publish", 1), ("queue.consume, queue.ack in turns", "take", 2)):
        ours = [each * commands for each in column(found["single"], name)]
        rate = statistics.median(ours)
        yield Row(
            "server-http",
            f"HTTP commands, one message each, 32 connections: {what}",
            rate,
            "commands/s",
            statistics.median(bare),
            "aiohttp with a constant answer",
            paired_ratio(ours, bare),
            "≥ 4,000/s",
            rate >= 4_000,
            spread(ours),
            f"server {statistics.median(column(found['single'], f'{name}_us')) / commands:.0f} µs a command, "
            f"bare {statistics.median(column(found['bare'], 'publish_us')):.0f} µs",
        )
    for what, name in (("queue.publish_batch", "publish"), ("queue.consume_batch and queue.ack_batch", "take")):
        yield goal(
            "server-http",
            f"HTTP, batch commands of 100, 32 connections: {what}",
            column(found["batch"], name),
            "messages/s",
            40_000,
            note=f"server {statistics.median(column(found['batch'], f'{name}_us')):.1f} µs a message, "
            f"client {statistics.median(column(found['batch'], f'{name}_client_us')):.1f} µs",
        )


def latency(run: Run) -> Iterator[Row]:
    seconds = run.of(10, 3)
    with ServerProcess(run.directory("server")) as server:
        found = rounds(
            run.of(3, 2),
            {
                "ours": lambda: grpc_client(server, "latency", seconds * 1_000),
                "disk": lambda: disk(run.where, seconds / 3),
            },
        )
    ours = found["ours"]
    note = (
        f"longest {max(column(ours, 'max')):.0f} ms; server {statistics.median(column(ours, 'busy')):.2f} of a core; "
        f"the client itself was up to {statistics.median(column(ours, 'late')):.1f} ms late (p99)"
    )
    what = "gRPC, durable, 1,000 messages/s one by one, publish to delivery"
    yield from beside_disk("server-latency", what, ours, found["disk"], {"p50": 5, "p99": 25}, note)


def beside_disk(
    name: str, what: str, ours: list[Figures], bare: list[Figures], limits: Mapping[str, float], note: str
) -> Iterator[Row]:
    """A row for each percentile of a latency, with the disk's own beside it."""
    for percentile, limit in limits.items():
        values, others = column(ours, percentile), column(bare, percentile)
        figure = statistics.median(values)
        yield Row(
            name,
            f"{what}: {percentile}",
            figure,
            "ms",
            statistics.median(others),
            f"a bare sync of the disk, {percentile}",
            paired_ratio(values, others),
            f"< {limit} ms",
            figure < limit,
            spread(values),
            note,
        )


def disk(where: Path, seconds: float) -> Figures:
    """How long the disk takes for a sync now and then: a durable publish cannot be faster."""
    times: list[float] = []
    until = time.perf_counter() + seconds
    with tempfile.TemporaryFile(dir=where) as file:
        while (start := time.perf_counter()) < until:
            os.write(file.fileno(), b"x" * 4096)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - start) * 1e3)
            time.sleep(0.004)
    cuts = statistics.quantiles(times, n=100)
    return {"p50": cuts[49], "p99": cuts[98]}


def start(run: Run) -> Iterator[Row]:
    empty = [_started(run.directory("empty")) for _ in range(run.of(5, 3))]
    yield goal("server-start", "start to ready, nothing stored", column(empty, "seconds"), "s", 1, at_most=True)
    yield goal("server-start", "resident memory after the start", column(empty, "megabytes"), "MB", 80, at_most=True)
    count = run.of(1_000_000, 200_000)
    directory = run.directory("backlog")
    in_fresh_process("benchmarks.recovery", "build", directory, "plain", count)
    full = [_started(directory) for _ in range(run.of(3, 2))]
    yield goal(
        "server-start",
        f"start to ready, {count:,} messages stored by a server that was killed",
        column(full, "seconds"),
        "s",
        10 * count / 1_000_000,
        at_most=True,
        note=f"{statistics.median(column(full, 'megabytes')):.0f} MB resident",
    )


def _started(directory: Path) -> Figures:
    """Start a server, wait until it says over HTTP that it is ready, and kill it."""
    began = time.perf_counter()
    server = ServerProcess(directory).start()
    try:
        with urllib.request.urlopen(f"{server.url}/health/ready") as answer:
            answer.read()
        return {"seconds": time.perf_counter() - began, "megabytes": resident(server.process.pid) / MEGABYTE}
    finally:
        server.kill()


BENCHMARKS: dict[str, Benchmark] = {
    "server-through": through,
    "server-stream": drain,
    "server-unary": single,
    "server-google": google,
    "server-http": http,
    "server-latency": latency,
    "server-start": start,
}
