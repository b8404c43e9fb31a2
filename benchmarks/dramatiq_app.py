"""A dramatiq broker with one empty actor, on the Redis of `PENSTOCK_BENCH_REDIS`; run as a module it sends so many."""

from __future__ import annotations

import os
import sys

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from benchmarks.load import DATA

dramatiq.set_broker(
    RedisBroker(url=os.environ.get("PENSTOCK_BENCH_REDIS", "redis://127.0.0.1:6379/0"))  # type: ignore[no-untyped-call]
)


@dramatiq.actor
def empty(data: str) -> None:
    """Nothing."""


def main() -> None:
    """Send so many messages."""
    data = DATA.decode()
    for _ in range(int(sys.argv[1])):
        empty.send(data)


if __name__ == "__main__":
    main()
