"""A request as a handler gets it, and the answers it may give."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
from aiohttp import web

from penstock.access import ANYONE, Principal
from penstock.doors.http.gate import Admission, Gate, secret_of
from penstock.doors.http.refusal import Refusal, too_large

HEARTBEAT_SECONDS = 30.0


class House(Protocol):
    """What a request knows of the server it came to."""

    gate: Gate | None
    stopping: asyncio.Event
    websockets: set[web.WebSocketResponse]


class Request(web.BaseRequest):
    """aiohttp's request, and what the shell found out about it.

    `match_info` are the path's parameters, decoded; `principal` is who calls (without a gate anyone, who may do everything; on
    an open route nobody, who may do nothing); `request_id` names it in the log and in the answer.
    """

    route: Any = None  # the Route, which is made of handlers of this very type
    match_info: dict[str, str]
    principal: Principal = ANYONE
    request_id: str = ""
    websocket: web.WebSocketResponse | None = None
    house: House

    @property
    def stopping(self) -> asyncio.Event:
        """Set when the server stops: a handler that waits (a long poll) should wait for this too, and answer."""
        return self.house.stopping

    @property
    def address(self) -> str:
        """Where the client is, without its port."""
        return self.remote or "unknown"

    def admission(self) -> Admission:
        """For a handler that stays: asks again and again whether the caller still may."""
        return Admission(self.house.gate, secret_of(self.headers))

    def limit_body(self, limit: int) -> None:
        """Give this request a limit of its own."""
        self._client_max_size = limit

    async def read(self) -> bytes:
        """The whole body. 413 when it is too large, also when its length was not announced."""
        try:
            return await super().read()
        except web.HTTPRequestEntityTooLarge:
            raise too_large(self.client_max_size) from None


def json_response(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    """A value that msgspec can encode, as JSON."""
    return web.Response(status=status, headers=headers, body=msgspec.json.encode(value), content_type="application/json")


async def open_websocket(
    request: Request,
    *,
    protocols: Iterable[str] = (),
    max_message_bytes: int | None = None,
    heartbeat_seconds: float = HEARTBEAT_SECONDS,
    is_minded: bool = False,
) -> web.WebSocketResponse:
    """Upgrade a request. The socket is the server's too: it is closed with 1001 when the server stops.

    Messages above `max_message_bytes` (the limit of request bodies, if not given) end it with 1009; a client that does not
    answer pings is cut. With `is_minded` the caller does the rest: answers pings and closes, and cuts clients that do not read or
    are not heard of any more.
    """
    if request.headers.get("Upgrade", "").lower() != "websocket":
        hint = "connect with a WebSocket client: ws://… or wss://…"
        raise Refusal(426, "this path speaks WebSocket", reason="upgrade_required", hint=hint, headers={"Upgrade": "websocket"})
    socket = web.WebSocketResponse(
        protocols=protocols,
        heartbeat=None if is_minded else heartbeat_seconds,
        autoping=not is_minded,
        autoclose=not is_minded,
        max_msg_size=max_message_bytes or request.client_max_size,
        compress=False,  # its memory for each connection costs more than the bytes saved on a server's network
        timeout=2.0,
    )
    socket.headers["X-Request-Id"] = request.request_id
    await socket.prepare(request)
    request.websocket = socket
    request.house.websockets.add(socket)
    return socket
