"""What a message, a lease and a queue cost in memory: resident bytes of a fresh process, before and after."""

from __future__ import annotations

import gc
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.row import PAYLOAD, Benchmark, Row, Run, in_fresh_process
from penstock import Message, MessageQueue, QueueManager, SubscriptionOptions

QUEUES = 20_000
BATCH = 100
PAGE = 4096


def resident() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE


def traced() -> float:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def messages(count: int, used: Callable[[], float]) -> dict[str, float]:
    queue = MessageQueue()
    queue.register_topic("t")
    queue.register_subscription(
        "s", "t", SubscriptionOptions(max_messages=10 * count, max_bytes=1 << 38, ack_deadline_seconds=600)
    )

    def fill(first: int, most: int) -> None:
        for at in range(first, first + most, BATCH):
            queue.publish("t", [Message(data=b"%0*d" % (PAYLOAD, at + index)) for index in range(BATCH)])

    def lease(most: int) -> None:
        for _ in range(0, most, BATCH):
            queue.pull("s", BATCH)

    fill(0, 10 * BATCH)
    lease(10 * BATCH)
    before = used()
    fill(10 * BATCH, count)
    queued = used()
    lease(count)
    leased = used()
    assert queue.stats("s").in_flight == count + 10 * BATCH, "everything is leased"
    queue.close()
    return {"queued": (queued - before) / count, "leased": (leased - queued) / count}


def queues(count: int, used: Callable[[], float]) -> dict[str, float]:
    with QueueManager() as manager:
        for number in range(100):
            manager.create(f"warm-{number}")
        before = used()
        for number in range(count):
            manager.create(f"queue-{number}")
        work = (used() - before) / count
        manager.publish(f"queue-{count - 1}", b"x")
        assert manager.consume(f"queue-{count - 1}") is not None, "the last of them works"
        assert manager.consume("queue-0") is None, "the first of them is empty"
    return {"work": work}


def subscriptions(count: int, used: Callable[[], float]) -> dict[str, float]:
    with MessageQueue() as queue:
        queue.register_topic("t")
        before = used()
        for number in range(count):
            queue.register_subscription(f"subscription-{number}", "t")
        return {"subscription": (used() - before) / count}


def measure(run: Run, kind: str, count: int) -> tuple[dict[str, float], dict[str, float]]:
    """By resident bytes, and by what Python says it allocated."""
    by_process = in_fresh_process("benchmarks.footprint", kind, count, "resident")
    return by_process, in_fresh_process("benchmarks.footprint", kind, run.of(count, count // 2), "traced")


def line(what: str, figure: float, traced_bytes: float, limit: int, note: str = "") -> Row:
    return Row(
        "footprint",
        what,
        figure,
        "bytes",
        limit,
        "the issue's limit",
        figure / limit,
        f"≤ {limit:,} B",
        figure <= limit,
        note=f"{traced_bytes:,.0f} by tracemalloc{note}",
    )


def footprint(run: Run) -> Iterator[Row]:
    found, traced_bytes = measure(run, "messages", run.of(300_000, 100_000))
    yield line("a queued 100-byte message, payload included", found["queued"], traced_bytes["queued"], 400)
    yield line("more for a leased one", found["leased"], traced_bytes["leased"], 200)
    found, traced_bytes = measure(run, "queues", QUEUES)
    yield line("an empty work queue", found["work"], traced_bytes["work"], 3 * 1024, f"; {QUEUES:,} in one process")
    found, traced_bytes = measure(run, "subscriptions", QUEUES)
    yield line(
        "an empty subscription", found["subscription"], traced_bytes["subscription"], 3 * 1024, f"; {QUEUES:,} in one process"
    )


def main() -> None:
    kind, count, way = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if way == "traced":
        tracemalloc.start()
    measured = {"messages": messages, "queues": queues, "subscriptions": subscriptions}[kind]
    print(json.dumps(measured(count, traced if way == "traced" else resident)))


BENCHMARKS: dict[str, Benchmark] = {"footprint": footprint}

if __name__ == "__main__":
    main()
