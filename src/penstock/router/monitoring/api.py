"""All routes of a router's monitoring API: for a port of its own, or together with the routes of a server."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from aiohttp import web

from penstock.http.monitoring import Collector, monitoring_routes
from penstock.http.pages import page
from penstock.http.request import Request
from penstock.http.routes import Operation, Reply, Route
from penstock.router.monitoring.health import HealthRoutes, joined, led, open_metrics
from penstock.router.monitoring.messages import MessageRoutes, PublishRoutes
from penstock.router.monitoring.metrics import router_collector
from penstock.router.monitoring.pools import PoolRoutes
from penstock.router.monitoring.requests import ROUTER_ERRORS, TAGS
from penstock.router.monitoring.sandbox import SandboxRoutes
from penstock.router.monitoring.stats import StatsRoutes
from penstock.router.monitoring.view import RouterView
from penstock.router.monitoring.warnings import WarningRoutes


def router_routes(
    view: RouterView, *, version: str, is_development: bool = False, collectors: Sequence[Collector] = ()
) -> list[Route]:
    """The routes of a router with a port of its own; `collectors` add metrics, such as those of the process."""
    metrics = _metrics([*collectors, router_collector(view)], version)
    return [*HealthRoutes(view).routes(), *_inner(view, is_development=is_development), *metrics]


def routes_with_server(
    server: Iterable[Route], view: RouterView, *, version: str, is_development: bool = False, leads: bool = False
) -> list[Route]:
    """The routes of a server together with those of a router in it. The server's `/metrics` collects `router_collector`.

    `leads`: the server runs only for the router.
    """
    ours, probes = router_routes(view, version=version, is_development=is_development), HealthRoutes(view)
    theirs = [*(led(server, probes) if leads else joined(server, probes))]
    taken = {(route.method, route.path) for route in theirs}
    return [*theirs, *(route for route in ours if (route.method, route.path) not in taken)]


def _inner(view: RouterView, *, is_development: bool) -> list[Route]:
    routes = [
        *StatsRoutes(view).routes(),
        *PoolRoutes(view).routes(),
        *MessageRoutes(view).routes(),
        *WarningRoutes(view).routes(),
        *PublishRoutes(view).routes(),
        _dashboard(),
    ]
    return [*routes, *SandboxRoutes(view).routes()] if is_development else routes


def _metrics(collectors: Sequence[Collector], version: str) -> list[Route]:
    """The metrics, without authentication, under both usual paths."""
    served = monitoring_routes(version=version, problems=list, collectors=collectors)
    return open_metrics(next(route for route in served if route.path == "/metrics"))


def _dashboard() -> Route:
    text, policy = page("penstock.router.monitoring", "dashboard.html")

    async def dashboard(_: Request) -> web.StreamResponse:
        return web.Response(body=text, content_type="text/html", charset="utf-8", headers=policy)

    about = "A page that uses the rest of this API; it asks for a token if one is needed."
    operation = Operation("The router's dashboard", about, TAGS, replies={200: Reply("A page.", {"type": "string"}, "text/html")})
    return Route("GET", "/monitoring/dashboard", dashboard, operation, ROUTER_ERRORS, is_open=True, is_page=True)
