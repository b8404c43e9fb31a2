"""The rules of health, each as a row: what the router looks like, and what is said of it."""

from typing import Any

import msgspec
import pytest

from penstock.durations import SECOND
from penstock.router.core.circuit import State
from penstock.router.core.health import Status, infrastructure, overall, readiness
from penstock.router.core.metrics import PoolMetrics, QueueMetrics
from penstock.router.core.outcome import Metric, Severity
from penstock.router.core.snapshot import (
    BreakerState,
    ConsumerState,
    PoolState,
    QueueState,
    Role,
    Snapshot,
    StandbyState,
)
from penstock.router.core.warnings import Category, WarningRecord, Warnings

NOW = 1_700_000_000 * SECOND


def pool(*, succeeded: int = 1, failed: int = 0, idle: int = 1, **changes: Any) -> PoolState:
    metrics = PoolMetrics()
    for metric, count in ((Metric.SUCCEEDED, succeeded), (Metric.FAILED, failed)):
        for _ in range(count):
            metrics.finished(metric, 1, NOW - idle * SECOND)
    fields = {"code": "P", "concurrency": 10, "active": 0, "queued": 0, "capacity": 200, "groups": 0, "metrics": metrics}
    if succeeded or failed:
        fields["ended_at"] = NOW - idle * SECOND
    return PoolState(**{**fields, **changes})


def queue(consumed: int = 1, failed: int = 0, *, name: str = "orders", is_connected: bool = True) -> QueueState:
    metrics = QueueMetrics(NOW - 60 * SECOND)
    for _ in range(consumed):
        metrics.consumed(NOW)
    for _ in range(failed):
        metrics.failed(NOW)
    return QueueState(name=name, metrics=metrics, is_connected=is_connected)


def consumer(age: int = 1, *, is_running: bool = True) -> ConsumerState:
    return ConsumerState(queue="orders", instance_id="1", is_running=is_running, polled_at=NOW - age * SECOND)


def never_polled(age: int) -> ConsumerState:
    return ConsumerState(queue="orders", instance_id="1", is_running=True, polled_at=0, since=NOW - age * SECOND)


def breaker(state: State) -> BreakerState:
    return BreakerState(name="t", state=state, succeeded=1, failed=1, rejected=0, failure_rate=0.5, buffered=2, size=10)


def standby(role: Role, *, is_redis_available: bool = True) -> StandbyState:
    return StandbyState(instance_id="a", role=role, is_redis_available=is_redis_available, holder="a", refreshed_at=NOW)


def router(**changes: Any) -> Snapshot:
    fields: dict[str, Any] = {
        "is_ready": True,
        "started_at": NOW - 100 * SECOND,
        "in_flight": 0,
        "pools": [pool()],
        "queues": [queue()],
        "consumers": [consumer()],
        "breakers": [breaker(State.CLOSED)],
    }
    return Snapshot(**{**fields, **changes})


@pytest.mark.parametrize(
    ("snapshot", "is_healthy"),
    [
        (router(), True),
        (router(pools=[]), False),
        (router(pools=[pool(idle=10_000)]), True),  # nothing to do is no illness
        (router(pools=[pool(idle=120, queued=5)]), True),
        (router(pools=[pool(idle=121, queued=5)]), False),
        (router(pools=[pool(idle=121, queued=5), pool(idle=500, queued=1)]), False),
        (router(pools=[pool(idle=121, queued=5), pool(idle=1, queued=1)]), True),  # not all
        (router(pools=[pool(idle=121, queued=5), pool(idle=500)]), False),  # the other has nothing to do
        (router(pools=[pool(idle=121, queued=5, active=1)]), True),  # a long call
        (router(pools=[pool(idle=121, queued=5, held=5)]), True),  # all wait for their next attempt
        (router(pools=[pool(idle=121, queued=5, is_paused=True)]), True),  # by an operator's will
        (router(pools=[pool(succeeded=0, queued=5)]), True),  # has yet to begin
        (router(pools=[], is_enabled=False), True),
        (router(pools=[], standby=standby("STANDBY")), True),
        (router(pools=[], standby=standby("PRIMARY")), False),
        (router(standby=standby("PRIMARY", is_redis_available=False)), False),
        (router(pools=[], standby=standby("STANDBY", is_redis_available=False)), False),
    ],
)
def test_the_infrastructure_is_healthy_or_says_why_not(snapshot: Snapshot, is_healthy: bool) -> None:
    found = infrastructure(snapshot, NOW)

    assert found.is_healthy is is_healthy
    assert (found.issues is None) is is_healthy
    healthy = "Infrastructure is operational" if snapshot.is_enabled else "Message router is disabled"
    assert found.message == (healthy if is_healthy else "Infrastructure issues detected")


CLOSED = queue(name="closed", is_connected=False)


def test_queues_that_are_not_open_are_listed_though_the_infrastructure_is_healthy() -> None:
    found = infrastructure(router(queues=[queue(), CLOSED]), NOW)

    assert (found.is_healthy, found.issues) == (True, ["queue closed is not connected"])


@pytest.mark.parametrize(
    ("snapshot", "problem"),
    [
        (router(), None),
        (router(is_ready=False), "no configuration yet"),
        (router(pools=[]), "no process pools"),
        (router(queues=[queue(is_connected=False)]), "orders is not connected"),
        (router(consumers=[consumer(59)]), None),
        (router(consumers=[consumer(60)]), "orders: no poll succeeded within 60 s"),
        (router(consumers=[consumer(is_running=False), consumer(is_running=False)]), "orders: no poll succeeded"),
        (router(consumers=[never_polled(59)]), None),
        (router(consumers=[never_polled(60)]), "orders: no poll succeeded within 60 s"),
        (router(is_enabled=False, is_ready=False, pools=[]), None),
        (router(pools=[], queues=[], consumers=[], standby=standby("STANDBY")), None),
        (router(standby=standby("STANDBY", is_redis_available=False)), "Redis"),
    ],
)
def test_what_keeps_a_router_from_being_ready(snapshot: Snapshot, problem: str | None) -> None:
    found = readiness(snapshot, NOW)

    assert (found.is_ready, len(found.issues)) == (problem is None, problem is not None)
    assert problem is None or problem in found.issues[0]


@pytest.mark.parametrize(
    ("queues", "is_ready", "count"),
    [([queue(), CLOSED], True, 1), ([CLOSED, queue(is_connected=False)], False, 2), ([CLOSED], False, 1), ([], True, 0)],
)
def test_a_router_is_ready_while_one_of_its_queues_is_open(queues: list[QueueState], is_ready: bool, count: int) -> None:
    found = readiness(router(queues=queues), NOW)

    assert (found.is_ready, len(found.issues)) == (is_ready, count)


def warned(severity: Severity) -> list[WarningRecord]:
    warnings = Warnings()
    warnings.add(Category.ROUTING, severity, "x", "router", NOW)
    return warnings.all(NOW)


BAD_POOL, BAD_QUEUE, BAD_CONSUMER = pool(succeeded=8, failed=1), queue(8, 1), consumer(60)
NOT_OPENED = msgspec.structs.replace(never_polled(1), is_connected=False)
OTHER = ConsumerState(queue="other", instance_id="1", is_running=True, polled_at=NOW)


@pytest.mark.parametrize(
    ("snapshot", "active", "status", "reason"),
    [
        (router(), [], Status.HEALTHY, None),
        (router(pools=[], queues=[], consumers=[], breakers=[]), [], Status.HEALTHY, None),
        (router(), warned(Severity.ERROR), Status.HEALTHY, None),
        (router(), warned(Severity.CRITICAL), Status.DEGRADED, "1 critical warning"),
        (router(breakers=[breaker(State.OPEN), breaker(State.CLOSED)]), [], Status.DEGRADED, "1 circuit breaker is open"),
        (router(breakers=[breaker(State.HALF_OPEN)]), [], Status.HEALTHY, None),
        (router(pools=[BAD_POOL]), [], Status.DEGRADED, "unhealthy: all pools"),
        (router(pools=[BAD_POOL, pool()]), [], Status.WARNING, "unhealthy: 1 of 2 pools"),
        (router(pools=[pool(succeeded=9, failed=1)]), [], Status.HEALTHY, None),  # 0.90 is well
        (router(pools=[pool(succeeded=0, failed=0)]), [], Status.HEALTHY, None),  # nothing happened
        (router(pools=[pool(succeeded=0, failed=9, idle=3_600)]), [], Status.HEALTHY, None),  # long ago
        (router(queues=[BAD_QUEUE]), [], Status.DEGRADED, "unhealthy: all queues"),
        (router(queues=[BAD_QUEUE, queue()]), [], Status.WARNING, "unhealthy: 1 of 2 queues"),
        (
            router(consumers=[BAD_CONSUMER]),
            [],
            Status.DEGRADED,
            "unhealthy: all queues; unhealthy: all consumers; queue orders: no poll succeeded within 60 s",
        ),
        (
            router(queues=[queue(), queue(name="other")], consumers=[BAD_CONSUMER, OTHER]),
            [],
            Status.WARNING,
            "unhealthy: 1 of 2 queues; unhealthy: 1 of 2 consumers; queue orders: no poll succeeded within 60 s",
        ),
        (
            router(queues=[queue(), CLOSED]),  # it has no consumer: it could not be opened
            [],
            Status.WARNING,
            "unhealthy: 1 of 2 queues; queue closed is not connected",
        ),
        (
            router(queues=[queue(is_connected=False)], consumers=[NOT_OPENED]),  # as readiness, and not after a minute
            [],
            Status.DEGRADED,
            "unhealthy: all queues; unhealthy: all consumers; queue orders is not connected",
        ),
        (
            router(queues=[queue(), CLOSED], consumers=[consumer(), msgspec.structs.replace(NOT_OPENED, queue="closed")]),
            [],
            Status.WARNING,
            "unhealthy: 1 of 2 queues; unhealthy: 1 of 2 consumers; queue closed is not connected",
        ),
        (
            router(pools=[BAD_POOL], queues=[BAD_QUEUE, queue()]),
            warned(Severity.CRITICAL),
            Status.DEGRADED,
            "1 critical warning; unhealthy: all pools",
        ),
    ],
)
def test_what_an_operator_would_say(snapshot: Snapshot, active: list[WarningRecord], status: Status, reason: str | None) -> None:
    found = overall(snapshot, active, NOW)

    assert (found.status, found.reason) == (status, reason)
    assert (found.queues, found.pools, found.active_warnings) == (len(snapshot.queues), len(snapshot.pools), len(active))
    assert found.healthy_pools == sum(each is not BAD_POOL for each in snapshot.pools)
