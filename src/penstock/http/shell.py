"""The code around every handler: it assigns the request id, finds the route, admits or refuses, and turns errors into answers.

    request ─> id ─> route ─> site ─> token ─> rate ─> verb ─> size ─> handler ─> answer ─> headers, counts, log line

It is one function instead of a stack of middleware: at thousands of requests a second each layer would cost time.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import secrets
from collections.abc import Collection

from aiohttp import web

from penstock.access import Principal
from penstock.clock import monotonic
from penstock.errors import PenstockError, PermissionDenied, Unauthenticated
from penstock.http.authentication import NO_PRINCIPAL, Gate, needs_token, secret_of
from penstock.http.bodies import BodyBudget
from penstock.http.connection import Connection
from penstock.http.limits import HttpLimits
from penstock.http.refusal import GOOGLE_ERRORS, ErrorBody, Refusal, code_location, refusal_of, retry_after, too_large
from penstock.http.request import SERVER_NAME, Request
from penstock.http.routes import Route, RouteTable, path_of
from penstock.http.sites import OriginCheck
from penstock.http.traffic import RouteTraffic, Traffic

log = logging.getLogger("penstock.http")

PREFLIGHT_SECONDS = "600"

_SANE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+/=@-]{0,127}").fullmatch
_EXPOSED = "X-Request-Id, Retry-After"


class Shell:
    """Answers every request of the port. Raises only if the connection is lost or the task is cancelled."""

    def __init__(
        self,
        table: RouteTable,
        *,
        gate: Gate | None,
        limits: HttpLimits,
        traffic: Traffic,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
    ) -> None:
        self.stopping = asyncio.Event()
        self.websockets: set[web.WebSocketResponse] = set()
        self.bodies = BodyBudget(limits)
        self.unpacking = asyncio.Lock()
        self._idle = asyncio.Event()
        self._table = table
        self.gate = gate
        self._limits = limits
        self._traffic = traffic
        self._sites = OriginCheck(origins, hosts, needs_token=needs_token(gate))
        self._counts: dict[Route, RouteTraffic] = {route: traffic.route(route.method, route.path) for route in table}
        self._unmatched = traffic.route("", "unmatched")
        self._prefix = secrets.token_hex(5)
        self._numbers = itertools.count(1)

    async def drain(self) -> None:
        """Signal waiting handlers that the server stops, and return when no request runs."""
        self.stopping.set()
        if self._traffic.running:
            await self._idle.wait()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        started = monotonic()
        connection = request.protocol
        assert isinstance(request, Request)
        assert isinstance(connection, Connection)  # the API makes no others
        given = request.headers.get("X-Request-Id")
        request.request_id = given if given is not None and _SANE_ID(given) else f"{self._prefix}-{next(self._numbers):x}"
        connection.begin(request)
        self._traffic.running += 1
        status = 499  # unless it is answered: the client is gone, or the request was cancelled at a stop
        try:
            response = await self._answer(request)
            status = response.status
            return response
        finally:
            connection.end()
            if request.share is not None:
                request.share.release()
            self._traffic.running -= 1
            if not self._traffic.running and self.stopping.is_set():
                self._idle.set()
            if request.websocket is not None:
                self.websockets.discard(request.websocket)
            took = monotonic() - started
            counts = self._unmatched if request.route is None else self._counts[request.route]
            counts.add(status, took)
            if log.isEnabledFor(logging.DEBUG):
                shown = path_of(request.raw_path)[:200].encode("unicode_escape").decode()
                log.debug(
                    "%s %s %s %d %.1f ms %s", request.remote, request.method, shown, status, took / 1000, request.request_id
                )

    async def _answer(self, request: Request) -> web.StreamResponse:
        headers = request.headers
        origin = headers.get("Origin")
        route: Route | None = None
        response: web.StreamResponse
        try:
            route, request.match_info, allowed = self._table.find(request.method, request.raw_path)
            request.route = route
            if route is None:
                self._sites.check(headers)
            else:
                self._sites.check(headers, is_page=route.is_page, origins=route.origins)
            if route is None:
                response = self._without_route(request, allowed, origin)
            else:
                self._admit(request, route)
                if "Expect" in headers:
                    await _continue(request)
                response = await route.handler(request)
        except Exception as error:  # noqa: BLE001  # the outermost handler: the client gets an answer for every error
            response = await self._failed(request, GOOGLE_ERRORS if route is None else route.errors, error)
        if not response.prepared:
            response.headers["X-Request-Id"] = request.request_id
            response.headers["Server"] = SERVER_NAME
            if origin is not None:
                self._share(response, origin)
            if self.stopping.is_set():
                response.force_close()
        return response

    def _admit(self, request: Request, route: Route) -> None:
        """Raise unless the request may continue to its handler."""
        gate = self.gate
        if route.is_open:
            request.principal = NO_PRINCIPAL
        elif gate is not None:
            try:
                principal = gate.authenticate(secret_of(request.headers))
            except Unauthenticated:
                self._take(gate, None, request.address)  # clients that guess tokens are slowed down too
                raise
            request.principal = principal
            self._take(gate, principal, request.address)
            if route.verb is not None and route.verb not in principal.verbs:
                raise PermissionDenied(route.verb, route.path)
        limit = route.max_bytes or self._limits.max_request_bytes
        length = request.content_length
        if length is not None and length > limit:
            raise too_large(limit)
        if route.max_bytes is not None:
            request.limit_body(limit)

    def _take(self, gate: Gate, principal: Principal | None, address: str) -> None:
        wait = gate.wait_seconds(principal, address)
        if wait > 0:
            raise Refusal(
                429,
                f"too many requests, try again in {wait:.3f} s",
                reason="rate_limited",
                hint="slow down, send batches, or raise the server's rate limit",
                word="RESOURCE_EXHAUSTED",
                headers={"Retry-After": retry_after(wait)},
            )

    def _without_route(self, request: Request, allowed: tuple[str, ...], origin: str | None) -> web.Response:
        if request.method == "OPTIONS" and (allowed or request.raw_path == "*"):
            answer = {"Allow": ", ".join(allowed or ("OPTIONS",))}
            if origin is not None and "Access-Control-Request-Method" in request.headers:
                answer["Access-Control-Allow-Methods"] = answer["Allow"]
                answer["Access-Control-Allow-Headers"] = "Authorization, Content-Type, X-API-Key, X-Request-Id"
                answer["Access-Control-Max-Age"] = PREFLIGHT_SECONDS
            return web.Response(status=204, headers=answer)
        if allowed:
            methods = ", ".join(allowed)
            message = f"{request.method[:20]} is not allowed here, expected one of {methods}"
            raise Refusal(
                405, message, reason="method_not_allowed", hint="GET /docs lists every operation", headers={"Allow": methods}
            )
        raise Refusal(404, "no such path", reason="no_such_path", hint="GET /docs lists every operation")

    async def _failed(self, request: Request, errors: ErrorBody, error: Exception) -> web.StreamResponse:
        if isinstance(error, ConnectionError) and (request.transport is None or request.transport.is_closing()):
            raise error  # the client is gone, so there is no one to answer
        refusal = refusal_of(error)
        if refusal.status == 500 and isinstance(error, PenstockError):
            log.error("request %s failed: %s", request.request_id, error)
        elif refusal.status == 500:
            log.error("request %s failed with %s at\n%s", request.request_id, type(error).__name__, code_location(error))
        if request.websocket is not None:
            await request.websocket.close(code=1011, message=b"an error inside the server")
            return request.websocket
        if request.writer.output_size > 0:
            raise ConnectionResetError("the answer had started when it failed")
        response = errors.render(refusal)
        response.headers.update(refusal.headers)
        if refusal.closes:
            response.force_close()
        return response

    def _share(self, response: web.StreamResponse, origin: str) -> None:
        """Let a page of an allowed origin read the answer."""
        response.headers["Vary"] = "Origin"
        if self._sites.allows(origin):
            response.headers["Access-Control-Allow-Origin"] = origin
            response.headers["Access-Control-Expose-Headers"] = _EXPOSED


async def _continue(request: Request) -> None:
    """Let a client that waits for permission send its body."""
    if request.headers["Expect"].lower() != "100-continue":
        raise Refusal(417, "the Expect header is not understood, expected 100-continue", reason="expectation_failed", closes=True)
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer itself has not started
