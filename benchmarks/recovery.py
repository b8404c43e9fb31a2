"""How long a start takes over a large backlog: built by a process that dies without closing, opened by a fresh one."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.row import PAYLOAD, Benchmark, Row, Run, in_fresh_process
from penstock import Message, MessageQueue, SubscriptionOptions

BATCH = 1_000
LIMIT_SECONDS = 10.0
KINDS = {
    "plain": "plain",
    "mixed": "with keys, priorities and times to live",
    "settled": "with a tenth leased and a tenth acked in between",
    "closed": "plain, closed in order",
}


def publish(queue: MessageQueue, first: int, count: int, mixed: bool) -> None:
    chance = random.Random(first)
    for at in range(first, first + count, BATCH):
        if mixed:
            batch = [
                Message(
                    data=b"%0*d" % (PAYLOAD, at + index),
                    ordering_key=f"key-{chance.randrange(100_000)}" if index % 2 else "",
                    priority=chance.randrange(10),
                    ttl=86_400 + chance.randrange(1_000) if index % 3 == 0 else None,
                )
                for index in range(BATCH)
            ]
        else:
            batch = [Message(data=b"%0*d" % (PAYLOAD, at + index)) for index in range(BATCH)]
        queue.publish("t", batch)


def build(directory: Path, kind: str, count: int) -> None:
    """Leave a backlog of `count` messages behind."""
    queue = MessageQueue(data_dir=directory)
    queue.register_topic("t")
    options = SubscriptionOptions(message_ordering=kind == "mixed", ack_deadline_seconds=600)
    queue.register_subscription("s", "t", options)
    if kind == "settled":
        tenth = count // 10
        publish(queue, 0, count // 2, False)
        for _ in range(0, 2 * tenth, 100):
            pulled = queue.pull("s", 100)
            queue.ack_many([message.ack_id for message in pulled[::2]])
        publish(queue, count // 2, count - count // 2 + tenth, False)
    else:
        publish(queue, 0, count, kind == "mixed")
    queue.broker.sync()
    if kind == "closed":
        queue.close()


def recover(directory: Path, count: int) -> dict[str, float]:
    start = time.perf_counter()
    queue = MessageQueue(data_dir=directory)
    opened = time.perf_counter() - start
    backlog = queue.stats("s").backlog
    assert backlog == count, f"a backlog of {backlog}, expected {count}"
    start = time.perf_counter()
    pulled = queue.pull("s", 100)
    assert pulled, "something can be pulled"
    first = time.perf_counter() - start
    queue.close()
    return {"opened": opened, "first": first}


def recovery(run: Run) -> Iterator[Row]:
    count = run.of(1_000_000, 200_000)
    limit = LIMIT_SECONDS * count / 1_000_000
    for kind, what in KINDS.items():
        directory = run.directory("recovery")
        if run.in_process:
            build(directory, "closed" if kind == "plain" else kind, count)
            found = recover(directory, count)
        else:
            in_fresh_process("benchmarks.recovery", "build", directory, kind, count)
            found = in_fresh_process("benchmarks.recovery", "recover", directory, kind, count)
        size = sum(path.stat().st_size for path in directory.iterdir())
        shutil.rmtree(directory)
        yield Row(
            "recovery",
            f"start over {count:,} messages, {what}",
            found["opened"],
            "s",
            limit,
            "the issue's limit" if not run.quick else "the issue's limit, scaled down",
            found["opened"] / limit,
            f"< {limit:g} s",
            found["opened"] < limit,
            note=f"first pull {found['first'] * 1000:.1f} ms, {size / 1e6:,.0f} MB on disk",
        )


def main() -> None:
    verb, directory, kind, count = sys.argv[1], Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    if verb == "recover":
        print(json.dumps(recover(directory, count)))
        return
    build(directory, kind, count)
    print(json.dumps({}), flush=True)
    # No farewell: what a start finds must be what a crash leaves.
    os._exit(0)


BENCHMARKS: dict[str, Benchmark] = {"recovery": recovery}

if __name__ == "__main__":
    main()
