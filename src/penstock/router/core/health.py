"""The health of a router: three questions, each a rule over a snapshot.

- `infrastructure`: does it work at all? If not, a restart may help.
- `readiness`: can it deliver, and what prevents it for some messages?
- `overall`: how would an operator rate it?

A router without work is healthy; so is a standby, as long as it can reach the lock.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from penstock.durations import SECOND
from penstock.router.core.circuit import State
from penstock.router.core.metrics import THIRTY_MINUTES
from penstock.router.core.outcome import Severity
from penstock.router.core.snapshot import POLL_DEADLINE, PoolState, QueueState, Snapshot
from penstock.router.core.warnings import WarningRecord

STALL: Final = 120 * SECOND
"""A pool with messages is stalled if no delivery ended for this long."""
HEALTHY_SUCCESS_RATE: Final = 0.90
"""A pool or a queue with a lower success rate is not healthy."""
WARNINGS_COUNT_FOR: Final = THIRTY_MINUTES
"""How long an unacknowledged warning affects the health."""


class Infrastructure(msgspec.Struct, frozen=True):
    """Whether the router works."""

    is_healthy: bool
    message: str
    issues: list[str] | None = None


def infrastructure(snapshot: Snapshot, now: int) -> Infrastructure:
    """Whether there are pools, and not all pools with messages are stalled. Queues that are not open are listed."""
    if not snapshot.is_enabled:
        return Infrastructure(True, "Message router is disabled")
    queues = [*_closed(snapshot, now).values()]
    if issues := _issues(snapshot, now):
        return Infrastructure(False, "Infrastructure issues detected", issues + queues)
    return Infrastructure(True, "Infrastructure is operational", queues or None)


def _issues(snapshot: Snapshot, now: int) -> list[str]:
    standby = snapshot.standby
    if standby is not None and not standby.is_redis_available:
        return ["Redis, which holds the lock of the primary, is not reached"]
    if standby is not None and standby.role == "STANDBY":
        return []
    if not snapshot.pools:
        return ["there are no process pools"]
    busy = [pool for pool in snapshot.pools if (pool.queued > pool.held or pool.active) and not pool.is_paused]
    if busy and all(_is_stalled(pool, now) for pool in busy):
        return [f"every pool with messages is stalled: nothing ended within {STALL // SECOND} s"]
    return []


def _is_stalled(pool: PoolState, now: int) -> bool:
    """Whether a pool with messages is delivering none, and has not for too long. A pool that never has is not stalled."""
    return not pool.active and 0 < pool.ended_at < now - STALL


def _closed(snapshot: Snapshot, now: int) -> dict[str, str]:
    """By name, what is wrong with queues that are not open. The causes are in the warnings, which only some callers may read."""
    late = _late(snapshot, now)
    return {
        queue.name: f"queue {queue.name}: no poll succeeded within {POLL_DEADLINE // SECOND} s"
        if queue.name in late
        else f"queue {queue.name} is not connected"
        for queue in snapshot.queues
        if queue.name in late or not queue.is_connected
    }


def _late(snapshot: Snapshot, now: int) -> set[str]:
    return {consumer.queue for consumer in snapshot.consumers if not consumer.is_polling(now)}


class Readiness(msgspec.Struct, frozen=True):
    """Whether a router can deliver."""

    is_ready: bool
    issues: list[str]
    """What prevents it from being ready, or from consuming some queues."""


def readiness(snapshot: Snapshot, now: int) -> Readiness:
    """Whether a router can deliver: at least one of its queues has to be open."""
    if not snapshot.is_enabled:
        return Readiness(True, [])
    issues = [] if snapshot.is_ready else ["the router has no configuration yet, or is stopping"]
    issues += _issues(snapshot, now)
    closed = _closed(snapshot, now)
    is_one_open = len(closed) < len(snapshot.queues) or not snapshot.queues
    return Readiness(is_one_open and not issues, [*issues, *closed.values()])


class Status(StrEnum):
    """The rating of a router."""

    HEALTHY = "HEALTHY"
    WARNING = "WARNING"
    DEGRADED = "DEGRADED"


class Overall(msgspec.Struct, frozen=True, kw_only=True):
    """A router's health in one word, with its components."""

    status: Status
    reason: str | None
    """Why it is not HEALTHY."""
    queues: int
    healthy_queues: int
    pools: int
    healthy_pools: int
    active_warnings: int
    critical_warnings: int
    open_breakers: int


def overall(snapshot: Snapshot, active: list[WarningRecord], now: int) -> Overall:
    """The rating of a router; `active` are the unacknowledged warnings of the last half hour."""
    closed = _closed(snapshot, now)
    healthy_queues = sum(queue.name not in closed and is_queue_healthy(queue, now) for queue in snapshot.queues)
    healthy_pools = sum(is_pool_healthy(pool, now) for pool in snapshot.pools)
    healthy_consumers = sum(consumer.is_healthy(now) for consumer in snapshot.consumers)
    critical = sum(warning.severity is Severity.CRITICAL for warning in active)
    open_breakers = sum(breaker.state is State.OPEN for breaker in snapshot.breakers)
    shares = [
        ("queues", healthy_queues, len(snapshot.queues)),
        ("pools", healthy_pools, len(snapshot.pools)),
        ("consumers", healthy_consumers, len(snapshot.consumers)),
    ]
    grave = [f"{critical} critical warning{'s' if critical > 1 else ''}"] if critical else []
    grave += [f"{open_breakers} circuit breaker{'s are' if open_breakers > 1 else ' is'} open"] if open_breakers else []
    grave += [f"unhealthy: all {name}" for name, healthy, count in shares if count and not healthy]
    slight = [f"unhealthy: {count - healthy} of {count} {name}" for name, healthy, count in shares if healthy < count]
    return Overall(
        status=Status.DEGRADED if grave else Status.WARNING if slight else Status.HEALTHY,
        reason="; ".join([*(grave or slight), *closed.values()]) or None,
        queues=len(snapshot.queues),
        healthy_queues=healthy_queues,
        pools=len(snapshot.pools),
        healthy_pools=healthy_pools,
        active_warnings=len(active),
        critical_warnings=critical,
        open_breakers=open_breakers,
    )


def is_queue_healthy(queue: QueueState, now: int) -> bool:
    """Whether most of its messages of the last half hour were consumed."""
    return queue.metrics.numbers(THIRTY_MINUTES, now).success_rate >= HEALTHY_SUCCESS_RATE


def is_pool_healthy(pool: PoolState, now: int) -> bool:
    """Whether most of its messages of the last half hour were delivered."""
    return pool.metrics.numbers(THIRTY_MINUTES, now).success_rate >= HEALTHY_SUCCESS_RATE
