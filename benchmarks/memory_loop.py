"""Publish, pull, ack in memory, against the least that such a loop can do: a deque, a dict and a heap of deadlines."""

from __future__ import annotations

import heapq
import statistics
import time
from collections import deque
from collections.abc import Callable, Iterator

import msgspec

from benchmarks.row import Benchmark, Row, Run, alternate, paired_ratio, payloads, spread
from penstock import Message, MessageQueue, QueueConfig, QueueManager, SubscriptionOptions

BATCH = 100
TEN_SECONDS = 10_000_000


class Record(msgspec.Struct, gc=False):
    """A message as a consumer of specification 000 gets it."""

    id: str
    ack_id: str
    data: bytes
    attributes: dict[str, str]
    publish_at: int
    ordering_key: str
    delivery_attempt: int


class Bare:
    """The least that specification 000 asks of a queue, and nothing else: no checks, locks, policies, keys, log or events.

    A message record with a unique id, an ack id for each delivery in the specification's own form, a dict of leases by ack id,
    a heap of deadlines that expire.
    """

    def __init__(self) -> None:
        self.ready: deque[Record] = deque()
        self.leases: dict[str, Record] = {}
        self.deadlines: list[tuple[int, str]] = []
        self.next = 0

    def publish(self, batch: list[bytes]) -> list[str]:
        now = time.time_ns() // 1000
        ids = []
        for data in batch:
            self.next += 1
            record = Record(f"{now}-{self.next}", "", data, {}, now, "", 0)
            self.ready.append(record)
            ids.append(record.id)
        return ids

    def pull(self, most: int) -> list[Record]:
        now = time.time_ns() // 1000
        ready, leases, deadlines = self.ready, self.leases, self.deadlines
        while deadlines and deadlines[0][0] <= now:
            expired = leases.pop(heapq.heappop(deadlines)[1], None)
            if expired is not None:
                ready.appendleft(expired)
        deadline = now + TEN_SECONDS
        pulled: list[Record] = []
        while ready and len(pulled) < most:
            record = ready.popleft()
            record.delivery_attempt += 1
            record.ack_id = f"{record.id}-{record.delivery_attempt}"
            leases[record.ack_id] = record
            heapq.heappush(deadlines, (deadline, record.ack_id))
            pulled.append(record)
        return pulled

    def ack(self, ids: list[str]) -> list[str]:
        leases, deadlines = self.leases, self.deadlines
        unknown = [ack_id for ack_id in ids if leases.pop(ack_id, None) is None]
        while deadlines and deadlines[0][1] not in leases:
            heapq.heappop(deadlines)
        return unknown


def bare_batches(data: list[bytes]) -> float:
    queue = Bare()
    start = time.perf_counter()
    for at in range(0, len(data), BATCH):
        queue.publish(data[at : at + BATCH])
        queue.ack([record.ack_id for record in queue.pull(BATCH)])
    return len(data) / (time.perf_counter() - start)


def bare_singles(data: list[bytes]) -> float:
    queue = Bare()
    start = time.perf_counter()
    for each in data:
        queue.publish([each])
        for record in queue.pull(1):
            queue.ack([record.ack_id])
    return len(data) / (time.perf_counter() - start)


def broker() -> MessageQueue:
    queue = MessageQueue()
    queue.register_topic("t")
    queue.register_subscription("s", "t", SubscriptionOptions())
    return queue


def our_batches(data: list[bytes]) -> float:
    with broker() as queue:
        start = time.perf_counter()
        for at in range(0, len(data), BATCH):
            queue.publish("t", [Message(data=each) for each in data[at : at + BATCH]])
            queue.ack_many([message.ack_id for message in queue.pull("s", BATCH)])
        return len(data) / (time.perf_counter() - start)


def our_singles(data: list[bytes]) -> float:
    with broker() as queue:
        start = time.perf_counter()
        for each in data:
            queue.publish("t", [Message(data=each)])
            for message in queue.pull("s"):
                queue.ack(message.ack_id)
        return len(data) / (time.perf_counter() - start)


def our_work_queue(data: list[bytes]) -> float:
    with QueueManager() as queues:
        queues.create("q", QueueConfig())
        start = time.perf_counter()
        for each in data:
            queues.publish("q", each)
            message = queues.consume("q")
            assert message is not None, "it was just published"
            queues.ack("q", message.message_id)
        return len(data) / (time.perf_counter() - start)


def compare(
    run: Run, count: int, ours: Callable[[list[bytes]], float], bare: Callable[[list[bytes]], float]
) -> dict[str, list[float]]:
    data = payloads(count)
    for variant in (ours, bare):
        variant(data[: count // 10])
    return alternate(run.of(9, 5), {"ours": lambda: ours(data), "bare": lambda: bare(data)})


def batches(run: Run) -> Iterator[Row]:
    found = compare(run, run.of(100_000, 50_000), our_batches, bare_batches)
    rate, ratio = statistics.median(found["ours"]), paired_ratio(found["ours"], found["bare"])
    yield Row(
        "memory-batch",
        "in memory: publish, pull, ack, batches of 100",
        rate,
        "messages/s",
        statistics.median(found["bare"]),
        "bare deque + dict + heap",
        ratio,
        "≥ 150,000/s and ≥ 0.4 of the bare loop",
        rate >= 150_000 and ratio >= 0.4,
        spread(found["ours"]),
    )


def singles(run: Run) -> Iterator[Row]:
    for name, what, variant, floor in (
        ("memory-single", "in memory: one message a call (MessageQueue)", our_singles, 60_000),
        ("memory-single", "in memory: one message a call (QueueManager)", our_work_queue, None),
    ):
        found = compare(run, run.of(30_000, 15_000), variant, bare_singles)
        rate = statistics.median(found["ours"])
        yield Row(
            name,
            what,
            rate,
            "messages/s",
            statistics.median(found["bare"]),
            "bare deque + dict + heap",
            paired_ratio(found["ours"], found["bare"]),
            "≥ 60,000/s" if floor else "",
            rate >= floor if floor else None,
            spread(found["ours"]),
        )


BENCHMARKS: dict[str, Benchmark] = {"memory-batch": batches, "memory-single": singles}
