"""The pages for people: `/` says how to begin, `/docs` shows `/openapi.json`. No network but this server is needed."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable
from importlib import resources

import msgspec
from aiohttp import web

from penstock.http.openapi import openapi
from penstock.http.request import Request, json_response
from penstock.http.routes import Handler, Operation, Reply, Route, RouteTable

PACKAGE = "penstock.http"
TITLE = "Penstock"
ABOUT = (
    "Messages published once, safe on disk before the publisher hears ok, then pulled, queued, replayed and explained. "
    "This document is made from the table of routes that this server serves."
)
TRY = (
    "curl -s {origin}/health",
    "curl -s {origin}/openapi.json",
    "curl -s {origin}/metrics",
)

_HTML = {"type": "string"}


class LandingPage(msgspec.Struct):
    """Where to go from here."""

    service: str
    version: str
    links: dict[str, str]
    try_it: list[str] = msgspec.field(name="try")


OPTIONAL = {"hub": "/hub", "asyncapi": "/asyncapi.json"}
"""Links to what not every server has."""


def documented(
    routes: Iterable[Route], *, version: str, is_secured: bool, examples: Iterable[str] = TRY, home: Handler | None = None
) -> RouteTable:
    """A table of these routes together with `/`, `/docs` and `/openapi.json`, which describe them all, themselves too.

    `examples` are commands to show at `/`; `{origin}` in them becomes the server's own address. `home` answers browsers there;
    without it they are sent to `/docs`.
    """
    shown = tuple(examples)
    docs, docs_policy = page(PACKAGE, "docs.html")

    async def landing(request: Request) -> web.StreamResponse:
        if "text/html" in request.headers.get("Accept", ""):
            if home is not None:
                return await home(request)
            return web.Response(status=302, headers={"Location": "/docs", "Vary": "Accept"})
        origin = f"{request.scheme}://{request.host}"
        links = {"docs": "/docs", "openapi": "/openapi.json", "health": "/health", "metrics": "/metrics"}
        links |= {name: path for name, path in OPTIONAL.items() if table.find("GET", path)[0] is not None}
        lines = [line.replace("{origin}", origin) for line in shown]
        return json_response(LandingPage("penstock", version, links, lines), headers={"Vary": "Accept"})

    async def docs_page(_: Request) -> web.StreamResponse:
        return web.Response(body=docs, content_type="text/html", charset="utf-8", headers=docs_policy)

    async def document(_: Request) -> web.StreamResponse:
        return web.Response(body=encoded, content_type="application/json")

    tags = ("about",)
    table = RouteTable(
        [
            *routes,
            Route(
                "GET",
                "/",
                landing,
                Operation(
                    "Where to go from here",
                    "A page for browsers, JSON for others.",
                    tags,
                    replies={200: Reply("Links and commands.", LandingPage)},
                ),
                is_open=True,
                is_page=True,
            ),
            Route(
                "GET",
                "/docs",
                docs_page,
                Operation("This API, to read and to try", "", tags, replies={200: Reply("A page.", _HTML, "text/html")}),
                is_open=True,
                is_page=True,
            ),
            Route(
                "GET",
                "/openapi.json",
                document,
                Operation("This API as OpenAPI 3.1", "", tags, replies={200: Reply("The document.", {"type": "object"})}),
                is_open=True,
                is_page=True,
            ),
        ]
    )
    encoded = msgspec.json.encode(openapi(table, title=TITLE, version=version, description=ABOUT, is_secured=is_secured))
    return table


def page(package: str, name: str) -> tuple[bytes, dict[str, str]]:
    """A page that lies in a package, and headers that let it run its own scripts, in it or of this server, and nothing else."""
    text = resources.files(package).joinpath(name).read_text(encoding="utf-8")
    policy = [
        "default-src 'none'",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
    for element, directive in (("script", "script-src"), ("style", "style-src")):
        hashes = [
            f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
            for body in re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
        ]
        own = ["'self'"] if re.search(f'<{element} [^>]*src="/', text) else []
        policy.append(" ".join([directive, *own, *hashes]))
    headers = {
        "Content-Security-Policy": "; ".join(policy),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-cache",
        "Vary": "Accept",
    }
    return text.encode(), headers
