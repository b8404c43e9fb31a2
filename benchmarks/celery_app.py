"""A Celery application with one empty task, on the Redis of `PENSTOCK_BENCH_REDIS`; run as a module it sends so many."""

from __future__ import annotations

import os
import sys

from celery import Celery

from benchmarks.load import DATA

app = Celery("bench", broker=os.environ.get("PENSTOCK_BENCH_REDIS", "redis://127.0.0.1:6379/0"))
app.conf.update(
    task_ignore_result=True,
    task_store_errors_even_if_ignored=False,
    worker_send_task_events=False,
    worker_disable_rate_limits=True,
    worker_prefetch_multiplier=int(os.environ.get("PENSTOCK_BENCH_PREFETCH", "64")),
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task(name="empty")  # type: ignore[untyped-decorator]
def empty(data: str) -> None:
    """Nothing."""


def main() -> None:
    """Send so many tasks through one connection."""
    data = DATA.decode()
    with app.producer_pool.acquire(block=True) as producer:
        for _ in range(int(sys.argv[1])):
            empty.apply_async((data,), producer=producer)


if __name__ == "__main__":
    main()
