"""Put, get, ack against the embedded queues of Python, each in WAL with synchronous=FULL.

Two ways: one message a call, and batches of 100 through whatever the peer offers for many at once. A peer without an ack gets
its get counted as one. Ours ends every round with everything on disk.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.row import PAYLOAD, Benchmark, Row, Run, alternate, missing, paired_ratio, spread
from penstock import Message, MessageQueue

BATCH = 100
REACH = 3
DATA = b"x" * PAYLOAD
Variant = Callable[[int], float]


def timed(cycle: Callable[[], None], times: int, messages: int, finish: Callable[[], None] = lambda: None) -> float:
    start = time.perf_counter()
    for _ in range(times):
        cycle()
    finish()
    return times * messages / (time.perf_counter() - start)


class Ours:
    def __init__(self, directory: Path) -> None:
        self.queue = MessageQueue(data_dir=directory)
        self.queue.register_topic("t")
        self.queue.register_subscription("s", "t")

    def single(self) -> None:
        self.queue.publish("t", [Message(data=DATA)])
        for message in self.queue.pull("s"):
            self.queue.ack(message.ack_id)

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

        self.acked: Any = SQLiteAckQueue(str(directory / "acked"))
        self.plain: Any = SQLiteQueue(str(directory / "plain"), auto_commit=False)
        for queue in (self.acked, self.plain):
            queue._putter.execute("PRAGMA synchronous=FULL")

    def single(self) -> None:
        self.acked.put(DATA)
        self.acked.ack(self.acked.get(block=False))

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

        self.queue: Any = Queue(directory / "lite.db")
        self.queue.conn.execute("PRAGMA synchronous=FULL")
        self.text = DATA.decode()

    def single(self) -> None:
        self.queue.put(self.text)
        self.queue.done(self.queue.pop().message_id)

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
        self.queue.close()


class Huey:
    """Its storage, below tasks and their pickles. A dequeue deletes: there is no ack, and no batch."""

    def __init__(self, directory: Path) -> None:
        from huey.storage import SqliteStorage

        self.storage: Any = SqliteStorage("bench", str(directory / "huey.db"), fsync=True)

    def single(self) -> None:
        self.storage.enqueue(DATA)
        assert self.storage.dequeue() is not None, "it was just put"

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
    rounds = run.of(7, 3)
    for what, calls, size in (
        ("put + get + ack, one message a call", run.of(200, 100), 1),
        ("put + get + ack, batches of 100", run.of(4, 2), BATCH),
    ):

        def measure(contender: Contender, calls: int = calls, size: int = size) -> float:
            # A cycle of ours is far shorter than the timer's noise on a shared disk: it makes more of them.
            times = calls * 10 if size > 1 and isinstance(contender, Ours) else calls
            return timed(contender.single if size == 1 else contender.batch, times, size, contender.finish)

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
            f"durable {what}",
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
