"""A router of plain values, for what stands in front of one: it holds what a test put there, and remembers what it was told."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from penstock.durations import SECOND
from penstock.errors import NotFound, Unimplemented
from penstock.router.core.circuit import State
from penstock.router.core.config import PoolConfig
from penstock.router.core.metrics import PoolMetrics, QueueMetrics
from penstock.router.core.outcome import Metric, Severity
from penstock.router.core.snapshot import (
    BreakerState,
    ConsumerState,
    ForcedAck,
    InFlight,
    PoolState,
    QueueState,
    SentMessage,
    Snapshot,
)
from penstock.router.core.warnings import Category, Warnings
from penstock.testing import ManualClock

DEAD, GOOD = "https://dead.example:443", "https://good.example:443"


class SmallRouter:
    """Two queues, two pools, two breakers, three messages in flight and two warnings, as of a minute after its start."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.warnings = Warnings()
        self.told: list[tuple[object, ...]] = []
        started_at = self.clock.now()
        self.clock.advance(60)
        now = self.clock.now()
        high, low, orders, idle = PoolMetrics(), PoolMetrics(), QueueMetrics(started_at), QueueMetrics(started_at)
        for metric, count in ((Metric.SUCCEEDED, 8), (Metric.FAILED, 2), (Metric.TRANSIENT, 1), (Metric.THROTTLED, 1)):
            for _ in range(count):
                high.finished(metric, 20_000, now)
        high.limited(1, now)
        high.submitted = 15
        high.errored("ERROR_CONFIG")
        orders.received(15, now)
        for _ in range(9):
            orders.consumed(now)
        orders.dead_lettered("undeliverable")
        orders.failed(now)
        orders.deferred(2, now)
        orders.depth(40, 5, now)
        self.warnings.add(Category.ROUTING, Severity.WARN, "no pool X", "router", now - 2 * SECOND)
        self.warnings.add(Category.CONFIGURATION, Severity.ERROR, "status 404 of <b>/hook</b>", "mediator", now - SECOND)
        self.messages = [
            _message("m-1", now - 30 * SECOND, attempts=2, started_at=now - 5 * SECOND),
            _message("m-2", now - 20 * SECOND, attempts=1, seen_at=now - SECOND),
            _message("m-3", now - 10 * SECOND, pool="LOW"),
        ]
        self.state = Snapshot(
            is_ready=True,
            started_at=started_at,
            in_flight=3,
            default_pool_used=3,
            pools=[
                PoolState(code="HIGH", concurrency=10, active=1, queued=2, capacity=200, groups=2, metrics=high),
                PoolState(code="LOW", concurrency=2, active=0, queued=0, capacity=50, groups=0, metrics=low),
            ],
            queues=[
                QueueState(name="orders-high", metrics=orders, is_connected=True),
                QueueState(name="idle", metrics=idle, is_connected=True),
            ],
            consumers=[
                ConsumerState(queue="orders-high", instance_id="1", is_running=True, polled_at=now - 2 * SECOND),
                ConsumerState(queue="idle", instance_id="1", is_running=True, polled_at=0),
            ],
            breakers=[
                BreakerState(
                    name=GOOD, state=State.CLOSED, succeeded=9, failed=1, rejected=0, failure_rate=0.1, buffered=10, size=10
                ),
                BreakerState(
                    name=DEAD, state=State.HALF_OPEN, succeeded=0, failed=5, rejected=3, failure_rate=0.5, buffered=10, size=10
                ),
            ],
        )

    def change(self, **fields: object) -> None:
        """Be different from now on."""
        self.state = msgspec.structs.replace(self.state, **fields)

    def snapshot(self) -> Snapshot:
        return self.state

    def in_flight(self, limit: int, *, message_id: str = "", pool: str = "", is_running: bool = False) -> list[InFlight]:
        return [*self._matching(message_id.lower(), pool.lower(), is_running)][:limit]

    def _matching(self, part: str, pool: str, is_running: bool) -> Iterator[InFlight]:
        for message in self.messages:
            if (
                part in message.message_id.lower()
                and pool in {"", message.pool.lower()}
                and (message.started_at or not is_running)
            ):
                yield message

    def find(self, message_id: str) -> InFlight | None:
        return next((message for message in self.messages if message_id in {message.message_id, message.broker_id}), None)

    async def force_ack(self, message_id: str) -> ForcedAck | None:
        found = self.find(message_id)
        if found is None:
            return None
        self.messages.remove(found)
        return ForcedAck(found, "its receipt is too old" if found.message_id == "m-2" else None)

    async def update_pool(self, code: str, concurrency: int | None, rate_per_minute: int | None) -> PoolConfig:
        if code not in {pool.code for pool in self.state.pools}:
            raise NotFound(f"pool {code}")
        self.told.append(("update", code, concurrency, rate_per_minute))
        return PoolConfig(code, concurrency or 10, rate_per_minute or None)

    def pause_pool(self, code: str, *, is_paused: bool) -> bool:
        self.told.append(("pause" if is_paused else "resume", code))
        return True

    def retry_now(self, message_id: str) -> bool:
        self.told.append(("retry", message_id))
        return True

    def reset_breaker(self, name: str) -> bool:
        self.told.append(("reset", name))
        return name in {DEAD, GOOD}

    async def refresh_depths(self) -> None:
        self.told.append(("refresh",))

    async def send(self, queue: str | None, body: bytes, group: str) -> SentMessage:
        if queue == "idle":
            raise Unimplemented("queue 'idle' cannot be written to")
        self.told.append(("send", queue, msgspec.json.decode(body), group))
        return SentMessage(f"b-{len(self.told)}", queue or "orders-high")

    async def reload(self) -> bool:
        self.told.append(("reload",))
        return True


def _message(
    message_id: str, tracked_at: int, *, pool: str = "HIGH", attempts: int = 0, started_at: int = 0, seen_at: int = 0
) -> InFlight:
    return InFlight(
        message_id=message_id,
        broker_id=f"broker-{message_id}",
        queue="orders-high",
        pool=pool,
        group="customer-7",
        target="https://good.example/hook",
        tracked_at=tracked_at,
        seen_at=seen_at,
        attempts=attempts,
        started_at=started_at,
    )
