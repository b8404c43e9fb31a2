"""The pages for people: `/` is the start page, `/docs` shows `/openapi.json`. They load nothing from other servers."""

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
    "A durable message broker: messages are on disk before a publish returns, and can be pulled, queued, replayed and traced. "
    "This document is generated from the routes that this server serves."
)
TRY = (
    "curl -s {origin}/health",
    "curl -s {origin}/openapi.json",
    "curl -s {origin}/metrics",
)

_HTML = {"type": "string"}


class LandingPage(msgspec.Struct):
    """Links and first commands."""

    service: str
    version: str
    links: dict[str, str]
    try_it: list[str] = msgspec.field(name="try")


OPTIONAL = {"hub": "/hub", "asyncapi": "/asyncapi.json"}
"""Links to pages that only some servers have."""


def documented(
    routes: Iterable[Route], *, version: str, is_secured: bool, examples: Iterable[str] = TRY, home: Handler | None = None
) -> RouteTable:
    """A table of these routes together with `/`, `/docs` and `/openapi.json`, which describe all of them.

    `examples` are commands to show at `/`; `{origin}` in them is replaced by the server's address. `home` answers browsers
    there; without it they are redirected to `/docs`.
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
                Operation("Browse and try this API", "", tags, replies={200: Reply("A page.", _HTML, "text/html")}),
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
    """A page of a package, and headers that allow only scripts and styles of the page itself and of this server."""
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
