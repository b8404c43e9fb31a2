"""How the tasks of a job share a pool: which task gets a group, and how much of the pool's limits each task may use.

A pool is spread over `width` tasks, at most as many as its concurrency, so that each of them has a share. The shares of a number
add up to it, and those of a prefix of a sequence to that prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

import msgspec

from penstock.router.core.config import PoolConfig
from penstock.router.core.pool import RateLimit

Permits = Sequence[tuple[int, int]]


class PoolShare(msgspec.Struct, frozen=True, array_like=True):
    """The share of a pool that one task may use."""

    code: str
    concurrency: int
    rate_per_minute: int | None = None
    permits: tuple[tuple[int, int], ...] = ()
    """The permits of its rate that count as granted; see `RateLimit.export`."""


def share(total: int, width: int, place: int) -> int:
    """The share of a number that one of `width` tasks gets."""
    return total // width + (place < total % width)


def width_of(pool: PoolConfig, tasks: int) -> int:
    """How many tasks share a pool."""
    return min(tasks, pool.concurrency, pool.rate_per_minute or tasks)


def task_of(pool: str, width: int, group: str, tasks: int) -> int:
    """The task that delivers the messages of a group. Different pools start at different tasks."""
    return (crc32(pool.encode()) + crc32(group.encode()) % width) % tasks


def shares(pool: PoolConfig, permits: Permits, tasks: int) -> dict[int, PoolShare]:
    """The share of a pool for each task; `permits` are those already granted of its rate."""
    width = width_of(pool, tasks)
    rate = pool.rate_per_minute
    first = crc32(pool.code.encode())
    return {
        (first + place) % tasks: PoolShare(
            pool.code,
            share(pool.concurrency, width, place),
            None if rate is None else share(rate, width, place),
            tuple(_dealt(permits, width, place)),
        )
        for place in range(width)
    }


def limit_of(own: PoolShare, now: int) -> RateLimit | None:
    """The rate limit of a share."""
    if own.rate_per_minute is None:
        return None
    made = RateLimit(own.rate_per_minute)
    made.add(own.permits, now)
    return made


def _dealt(permits: Permits, width: int, place: int) -> Iterable[tuple[int, int]]:
    """The permits that one of `width` tasks gets if they are dealt one by one, oldest first: at most its share of the rate."""
    before = 0
    for age, count in sorted(permits, reverse=True):
        mine = share(before + count, width, place) - share(before, width, place)
        before += count
        if mine:
            yield age, mine
