"""A worker: takes jobs from a queue by priority, retries what fails, and leaves the rest as dead letters.

Run it as `python examples/worker.py [DATA_DIRECTORY]`. Without a directory it works in memory. It ends when no job came for a
second and none is waiting for its retry; a real worker would continue.
"""

import sys
from collections.abc import Callable
from typing import Any

from penstock import QueueConfig, QueueManager, RetryPolicy

QUEUE = "thumbnails"
WORKER = "worker-1"


class Flaky:
    """Makes thumbnails; the first try of a large picture fails, that of a broken one always does."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def __call__(self, job: dict[str, Any]) -> None:
        """Do one job, or raise."""
        name = job["picture"]
        if name.startswith("broken") or (name.startswith("large") and name not in self._seen):
            self._seen.add(name)
            raise OSError(f"cannot read {name}")
        print(f"done: {name}")


def work(queues: QueueManager, do: Callable[[dict[str, Any]], None]) -> None:
    """Lease, do, settle. What raises is nacked with its error; the queue decides whether it gets another try."""
    while True:
        message = queues.consume(QUEUE, WORKER, timeout=1)
        if message is None:
            stats = queues.stats(QUEUE)
            if not stats.depth and not stats.delayed:
                return
            continue
        try:
            do(message.payload)
        except OSError as error:
            result = queues.nack(QUEUE, message.message_id, consumer_id=WORKER, error=str(error))
            print(f"failed: {error}; {result.action}")
        else:
            queues.ack(QUEUE, message.message_id, WORKER)


def main() -> None:
    """Publish four jobs and work them off."""
    data_dir = sys.argv[1] if len(sys.argv) > 1 else None
    with QueueManager(data_dir=data_dir) as queues:
        if not queues.exists(QUEUE):
            retry_policy = RetryPolicy(minimum_backoff=0.1, maximum_backoff=5)
            queues.create(QUEUE, QueueConfig(ack_deadline_secs=30, max_retries=2, retry_policy=retry_policy))
        for picture, priority in [("cat.png", 5), ("large.png", 5), ("broken.png", 5), ("title.png", 9)]:
            queues.publish(QUEUE, {"picture": picture}, priority=priority)

        work(queues, Flaky())

        for letter in queues.dead_letters(QUEUE):
            picture = letter.message.payload["picture"]
            print(f"dead: {picture}: {letter.reason} after {letter.attempts} attempts, {letter.last_error}")
        print(f"acked: {queues.stats(QUEUE).acked_total}")


if __name__ == "__main__":
    main()
