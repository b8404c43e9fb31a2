"""Put, get, ack against the embedded queues of Python, each in WAL with synchronous=FULL.

Three ways: one message a call from one thread, the same from 16 threads, and batches of 100 through whatever the peer offers for
many at once. A peer without an ack gets its get counted as one. Ours ends every round with everything on disk.

One thread that waits for each message is bound by syncs: ours needs one a message, the best peer two (a put, and a get that
deletes), so that about twice as fast is the most to expect there.
"""

from __future__ import annotations

import statistics
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.row import PAYLOAD, Benchmark, Row, Run, alternate, missing, paired_ratio, spread
from penstock import Message, MessageQueue

BATCH = 100
REACH = 3
DATA = b"x" * PAYLOAD
THREADS = 16
BUSY_SECONDS = 60


def timed(cycle: Callable[[], None], messages: int, seconds: float, finish: Callable[[], None]) -> float:
    """Messages a second, over as many cycles as fit."""
    times, start = 0, time.perf_counter()
    while times == 0 or time.perf_counter() - start < seconds:
        cycle()
        times += 1
    finish()
    return times * messages / (time.perf_counter() - start)


def timed_in_threads(cycles: list[Callable[[], None]], seconds: float, finish: Callable[[], None]) -> float:
    """The same, every cycle in a thread of its own."""
    gate = threading.Barrier(len(cycles) + 1)

    def work(cycle: Callable[[], None]) -> int:
        gate.wait()
        times, start = 0, time.perf_counter()
        while times == 0 or time.perf_counter() - start < seconds:
            cycle()
            times += 1
        return times

    with ThreadPoolExecutor(len(cycles)) as pool:
        working = [pool.submit(work, cycle) for cycle in cycles]
        gate.wait()
        start = time.perf_counter()
        times = sum(each.result() for each in working)
        finish()
        return times / (time.perf_counter() - start)


class Ours:
    def __init__(self, directory: Path) -> None:
        self.queue = MessageQueue(data_dir=directory)
        self.queue.register_topic("t")
        self.queue.register_subscription("s", "t")

    def single(self) -> None:
        self.queue.publish("t", [Message(data=DATA)])
        for message in self.queue.pull("s"):
            self.queue.ack(message.ack_id)

    def singles(self, threads: int) -> list[Callable[[], None]]:
        return [self.single] * threads

    def batch(self) -> None:
        self.queue.publish("t", [Message(data=DATA) for _ in range(BATCH)])
        self.queue.ack_many([message.ack_id for message in self.queue.pull("s", BATCH)])

    def finish(self) -> None:
        self.queue.broker.sync()

    def close(self) -> None:
        self.queue.close()


class PersistQueue:
    """One a call: the queue with acks. Many: the one that deletes what was got at `task_done`; its puts commit one by one."""

    def __init__(self, directory: Path) -> None:
        from persistqueue import SQLiteAckQueue, SQLiteQueue

        self.acked: Any = SQLiteAckQueue(str(directory / "acked"), multithreading=True, timeout=BUSY_SECONDS)
        self.plain: Any = SQLiteQueue(str(directory / "plain"), auto_commit=False)
        for queue in (self.acked, self.plain):
            connection: Any = queue._putter
            connection.execute("PRAGMA synchronous=FULL")

    def single(self) -> None:
        self.acked.put(DATA)
        self.acked.ack(self.acked.get(block=False))

    def singles(self, threads: int) -> list[Callable[[], None]]:
        return [self.single] * threads

    def batch(self) -> None:
        for _ in range(BATCH):
            self.plain.put(DATA)
        for _ in range(BATCH):
            self.plain.get(block=False)
        self.plain.task_done()

    def finish(self) -> None:
        return

    def close(self) -> None:
        self.acked.close()
        self.plain.close()


class LiteQueue:
    """Puts and dones share a transaction; its pop opens its own."""

    def __init__(self, directory: Path) -> None:
        from litequeue import LiteQueue as Queue

        self.path = directory / "lite.db"
        self.queue: Any = Queue(self.path, timeout=BUSY_SECONDS)
        self.queue.conn.execute("PRAGMA synchronous=FULL")
        self.text = DATA.decode()
        self.others: list[LiteQueue] = []

    def single(self) -> None:
        self.queue.put(self.text)
        self.queue.done(self.queue.pop().message_id)

    def singles(self, threads: int) -> list[Callable[[], None]]:
        """Its connection serves one thread at a time, so each gets its own."""
        while len(self.others) < threads:
            self.others.append(LiteQueue(self.path.parent))
        return [other.single for other in self.others]

    def batch(self) -> None:
        queue = self.queue
        with queue.transaction():
            for _ in range(BATCH):
                queue.put(self.text)
        popped = [queue.pop() for _ in range(BATCH)]
        with queue.transaction():
            for message in popped:
                queue.done(message.message_id)

    def finish(self) -> None:
        return

    def close(self) -> None:
        for each in (*self.others, self):
            each.queue.close()


class Huey:
    """Its storage, below tasks and their pickles. A dequeue deletes: there is no ack, and no batch."""

    def __init__(self, directory: Path) -> None:
        from huey.storage import SqliteStorage

        self.storage: Any = SqliteStorage("bench", str(directory / "huey.db"), fsync=True, timeout=BUSY_SECONDS)

    def single(self) -> None:
        self.storage.enqueue(DATA)
        assert self.storage.dequeue() is not None, "it was just put"

    def singles(self, threads: int) -> list[Callable[[], None]]:
        return [self.single] * threads

    def batch(self) -> None:
        for _ in range(BATCH):
            self.storage.enqueue(DATA)
        for _ in range(BATCH):
            self.storage.dequeue()

    def finish(self) -> None:
        return

    def close(self) -> None:
        self.storage.close()


Contender = Ours | PersistQueue | LiteQueue | Huey
CONTENDERS: dict[str, Callable[[Path], Contender]] = {
    "ours": Ours,
    "persist-queue": PersistQueue,
    "litequeue": LiteQueue,
    "huey": Huey,
}


def peers(run: Run) -> Iterator[Row]:
    contenders: dict[str, Contender] = {}
    for name, make in CONTENDERS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                contenders[name] = make(run.directory(name))
        except ImportError as error:
            yield missing("peers", f"against {name}", f"≥ {REACH} × the best of them", f"not installed: {error}")
    rounds, seconds = run.of(7, 3), 0.25

    def single(contender: Contender) -> float:
        return timed(contender.single, 1, seconds, contender.finish)

    def threaded(contender: Contender) -> float:
        return timed_in_threads(contender.singles(THREADS), seconds, contender.finish)

    def batched(contender: Contender) -> float:
        return timed(contender.batch, BATCH, seconds, contender.finish)

    for what, measure in (
        ("one thread, one message a call", single),
        (f"{THREADS} threads, one message a call", threaded),
        (f"one thread, batches of {BATCH}", batched),
    ):
        variants = {name: partial(measure, contender) for name, contender in contenders.items()}
        for variant in variants.values():
            variant()
        found = alternate(rounds, variants)
        rates = {name: statistics.median(values) for name, values in found.items()}
        best = max((name for name in rates if name != "ours"), key=rates.__getitem__, default=None)
        if best is None:
            continue
        ratio = paired_ratio(found["ours"], found[best])
        yield Row(
            "peers",
            f"durable put + get + ack, {what}",
            rates["ours"],
            "messages/s",
            rates[best],
            f"{best}, the best",
            ratio,
            f"≥ {REACH} × the best of them",
            ratio >= REACH,
            spread(found["ours"]),
            ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items() if name != "ours"),
        )
    for contender in contenders.values():
        contender.close()


BENCHMARKS: dict[str, Benchmark] = {"peers": peers}
