"""The hub's place among the routes of a server: who may connect to it, and what of it is described and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from typing import Any

import msgspec
from aiohttp import web

from penstock.http import Operation, Refusal, Reply, Request, Route, open_websocket
from penstock.http.monitoring.samples import Sample
from penstock.http.pages import page
from penstock.hub.server.asyncapi import PATH, asyncapi, servers
from penstock.hub.server.heartbeat import PERIOD_SECONDS, Pulse
from penstock.hub.server.metrics import hub_samples
from penstock.hub.server.socket import HubSocket
from penstock.hub.service import HubService

BEYOND = 4
"""A frame above the limit is refused and the connection goes on; above this many times the limit it is not even read."""

_ABOUT = """Realtime messages: frames are texts with one JSON object each.

A client says `hub:connect` first, with its token in it where one is asked for, then `hub:register`, and may then subscribe and
publish to topics, and send to other actors. `/asyncapi.json` describes every message.
"""
_TAGS = ("hub",)


class HubDoor:
    """Lets clients in to a hub. Make it inside the running loop.

    `origins` are web origins whose pages may connect, `*` for all; a client that is silent for twice `ping_seconds` is gone.
    """

    def __init__(self, service: HubService, *, origins: Collection[str] = (), ping_seconds: float = PERIOD_SECONDS) -> None:
        self._service = service
        self._origins = frozenset(origins)
        self._by_address: Counter[str] = Counter()
        self._pulse = Pulse(ping_seconds)
        self._refused = 0
        self._document: dict[str, Any] | None = None

    def routes(self) -> list[Route]:
        """Where clients connect. Everyone may: browsers cannot send a token along, the hub asks for it by itself."""
        connect = Operation("Connect to the hub by a WebSocket.", _ABOUT, _TAGS, is_websocket=True)
        describe = Operation(
            "The messages of the hub.",
            "An AsyncAPI document.",
            _TAGS,
            replies={200: Reply("An AsyncAPI 3 document.", {"type": "object"})},
        )
        return [
            Route("GET", PATH, self.handle, connect, is_open=True, origins=self._origins),
            Route("GET", "/asyncapi.json", self.describe, describe, is_open=True, is_page=True),
            _page(),
        ]

    async def handle(self, request: Request) -> web.StreamResponse:
        """One connection, from its handshake to its end."""
        service, address = self._service, request.address
        rules = service.hub.rules
        if service.is_stopping:
            raise Refusal(503, "the server is stopping", reason="stopping", hint="connect again in a moment")
        if self._by_address[address] >= rules.max_connections_per_address:
            self._refused += 1
            raise Refusal(
                429,
                f"{rules.max_connections_per_address} connections of this address are open already",
                reason="too_many_connections",
                hint="close some, use one connection for several topics, or raise the server's hub_max_per_address",
                word="RESOURCE_EXHAUSTED",
            )
        self._by_address[address] += 1
        try:
            websocket = await open_websocket(request, max_message_bytes=rules.max_message_bytes * BEYOND, is_minded=True)
            await self._serve(HubSocket(request, websocket, rules.max_message_bytes))
            return websocket
        finally:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    async def describe(self, request: Request) -> web.StreamResponse:
        """What may be said, as AsyncAPI."""
        # Made once: that takes a while, and a client may call the server by any number of names.
        document = self._document = self._document or asyncapi(self._service.hub.floor.version, "")
        here = {**document, "servers": servers(request.scheme, request.host)}
        return web.Response(body=msgspec.json.encode(here), content_type="application/json")

    async def _serve(self, socket: HubSocket) -> None:
        self._pulse.add(socket)
        try:
            await self._service.serve(socket, socket)
        finally:
            self._pulse.discard(socket)
            socket.forget()

    def collect(self) -> Iterable[Sample]:
        """The hub's numbers."""
        return hub_samples(self._service.hub, self._service.feed, refused=self._refused)


def _page() -> Route:
    text, policy = page("penstock.hub.server", "page.html")

    async def show(_: Request) -> web.StreamResponse:
        return web.Response(body=text, content_type="text/html", charset="utf-8", headers=policy)

    replies = {200: Reply("A page.", {"type": "string"}, "text/html")}
    return Route(
        "GET", "/hub", show, Operation("The hub, to try in a browser", "", _TAGS, replies=replies), is_open=True, is_page=True
    )
