"""The state of a router at one instant: plain values for health rules, the monitoring API and its metrics."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.durations import SECOND
from penstock.router.core.circuit import State
from penstock.router.core.metrics import PoolMetrics, QueueMetrics

POLL_DEADLINE = 60 * SECOND
"""A consumer without a successful poll for this long is not healthy (specification 001, "Consumer Health Check")."""

Role = Literal["PRIMARY", "STANDBY"]


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """A process pool."""

    code: str
    concurrency: int
    rate_per_minute: int | None = None
    active: int
    """Messages whose delivery is being tried."""
    queued: int
    """Messages that wait in the pool."""
    held: int = 0
    """Those of them that wait for their next attempt, or behind such a message."""
    capacity: int
    groups: int
    """Groups that have messages."""
    ended_at: int = 0
    """When an attempt last ended; 0 if none has."""
    metrics: PoolMetrics
    """The pool's own object, which continues to count."""
    is_draining: bool = False
    is_paused: bool = False
    """An operator has paused it."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that messages are consumed from."""

    name: str
    """The URI as it may be shown: without secrets."""
    metrics: QueueMetrics
    """The queue's own object, which continues to count."""
    is_connected: bool


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    """One poll loop of a queue."""

    queue: str
    instance_id: str
    is_running: bool
    polled_at: int
    """When a poll last succeeded; 0 if none has."""
    since: int = 0
    """When it was started."""
    is_connected: bool = True

    def is_healthy(self, now: int) -> bool:
        return self.is_connected and self.is_polling(now)

    def is_polling(self, now: int) -> bool:
        """Whether it runs, and polled successfully or was started within the deadline."""
        return self.is_running and ((at := max(self.polled_at, self.since)) == 0 or now - at < POLL_DEADLINE)


class BreakerState(msgspec.Struct, frozen=True, kw_only=True):
    """The circuit breaker of a target."""

    name: str
    state: State
    succeeded: int
    failed: int
    rejected: int
    failure_rate: float
    """The share of failed calls in the window, from 0 to 1."""
    buffered: int
    """Calls in its window."""
    size: int
    """The size of the window in calls."""
    paused_until: int = 0
    """The end of the pause that the target asked for; 0 if there is none."""
    open_until: int = 0
    """When an open breaker lets a call through; 0 if it is not open, or may be called now."""
    error: str = ""
    """The result of the last call that the target did not accept."""


class StandbyState(msgspec.Struct, frozen=True, kw_only=True):
    """The role of a router among several."""

    instance_id: str
    role: Role
    is_redis_available: bool
    holder: str | None
    """The holder of the lock, as far as is known."""
    refreshed_at: int
    """When Redis last confirmed this state; 0 if it never did."""


class InFlight(msgspec.Struct, frozen=True, kw_only=True):
    """A message that is in the router."""

    message_id: str
    broker_id: str
    queue: str
    pool: str
    group: str
    target: str
    tracked_at: int
    attempts: int
    """Attempts that were started."""
    started_at: int = 0
    """When the running attempt was started; 0 if none is running."""
    due: int = 0
    """When it is retried; 0 if it does not wait for that."""
    error: str = ""
    """Why the last attempt did not deliver it."""
    seen_at: int = 0
    """When its source redelivered it; 0 if it never did."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A router."""

    is_enabled: bool = True
    is_ready: bool
    """Whether it has a configuration and is not stopping."""
    started_at: int
    in_flight: int
    """Messages in the router."""
    default_pool_used: int = 0
    """Messages that went to the default pool because their own does not exist."""
    pools: list[PoolState]
    queues: list[QueueState]
    consumers: list[ConsumerState]
    breakers: list[BreakerState]
    standby: StandbyState | None = None
    """None: this router stands alone."""


class ForcedAck(msgspec.Struct, frozen=True):
    """A message that an operator removed from the router."""

    message: InFlight
    """As it was before."""
    error: str | None = None
    """Why its queue may not have been notified; None if it was."""


class SentMessage(msgspec.Struct, frozen=True):
    """A message that was put on a queue."""

    broker_id: str
    queue: str
