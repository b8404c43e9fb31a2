"""Paths that a server and its router both have something to say about: `/health`, `/health/live`, `/health/ready`, `/metrics`.

- A server with a router in it (`penstock serve --router`) keeps them: its status, and who may ask, stay as they are, and the
  router's fields are added. A router that waits for its queue must not take the broker's publishers out of a load balancer; who
  wants to know of the router asks `/health/startup` or `/monitoring/health`.
- A server that is there for its router (`penstock router run`) leaves them to the router, and adds its own obstacles to the
  router's. Its `/metrics` are for everyone, without what belongs to a project.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from aiohttp import web

from penstock.http import Request, Route, json_response
from penstock.http.monitoring.routes import Health, Readiness
from penstock.router.monitoring.probes import Probe, Probes
from penstock.router.monitoring.requests import ROUTER_ERRORS, TAGS, Handler


class JoinedHealth(Health):
    """Who answers, that it is well, and whether its router works."""

    healthy: bool
    message: str
    issues: list[str] | None


class JoinedReadiness(Readiness):
    """Whether requests should be sent here; and what keeps its router from being ready, which is another matter."""

    timestamp: datetime
    issues: list[str]


def joined(server: Iterable[Route], probes: Probes) -> Iterator[Route]:
    """The routes of a server that has a router."""
    for route in server:
        match route.method, route.path:
            case "GET", "/health":
                yield _with_fields(route, probes.infrastructure, JoinedHealth)
            case "GET", "/health/ready":
                yield _with_fields(route, probes.readiness, JoinedReadiness)
            case _:
                yield route


def led(server: Iterable[Route], probes: Probes) -> Iterator[Route]:
    """The routes of a server that is there for its router; those that are the router's alone are left out."""
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
    """The same numbers, for everyone, under both paths at which they are looked for."""
    operation = replace(metrics.operation, description="In Prometheus' text format.", tags=TAGS)
    return [
        replace(metrics, path=path, operation=operation, errors=ROUTER_ERRORS, verb=None, is_open=True)
        for path in ("/metrics", "/q/metrics")
    ]


def _with_fields(route: Route, ours: Callable[[], msgspec.Struct], kind: type[msgspec.Struct]) -> Route:
    """The same route, whose answer has our fields too; where both have one of a name, the server's stands."""

    async def both(request: Request) -> web.StreamResponse:
        status, fields = await _answer(route, request)
        return json_response({**msgspec.to_builtins(ours()), **fields}, status)

    return _answering(route, both, kind)


def _with_reasons(route: Route, ours: Callable[[], Probe]) -> Route:
    """Our answer, with the server's reasons among the issues."""

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
    """The same route with another handler, which answers in this shape."""
    replies = {status: replace(reply, schema=kind) for status, reply in route.operation.replies.items()}
    return replace(route, handler=handler, operation=replace(route.operation, replies=replies))
