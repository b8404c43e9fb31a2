"""A Penstock worker with empty tasks, on the server of `PENSTOCK_SERVER`.

`send QUEUE NUMBER` sends so many tasks, `work QUEUE` works on them. A queue bears the name of its task.
"""

from __future__ import annotations

import asyncio
import os
import sys

from benchmarks.load import BATCH, DATA, IN_FLIGHT
from penstock import PubSub, QueueConfig
from penstock.worker import Worker

worker = Worker(prefetch=IN_FLIGHT, queue_config=QueueConfig(max_depth=1_000_000))


@worker.task("coroutine")
async def coroutine(data: str) -> None:
    """Nothing, on the event loop."""


@worker.task("function")
def function(data: str) -> None:
    """Nothing, in a thread."""


async def send(queue: str, number: int) -> None:
    """What `task.send` sends, many at once."""
    task, data = worker.tasks[queue], DATA.decode()
    async with PubSub(os.environ["PENSTOCK_SERVER"]) as pubsub:
        tasks = pubsub.queue(queue)
        await tasks.create(QueueConfig(max_depth=1_000_000))
        for _ in range(number // BATCH):
            await tasks.publish_many([task.message((data,), {}) for _ in range(BATCH)])


def main() -> None:
    match sys.argv[1:]:
        case ["send", queue, number]:
            asyncio.run(send(queue, int(number)))
        case ["work", queue]:
            worker.run([queue])
        case other:
            sys.exit(f"unknown: {other}")


if __name__ == "__main__":
    main()
