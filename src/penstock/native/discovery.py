"""`GET /native`: a client is given the address of HTTP, which people know, and asks there for the native port."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from aiohttp import web

from penstock.errors import FailedPrecondition
from penstock.http import Operation, Reply, Request, Route, json_response


class NativeEndpoint(msgspec.Struct):
    """Where the native protocol is spoken, on the same host."""

    port: int
    version: int
    tls: bool


def discovery_route(place: Callable[[], NativeEndpoint | None]) -> Route:
    """The route; `place` is None where the port is closed."""

    async def native(_: Request) -> web.StreamResponse:
        found = place()
        if found is None:
            raise FailedPrecondition("the native port is closed", hint="start the server with --native-port")
        return json_response(found)

    operation = Operation(
        "Where is the native port",
        "Penstock's own clients ask before they connect.",
        ("monitoring",),
        replies={200: Reply("The port, on this host.", NativeEndpoint)},
    )
    return Route("GET", "/native", native, operation, is_open=True)
