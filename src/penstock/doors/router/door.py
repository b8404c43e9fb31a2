"""All routes of a router's monitoring API, for a port of their own and for the server's.

On a port of its own (`penstock router run`) the router answers for all of them. Beside a server (`penstock serve --router`) it
leaves `/health`, `/health/live`, `/health/ready` and `/metrics` to the server: they keep its status and its access, and the first
and the third have the router's fields as well. A router that waits for its queue must not take the broker's publishers out of a
load balancer; who wants to know of the router asks `/health/startup` or `/monitoring/health`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

import msgspec
from aiohttp import web

from penstock.doors.http import Operation, Reply, Request, Route, json_response
from penstock.doors.http.pages import page
from penstock.doors.monitoring import Collector, monitoring_routes
from penstock.doors.monitoring.routes import Health, Readiness
from penstock.doors.router.asked import ROUTER_ERRORS, TAGS
from penstock.doors.router.flight import Flights
from penstock.doors.router.numbers import router_collector
from penstock.doors.router.parts import Parts
from penstock.doors.router.probes import Probes
from penstock.doors.router.sending import Sending
from penstock.doors.router.stats import Stats
from penstock.doors.router.trying import Trying
from penstock.doors.router.view import RouterView
from penstock.doors.router.warned import Warned


def router_routes(
    view: RouterView, *, version: str, is_development: bool = False, collectors: Sequence[Collector] = ()
) -> list[Route]:
    """The routes of a router that has a port of its own; `collectors` are numbers beside the router's, as of its process."""
    metrics = _metrics([*collectors, router_collector(view)], version)
    return [*Probes(view).routes(), *_inner(view, is_development=is_development), *metrics]


class JoinedHealth(Health):
    """Who answers, that it is well, and whether its router works."""

    healthy: bool
    message: str
    issues: list[str] | None


class JoinedReadiness(Readiness):
    """Whether requests should be sent here; and what keeps its router from being ready, which is another matter."""

    timestamp: datetime
    issues: list[str]


def routes_with_server(server: Iterable[Route], view: RouterView, *, version: str, is_development: bool = False) -> list[Route]:
    """The routes of a server together with those of a router in it. The server's `/metrics` collects `router_collector`."""
    probes = Probes(view)
    joined = {
        "/health": lambda route: _joined(route, probes.infrastructure, JoinedHealth),
        "/health/ready": lambda route: _joined(route, probes.readiness, JoinedReadiness),
    }
    kept = [joined[route.path](route) if route.path in joined and route.method == "GET" else route for route in server]
    taken = {(route.method, route.path) for route in kept}
    ours = router_routes(view, version=version, is_development=is_development)
    return [*kept, *(route for route in ours if (route.method, route.path) not in taken)]


def _joined(route: Route, ours: Callable[[], msgspec.Struct], kind: type[msgspec.Struct]) -> Route:
    """The same route, whose answer has our fields too; where both have one of a name, the server's stands."""

    async def both(request: Request) -> web.StreamResponse:
        answer = await route.handler(request)
        assert isinstance(answer, web.Response)
        assert isinstance(answer.body, bytes)
        return json_response({**msgspec.to_builtins(ours()), **msgspec.json.decode(answer.body)}, answer.status)

    replies = {status: replace(reply, schema=kind) for status, reply in route.operation.replies.items()}
    return replace(route, handler=both, operation=replace(route.operation, replies=replies))


def _inner(view: RouterView, *, is_development: bool) -> list[Route]:
    """What nobody else serves."""
    routes = [
        *Stats(view).routes(),
        *Parts(view).routes(),
        *Flights(view).routes(),
        *Warned(view).routes(),
        *Sending(view).routes(),
        _dashboard(),
    ]
    return [*routes, *Trying(view).routes()] if is_development else routes


def _metrics(collectors: Sequence[Collector], version: str) -> list[Route]:
    """The numbers, for everyone, under both paths at which they are looked for."""
    served = monitoring_routes(version=version, problems=list, collectors=collectors)
    found = next(route for route in served if route.path == "/metrics")
    operation = replace(found.operation, description="In Prometheus' text format.", tags=TAGS)
    return [
        replace(found, path=path, operation=operation, errors=ROUTER_ERRORS, verb=None, is_open=True)
        for path in ("/metrics", "/q/metrics")
    ]


def _dashboard() -> Route:
    text, policy = page("penstock.doors.router", "dashboard.html")

    async def dashboard(_: Request) -> web.StreamResponse:
        return web.Response(body=text, content_type="text/html", charset="utf-8", headers=policy)

    about = "A page that asks for everything else; where tokens are needed it asks for one."
    operation = Operation("The router at a glance", about, TAGS, replies={200: Reply("A page.", {"type": "string"}, "text/html")})
    return Route("GET", "/monitoring/dashboard", dashboard, operation, ROUTER_ERRORS, is_open=True, is_page=True)
