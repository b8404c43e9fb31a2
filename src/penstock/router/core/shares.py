"""How the tasks of a job share a pool: which of them gets a group, and how much of the pool's limits each may use.

A pool is spread over `width` tasks, at most as many as it may make calls, so that no task of it is without a share. The shares
of a number add up to it, and those of a prefix of a sequence to that prefix.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from zlib import crc32

import msgspec

from penstock.router.core.config import PoolConfig
from penstock.router.core.pool import RateLimit

Permits = Sequence[tuple[int, int]]


class PoolShare(msgspec.Struct, frozen=True, array_like=True):
    """What one task may use of a pool."""

    code: str
    concurrency: int
    rate_per_minute: int | None = None
    permits: tuple[tuple[int, int], ...] = ()
    """What counts as granted of its rate already; see `RateLimit.export`."""


def share(total: int, width: int, place: int) -> int:
    """The part of a number that one of `width` gets."""
    return total // width + (place < total % width)


def width_of(pool: PoolConfig, tasks: int) -> int:
    """Over how many tasks a pool is spread."""
    return min(tasks, pool.concurrency, pool.rate_per_minute or tasks)


def task_of(pool: str, width: int, group: str, tasks: int) -> int:
    """The task that delivers the messages of a group. Different pools begin with different tasks."""
    return (crc32(pool.encode()) + crc32(group.encode()) % width) % tasks


def shares(pool: PoolConfig, permits: Permits, tasks: int) -> dict[int, PoolShare]:
    """By task: its share of a pool, of whose rate these permits are granted."""
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
    """What one of `width` gets when permits are dealt one by one, oldest first: never more than its share of the rate."""
    before = 0
    for age, count in sorted(permits, reverse=True):
        mine = share(before + count, width, place) - share(before, width, place)
        before += count
        if mine:
            yield age, mine
