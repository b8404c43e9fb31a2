"""Health, as load balancers and people ask for it: `/health*` and `/monitoring/health`."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

import msgspec
from aiohttp import web

from penstock.durations import to_datetime
from penstock.http import Operation, Reply, Request, Route, json_response
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


class Probes:
    """Answers how a router is."""

    def __init__(self, view: RouterView) -> None:
        self._view = view

    def routes(self) -> list[Route]:
        """What is served."""
        ready = {200: Reply("It is.", Probe), 503: Reply("It is not, and why.", Probe)}
        healthy = {200: Reply("It does.", InfrastructureHealth), 503: Reply("It does not.", InfrastructureHealth)}
        return [
            _open("/health", self.health, "Does the router work", healthy),
            _open("/health/live", self.live, "Is it alive", {200: Reply("It is.", Probe)}),
            _open("/health/ready", self.ready, "Is the router ready", ready),
            _open("/health/startup", self.ready, "Has the router started", ready),
            _open("/monitoring/health", self.overall, "How the router is", {200: Reply("As of now.", MonitoringHealth)}),
        ]

    def infrastructure(self) -> InfrastructureHealth:
        """Whether the router works."""
        found = infrastructure(self._view.snapshot(), self._view.clock.now())
        return InfrastructureHealth(found.is_healthy, found.message, found.issues)

    def readiness(self) -> Probe:
        """Whether the router is ready, and what is wrong."""
        now = self._view.clock.now()
        found = readiness(self._view.snapshot(), now)
        return Probe("READY" if found.is_ready else "NOT_READY", to_datetime(now), found.issues)

    async def health(self, _: Request) -> web.StreamResponse:
        """Whether the router works."""
        found = self.infrastructure()
        return json_response(found, 200 if found.healthy else 503)

    async def live(self, _: Request) -> web.StreamResponse:
        """The event loop turns."""
        return json_response(Probe("ALIVE", to_datetime(self._view.clock.now()), []))

    async def ready(self, _: Request) -> web.StreamResponse:
        """Whether the router is ready."""
        found = self.readiness()
        return json_response(found, 200 if found.status == "READY" else 503)

    async def overall(self, _: Request) -> web.StreamResponse:
        """How the router is."""
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
