"""Routes for the parts of a router: pools, breakers, consumers, queues, the standby and the configuration."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from penstock.durations import SECOND, to_datetime
from penstock.errors import NotFound
from penstock.http.request import Request, json_response
from penstock.http.routes import Parameter, Route
from penstock.router.core.circuit import State
from penstock.router.core.config import MAX_CONCURRENCY, MAX_RATE
from penstock.router.core.snapshot import BreakerState, ConsumerState, Role
from penstock.router.monitoring.requests import body, changing, reading
from penstock.router.monitoring.view import RouterView


class Breaker(msgspec.Struct, rename="camel"):
    """A circuit breaker; `failureRate` is that of the buffered calls, from 0 to 1.

    The target asked for no calls until `pausedUntil`.
    """

    name: str
    state: State
    successful_calls: int
    failed_calls: int
    rejected_calls: int
    failure_rate: float
    buffered_calls: int
    buffer_size: int
    paused_until: datetime | None


class NamedState(msgspec.Struct):
    """The state of one breaker."""

    name: str
    state: State


class Reset(msgspec.Struct):
    """A breaker was closed, and its calls were forgotten."""

    status: Literal["success"]
    name: str
    reset: bool


class AllReset(msgspec.Struct):
    """How many breakers were closed, and their calls forgotten."""

    status: Literal["success"]
    reset: int


class PoolChangeRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to change. Without a concurrency, or with 0, it stays; without a rate it stays, and 0 lifts the limit."""

    concurrency: Annotated[int, Meta(ge=0, le=MAX_CONCURRENCY)] = 0
    rate_limit_per_minute: Annotated[int, Meta(ge=0, le=MAX_RATE)] | None = None


class PoolValues(msgspec.Struct):
    """The present values of a pool; without a rate it is unlimited."""

    concurrency: int
    rate_limit_per_minute: int | None


class PoolChanged(msgspec.Struct):
    """A pool was changed, until the next change of the configuration."""

    success: bool
    pool_code: str
    new_config: PoolValues


class Consumer(msgspec.Struct, rename="camel"):
    """A poll loop; -1 and "never" if there was no poll yet."""

    map_key: str
    queue_identifier: str
    consumer_queue_identifier: str
    instance_id: str
    is_healthy: bool
    last_poll_time_ms: int
    last_poll_time: str
    time_since_last_poll_ms: int
    time_since_last_poll_seconds: int
    is_running: bool


class Consumers(msgspec.Struct, rename="camel"):
    """Every poll loop."""

    current_time_ms: int
    current_time: datetime
    consumers: dict[str, Consumer]


class Standby(msgspec.Struct, rename="camel", omit_defaults=True):
    """The role of this router among several; only the first field if it stands alone."""

    standby_enabled: bool
    instance_id: str | msgspec.UnsetType = msgspec.UNSET
    role: Role | msgspec.UnsetType = msgspec.UNSET
    redis_available: bool | msgspec.UnsetType = msgspec.UNSET
    current_lock_holder: str | msgspec.UnsetType | None = msgspec.UNSET
    last_successful_refresh: datetime | msgspec.UnsetType | None = msgspec.UNSET
    has_warning: bool | msgspec.UnsetType = msgspec.UNSET


class TrafficStatus(msgspec.Struct, rename="camel"):
    """Whether the router reports to a load balancer that it is the primary. It does not: `/health/ready` shows it."""

    enabled: bool = False
    strategy_type: str = "none"
    registered: bool = False
    target_info: str | None = None
    last_operation: str | None = None
    last_error: str | None = None


class Refreshed(msgspec.Struct, rename="camel"):
    """The depths of the queues were read."""

    refreshed: bool
    age_seconds: float


class Reloaded(msgspec.Struct):
    """The configuration was fetched; whether it had changed."""

    status: Literal["success"]
    changed: bool


class PoolRoutes:
    """Routes for the parts of a router."""

    def __init__(self, view: RouterView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        breakers = "/monitoring/circuit-breakers"
        name = (Parameter("name", "The name of the breaker, which is its target, percent-encoded.", where="path"),)
        code = (Parameter("code", "The pool.", where="path"),)
        return [
            reading(breakers, self.breakers, "Circuit breakers by name", dict[str, Breaker]),
            reading(f"{breakers}/{{name}}/state", self.breaker, "The state of a breaker", NamedState, parameters=name),
            changing("POST", f"{breakers}/{{name}}/reset", self.reset, "Close a breaker", Reset, parameters=name),
            changing("POST", f"{breakers}/reset-all", self.reset_all, "Close every breaker", AllReset),
            changing(
                "PUT",
                "/monitoring/pools/{code}",
                self.change_pool,
                "Change a pool",
                PoolChanged,
                about="It lasts until the next change of the configuration.",
                parameters=code,
                body=PoolChangeRequest,
            ),
            reading("/monitoring/consumer-health", self.consumers, "Poll loops", Consumers),
            reading("/monitoring/standby-status", self.standby, "Primary or standby", Standby),
            reading("/monitoring/traffic-status", self.traffic, "Registration at a load balancer", TrafficStatus),
            changing("POST", "/monitoring/broker-stats/refresh", self.refresh, "Read the depths of the queues", Refreshed),
            changing("POST", "/config/reload", self.reload, "Fetch the configuration now", Reloaded),
        ]

    async def breakers(self, _: Request) -> web.StreamResponse:
        return json_response({breaker.name: _breaker(breaker) for breaker in self._view.snapshot().breakers})

    async def breaker(self, request: Request) -> web.StreamResponse:
        name = request.match_info["name"]
        for breaker in self._view.snapshot().breakers:
            if breaker.name == name:
                return json_response(NamedState(name, breaker.state))
        raise NotFound(f"circuit breaker {name}")

    async def reset(self, request: Request) -> web.StreamResponse:
        name = request.match_info["name"]
        if not self._view.reset_breaker(name):
            raise NotFound(f"circuit breaker {name}")
        return json_response(Reset("success", name, reset=True))

    async def reset_all(self, _: Request) -> web.StreamResponse:
        names = [breaker.name for breaker in self._view.snapshot().breakers]
        return json_response(AllReset("success", sum(self._view.reset_breaker(name) for name in names)))

    async def change_pool(self, request: Request) -> web.StreamResponse:
        code, asked = request.match_info["code"], await body(request, PoolChangeRequest)
        changed = await self._view.update_pool(code, asked.concurrency or None, asked.rate_limit_per_minute)
        return json_response(PoolChanged(True, code, PoolValues(changed.concurrency, changed.rate_per_minute)))

    async def consumers(self, _: Request) -> web.StreamResponse:
        now = self._view.clock.now()
        found = (_consumer(consumer, now) for consumer in self._view.snapshot().consumers)
        return json_response(Consumers(now // 1000, to_datetime(now), {consumer.map_key: consumer for consumer in found}))

    async def standby(self, _: Request) -> web.StreamResponse:
        """The role of this router among several."""
        found = self._view.snapshot().standby
        if found is None:
            return json_response(Standby(False))
        refreshed = to_datetime(found.refreshed_at) if found.refreshed_at else None
        is_warned = not found.is_redis_available
        return json_response(
            Standby(True, found.instance_id, found.role, found.is_redis_available, found.holder, refreshed, is_warned)
        )

    async def traffic(self, _: Request) -> web.StreamResponse:
        return json_response(TrafficStatus())

    async def refresh(self, _: Request) -> web.StreamResponse:
        await self._view.refresh_depths()
        return json_response(Refreshed(True, 0.0))

    async def reload(self, _: Request) -> web.StreamResponse:
        return json_response(Reloaded("success", await self._view.reload()))


def _breaker(found: BreakerState) -> Breaker:
    return Breaker(
        found.name,
        found.state,
        found.succeeded,
        found.failed,
        found.rejected,
        found.failure_rate,
        found.buffered,
        found.size,
        to_datetime(found.paused_until) if found.paused_until else None,
    )


def _consumer(found: ConsumerState, now: int) -> Consumer:
    age = max(now - found.polled_at, 0) if found.polled_at else -1
    return Consumer(
        f"{found.queue}#{found.instance_id}",
        found.queue,
        found.queue,
        found.instance_id,
        found.is_healthy(now),
        found.polled_at // 1000,
        to_datetime(found.polled_at).isoformat().replace("+00:00", "Z") if found.polled_at else "never",
        age // 1000,
        age // SECOND,
        found.is_running,
    )
