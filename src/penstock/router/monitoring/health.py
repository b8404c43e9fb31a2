"""Health for load balancers and operators: `/health*` and `/monitoring/health`.

A server and its router share `/health`, `/health/live`, `/health/ready` and `/metrics`:

- A server with a router in it (`penstock serve --router`) keeps them: its status, and which callers are allowed, do not change,
  and the router's fields are added. A router that waits for its queue must not take the broker's publishers out of a load
  balancer; to check the router, use `/health/startup` or `/monitoring/health`.
- A server that runs only for its router (`penstock router run`) leaves them to the router, and adds its own problems to the
  router's. Its `/metrics` need no token, and have nothing that belongs to a project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal

import msgspec
from aiohttp import web

from penstock.durations import to_datetime
from penstock.http.monitoring.routes import Health, Readiness
from penstock.http.request import Request, json_response
from penstock.http.routes import Operation, Reply, Route
from penstock.router.core.health import WARNINGS_COUNT_FOR, Status, infrastructure, overall, readiness
from penstock.router.monitoring.requests import ROUTER_ERRORS, TAGS, Handler
from penstock.router.monitoring.view import RouterView


class InfrastructureHealth(msgspec.Struct):
    """Whether the router works."""

    healthy: bool
    message: str
    issues: list[str] | None


class Probe(msgspec.Struct):
    """An answer to a load balancer."""

    status: Literal["ALIVE", "READY", "NOT_READY"]
    timestamp: datetime
    issues: list[str]


class Details(msgspec.Struct, rename="camel"):
    """What the health is made of."""

    total_queues: int
    healthy_queues: int
    total_pools: int
    healthy_pools: int
    active_warnings: int
    critical_warnings: int
    circuit_breakers_open: int
    degradation_reason: str | None


class MonitoringHealth(msgspec.Struct, rename="camel"):
    """The health in one word."""

    status: Status
    timestamp: datetime
    uptime_millis: int
    details: Details


class HealthRoutes:
    """Routes for the health of a router."""

    def __init__(self, view: RouterView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        ready = {200: Reply("It is ready.", Probe), 503: Reply("It is not ready; the answer has the reasons.", Probe)}
        healthy = {200: Reply("It works.", InfrastructureHealth), 503: Reply("It does not work.", InfrastructureHealth)}
        return [
            _open("/health", self.health, "Does the router work", healthy),
            _open("/health/live", self.live, "Is it alive", {200: Reply("It is alive.", Probe)}),
            _open("/health/ready", self.ready, "Is the router ready", ready),
            _open("/health/startup", self.ready, "Has the router started", ready),
            _open("/monitoring/health", self.overall, "The health of the router", {200: Reply("As of now.", MonitoringHealth)}),
        ]

    def infrastructure(self) -> InfrastructureHealth:
        found = infrastructure(self._view.snapshot(), self._view.clock.now())
        return InfrastructureHealth(found.is_healthy, found.message, found.issues)

    def readiness(self) -> Probe:
        """Whether the router is ready, and its problems."""
        now = self._view.clock.now()
        found = readiness(self._view.snapshot(), now)
        return Probe("READY" if found.is_ready else "NOT_READY", to_datetime(now), found.issues)

    async def health(self, _: Request) -> web.StreamResponse:
        found = self.infrastructure()
        return json_response(found, 200 if found.healthy else 503)

    async def live(self, _: Request) -> web.StreamResponse:
        return json_response(Probe("ALIVE", to_datetime(self._view.clock.now()), []))

    async def ready(self, _: Request) -> web.StreamResponse:
        found = self.readiness()
        return json_response(found, 200 if found.status == "READY" else 503)

    async def overall(self, _: Request) -> web.StreamResponse:
        now = self._view.clock.now()
        snapshot = self._view.snapshot()
        found = overall(snapshot, self._view.warnings.active(WARNINGS_COUNT_FOR, now), now)
        details = Details(
            found.queues,
            found.healthy_queues,
            found.pools,
            found.healthy_pools,
            found.active_warnings,
            found.critical_warnings,
            found.open_breakers,
            found.reason,
        )
        uptime = max(now - snapshot.started_at, 0) // 1000
        return json_response(MonitoringHealth(found.status, to_datetime(now), uptime, details))


def _open(path: str, handler: Handler, summary: str, replies: dict[int, Reply]) -> Route:
    return Route("GET", path, handler, Operation(summary, "", TAGS, replies=replies), ROUTER_ERRORS, is_open=True)


class JoinedHealth(Health):
    """The name of the service, its health, and whether its router works."""

    healthy: bool
    message: str
    issues: list[str] | None


class JoinedReadiness(Readiness):
    """Whether to send requests here, and what keeps its router from being ready, which does not affect the status."""

    timestamp: datetime
    issues: list[str]


def joined(server: Iterable[Route], probes: HealthRoutes) -> Iterator[Route]:
    """The routes of a server with a router."""
    for route in server:
        match route.method, route.path:
            case "GET", "/health":
                yield _with_fields(route, probes.infrastructure, JoinedHealth)
            case "GET", "/health/ready":
                yield _with_fields(route, probes.readiness, JoinedReadiness)
            case _:
                yield route


def led(server: Iterable[Route], probes: HealthRoutes) -> Iterator[Route]:
    """The routes of a server that runs only for its router, without those that are the router's own."""
    for route in server:
        match route.method, route.path:
            case "GET", "/health" | "/health/live":
                pass
            case "GET", "/health/ready":
                yield _with_reasons(route, probes.readiness)
            case "GET", "/metrics":
                yield from open_metrics(route)
            case _:
                yield route


def open_metrics(metrics: Route) -> list[Route]:
    """The same metrics, without authentication, under both usual paths."""
    operation = replace(metrics.operation, description="In Prometheus' text format.", tags=TAGS)
    return [
        replace(metrics, path=path, operation=operation, errors=ROUTER_ERRORS, verb=None, is_open=True)
        for path in ("/metrics", "/q/metrics")
    ]


def _with_fields(route: Route, ours: Callable[[], msgspec.Struct], kind: type[msgspec.Struct]) -> Route:
    """The same route, with our fields added to its answer; a field of the server is never replaced."""

    async def both(request: Request) -> web.StreamResponse:
        status, fields = await _answer(route, request)
        return json_response({**msgspec.to_builtins(ours()), **fields}, status)

    return _answering(route, both, kind)


def _with_reasons(route: Route, ours: Callable[[], Probe]) -> Route:
    """Our answer, with the server's problems added to the issues."""

    async def both(request: Request) -> web.StreamResponse:
        _, fields = await _answer(route, request)
        probe = ours()
        is_ready = not fields["reasons"] and probe.status == "READY"
        found = Probe("READY" if is_ready else "NOT_READY", probe.timestamp, [*fields["reasons"], *probe.issues])
        return json_response(found, 200 if is_ready else 503)

    return _answering(route, both, Probe)


async def _answer(route: Route, request: Request) -> tuple[int, dict[str, Any]]:
    """The status and the fields of a route's own answer."""
    answer = await route.handler(request)
    assert isinstance(answer, web.Response)
    assert isinstance(answer.body, bytes)
    return answer.status, msgspec.json.decode(answer.body, type=dict[str, Any])


def _answering(route: Route, handler: Handler, kind: type[msgspec.Struct]) -> Route:
    """The same route with another handler, whose answer has this type."""
    replies = {status: replace(reply, schema=kind) for status, reply in route.operation.replies.items()}
    return replace(route, handler=handler, operation=replace(route.operation, replies=replies))
