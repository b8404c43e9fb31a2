"""The router's numbers for Prometheus, under the names that dashboards of such routers know: `flowcatalyst_*` and `fc_*`."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Literal

from penstock.durations import SECOND
from penstock.http.monitoring.samples import Collector, Histogram, Metric, Sample
from penstock.router.core.circuit import State
from penstock.router.core.metrics import BOUNDS
from penstock.router.core.snapshot import BreakerState, PoolState, QueueState
from penstock.router.monitoring.view import RouterView

SLICE = 64
YIELD_SECONDS = 0.0005
"""After each slice of pools the collecting thread stands aside, or the event loop would wait for the interpreter."""

_SECONDS = tuple(bound / SECOND for bound in BOUNDS)


def _metric(name: str, help_: str, *labels: str) -> Metric:
    kind: Literal["counter", "gauge", "histogram"] = "counter" if name.endswith("_total") else "gauge"
    return Metric(name, "histogram" if name.endswith("_seconds") else kind, help_, labels)


def _pool(name: str, help_: str, *labels: str) -> Metric:
    return _metric(f"flowcatalyst_pool_{name}", help_, "pool", *labels)


def _queue(name: str, help_: str, *labels: str) -> Metric:
    return _metric(f"flowcatalyst_queue_{name}", help_, "queue", *labels)


_AVAILABLE = _metric("flowcatalyst_broker_available", "1 while every queue is connected, 0 while one is not.")
_POOLS = _metric("flowcatalyst_queuemanager_pools_active", "Process pools.")
_DEFAULT_POOL = _metric(
    "flowcatalyst_queuemanager_default_pool_usage_total", "Messages that went to the default pool because theirs is not there."
)
_IN_PIPELINE = _metric("fc_in_pipeline_messages", "Messages in the router.")

_SUBMITTED = _pool("messages_submitted_total", "Messages that the pool took.")
_SUCCEEDED = _pool("messages_succeeded_total", "Messages that were delivered.")
_FAILED = _pool("messages_failed_total", "Deliveries that failed.")
_LIMITED = _pool("messages_ratelimited_total", "Waits for the pool's own rate limit.")
_THROTTLED = _pool("messages_throttled_total", "Attempts that the target answered with 429.")
_TRANSIENT = _pool("messages_transient_total", "Deliveries that are tried again.")
_ERRORS = _pool("errors_total", "Attempts that did not succeed, by what they came to.", "errorType")
_DURATION = _pool("processing_duration_seconds", "How long attempts took.")
_ACTIVE = _pool("workers_active", "Deliveries that are being tried.")
_FREE = _pool("semaphore_available", "Deliveries that could be tried beside them.")
_SIZE = _pool("queue_size", "Messages that wait in the pool.")
_GROUPS = _pool("messagegroups_count", "Groups that hold messages.")

_FC_SIZE = _metric("fc_pool_queue_size", "Messages that wait in the pool.", "pool")
_FC_ACTIVE = _metric("fc_pool_active_workers", "Deliveries that are being tried.", "pool")
_FC_GROUPS = _metric("fc_pool_message_groups", "Groups that hold messages.", "pool")
_FC_PROCESSED = _metric("fc_messages_processed_total", "Messages that came to an end.", "pool", "success")
_FC_LIMITED = _metric("fc_rate_limit_exceeded_total", "Waits for the pool's own rate limit.", "pool")
_FC_DURATION = _metric("fc_mediation_duration_seconds", "How long attempts took.", "pool")

_RECEIVED = _queue("messages_received_total", "Messages that came from the queue.")
_CONSUMED = _queue("messages_consumed_total", "Messages that were acked at the queue.")
_GIVEN_BACK = _queue("messages_failed_total", "Messages released because they could not be delivered.")
_DEFERRED = _queue("messages_deferred_total", "Messages released because there was no room, or a target asked for it.")
_DEAD = _queue("messages_dead_lettered_total", "Messages that are kept as dead letters, by reason.", "reason")
_DEPTH = _queue("depth", "Messages in the queue.")
_PENDING = _queue("pending", "Messages that can be delivered.")
_NOT_VISIBLE = _queue("not_visible", "Messages that are delivered, or have to wait.")

_FC_PENDING = _metric("fc_queue_pending_messages", "Messages that can be delivered.", "queue")
_FC_NOT_VISIBLE = _metric("fc_queue_in_flight_messages", "Messages that are delivered, or have to wait.", "queue")
_FC_RECEIVED = _metric("fc_consumer_messages_received_total", "Messages that came from the queue.", "consumer")
_FC_OUTCOMES = _metric("fc_queue_messages_total", "What became of a queue's messages.", "queue", "outcome")

_FC_OPEN = _metric("fc_circuit_breaker_open", "1 while calls to the target are held back.", "target")
_FC_CALLS = _metric("fc_circuit_breaker_calls_total", "Calls to the target.", "target", "outcome")


def router_collector(view: RouterView) -> Collector:
    """The numbers of a router."""

    def collect() -> Iterator[Sample]:
        snapshot, now = view.snapshot(), view.clock.now()
        yield Sample(_AVAILABLE, (), int(all(queue.is_connected for queue in snapshot.queues)))
        yield Sample(_POOLS, (), sum(not pool.is_draining for pool in snapshot.pools))
        yield Sample(_DEFAULT_POOL, (), snapshot.default_pool_used)
        yield Sample(_IN_PIPELINE, (), snapshot.in_flight)
        pause = threading.Event()
        for position, pool in enumerate(snapshot.pools, 1):
            yield from _of_pool(pool)
            if position % SLICE == 0:
                pause.wait(YIELD_SECONDS)
        for queue in snapshot.queues:
            yield from _of_queue(queue, now)
        for breaker in snapshot.breakers:
            yield from _of_breaker(breaker)

    return collect


def _of_pool(pool: PoolState) -> Iterator[Sample]:
    metrics, label = pool.metrics, (pool.code,)
    durations = Histogram(_SECONDS, tuple(metrics.durations), metrics.time / SECOND)
    yield Sample(_SUBMITTED, label, metrics.submitted)
    yield Sample(_SUCCEEDED, label, metrics.succeeded)
    yield Sample(_FAILED, label, metrics.failed)
    yield Sample(_LIMITED, label, metrics.rate_limited)
    yield Sample(_THROTTLED, label, metrics.throttled)
    yield Sample(_TRANSIENT, label, metrics.transient)
    for kind, count in [*metrics.errors.items()]:
        yield Sample(_ERRORS, (pool.code, kind), count)
    yield Sample(_DURATION, label, durations)
    yield Sample(_ACTIVE, label, pool.active)
    yield Sample(_FREE, label, max(pool.concurrency - pool.active, 0))
    yield Sample(_SIZE, label, pool.queued)
    yield Sample(_GROUPS, label, pool.groups)
    yield Sample(_FC_SIZE, label, pool.queued)
    yield Sample(_FC_ACTIVE, label, pool.active)
    yield Sample(_FC_GROUPS, label, pool.groups)
    yield Sample(_FC_PROCESSED, (pool.code, "true"), metrics.succeeded)
    yield Sample(_FC_PROCESSED, (pool.code, "false"), metrics.failed)
    yield Sample(_FC_LIMITED, label, metrics.rate_limited)
    yield Sample(_FC_DURATION, label, durations)


def _of_queue(queue: QueueState, now: int) -> Iterator[Sample]:
    metrics, label = queue.metrics, (queue.name,)
    numbers = metrics.numbers(None, now)
    yield Sample(_RECEIVED, label, numbers.received)
    yield Sample(_CONSUMED, label, numbers.consumed)
    yield Sample(_GIVEN_BACK, label, numbers.failed)
    yield Sample(_DEFERRED, label, numbers.deferred)
    for reason, count in [*metrics.dead.items()]:
        yield Sample(_DEAD, (queue.name, reason), count)
    yield Sample(_DEPTH, label, metrics.pending + metrics.not_visible)
    yield Sample(_PENDING, label, metrics.pending)
    yield Sample(_NOT_VISIBLE, label, metrics.not_visible)
    yield Sample(_FC_PENDING, label, metrics.pending)
    yield Sample(_FC_NOT_VISIBLE, label, metrics.not_visible)
    yield Sample(_FC_RECEIVED, label, numbers.received)
    for outcome, count in (("acked", numbers.consumed), ("nacked", numbers.failed), ("deferred", numbers.deferred)):
        yield Sample(_FC_OUTCOMES, (queue.name, outcome), count)


def _of_breaker(breaker: BreakerState) -> Iterator[Sample]:
    yield Sample(_FC_OPEN, (breaker.name,), int(breaker.state is State.OPEN))
    yield Sample(_FC_CALLS, (breaker.name, "success"), breaker.succeeded)
    yield Sample(_FC_CALLS, (breaker.name, "failure"), breaker.failed)
