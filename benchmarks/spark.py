"""Spark over the log: reading, writing, archiving, planning. Spark runs in a process of its own, the server in another.

Everything has the same cores: Spark's Java, its Python workers, the server, and whoever publishes.
"""

from __future__ import annotations

import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa

from benchmarks.load import STREAM
from benchmarks.row import Benchmark, Row, Run, alternate, in_fresh_process, missing, paired_ratio, payloads, spread
from benchmarks.server import goal
from penstock import Message, MessageQueue, NewMessage, QueueManager
from penstock.pipeline.arrow_types import arrow_schema
from penstock.pipeline.core.options import VIEWS
from penstock.pipeline.lake.table import SHAPES, Lake
from penstock.pipeline.lake.writing import with_day, write_files
from penstock.sync import PubSub, Topic
from penstock.testing.server import ServerProcess

READ_REACH, WRITE_REACH, PUBLISH_REACH = 0.9, 0.5, 0.7
DISK_COMMIT, S3_COMMIT = 50, 400
"""Milliseconds."""
FLAT = 1.25
BURIED = 100
"""How many dead letters have the same error."""
CAUSES = (
    "connect to db{}.internal:5432 timed out after 30 s",
    "KeyError: 'field_{}'",
    "deadlock detected: process {} waits",
    "https://shop.example/orders/{}: status 404",
    "https://shop.example/orders/{}: status 503",
    "[Errno 111] Connection refused: 10.0.0.1:{}",
    "mailbox {} is full",
    'template "t-{}" has no language',
    "ValueError: bad date 2026-01-01T00:00:{}",
    "order {} has no customer",
)
STREAMS = 300
SECOND = 1_000_000


def load(kind: str, *arguments: object) -> dict[str, list[float]]:
    """The figures of a Spark session in a fresh process."""
    return in_fresh_process("benchmarks.spark_load", kind, *arguments)  # type: ignore[return-value]  # lists here, one for each round


def filled(directory: Path, count: int) -> Path:
    """A data directory with a stream of so many messages."""
    batch = [Message(data=each) for each in payloads(1_000)]
    with MessageQueue(data_dir=directory) as queue:
        queue.register_topic(STREAM)
        for _ in range(count // len(batch)):
            queue.publish(STREAM, batch)
    return directory


def read(run: Run) -> Iterator[Row]:
    count = run.of(2_000_000, 300_000)
    directory = filled(run.directory("spark"), count)
    with ServerProcess(directory) as server:
        found = load("read", server.url, directory, count, run.of(5, 3))
    nothing, copy = found["nothing"], found["copy"]
    copied = (
        f"that one reaches {paired_ratio(nothing, copy):.2f} of a Parquet → Parquet copy ({statistics.median(copy):,.0f} rows/s)"
    )
    for name in ("endpoint", "path"):
        ratio = paired_ratio(found[name], nothing)
        yield Row(
            "spark-read",
            f"{count:,} messages of 100 B into Parquet through `{name}`, local[2]",
            statistics.median(found[name]),
            "rows/s",
            statistics.median(nothing),
            "a Python data source that makes the same batches from nothing",
            ratio,
            f"≥ {READ_REACH} of it",
            ratio >= READ_REACH,
            spread(found[name]),
            copied,
        )


def write(run: Run) -> Iterator[Row]:
    count = run.of(500_000, 100_000)
    directory = run.directory("spark")
    with MessageQueue(data_dir=directory) as queue:
        queue.register_topic(STREAM)
    with ServerProcess(directory) as server:
        found = load("write", server.url, count, run.of(5, 3))
    ratio = paired_ratio(found["sink"], found["own"])
    yield Row(
        "spark-write",
        f"{count:,} rows of 100 B to a topic, exactly once, durable",
        statistics.median(found["sink"]),
        "rows/s",
        statistics.median(found["own"]),
        "the broker's own durable publish, batches of 1,000",
        ratio,
        f"≥ {WRITE_REACH} of it",
        ratio >= WRITE_REACH,
        spread(found["sink"]),
    )


@contextmanager
def running(*command: object) -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-m", *map(str, command)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(60)
        if process.stdout is not None:
            process.stdout.close()


def delay(run: Run) -> Iterator[Row]:
    seconds = run.of(60, 20)
    directory, lake = run.directory("spark"), run.directory("lake")
    with ServerProcess(directory) as server, PubSub(server.url) as pubsub:
        topic = pubsub.topic(STREAM)
        topic.create()
        command = ("penstock", "pipeline", "archive", "--server", server.url, "--lake", lake, "--interval", "0s")
        with running(*command) as archive:
            flow, started = Flow(topic, lake), time.time()
            flow.go_on(lambda: flow.archived > 0, 300, archive)
            began = time.time()
            flow.go_on(lambda: time.time() > began + 10 + seconds, 300, archive)
            flow.rest = True
            flow.go_on(lambda: flow.archived >= flow.published, 60, archive)
    delays = flow.delays(since=began + 10)
    cuts = statistics.quantiles(delays, n=100)
    note = f"{len(delays) * Flow.BATCH:,} messages; the lake began {began - started:.0f} s after the command"
    yield goal("spark-delay", "publish to a row in the lake, 1,000 messages/s: p50", [cuts[49]], "s", 2, at_most=True, note=note)
    yield goal("spark-delay", "publish to a row in the lake, 1,000 messages/s: p99", [cuts[98]], "s", 5, at_most=True, note=note)


class Flow:
    """Publishes 1,000 messages a second, ten at a time, and looks between how far the lake is."""

    BATCH, LOOK = 10, 0.05

    def __init__(self, topic: Topic, lake: Path) -> None:
        self._topic, self._table = topic, Lake(lake).table("messages")
        self._messages = [Message(data=b"x" * 100) for _ in range(self.BATCH)]
        self._looked = self._due = time.time()
        self._times: list[tuple[int, float]] = []
        self._marks: list[tuple[int, float]] = []
        self.published = self.archived = 0
        self.rest = False
        """Whether nothing more is published."""

    def go_on(self, is_over: Callable[[], bool], patience: float, archive: subprocess.Popen[str]) -> None:
        until = time.time() + patience
        while not is_over():
            if archive.poll() is not None or time.time() > until:
                raise RuntimeError(f"{self.archived} of {self.published} rows are in the lake (the archive: {archive.poll()})")
            if not self.rest:
                (*_, last) = self._topic.publish_many(self._messages)
                self.published = int(last[-10:], 16) + 1  # a message id begins with its time and ends with its offset
                self._times.append((self.published, int(last[:14], 16) / SECOND))
            if time.time() - self._looked >= self.LOOK:
                self._looked = time.time()
                streams = self._table.watermark().streams
                self.archived = streams[STREAM].offset if STREAM in streams else 0
                self._marks.append((self.archived, time.time()))
            self._due += self.BATCH / 1_000
            time.sleep(max(self._due - time.time(), 0))

    def delays(self, since: float) -> list[float]:
        """How long the last message of every publish took to reach the lake, in seconds."""
        offsets = [offset for offset, _ in self._marks]
        return [self._marks[bisect_left(offsets, offset)][1] - at for offset, at in self._times if at >= since]


def planning(run: Run) -> Iterator[Row]:
    directory = run.directory("spark")
    with MessageQueue(data_dir=directory) as queue:
        for number in range(STREAMS):
            queue.register_topic(f"stream-{number}")
            queue.publish(f"stream-{number}", [Message(data=b"x" * 100) for _ in range(100)])
    with ServerProcess(directory) as server:
        found = load("plan", server.url, run.of(60, 25))
    what = f"planning of a micro-batch over {STREAMS} streams"
    note = f"the whole micro-batch took {statistics.median(found['batch']):.0f} ms"
    yield goal("spark-plan", what, found["planning"], "ms", 100, at_most=True, note=note)


@contextmanager
def stopped(leader: int) -> Iterator[None]:
    """Stop the processes of a session meanwhile: Spark's Java leads that of its workers."""

    def send(number: signal.Signals) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended meanwhile
                if os.getsid(int(process.name)) == leader:
                    os.kill(int(process.name), number)

    send(signal.SIGSTOP)
    try:
        yield
    finally:
        send(signal.SIGCONT)


def publishing(run: Run) -> Iterator[Row]:
    number = run.of(1_000_000, 100_000)
    directory = filled(run.directory("spark"), run.of(2_000_000, 300_000))
    with ServerProcess(directory) as server:

        def rate() -> float:
            return in_fresh_process("benchmarks.client_load", "batches", server.url, server.process.pid, number)["rate"]

        rate()
        found = {}
        for name, kind in ((" on all processors", "forever"), (", standing back,", "background")):
            with running("benchmarks.spark_load", kind, server.url) as spark:
                assert spark.stdout is not None
                java = int(spark.stdout.readline().removeprefix("reading in "))

                def alone(java: int = java) -> float:
                    with stopped(java):
                        return rate()

                found[name] = alternate(run.of(5, 3), {"beside": rate, "alone": alone})
    for name, figures in found.items():
        rates, without = figures["beside"], figures["alone"]
        ratio = paired_ratio(rates, without)
        yield Row(
            "spark-publish",
            f"publish throughput while Spark{name} reads at full speed",
            statistics.median(rates),
            "messages/s",
            statistics.median(without),
            "the same while Spark is stopped, in turns",
            ratio,
            f"≥ {PUBLISH_REACH} of it",
            ratio >= PUBLISH_REACH,
            spread(rates),
        )


def commits(run: Run) -> Iterator[Row]:
    """Commits of a table, each with a file of ten rows that is written before."""
    count = run.of(200, 40)
    what = f"a commit of the lake, {count} of them: median"
    yield goal("lake-commit", f"{what}, on disk", [committed(str(run.directory("lake")), count)], "ms", DISK_COMMIT, at_most=True)
    if find_spec("moto") is None or find_spec("boto3") is None:
        yield missing("lake-commit", f"{what}, on S3", f"≤ {S3_COMMIT} ms", "moto and boto3 are not installed")
        return
    with object_store() as lake:
        yield goal("lake-commit", f"{what}, on S3 (moto)", [committed(lake, count)], "ms", S3_COMMIT, at_most=True)


def committed(lake: str, count: int) -> float:
    """The median of the milliseconds that commits take."""
    table = Lake(lake).table("events")
    table.create(SHAPES["events"])
    rows = [{"offset": offset, "at": datetime.now(UTC), "kind": "acked"} for offset in range(10)]
    batch = with_day(pa.RecordBatch.from_pylist(rows, arrow_schema(VIEWS["events"])), "at")
    taken = []
    for version in range(count):
        files = list(write_files([batch], table, SHAPES["events"]))
        began = time.perf_counter()
        table.commit(files, "benchmark", version)
        taken.append((time.perf_counter() - began) * 1_000)
    return statistics.median(taken)


@contextmanager
def object_store() -> Iterator[str]:
    """A bucket of moto's server, in a process of its own, named in the environment as delta-rs looks for it."""
    import boto3  # of the tests, and perhaps not installed

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    url = f"http://127.0.0.1:{port}"
    named = {"AWS_ENDPOINT_URL": url, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_REGION": "us-east-1"}
    with running("moto.server", "-H", "127.0.0.1", "-p", port), patch.dict(os.environ, named | {"AWS_ALLOW_HTTP": "true"}):
        for _ in range(600):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        boto3.client("s3", endpoint_url=url).create_bucket(Bucket="lake")
        yield "s3://lake/benchmark"


def flat(run: Run) -> Iterator[Row]:
    counts = [100_000, 1_000_000, run.of(10_000_000, 1_000_000)]
    with ServerProcess(filled(run.directory("spark"), counts[-1])) as server:
        found = load("sizes", server.url, *dict.fromkeys(counts))
    costs = {rows: statistics.median(values) for rows, values in found.items()}
    first, last = costs[str(counts[0])], costs[str(counts[-1])]
    yield Row(
        "spark-flat",
        f"cost of a row at {counts[-1]:,} rows",
        last,
        "µs",
        first,
        f"the cost of a row at {counts[0]:,} rows",
        last / first,
        f"≤ {FLAT} of it",
        last / first <= FLAT,
        spread(found[str(counts[-1])]),
        ", ".join(f"{int(rows):,} rows: {cost:.2f} µs" for rows, cost in costs.items()),
    )


def triage(run: Run) -> Iterator[Row]:
    count = run.of(1_000_000, 100_000)
    directory = run.directory("spark")
    with QueueManager(data_dir=directory) as queues:
        queues.create("orders", dead_letter_max_size=count, max_depth=count)
        for number in range(count // BURIED):
            queues.publish_many("orders", [NewMessage({"order": number, "amount": one, "to": "ann"}) for one in range(BURIED)])
            ids = [message.message_id for message in queues.consume_many("orders", max_messages=BURIED)]
            queues.nack_many("orders", ids, requeue=False, error=CAUSES[number % len(CAUSES)].format(number))
    with ServerProcess(directory) as server:
        found = load("triage", server.url, run.of(3, 1))
    note = f"{found['groups'][0]:.0f} groups of {len(CAUSES)} causes, each with {count // BURIED // len(CAUSES):,} texts"
    yield goal("spark-triage", f"triage of {count:,} dead letters", found["seconds"], "s", 60, at_most=True, note=note)


BENCHMARKS: dict[str, Benchmark] = {
    "spark-read": read,
    "spark-write": write,
    "spark-delay": delay,
    "spark-plan": planning,
    "spark-publish": publishing,
    "spark-flat": flat,
    "spark-triage": triage,
    "lake-commit": commits,
}
