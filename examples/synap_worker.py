"""A worker with synap-sdk against a Penstock server: jobs by priority, retries, and what became of them.

    penstock serve
    python examples/synap_worker.py [URL]

Needs `pip install synap-sdk`. Run several of them at once: each job goes to one. It ends when the queue is empty; a real worker
would wait and look again.
"""

import asyncio
import sys

from synap_sdk import SynapClient, SynapConfig
from synap_sdk.types import QueueMessage

QUEUE = "thumbnails"


def make_thumbnail(job: QueueMessage) -> None:
    """Fails for a large picture the first time, and for a broken one always."""
    name = job.payload["picture"]
    if name.startswith("broken") or (name.startswith("large") and not job.retries):
        raise OSError(f"cannot read {name}")


async def work(client: SynapClient, worker: str) -> None:
    """Lease, do, settle. What fails is nacked; after `max_retries` the server keeps it as a dead letter."""
    while job := await client.queue.consume(QUEUE, worker):
        try:
            make_thumbnail(job)
        except OSError as error:
            await client.queue.nack(QUEUE, job.id)
            print(f"failed: {error}")
        else:
            await client.queue.ack(QUEUE, job.id)
            print(f"done: {job.payload['picture']}")


async def main() -> None:
    """Publish four jobs and work them off."""
    url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8085"
    async with SynapClient(SynapConfig(url)) as client:
        await client.queue.create_queue(QUEUE)
        for picture, priority in [("cat.png", 5), ("large.png", 5), ("broken.png", 5), ("title.png", 9)]:
            await client.queue.publish(QUEUE, {"picture": picture}, priority=priority, max_retries=1)

        await work(client, "worker-1")

        stats = await client.queue.stats(QUEUE)
        print(f"acked: {stats['acked_total']}, dead letters: {stats['dead_letters']}")


if __name__ == "__main__":
    asyncio.run(main())
