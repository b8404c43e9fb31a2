"""`/health`, `/health/live`, `/health/ready` and `/metrics`."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain

import msgspec
from aiohttp import web

from penstock.access import Principal, Verb
from penstock.http.monitoring.samples import CONTENT_TYPE, Collector, Sample, exposition
from penstock.http.request import Request, json_response
from penstock.http.routes import Operation, Reply, Route

COMPRESS_ABOVE = 8192
FAST = 1  # most of the gain of the best level, for a fraction of the time
GZIP = 31  # zlib's number for a gzip wrapper

Problems = Callable[[], Iterable[str]]
"""Why the server is not ready now; empty if it is ready. Called on the event loop, so it must not wait."""


class Liveness(msgspec.Struct):
    """The event loop runs."""

    status: str


class Health(msgspec.Struct):
    """The service and its version."""

    status: str
    service: str
    version: str


class Readiness(msgspec.Struct):
    """Whether requests should be sent to this server, and if not, why."""

    status: str
    reasons: list[str]


def monitoring_routes(*, version: str, problems: Problems, collectors: Iterable[Collector]) -> list[Route]:
    """The routes. `problems` could be the broker's `health`, and that the server is stopping."""
    sources = tuple(collectors)
    turn = asyncio.Lock()

    async def live(_: Request) -> web.StreamResponse:
        return json_response(Liveness("alive"))

    async def ready(_: Request) -> web.StreamResponse:
        reasons = [*problems()]
        return json_response(Readiness("not ready" if reasons else "ready", reasons), 503 if reasons else 200)

    async def health(_: Request) -> web.StreamResponse:
        return json_response(Health("healthy", "penstock", version))

    async def metrics(request: Request) -> web.StreamResponse:
        zips = "gzip" in request.headers.get("Accept-Encoding", "")
        async with turn:  # one scrape at a time
            body, is_zipped = await asyncio.to_thread(_scrape, sources, request.principal, zips)
        headers = {"Content-Type": CONTENT_TYPE, "Vary": "Accept-Encoding", "Cache-Control": "no-store"}
        if is_zipped:
            headers["Content-Encoding"] = "gzip"
        return web.Response(body=body, headers=headers)

    tags = ("monitoring",)
    return [
        Route(
            "GET",
            "/health",
            health,
            Operation(
                "Service and version",
                "For clients: needs the verb `metrics` or `read`.",
                tags,
                replies={200: Reply("The server is healthy.", Health)},
            ),
            verb=Verb.METRICS,
        ),
        Route(
            "GET",
            "/health/live",
            live,
            Operation("Liveness", "200 while the event loop runs.", tags, replies={200: Reply("Alive.", Liveness)}),
            is_open=True,
        ),
        Route(
            "GET",
            "/health/ready",
            ready,
            Operation(
                "Readiness",
                "Whether a load balancer should send requests here.",
                tags,
                replies={200: Reply("Ready.", Readiness), 503: Reply("Not ready, with the reasons.", Readiness)},
            ),
            is_open=True,
        ),
        Route(
            "GET",
            "/metrics",
            metrics,
            Operation(
                "All metrics",
                "In the Prometheus text format. Needs the verb `metrics` or `read`, and shows what the token covers.",
                tags,
                replies={200: Reply("The samples.", {"type": "string"}, "text/plain")},
            ),
            verb=Verb.METRICS,
        ),
    ]


def _scrape(collectors: tuple[Collector, ...], principal: Principal, zips: bool) -> tuple[bytes, bool]:
    """The text, encoded in pieces: one long step of a thread would block the event loop for as long."""
    samples = _visible(chain.from_iterable(collect() for collect in collectors), principal)
    pieces = [text.encode() for text in exposition(samples)]
    if not zips or sum(map(len, pieces)) < COMPRESS_ABOVE:
        return b"".join(pieces), False
    packer = zlib.compressobj(FAST, wbits=GZIP)
    return b"".join([*map(packer.compress, pieces), packer.flush()]), True


def _visible(samples: Iterable[Sample], principal: Principal) -> Iterator[Sample]:
    """The samples without those of projects and names that the caller may not read."""
    last: tuple[str, ...] = ()
    is_shown = True
    for sample in samples:
        if sample.metric.labels[:1] == ("project",):
            if sample.values is not last:  # the samples of one queue follow each other
                last = sample.values
                # A sum over a project reveals names that the token may not cover.
                is_shown = principal.may(Verb.METRICS, *last[:2]) and (len(last) > 1 or "*" in principal.patterns)
            if not is_shown:
                continue
        yield sample
