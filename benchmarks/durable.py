"""Durable publishing and consuming, against SQLite alone: the same rows, the same commits, WAL, synchronous=FULL."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from zlib import crc32

import apsw

from benchmarks.row import Benchmark, Row, Run, alternate, paired_ratio, payloads, spread
from penstock import Message, MessageQueue, SubscriptionOptions

BATCH = 100
THREADS = 16


class BareSqlite:
    """One row a message with the columns a log needs, one `executemany` and one synced commit a batch."""

    def __init__(self, directory: Path) -> None:
        self.connection = apsw.Connection(str(directory / "bare.db"))
        self.connection.execute("PRAGMA page_size=4096")
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute("PRAGMA synchronous=FULL")
        self.connection.execute(
            "CREATE TABLE message (position INTEGER PRIMARY KEY, published_at INTEGER NOT NULL, key TEXT,"
            " priority INTEGER NOT NULL, attributes BLOB, data BLOB NOT NULL, crc INTEGER NOT NULL)"
        )
        self.next = 0

    def publish(self, batch: list[bytes]) -> None:
        now = time.time_ns() // 1000
        first = self.next
        with self.connection:
            self.connection.executemany(
                "INSERT INTO message VALUES (?, ?, ?, ?, ?, ?, ?)",
                [(first + index, now, None, 5, None, data, crc32(data)) for index, data in enumerate(batch)],
            )
        self.next = first + len(batch)

    def close(self) -> None:
        self.connection.close()


def open_broker(directory: Path) -> MessageQueue:
    queue = MessageQueue(data_dir=directory)
    queue.register_topic("t")
    queue.register_subscription("s", "t", SubscriptionOptions(ack_deadline_seconds=600))
    return queue


def publish_batches(run: Run) -> Iterator[Row]:
    for size, full, quick in ((100, 150, 60), (1000, 40, 15)):
        commits = run.of(full, quick)
        data = payloads(size)
        bare = BareSqlite(run.directory("bare"))
        with open_broker(run.directory("ours")) as queue:

            def ours(queue: MessageQueue = queue, data: list[bytes] = data, commits: int = commits) -> float:
                start = time.perf_counter()
                for _ in range(commits):
                    queue.publish("t", [Message(data=each) for each in data])
                return commits * len(data) / (time.perf_counter() - start)

            def theirs(bare: BareSqlite = bare, data: list[bytes] = data, commits: int = commits) -> float:
                start = time.perf_counter()
                for _ in range(commits):
                    bare.publish(data)
                return commits * len(data) / (time.perf_counter() - start)

            ours(), theirs()
            found = alternate(run.of(11, 7), {"ours": ours, "bare": theirs})
        bare.close()
        ratio = paired_ratio(found["ours"], found["bare"])
        yield Row(
            "durable-batch",
            f"durable publish, batches of {size:,}",
            statistics.median(found["ours"]),
            "messages/s",
            statistics.median(found["bare"]),
            "bare SQLite, same rows and commits",
            ratio,
            "≥ 0.6 of bare SQLite",
            ratio >= 0.6,
            spread(found["ours"]),
        )


def publish_from(queue: MessageQueue, threads: int, calls: int) -> float:
    """Messages a second when every thread publishes one message a call."""
    data = b"x" * 100
    gate = threading.Barrier(threads + 1)

    def work() -> None:
        gate.wait()
        for _ in range(calls):
            queue.publish("t", [Message(data=data)])

    workers = [threading.Thread(target=work) for _ in range(threads)]
    for worker in workers:
        worker.start()
    gate.wait()
    start = time.perf_counter()
    for worker in workers:
        worker.join()
    return threads * calls / (time.perf_counter() - start)


def group_commit(run: Run) -> Iterator[Row]:
    calls = run.of(400, 200)
    with open_broker(run.directory("ours")) as queue:
        publish_from(queue, 1, calls), publish_from(queue, THREADS, calls // 4)
        found = alternate(
            run.of(11, 7),
            {"many": lambda: publish_from(queue, THREADS, calls), "one": lambda: publish_from(queue, 1, calls)},
        )
    ratio = paired_ratio(found["many"], found["one"])
    yield Row(
        "durable-threads",
        f"durable publish, {THREADS} threads, one message a call",
        statistics.median(found["many"]),
        "messages/s",
        statistics.median(found["one"]),
        "one thread, same broker",
        ratio,
        "≥ 8 × one thread",
        ratio >= 8,
        spread(found["many"]),
    )


def latency(run: Run) -> Iterator[Row]:
    calls = run.of(150, 80)
    bare = BareSqlite(run.directory("bare"))
    with open_broker(run.directory("ours")) as queue:

        def ours() -> float:
            times = []
            for _ in range(calls):
                start = time.perf_counter()
                queue.publish("t", [Message(data=b"x" * 100)])
                times.append(time.perf_counter() - start)
            return statistics.median(times) * 1e6

        def theirs() -> float:
            times = []
            for _ in range(calls):
                start = time.perf_counter()
                bare.publish([b"x" * 100])
                times.append(time.perf_counter() - start)
            return statistics.median(times) * 1e6

        ours(), theirs()
        found = alternate(run.of(15, 9), {"ours": ours, "bare": theirs})
    bare.close()
    ratio = paired_ratio(found["ours"], found["bare"])
    yield Row(
        "durable-latency",
        "durable publish, one thread, one message: p50",
        statistics.median(found["ours"]),
        "µs",
        statistics.median(found["bare"]),
        "bare SQLite commit, p50",
        ratio,
        "≤ 1.5 × bare SQLite",
        ratio <= 1.5,
        spread(found["ours"]),
    )


def consume(run: Run) -> Iterator[Row]:
    count = run.of(50_000, 20_000)
    with open_broker(run.directory("ours")) as queue:

        def ours() -> float:
            batch = [Message(data=each) for each in payloads(1000)]
            for _ in range(count // 1000):
                queue.publish("t", batch)
            start = time.perf_counter()
            for _ in range(count // BATCH):
                queue.ack_many([message.ack_id for message in queue.pull("s", BATCH)])
            # What is flushed lazily is paid for too.
            queue.broker.sync()
            return count / (time.perf_counter() - start)

        ours()
        found = alternate(run.of(7, 5), {"ours": ours})
    rate = statistics.median(found["ours"])
    yield Row(
        "durable-consume",
        "durable pull + ack, batches of 100, flushed",
        rate,
        "messages/s",
        60_000,
        "the issue's figure",
        rate / 60_000,
        "≥ 60,000/s",
        rate >= 60_000,
        spread(found["ours"]),
    )


BENCHMARKS: dict[str, Benchmark] = {
    "durable-batch": publish_batches,
    "durable-threads": group_commit,
    "durable-latency": latency,
    "durable-consume": consume,
}
