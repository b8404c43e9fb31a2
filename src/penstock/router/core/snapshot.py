"""What a router looks like at one instant: plain values for the rules of health, the monitoring API and its numbers."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.durations import SECOND
from penstock.router.core.circuit import State
from penstock.router.core.metrics import PoolMetrics, QueueMetrics

POLL_DEADLINE = 60 * SECOND
"""A consumer that has not polled with success for this long is not well (specification 001, "Consumer Health Check")."""

Role = Literal["PRIMARY", "STANDBY"]


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """A process pool."""

    code: str
    concurrency: int
    rate_per_minute: int | None = None
    active: int
    """Messages whose delivery is being tried."""
    queued: int
    """Messages that wait for their turn in the pool."""
    held: int = 0
    """Those of them that are kept back until they are tried again, or stand behind one that is."""
    capacity: int
    groups: int
    """Groups that hold messages."""
    ended_at: int = 0
    """When an attempt last ended; 0: none did."""
    metrics: PoolMetrics
    """The pool's own, still counting."""
    is_draining: bool = False
    is_paused: bool = False
    """An operator has stopped it."""


class QueueState(msgspec.Struct, frozen=True, kw_only=True):
    """A queue that messages are taken from."""

    name: str
    """As it may be shown: without what is secret in its URI."""
    metrics: QueueMetrics
    """The queue's own, still counting."""
    is_connected: bool


class ConsumerState(msgspec.Struct, frozen=True, kw_only=True):
    """One poll loop of a queue."""

    queue: str
    instance_id: str
    is_running: bool
    polled_at: int
    """When a poll last succeeded; 0: never."""
    since: int = 0
    """When it was started."""
    is_connected: bool = True

    def is_healthy(self, now: int) -> bool:
        return self.is_connected and self.is_polling(now)

    def is_polling(self, now: int) -> bool:
        """Whether it runs, and a poll succeeded within the deadline, or it was started within it."""
        return self.is_running and ((at := max(self.polled_at, self.since)) == 0 or now - at < POLL_DEADLINE)


class BreakerState(msgspec.Struct, frozen=True, kw_only=True):
    """The circuit breaker of a target."""

    name: str
    state: State
    succeeded: int
    failed: int
    rejected: int
    failure_rate: float
    """Of the calls in its window, from 0 to 1."""
    buffered: int
    """Calls in its window."""
    size: int
    """Calls that its window holds."""
    paused_until: int = 0
    """Until when the target asked for no calls; 0: it did not, or the time is over."""
    open_until: int = 0
    """When an open breaker lets a call through; 0: it is not open, or the time has come."""
    error: str = ""
    """What the last call came to that the target did not accept."""


class StandbyState(msgspec.Struct, frozen=True, kw_only=True):
    """Which of several routers this one is."""

    instance_id: str
    role: Role
    is_redis_available: bool
    holder: str | None
    """Who has the lock, as far as is known."""
    refreshed_at: int
    """When Redis last confirmed what is said here; 0: never."""


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
    """When the attempt that runs was started; 0 while none does."""
    due: int = 0
    """When it is tried again; 0: nothing keeps it back."""
    error: str = ""
    """Why the last attempt did not deliver it."""
    seen_at: int = 0
    """When its source handed it out once more; 0: it never did."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A router."""

    is_enabled: bool = True
    is_ready: bool
    """Whether it has a configuration and was not told to stop."""
    started_at: int
    in_flight: int
    """Messages in the router."""
    default_pool_used: int = 0
    """Messages that went to the default pool because their own is not there."""
    pools: list[PoolState]
    queues: list[QueueState]
    consumers: list[ConsumerState]
    breakers: list[BreakerState]
    standby: StandbyState | None = None
    """None: this router stands alone."""


class ForcedAck(msgspec.Struct, frozen=True):
    """A message that an operator took out of the router."""

    message: InFlight
    """As it was before."""
    error: str | None = None
    """Why its queue may not have heard of it; None: it was notified."""


class SentMessage(msgspec.Struct, frozen=True):
    """A message that was put on a queue."""

    broker_id: str
    queue: str
