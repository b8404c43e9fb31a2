"""The hub's routes on a server: the WebSocket, the AsyncAPI document, the page, and metrics for Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from importlib import resources
from typing import Any, get_args

import msgspec
from aiohttp import web

from penstock.http.monitoring.samples import Metric, Sample
from penstock.http.pages import page
from penstock.http.refusal import Refusal
from penstock.http.request import Request, accept_websocket
from penstock.http.routes import Operation, Reply, Route
from penstock.hub.core.close_codes import CLOSES, SLOW_READER
from penstock.hub.core.hub import Hub
from penstock.hub.core.metrics import GONE
from penstock.hub.core.refusal import Code
from penstock.hub.ports import TopicLogs
from penstock.hub.server.asyncapi import PATH, asyncapi, servers
from penstock.hub.server.heartbeat import PERIOD_SECONDS, HeartbeatScheduler
from penstock.hub.server.socket import HubSocket
from penstock.hub.service import HubService

_REASONS = (GONE, *(close.reason for close in CLOSES))
_CODES: tuple[str, ...] = get_args(Code)


def _metric(name: str, help_: str, *labels: str) -> Metric:
    return Metric(f"penstock_hub_{name}", "counter" if name.endswith("_total") else "gauge", help_, labels)


_CONNECTIONS = _metric("connections", "Open connections.")
_ACTORS = _metric("actors", "Registered actors.")
_TOPICS = _metric("topics", "Topics and patterns with connected subscribers.")
_OPENED = _metric("connections_opened_total", "Connections that were made.")
_CLOSED = _metric(
    "connections_closed_total", "Connections that ended, by reason; gone: ended by the client without notice.", "reason"
)
_REFUSED = _metric("connections_refused_total", "Connections beyond what one address may have.")
_SLOW = _metric("slow_readers_total", "Connections that were ended because their client did not read.")
_RECEIVED = _metric("messages_received_total", "Frames that clients sent.")
_SENT = _metric("messages_sent_total", "Frames for clients: replies, and messages once for each subscriber.")
_ERRORS = _metric("errors_total", "Requests that were answered by hub:error, by code.", "code")
_RECOVERIES = _metric("recoveries_total", "Subscriptions with a position, by whether all they missed was sent.", "recovered")
_OVERSIZED = _metric("messages_oversized_total", "Messages of services that were too large to be forwarded.")
_MISSED = _metric("messages_missed_total", "Messages that were removed from their log before they could be forwarded.")


def hub_samples(hub: Hub, feed: TopicLogs | None, *, refused: int) -> Iterator[Sample]:
    """The metrics of a hub and of its logs. `refused` is the number of connections that were not accepted."""
    metrics, state = hub.metrics, hub.state
    yield Sample(_CONNECTIONS, (), len(state.sessions))
    yield Sample(_ACTORS, (), len(state.registry))
    yield Sample(_TOPICS, (), len(state.table))
    yield Sample(_OPENED, (), metrics.opened)
    for reason in _REASONS:
        yield Sample(_CLOSED, (reason,), metrics.closed[reason])
    yield Sample(_REFUSED, (), refused)
    yield Sample(_SLOW, (), metrics.closed[SLOW_READER.reason])
    yield Sample(_RECEIVED, (), metrics.received)
    yield Sample(_SENT, (), metrics.sent)
    for code in _CODES:
        yield Sample(_ERRORS, (code,), metrics.errors[code])
    yield Sample(_RECOVERIES, ("true",), metrics.recovered)
    yield Sample(_RECOVERIES, ("false",), metrics.unrecovered)
    yield Sample(_OVERSIZED, (), 0 if feed is None else feed.oversized)
    yield Sample(_MISSED, (), 0 if feed is None else feed.missed)


_ABOUT = """Realtime messages: frames are texts with one JSON object each.

A client sends `hub:connect` first, with a token if one is required, then `hub:register`, and may then subscribe and
publish to topics, and send to other actors. `/asyncapi.json` describes every message.
"""
_TAGS = ("hub",)
_PACKAGE = "penstock.hub.server"


class HubServer:
    """Accepts WebSocket clients of a hub. Create it inside the running loop.

    `origins` are web origins whose pages may connect, `*` for all; a client that is silent for twice `ping_seconds` is
    disconnected.
    """

    def __init__(self, service: HubService, *, origins: Collection[str] = (), ping_seconds: float = PERIOD_SECONDS) -> None:
        self._service = service
        self._origins = frozenset(origins)
        self._by_address: Counter[str] = Counter()
        self._heartbeats = HeartbeatScheduler(ping_seconds)
        self._refused = 0
        self._document: dict[str, Any] | None = None

    def routes(self) -> list[Route]:
        """The routes. They are open, because browsers cannot send a token in the handshake; it is sent in hub:connect."""
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
            *_page(),
        ]

    async def handle(self, request: Request) -> web.StreamResponse:
        """Serve one connection, from its handshake to its end."""
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
            response = await accept_websocket(request)
            await self._serve(HubSocket(request, rules.max_message_bytes, rules.read_rate))
            return response
        finally:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]

    async def describe(self, request: Request) -> web.StreamResponse:
        """Send the AsyncAPI document."""
        # Generated once, because it takes a while. Only `servers` depends on the host name that the client used.
        document = self._document = self._document or asyncapi(self._service.hub.state.version, "")
        here = {**document, "servers": servers(request.scheme, request.host)}
        return web.Response(body=msgspec.json.encode(here), content_type="application/json")

    async def _serve(self, socket: HubSocket) -> None:
        self._heartbeats.add(socket)
        try:
            await self._service.serve(socket, socket)
        finally:
            self._heartbeats.discard(socket)
            socket.forget()

    def collect(self) -> Iterable[Sample]:
        return hub_samples(self._service.hub, self._service.feed, refused=self._refused)


def _page() -> list[Route]:
    """The page to try the hub, its script, and the JavaScript client, which other pages may import too."""
    text, policy = page(_PACKAGE, "page.html")

    async def show(_: Request) -> web.StreamResponse:
        return web.Response(body=text, content_type="text/html", charset="utf-8", headers=policy)

    replies = {200: Reply("A page.", {"type": "string"}, "text/html")}
    about = Operation("The hub, to try in a browser", "", _TAGS, replies=replies)
    return [
        Route("GET", "/hub", show, about, is_open=True, is_page=True),
        _script("page.js", "The script of the page /hub"),
        _script("client.js", "The JavaScript client of the hub, an ES module"),
    ]


def _script(name: str, summary: str) -> Route:
    text = resources.files(_PACKAGE).joinpath(name).read_bytes()
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-cache"}

    async def send(_: Request) -> web.StreamResponse:
        return web.Response(body=text, content_type="text/javascript", charset="utf-8", headers=headers)

    replies = {200: Reply("An ES module.", {"type": "string"}, "text/javascript")}
    return Route("GET", f"/hub/{name}", send, Operation(summary, "", _TAGS, replies=replies), is_open=True, is_page=True)
